"""The measurements of `--peers`, with a check that loaded messages equal the appended ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import payload
from benchmarks.peers import Side
from benchmarks.peers.contender import said_by_dict
from benchmarks.works import Run, timed


class Differs(Exception):
    """A loaded message differs from the appended one."""


class Sessions:
    """The sessions of one side, and all that was written into each."""

    def __init__(self, name: str, side: Side, url: str) -> None:
        self._name = name
        self._side = side
        self.store = side.make(url)
        self._written: dict[str, list[dict[str, Any]]] = {}

    def filled(self, name: str, size: int = 0) -> str:
        """Return the key of a session that was filled with that many messages, 1,000 in a call."""
        key = f"{self._name}:{name}"
        if key not in self._written:
            self._written[key] = []
            self.store.create(key)
            for start in range(0, size, 1000):
                messages = payload.texts(min(1000, size - start), start)
                self.store.append_many(key, messages)
                self.wrote(key, messages)
        return key

    def wrote(self, key: str, messages: list[dict[str, Any]]) -> None:
        """Remember the written messages."""
        self._written[key] += messages

    def compare(self, found: list[Any], key: str, last: int | None = None) -> int:
        """Compare the loaded texts and tool calls with the written ones; raise Differs if they are not equal."""
        expected = self._written[key][-last:] if last else self._written[key]
        if len(found) != len(expected):
            raise Differs(f"{len(expected)} messages were written, {len(found)} were read")
        for place, (each, given) in enumerate(zip(found, expected, strict=True)):
            if self._side.said(each) != said_by_dict(given):
                raise Differs(f"message {place + 1} of {len(expected)} differs from the written one")
        return len(found)


Prepared = tuple[Run, Callable[[], int]]
"""The call that is measured, and the function that compares its results."""


def append(sessions: Sessions) -> Prepared:
    """Append one message at a time to a session of 1,000."""
    key, store = sessions.filled("appended", 1_000), sessions.store
    messages = payload.texts(100)

    def work() -> None:
        for message in messages:
            store.append(key, message)

    def run() -> float:
        seconds = timed(work)
        sessions.wrote(key, messages)
        return seconds / len(messages)

    return run, lambda: sessions.compare(store.load(key), key)


def append_thousand(sessions: Sessions) -> Prepared:
    """Append 1,000 messages in one call."""
    key, store = sessions.filled("batches"), sessions.store
    messages = payload.texts(1_000)

    def run() -> float:
        seconds = timed(lambda: store.append_many(key, messages))
        sessions.wrote(key, messages)
        return seconds

    return run, lambda: sessions.compare(store.load(key), key)


def load(size: int) -> Callable[[Sessions], Prepared]:
    """Load a session of that size."""

    def prepare(sessions: Sessions) -> Prepared:
        key, store = sessions.filled(f"{size}", size), sessions.store
        return lambda: timed(lambda: store.load(key)), lambda: sessions.compare(store.load(key), key)

    return prepare


def last_fifty(sessions: Sessions) -> Prepared:
    """Load the last 50 of 10,000 messages, five times."""
    key, store = sessions.filled("10000", 10_000), sessions.store

    def work() -> None:
        for _ in range(5):
            store.last(key, 50)

    return lambda: timed(work) / 5, lambda: sessions.compare(store.last(key, 50), key, last=50)


@dataclass(frozen=True)
class Line:
    """A line: its title, the limits of our ratio to the strict floor on SQLite and PostgreSQL, and its rounds.

    With `batches`, stores that append one message at a time are left out: they would need minutes.
    """

    title: str
    prepare: Callable[[Sessions], Prepared]
    bars: tuple[float, float]
    rounds: int
    batches: bool = False


LINES = {
    "append": Line("append at 1,000", append, (1.8, 1.3), 9),
    "append_1000": Line("append 1,000 in one call", append_thousand, (1.5, 1.5), 9, batches=True),
    "load_1000": Line("load 1,000", load(1_000), (1.7, 1.5), 15),
    "load_10000": Line("load 10,000", load(10_000), (1.7, 1.5), 5, batches=True),
    "last_50": Line("last 50 of 10,000", last_fifty, (3.0, 1.5), 9, batches=True),
}
