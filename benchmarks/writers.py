"""`python -m benchmarks.writers`: appends per second of many threads or tasks to one SQLite file.

`Store` and `AsyncStore` are compared with a driver that has a connection in each thread and commits each append. Each
writer appends to its own session, and each commit waits for the disk. The contenders run in turns, on a new file each.
"""

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lango_store import AsyncStore, Message, Store, schema

_WRITERS: Final = (1, 8, 32)
_TEXT: Final = "hello world, this is a message of some length " * 4


def _store(url: str, writers: int, each: int) -> float:
    with Store(url) as store:

        def work(writer: int) -> None:
            for number in range(each):
                store.append_message(str(writer), Message.user(_TEXT, id=f"{writer}-{number}"))

        return _in_threads(work, writers)


def _async_store(url: str, writers: int, each: int) -> float:
    async def work(store: AsyncStore, writer: int) -> None:
        for number in range(each):
            await store.append_message(str(writer), Message.user(_TEXT, id=f"{writer}-{number}"))

    async def run() -> float:
        async with AsyncStore(url) as store:
            await store.ping()
            start = time.perf_counter()
            await asyncio.gather(*[work(store, writer) for writer in range(writers)])
            return time.perf_counter() - start

    return asyncio.run(run())


def _driver(url: str, writers: int, each: int) -> float:
    def work(writer: int) -> None:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        for number in range(each):
            connection.execute("BEGIN IMMEDIATE")
            ((seq,),) = connection.execute(
                "UPDATE lango_session SET last_seq = last_seq + 1, message_count = message_count + 1, updated_at = ?"
                " WHERE key = ? RETURNING last_seq",
                ("2026-01-01T00:00:00.000000+00:00", str(writer)),
            )
            connection.execute(
                "INSERT INTO lango_message (session_key, seq, role, text, created_at, id)"
                " VALUES (?, ?, 'user', ?, '2026-01-01T00:00:00.000000+00:00', ?)",
                (str(writer), seq, _TEXT, f"{writer}-{number}"),
            )
            connection.execute("COMMIT")
        connection.close()

    return _in_threads(work, writers)


def _in_threads(work: Callable[[int], None], writers: int) -> float:
    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(writers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


_CONTENDERS: Final = {"Store": _store, "AsyncStore": _async_store, "driver": _driver}


def _measure(contender: str, folder: Path, writers: int, each: int) -> float:
    """Return the appends per second on a new file."""
    with tempfile.TemporaryDirectory(dir=folder) as new:
        url = f"sqlite:///{new}/writers.db"
        schema.upgrade(url)
        with Store(url) as store:
            for writer in range(writers):
                store.create(str(writer))
        seconds = _CONTENDERS[contender](url, writers, each)
        with Store(url) as store:
            assert all(store.conversation(str(writer)).info().last_seq == each for writer in range(writers))
    return writers * each / seconds


def main() -> None:
    """Print the median of the rounds for each number of writers, and its ratio to the driver's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writers", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--each", type=int, default=100, help="appends of each writer")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for writers in _WRITERS:
        rates: dict[str, list[float]] = {name: [] for name in _CONTENDERS}
        for _ in range(arguments.rounds):
            for name in _CONTENDERS:
                rates[name].append(_measure(name, arguments.folder, writers, arguments.each))
        medians = {name: statistics.median(each) for name, each in rates.items()}
        print(
            f"{writers:2} writers:",
            ", ".join(f"{name} {rate:,.0f}/s ({rate / medians['driver']:.2f})" for name, rate in medians.items()),
        )


if __name__ == "__main__":
    main()
