"""Appends per second of many writers, each to its own session: `python -m benchmarks.cluster URL [URL …]`.

Each URL names a database with our tables, on a server or on a cluster's coordinator. On a cluster, the single
statement by which a store appends on one server is measured too.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
import uuid

from lango_store import Message, Store, create_engine
from lango_store._dialect import AppendMethod
from lango_store._dialect.citus import Citus

SECONDS = 5.0
ROUNDS = 3


class OneStatement(Citus):
    """The dialect of a cluster, with the single append statement of PostgreSQL."""

    modifying_cte = True
    append_method = AppendMethod.STATEMENT


def appends_a_second(store: Store, writers: int, seconds: float) -> float:
    """Run writers that append continuously; RuntimeError if a message was lost or doubled."""
    keys = [f"bench:{uuid.uuid4()}" for _ in range(writers)]
    for key in keys:
        store.create(key)
    written = [0] * writers
    started, ended = threading.Barrier(writers), threading.Event()

    def write(number: int) -> None:
        message = Message.user("x" * 200)
        store.append_message(keys[number], message)  # connects
        started.wait()
        while not ended.is_set():
            store.append_message(keys[number], message)
            written[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    time.sleep(seconds)
    ended.set()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    for key, count in zip(keys, written, strict=True):
        if store.conversation(key).info().message_count != count + 1 or len(store.get(key).messages) != count + 1:
            raise RuntimeError(f"session {key} does not have the {count + 1} acknowledged messages")
        store.delete(key)
    return sum(written) / took


def main() -> None:
    """Measure the databases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--writers", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    stores: dict[str, Store] = {}
    for url in given.urls:
        engine = create_engine(url, pool_size=max(given.writers))
        name = engine.url.render_as_string(hide_password=True)
        store = stores[name] = Store(engine)
        store.ping()
        if vars(engine.dialect)["lango_store"].append_method is AppendMethod.PIPELINE:
            other = create_engine(url, pool_size=max(given.writers))
            stores[f"{name}, as one statement"] = asked = Store(other)
            asked.ping()
            vars(other.dialect)["lango_store"] = OneStatement()
    for writers in given.writers:
        found: dict[str, list[float]] = {name: [] for name in stores}
        for _ in range(ROUNDS):  # in turns: the machine's speed drifts
            for name, store in stores.items():
                found[name].append(appends_a_second(store, writers, given.seconds))
        for name, figures in found.items():
            print(f"{writers:3} writers {statistics.median(figures):8,.0f} appends/s  {name}", flush=True)
    for store in stores.values():
        store.engine.dispose()
        store.close()


if __name__ == "__main__":
    main()
