"""The comparison with other stores: only who gives back what was written counts, nobody is left out silently."""

from typing import Any

import pytest

from benchmarks import payload
from benchmarks.lines import Differs, Sessions
from benchmarks.peers import FLOOR, FLOORS, OURS, SIDES, Side
from benchmarks.peers.contender import Comparable


class Spoiling:
    """A store that spoils the last message of each load."""

    def __init__(self, store: Comparable, spoil: Any) -> None:
        self._store = store
        self._spoil = spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load(self, key: str) -> list[Any]:
        *found, last = self._store.load(key)
        return [*found, *self._spoil(last)]


@pytest.mark.parametrize("name", [*FLOORS, OURS])
def test_the_floors_and_our_store_give_back_what_was_written(url: str, name: str) -> None:
    sessions = Sessions(name, SIDES[name], url)
    key = sessions.filled("a session", 30)
    one, *more = payload.texts(9, 30)
    sessions.store.append(key, one)
    sessions.store.append_many(key, more)
    sessions.wrote(key, [one, *more])
    assert sessions.compare(sessions.store.load(key), key) == 39
    assert sessions.compare(sessions.store.last(key, 5), key, last=5) == 5
    sessions.store.close()


@pytest.mark.parametrize("spoil", [lambda row: [], lambda row: [row, row], lambda row: [(*row[:5], "other", *row[6:])]])
def test_a_store_that_gives_back_something_else_does_not_count(url: str, spoil: Any) -> None:
    side = SIDES[FLOOR]
    sessions = Sessions("spoiling", Side(lambda url: Spoiling(side.make(url), spoil), side.returns, side.said), url)
    key = sessions.filled("a session", 8)
    with pytest.raises(Differs):
        sessions.compare(sessions.store.load(key), key)
    sessions.store.close()
