"""Usage of runs. The framework reports the total of a run; each write stores the increase since the last write."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from lango_store import Turn
from lango_store.integrations.counts import Counts, counts_of


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
            counts = counts_of(usage)
            self._stored[wrapper] = counts and _stored_before(usage, turns(), counts)

    def added(self, wrapper: Any) -> Counts:
        """Return the usage that a run has added since its usage was last stored."""
        return counts_of(to_jsonable_python(wrapper.usage)) - self._stored[wrapper]

    def mark_stored(self, wrapper: Any, added: Counts) -> None:
        """Add to the stored usage of a run."""
        self._stored[wrapper] = self._stored[wrapper] + added


def _stored_before(usage: Mapping[str, Any], turns: Sequence[Turn], default: Counts) -> Counts:
    """Return the sum of the last turns that add up to the usage of the run's first requests; if none do, `default`."""
    steps = [counts_of(step) + Counter(requests=1) for step in usage.get("request_usage_entries", ())]
    stored, result = Counter[str](), default
    for turn in reversed(turns):
        stored = stored + counts_of(turn.usage)
        if stored["requests"] > len(steps):
            break
        if stored and stored == sum(steps[: stored["requests"]], Counter()):
            result = stored
    return result
