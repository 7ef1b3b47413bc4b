"""The usage of runs. The framework reports the sum of a run so far; each write stores what was added since the last."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from lango_store import Turn

Counts = Counter[str]
"""Numbers by name, those of details as `input_tokens_details.cached_tokens`; only what is above 0."""


class RunUsage:
    """The stored usage of each run, for as long as the run exists."""

    def __init__(self) -> None:
        self._stored: weakref.WeakKeyDictionary[Any, Counts] = weakref.WeakKeyDictionary()

    def meet(self, wrapper: Any, turns: Callable[[], Sequence[Turn]]) -> None:
        """Note what is stored of a run that is seen for the first time: nothing, unless its last turns are stored."""
        if wrapper not in self._stored:
            usage = to_jsonable_python(wrapper.usage)
            counts = _counts(usage)
            self._stored[wrapper] = counts and _stored_before(usage, turns(), counts)

    def added(self, wrapper: Any) -> Counts:
        """Return what a run's usage has grown by since it was stored."""
        return _counts(to_jsonable_python(wrapper.usage)) - self._stored[wrapper]

    def note(self, wrapper: Any, added: Counts) -> None:
        """Note that more usage is stored."""
        self._stored[wrapper] = self._stored[wrapper] + added


def _stored_before(usage: Mapping[str, Any], turns: Sequence[Turn], otherwise: Counts) -> Counts:
    steps = [_counts(step) + Counter(requests=1) for step in usage.get("request_usage_entries", ())]
    stored, found = Counter[str](), otherwise
    for turn in reversed(turns):
        stored = stored + _counts(turn.usage)
        if stored["requests"] > len(steps):
            break
        if stored and stored == sum(steps[: stored["requests"]], Counter()):
            found = stored
    return found


def _counts(usage: Mapping[str, Any]) -> Counts:
    counts: Counts = Counter()
    for name, value in usage.items():
        if isinstance(value, int):
            counts[name] = value
        elif isinstance(value, Mapping):
            counts.update({f"{name}.{detail}": each for detail, each in value.items() if isinstance(each, int)})
    return +counts


def as_usage(counts: Counts) -> dict[str, Any]:
    """Return counts as the usage of a turn."""
    usage: dict[str, Any] = {}
    for name, count in counts.items():
        outer, _, detail = name.partition(".")
        if detail:
            usage.setdefault(outer, {})[detail] = count
        else:
            usage[outer] = count
    return usage
