"""The measurements of `--peers`, with a check that loaded messages equal the appended ones.

Each is written as a coroutine. That of a store whose calls block never waits, so it runs without an event loop.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks import payload
from benchmarks.peers import Side
from benchmarks.peers.contender import Blocking, said_by_dict

Work = Callable[[], Coroutine[Any, Any, Any]]
Run = Callable[[], float]
Message = dict[str, Any]

THREADS, APPENDS = 32, 20


class Differs(Exception):
    """A loaded message differs from the appended one."""


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the coroutine waits, although the calls of its store block")


class Sessions:
    """The sessions of one side, and all that was written into each; no text is written twice."""

    def __init__(self, name: str, side: Side, url: str) -> None:
        self._name = name
        self._side = side
        self._loop = asyncio.new_event_loop() if side.is_async else None
        made = side.make(url)
        self.store: Any = Blocking(made) if self._loop is None else self.wait(made)
        self._threads = ThreadPoolExecutor(THREADS)
        self._written: dict[str, list[Message]] = {}
        self._number = 0

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine of this side, and return its result."""
        return finished(coroutine) if self._loop is None else self._loop.run_until_complete(coroutine)

    def together(self, works: list[Work]) -> None:
        """Run works at the same time: in threads, or as tasks."""
        if self._loop is None:
            list(self._threads.map(lambda work: finished(work()), works))
        else:
            self._loop.run_until_complete(_gathered(works))

    def timed(self, work: Work) -> float:
        """Return the duration of a work in seconds."""
        gc.collect()
        start = time.perf_counter()
        self.wait(work())
        return time.perf_counter() - start

    def new(self, number: int, make: Callable[[int, int], list[Message]] = payload.texts) -> list[Message]:
        """Make messages that differ from all previous ones."""
        self._number += number
        return make(number, self._number - number)

    def new_key(self) -> str:
        """Return the key of a session that does not exist yet."""
        return f"{self._name}:new {len(self._written)} {self._number}"

    def filled(self, name: str, size: int = 0, make: Callable[[int, int], list[Message]] = payload.texts) -> str:
        """Return the key of a session that was filled with that many messages, 1,000 in a call."""
        key = f"{self._name}:{name}"
        if key not in self._written:
            self._written[key] = []
            self.wait(self.store.create(key))
            for start in range(0, size, 1000):
                messages = self.new(min(1000, size - start), make)
                self.wait(self.store.append_many(key, messages))
                self.wrote(key, messages)
        return key

    def wrote(self, key: str, messages: list[Message]) -> None:
        """Remember the written messages."""
        self._written.setdefault(key, []).extend(messages)

    def compare(self, key: str, last: int | None = None) -> int:
        """Compare the texts and tool calls with the written ones; raise Differs if they are not equal."""
        found = self.wait(self.store.last(key, last) if last else self.store.load(key))
        expected = self._written[key][-last:] if last else self._written[key]
        if len(found) != len(expected):
            raise Differs(f"{len(expected)} messages were written, {len(found)} were read")
        for place, (each, given) in enumerate(zip(found, expected, strict=True)):
            if self._side.said(each) != said_by_dict(given):
                raise Differs(f"message {place + 1} of {len(expected)} differs from the written one")
        return len(found)

    def close(self) -> None:
        """Close the store."""
        self._threads.shutdown()
        self.wait(self.store.close())
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _gathered(works: list[Work]) -> None:
    await asyncio.gather(*(work() for work in works))


Prepared = tuple[Run, Callable[[], int]]
"""The call that is measured, and the function that compares its results."""


def append(size: int, make: Callable[[int, int], list[Message]] = payload.texts) -> Callable[[Sessions], Prepared]:
    """Append one message at a time to a session of that size."""

    def prepare(sessions: Sessions) -> Prepared:
        key, store = sessions.filled(f"appended to {size}", size, make), sessions.store

        def run() -> float:
            messages = sessions.new(100)

            async def work() -> None:
                for message in messages:
                    await store.append(key, message)

            seconds = sessions.timed(work)
            sessions.wrote(key, messages)
            return seconds / len(messages)

        return run, lambda: sessions.compare(key)

    return prepare


def append_thousand(sessions: Sessions) -> Prepared:
    """Append 1,000 messages in one call."""
    key = sessions.filled("batches")

    def run() -> float:
        messages = sessions.new(1_000)
        seconds = sessions.timed(lambda: sessions.store.append_many(key, messages))
        sessions.wrote(key, messages)
        return seconds

    return run, lambda: sessions.compare(key)


def load(size: int) -> Callable[[Sessions], Prepared]:
    """Load a session of that size, so often that 1,000 messages or more are read."""

    def prepare(sessions: Sessions) -> Prepared:
        key, store, times = sessions.filled(f"{size}", size), sessions.store, max(1_000 // size, 1)

        async def work() -> None:
            for _ in range(times):
                await store.load(key)

        return lambda: sessions.timed(work) / times, lambda: sessions.compare(key)

    return prepare


def last_fifty(sessions: Sessions) -> Prepared:
    """Load the last 50 of 10,000 messages, five times."""
    key, store = sessions.filled("10000", 10_000), sessions.store

    async def work() -> None:
        for _ in range(5):
            await store.last(key, 50)

    return lambda: sessions.timed(work) / 5, lambda: sessions.compare(key, last=50)


def cycle(sessions: Sessions) -> Prepared:
    """Create a session, append 22 messages, load it; five times."""
    store, keys = sessions.store, list[str]()

    def run() -> float:
        new = {sessions.new_key(): sessions.new(22) for _ in range(5)}
        keys.extend(new)

        async def work() -> None:
            for key, messages in new.items():
                await store.create(key)
                for message in messages:
                    await store.append(key, message)
                await store.load(key)

        seconds = sessions.timed(work)
        for key, messages in new.items():
            sessions.wrote(key, messages)
        return seconds / 5

    return run, lambda: sum(map(sessions.compare, keys))


def recent(sessions: Sessions) -> Prepared:
    """List the 20 most recent of 100,000 sessions, twenty times."""
    store = sessions.store
    sessions.wait(store.fill())

    async def work() -> None:
        for _ in range(20):
            await store.recent(20)

    return lambda: sessions.timed(work) / 20, lambda: len(sessions.wait(store.recent(20)))


def threads(sessions: Sessions) -> Prepared:
    """Append 20 messages from each of 32 threads or tasks, each to a separate session, over 16 connections."""
    keys = [sessions.filled(f"thread {n}") for n in range(THREADS)]
    pool = sessions.wait(sessions.store.pool(16))

    def run() -> float:
        new = {key: sessions.new(APPENDS) for key in keys}

        def appends(key: str) -> Work:
            async def work() -> None:
                for message in new[key]:
                    await pool.append(key, message)

            return work

        gc.collect()
        start = time.perf_counter()
        sessions.together([appends(key) for key in keys])
        seconds = time.perf_counter() - start
        for key, messages in new.items():
            sessions.wrote(key, messages)
        return seconds

    return run, lambda: sum(map(sessions.compare, keys))


@dataclass(frozen=True)
class Line:
    """A line: its title, the limits of our ratio to the strict floor on SQLite and PostgreSQL, and its rounds.

    Only sides that have the method `needs` are measured. Stores that append one message at a time do not count as
    having `append_many`: they would need minutes.
    """

    title: str
    prepare: Callable[[Sessions], Prepared]
    bars: tuple[float, float]
    rounds: int
    needs: str = "append"


LINES = {
    "append": Line("append at 1,000", append(1_000), (2.0, 1.25), 9),
    "append_1000": Line("1,000 in one call", append_thousand, (1.6, 1.2), 9, "append_many"),
    "load_1000": Line("load 1,000", load(1_000), (1.5, 1.3), 15),
    "load_10000": Line("load 10,000", load(10_000), (1.5, 1.3), 5, "append_many"),
    "last_50": Line("last 50 of 10,000", last_fifty, (2.0, 1.5), 9, "append_many"),
    "cycle": Line("create, 22 appends, load", cycle, (2.0, 1.4), 9),
    "recent": Line("20 of 100,000 sessions", recent, (2.0, 1.5), 9, "recent"),
    "threads": Line("32 threads", threads, (1.3, 1.3), 9, "pool"),
}
