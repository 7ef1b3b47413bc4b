"""Benchmarks of other stores: a store counts only if it returns exactly what was written."""

from typing import Any

import pytest

from benchmarks.lines import Differs, Sessions
from benchmarks.peers import ASYNC_OURS, FLOOR, FLOORS, OURS, SIDES, Side
from benchmarks.peers.contender import Comparable


class AlteringStore:
    """Wrap a store and alter the last message of each load."""

    def __init__(self, store: Comparable, alter: Any) -> None:
        self._store = store
        self._alter = alter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load(self, key: str) -> list[Any]:
        *unchanged, last = self._store.load(key)
        return [*unchanged, *self._alter(last)]


@pytest.mark.parametrize("name", [*FLOORS, OURS, ASYNC_OURS])
def test_each_benchmarked_store_returns_the_written_messages(url: str, name: str) -> None:
    sessions = Sessions(name, SIDES[name], url)
    key = sessions.filled("a session", 30)
    one, *more = sessions.new(9)
    sessions.wait(sessions.store.append(key, one))
    sessions.wait(sessions.store.append_many(key, more))
    sessions.wrote(key, [one, *more])
    assert sessions.compare(key) == 39
    assert sessions.compare(key, last=5) == 5
    sessions.close()


@pytest.mark.parametrize("alter", [lambda row: [], lambda row: [row, row], lambda row: [(*row[:5], "other", *row[6:])]])
def test_benchmark_raises_if_a_store_returns_wrong_messages(url: str, alter: Any) -> None:
    side = SIDES[FLOOR]
    sessions = Sessions(
        "altering", Side(lambda url: AlteringStore(side.make(url), alter), side.returns, side.said), url
    )
    key = sessions.filled("a session", 8)
    with pytest.raises(Differs):
        sessions.compare(key)
    sessions.close()
