"""Usage of runs. The framework reports the total of a run; each write stores the increase since the last write."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from lango_store import Turn

Counts = Counter[str]
"""Positive numbers by name. Names of details have a prefix: `input_tokens_details.cached_tokens`."""


class RunUsage:
    """For each run, the usage that is already stored. An entry exists as long as its run."""

    def __init__(self) -> None:
        self._stored: weakref.WeakKeyDictionary[Any, Counts] = weakref.WeakKeyDictionary()

    def register(self, wrapper: Any, turns: Callable[[], Sequence[Turn]]) -> None:
        """Set the stored usage of a run that is not registered yet.

        This is the sum of the last turns if they belong to the run, otherwise all usage of the run so far.
        """
        if wrapper not in self._stored:
            usage = to_jsonable_python(wrapper.usage)
            counts = _counts(usage)
            self._stored[wrapper] = counts and _stored_before(usage, turns(), counts)

    def added(self, wrapper: Any) -> Counts:
        """Return the usage that a run has added since its usage was last stored."""
        return _counts(to_jsonable_python(wrapper.usage)) - self._stored[wrapper]

    def mark_stored(self, wrapper: Any, added: Counts) -> None:
        """Add to the stored usage of a run."""
        self._stored[wrapper] = self._stored[wrapper] + added


def _stored_before(usage: Mapping[str, Any], turns: Sequence[Turn], default: Counts) -> Counts:
    """Return the sum of the last turns that add up to the usage of the run's first requests; if none do, `default`."""
    steps = [_counts(step) + Counter(requests=1) for step in usage.get("request_usage_entries", ())]
    stored, result = Counter[str](), default
    for turn in reversed(turns):
        stored = stored + _counts(turn.usage)
        if stored["requests"] > len(steps):
            break
        if stored and stored == sum(steps[: stored["requests"]], Counter()):
            result = stored
    return result


def _counts(usage: Mapping[str, Any]) -> Counts:
    counts: Counts = Counter()
    for name, value in usage.items():
        if isinstance(value, int):
            counts[name] = value
        elif isinstance(value, Mapping):
            counts.update({f"{name}.{detail}": each for detail, each in value.items() if isinstance(each, int)})
    return +counts


def as_usage(counts: Counts) -> dict[str, Any]:
    """Convert counts to the usage of a turn."""
    usage: dict[str, Any] = {}
    for name, count in counts.items():
        outer, _, detail = name.partition(".")
        if detail:
            usage.setdefault(outer, {})[detail] = count
        else:
            usage[outer] = count
    return usage
