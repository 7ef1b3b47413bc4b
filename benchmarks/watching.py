"""`python -m benchmarks.watching [--readers 1000] [--rounds 5]`: what readers that follow a session cost.

Appends are counted with readers in another process or in the process of the writer, and before and after that without
readers. The delay is the time from an append until a reader has it. Then the readers wait, and their processor time
is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.turns import databases
from lango_store import Appended, AsyncStore, Message, Store
from lango_store._rooms.tail.following import watcher_of

SECONDS = 1.5
IDLE_AFTER, IDLE = 12.0, 20.0
LAST = "last"


class Crowd:
    """Readers of one session in one event loop."""

    def __init__(self, store: AsyncStore, readers: int) -> None:
        self._store, self._readers = store, readers
        self.received: list[int] = []
        self.delays: list[float] = []

    async def follow(self, key: str) -> None:
        """Follow until the last message."""
        after = (await self._store.conversation(key).info()).last_seq
        tasks = [asyncio.create_task(self._follow(key, after, number)) for number in range(self._readers)]
        await asyncio.gather(*tasks)

    async def _follow(self, key: str, after: int, number: int) -> None:
        received = 0
        async for event in self._store.conversation(key).tail(after=after):
            if not isinstance(event, Appended):
                continue
            received += len(event.messages)
            if event.messages[-1].content == LAST:
                break
            if number % 100 == 0:
                now = time.time()
                self.delays += [now - each.created_at.timestamp() for each in event.messages if each.created_at]
        self.received.append(received)


def follow_in_process(url: str, key: str, readers: int) -> None:
    """Follow a session in this process; print a line when all readers wait, and the results."""

    async def work() -> None:
        async with AsyncStore(url) as store:
            crowd = Crowd(store, readers)
            following = asyncio.create_task(crowd.follow(key))
            print(await joined(store, key, readers), flush=True)
            await following
            print(json.dumps([crowd.received, crowd.delays]), flush=True)

    asyncio.run(work())


async def joined(store: AsyncStore, key: str, readers: int) -> int:
    """Wait until all readers wait."""
    channels: dict[str, Any] = watcher_of(store.store._context).channels
    while key not in channels or channels[key].readers < readers:
        await asyncio.sleep(0.01)
    return readers


@contextmanager
def elsewhere(url: str, store: Store, key: str, readers: int, results: list[Any]) -> Iterator[None]:
    """Run readers in another process."""
    command = [sys.executable, "-m", "benchmarks.watching", "--follow", url, key, "--readers", str(readers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        store.append_message(key, Message.user(LAST))
        results.append(json.loads(process.stdout.readline()))


@contextmanager
def here(url: str, store: Store, key: str, readers: int, results: list[Any]) -> Iterator[None]:
    """Run readers in the process of the writer, on its store."""
    wait = threading.Event()

    async def work() -> None:
        async with AsyncStore(store) as following:
            crowd = Crowd(following, readers)
            task = asyncio.create_task(crowd.follow(key))
            await joined(following, key, readers)
            wait.set()
            await task
            results.append([crowd.received, crowd.delays])

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    wait.wait()
    yield
    store.append_message(key, Message.user(LAST))
    thread.join()


def appends_per_second(store: Store, key: str) -> float:
    """Append for some seconds."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        for _ in range(10):
            store.append_message(key, Message.user("a message of some words"))
        count += 10
    return count / (time.perf_counter() - started)


def compare(url: str, readers: int, rounds: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each place of the readers."""
    places = {"in another process": elsewhere, "in the process of the writer": here}
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in places}
    results: dict[str, list[Any]] = {name: [] for name in places}
    with Store(url) as store:
        for _ in range(rounds):
            for name, run in places.items():
                before = appends_per_second(store, store.create().key)
                key = store.create().key
                with run(url, store, key, readers, results[name]):
                    followed = appends_per_second(store, key)
                after = appends_per_second(store, store.create().key)
                assert set(results[name][-1][0]) == {store.conversation(key).info().last_seq}, (
                    "a reader has missed a message"
                )
                rates[name].append((followed, (before + after) / 2))
    for name, measured in rates.items():
        share = median(followed / alone for followed, alone in measured)
        delays = [delay for _, each in results[name] for delay in each]
        shown = f"{median(delays) * 1000:.0f} ms, {quantiles(delays, n=100)[98] * 1000:.0f} ms"
        yield name, f"{median(alone for _, alone in measured):,.0f}", f"{share:.2f}", shown


def idle_share(url: str, readers: int) -> float:
    """Return the share of a core that readers use while nothing is written."""

    async def work() -> float:
        async with AsyncStore(url) as store:
            key = (await store.create()).key
            following = asyncio.create_task(Crowd(store, readers).follow(key))
            await joined(store, key, readers)
            await asyncio.sleep(IDLE_AFTER)
            started = time.process_time()
            await asyncio.sleep(IDLE)
            used = time.process_time() - started
            await store.append_message(key, Message.user(LAST))
            await following
            return used / IDLE

    return asyncio.run(work())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--follow", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        url, key = options.follow
        follow_in_process(url, key, options.readers)
        return
    table = Table(title=f"{options.readers:,} readers of one session")
    for column in ("database", "readers", "appends/s without them", "share with them", "delay: median, 99 %"):
        table.add_column(column)
    console = Console()
    with databases({"sqlite", "postgresql"}) as urls:
        for name, url in urls.items():
            for row in compare(url, options.readers, options.rounds):
                table.add_row(name, *row)
            table.add_row(name, "waiting", "", f"{idle_share(url, options.readers):.2%} of a core", "")
    console.print(table)


if __name__ == "__main__":
    main()
