"""What a run cost, seen by what its usage grew between two writes: each step of it is counted once."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

Usage = dict[str, Any]

_COUNTS: Final = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS: Final = ("input_tokens_details", "output_tokens_details")


def usage_of(usage: Any) -> Usage:
    """Return a run's usage, or that of one of its requests, as plain numbers."""
    plain: Usage = {name: _number(getattr(usage, name, 0)) for name in _COUNTS}
    for name in _DETAILS:
        dump = getattr(getattr(usage, name, None), "model_dump", dict)
        plain[name] = {each: _number(value) for each, value in dump().items()}
    return plain


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def growth(now: Mapping[str, Any], before: Mapping[str, Any]) -> Usage:
    """Return by how much a usage grew, without what did not."""
    grown: Usage = {}
    for name, value in now.items():
        if isinstance(value, dict):
            if inside := growth(value, before.get(name, {})):
                grown[name] = inside
        elif value > (was := before.get(name, 0)):
            grown[name] = value - was
    return grown


class Counted:
    """How much of each run's usage is stored, as long as the run lives."""

    def __init__(self) -> None:
        self._runs: weakref.WeakKeyDictionary[Any, Usage] = weakref.WeakKeyDictionary()
        self._resumed: weakref.WeakSet[Any] = weakref.WeakSet()

    def meet(self, wrapper: Any, *, reads: bool) -> None:
        """Note what a run had cost before: nothing, unless it goes on from a state that was kept.

        Then it begins with a read, and what it cost until then is stored, as far as one knows.
        """
        if wrapper not in self._runs:
            usage = usage_of(wrapper.usage)
            self._runs[wrapper] = usage if reads else {}
            if growth(usage, {}):
                self._resumed.add(wrapper)

    def is_resumed(self, wrapper: Any) -> bool:
        """Whether what is stored of a run is to be looked up."""
        return wrapper in self._resumed

    def note(self, wrapper: Any, usage: Usage) -> None:
        """Note that so much of a run's usage is stored."""
        self._runs[wrapper] = usage
        self._resumed.discard(wrapper)

    def grown(self, wrapper: Any, usage: Usage) -> Usage:
        """Return what a run's usage grew by since."""
        return growth(usage, self._runs[wrapper])


def stored_before(usage: Any, turns: Sequence[Usage]) -> Usage:
    """Return how much of a run that was resumed is stored: the last turns, if they are its first requests.

    Nothing where that cannot be told: others may have written since.
    """
    steps = [usage_of(each) | {"requests": 1} for each in getattr(usage, "request_usage_entries", ())]
    found: Usage = {}
    stored: Usage = {}
    for turn in reversed(turns):
        stored = added(turn, stored)
        count = stored.get("requests", 0)
        if not 0 < count <= len(steps):
            break
        first: Usage = {}
        for step in steps[:count]:
            first = added(first, step)
        if growth(first, {}) == growth(stored, {}):
            found = stored
    return found


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Usage:
    """Return the sum of two usages."""
    total = dict(one)
    for name, value in other.items():
        there = total.get(name)
        if isinstance(value, dict):
            total[name] = added(there if isinstance(there, dict) else {}, value)
        elif isinstance(value, int):
            total[name] = value + (there if isinstance(there, int) else 0)
    return total
