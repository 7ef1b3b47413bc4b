"""The measurements: each is prepared once and run in rounds, and returns seconds or another number."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmarks import payload
from benchmarks.contenders import CONTENDERS, Contender, Ours, fill_sessions, value
from lango_store import AsyncStore
from lango_store._engine.engine import create_engine
from lango_store.tables import MessageRow

Run = Callable[[], float]
_numbers = count()


def timed(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def new_key() -> str:
    """Return a key that no other contender uses."""
    return f"bench:{os.getpid()}:{next(_numbers)}"


def session_of(contender: Contender, size: int) -> str:
    """Make a session of that many messages."""
    key = new_key()
    contender.create(key)
    for start in range(0, size, 1000):
        contender.append_many(key, payload.messages(min(1000, size - start), start))
    return key


def appends(size: int, number: int = 100) -> Callable[[Contender, str], Run]:
    """Append one message at a time to a session of that size."""

    def prepare(contender: Contender, _: str) -> Run:
        key = session_of(contender, size)
        messages = payload.messages(number)

        def work() -> None:
            for message in messages:
                contender.append(key, message)

        return lambda: timed(work) / number

    return prepare


def append_thousand(contender: Contender, _: str) -> Run:
    """Append 1,000 messages in one call."""
    key = session_of(contender, 0)
    messages = payload.messages(1000)
    return lambda: timed(lambda: contender.append_many(key, messages))


def loads(size: int) -> Callable[[Contender, str], Run]:
    """Load a session of that size."""

    def prepare(contender: Contender, _: str) -> Run:
        key = session_of(contender, size)
        return lambda: timed(lambda: contender.load(key))

    return prepare


def last_fifty(contender: Contender, _: str) -> Run:
    """Load the last 50 of 10,000 messages, twenty times."""
    key = session_of(contender, 10_000)
    return lambda: timed(lambda: [contender.last(key, 50) for _ in range(20)]) / 20


def cycle(contender: Contender, _: str) -> Run:
    """Create a session, append 22 messages, load it."""
    messages = payload.messages(22)

    def work() -> None:
        key = new_key()
        contender.create(key)
        for message in messages:
            contender.append(key, message)
        contender.load(key)

    return lambda: timed(work)


def recent(contender: Contender, url: str) -> Run:
    """List the 20 most recent of 100,000 sessions, fifty times."""
    fill_sessions(url)
    return lambda: timed(lambda: [contender.recent(20) for _ in range(50)]) / 50


def writers(*, shared: bool) -> Callable[[Contender, str], Run]:
    """Append with eight threads, to one session or to one each; return the seconds of 400 appends."""

    def prepare(contender: Contender, url: str) -> Run:
        made: list[Contender] = [contender] * 8
        if not isinstance(contender, Ours):  # one connection each, where ours has a pool
            made = [type(contender)(url) for _ in range(8)]  # type: ignore[call-arg]
        one = session_of(contender, 0)
        keys = [one if shared else session_of(contender, 0) for _ in range(8)]
        messages = payload.messages(50)

        def write(n: int) -> None:
            for message in messages:
                made[n].append(keys[n], message)

        def work() -> None:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(write, range(8)))

        return lambda: timed(work)

    return prepare


def awaited(contender: Contender, url: str) -> Run:
    """Append from an event loop: `AsyncStore`, or the floor in `asyncio.to_thread`."""
    key = session_of(contender, 100)
    messages = payload.messages(100)

    async def ours(store: AsyncStore) -> float:
        await store.append_message(key, value(messages[0]))
        start = time.perf_counter()
        for message in messages:
            await store.append_message(key, value(message))
        return (time.perf_counter() - start) / len(messages)

    async def theirs() -> float:
        await asyncio.to_thread(contender.append, key, messages[0])
        start = time.perf_counter()
        for message in messages:
            await asyncio.to_thread(contender.append, key, message)
        return (time.perf_counter() - start) / len(messages)

    if isinstance(contender, Ours):
        store = AsyncStore(contender.store)  # as warm as the floor: its connections have prepared their statements
        return lambda: asyncio.run(ours(store))
    return lambda: asyncio.run(theirs())


def memory(contender: Contender, _: str) -> Run:
    """Load 10,000 messages; return the peak memory in bytes."""
    key = session_of(contender, 10_000)
    contender.load(key)

    def work() -> float:
        gc.collect()
        tracemalloc.start()
        found = contender.load(key)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(found) == 10_000
        return float(peak)

    return work


def disk(contender: Contender, url: str) -> Run:
    """Append 4,000 messages; return the bytes that each takes in the database."""
    engine = create_engine(url)

    def size() -> int:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if engine.dialect.name == "sqlite":
                return int(connection.exec_driver_sql("SELECT sum(pgsize) FROM dbstat").scalar_one())
            return int(connection.exec_driver_sql("SELECT pg_total_relation_size('lango_message')").scalar_one())

    def work() -> float:
        before = size()
        session_of(contender, 4_000)
        return (size() - before) / 4_000

    return work


@dataclass(frozen=True)
class Work:
    """One line of the table: its title, its unit, the limits of its ratio to the floor, and its rounds."""

    title: str
    prepare: Callable[[Contender, str], Run]
    unit: str
    bars: tuple[float, float]
    rounds: int
    full: int


WORKS = {
    "append": Work("append one message, session of 100", appends(100), "µs", (1.6, 1.3), 15, 60),
    "append_100k": Work("append one message, session of 100,000", appends(100_000), "µs", (1.6, 1.3), 0, 30),
    "append_1000": Work("append 1,000 in one call", append_thousand, "ms", (1.5, 1.5), 9, 40),
    "load_1000": Work("load 1,000", loads(1_000), "ms", (1.5, 1.3), 25, 100),
    "load_10000": Work("load 10,000", loads(10_000), "ms", (1.5, 1.3), 7, 25),
    "last_50": Work("last 50 of 10,000", last_fifty, "ms", (2.0, 1.5), 15, 60),
    "cycle": Work("create, 22 appends, load", cycle, "ms", (1.8, 1.4), 25, 100),
    "recent": Work("20 most recent sessions of 100,000", recent, "ms", (3.0, 2.0), 15, 60),
    "writers": Work("8 writers, 8 sessions, 400 appends", writers(shared=False), "ms", (1 / 0.7, 1 / 0.8), 15, 40),
    "writers_one": Work("8 writers, one session, 400 appends", writers(shared=True), "ms", (1 / 0.7, 1 / 0.8), 15, 40),
    "awaited": Work("append with AsyncStore against the floor in asyncio.to_thread", awaited, "µs", (1.3, 1.2), 15, 60),
    "memory": Work("peak memory, load 10,000", memory, "MB", (1.3, 1.3), 1, 3),
    "disk": Work("disk, a message", disk, "bytes", (1.15, 1.15), 1, 3),
}

SCALES = {"µs": 1e6, "ms": 1e3, "MB": 1e-6, "bytes": 1.0}

CURVE_SIZES = (100, 1_000, 10_000, 100_000)
CURVES: dict[str, Callable[[int], Callable[[Contender, str], Run]]] = {
    "append": lambda size: appends(size, 50),
    "load": loads,
}


def contents_agree(url: str) -> int:
    """Check that each contender reads what each one wrote, field by field; return the number of compared messages."""
    compared = 0
    expected = payload.messages(100)
    made = {name: make(url) for name, make in CONTENDERS.items()}
    for writer in made.values():
        key = session_of(writer, 0)
        writer.append_many(key, expected[:50])
        for message in expected[50:]:
            writer.append(key, message)
        for reader in made.values():
            for found, given in zip(reader.load(key), expected, strict=True):
                value = found.to_message() if isinstance(found, MessageRow) else found
                seen: dict[str, Any] = value if isinstance(value, dict) else value.model_dump()
                calls = seen.get("tool_calls") or []
                plain = [{n: c[n] for n in ("id", "name", "arguments")} for c in calls]
                assert (seen["role"], seen["content"], plain) == (
                    given["role"],
                    given["content"],
                    given.get("tool_calls", []),
                )
                assert all(seen.get(name) == given.get(name) for name in ("author", "name", "tool_call_id"))
                compared += 1
    for contender in made.values():
        contender.close()
    return compared
