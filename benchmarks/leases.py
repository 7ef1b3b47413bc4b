"""`python -m benchmarks.leases [--rounds 30]`: what an append in a turn costs, compared with a plain append.

Plain appends and appends under a lease alternate in one process, with `Store` and with `AsyncStore`. All messages
differ. Messages with an id are compared as well, because an append in a turn gives each message an id.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import payload
from benchmarks.turns import databases
from lango_store import AsyncStore, Message, Store

APPENDS = 100
ROUNDS = 30

Taken = dict[str, list[tuple[float, float]]]
"""The seconds and the processor seconds of each round, of plain appends and of those in a turn."""

_starts = itertools.count(0, APPENDS)


def _messages(*, ids: bool) -> list[Message]:
    start = next(_starts)
    return [
        Message(**each, id=f"id-{start + place}" if ids else None)
        for place, each in enumerate(payload.texts(APPENDS, start))
    ]


@contextmanager
def _plain(store: Store) -> Iterator[Callable[[Message], object]]:
    yield store.open().append_message


@contextmanager
def _in_turn(store: Store) -> Iterator[Callable[[Message], object]]:
    with store.open().turn() as turn:
        yield turn.append


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - started[0], time.process_time() - started[1]


def measure(store: Store, rounds: int, *, ids: bool) -> Taken:
    """Measure the appends of `Store`; the first round is not counted."""
    taken: Taken = {"plain": [], "turn": []}
    blocks: list[tuple[str, Callable[[Store], AbstractContextManager[Callable[[Message], object]]]]]
    blocks = [("plain", _plain), ("turn", _in_turn)]
    for number in range(rounds + 1):
        for name, block in blocks[:: 1 if number % 2 else -1]:
            messages = _messages(ids=ids)
            with block(store) as append:
                started = _now()
                for message in messages:
                    append(message)
                taken[name].append(_since(started))
    return {name: values[1:] for name, values in taken.items()}


@asynccontextmanager
async def _async_plain(store: AsyncStore) -> AsyncIterator[Callable[[Message], Awaitable[Any]]]:
    yield (await store.open()).append_message


@asynccontextmanager
async def _async_in_turn(store: AsyncStore) -> AsyncIterator[Callable[[Message], Awaitable[Any]]]:
    async with (await store.open()).turn() as turn:
        yield turn.append


async def measure_async(url: str, rounds: int, *, ids: bool) -> Taken:
    """Measure the appends of `AsyncStore`; the first round is not counted."""
    taken: Taken = {"plain": [], "turn": []}
    blocks: list[tuple[str, Callable[[AsyncStore], AbstractAsyncContextManager[Callable[[Message], Awaitable[Any]]]]]]
    blocks = [("plain", _async_plain), ("turn", _async_in_turn)]
    async with AsyncStore(url) as store:
        for number in range(rounds + 1):
            for name, block in blocks[:: 1 if number % 2 else -1]:
                messages = _messages(ids=ids)
                async with block(store) as append:
                    started = _now()
                    for message in messages:
                        await append(message)
                    taken[name].append(_since(started))
    return {name: values[1:] for name, values in taken.items()}


def _ratios(taken: Taken) -> list[str]:
    """Return the ratios of turn to plain: least and median seconds, least and median processor seconds."""
    return [
        f"{choose(each[column] for each in taken['turn']) / choose(each[column] for each in taken['plain']):.3f}"
        for column in (0, 1)
        for choose in (min, statistics.median)
    ]


def table(urls: Mapping[str, str], rounds: int) -> Table:
    """Measure, and return a table of the ratios."""
    found = Table("database", "store", "message", "least", "median", "least processor time", "median processor time")
    found.title = "append in a turn / plain append"
    for name, url in urls.items():
        for ids in (False, True):
            message = "with an id" if ids else "without an id"
            with Store(url) as store:
                found.add_row(name, "Store", message, *_ratios(measure(store, rounds, ids=ids)))
            taken = asyncio.run(measure_async(url, rounds, ids=ids))
            found.add_row(name, "AsyncStore", message, *_ratios(taken))
    return found


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with databases({"sqlite", "postgresql"}) as urls:
        Console().print(table(urls, rounds))


if __name__ == "__main__":
    main()
