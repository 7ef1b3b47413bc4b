"""Numbers of a usage, by name. The name of a number in a nested object has the name of the object as a prefix."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

Counts = Counter[str]
"""Numbers by name, such as `input_tokens` and `input_tokens_details.cached_tokens`."""


def counts_of(usage: Mapping[str, Any]) -> Counts:
    """Return the integers of a usage and of its nested objects, except zeros."""
    counts: Counts = Counter()
    for name, value in usage.items():
        if type(value) is int:
            counts[name] = value
        elif isinstance(value, Mapping):
            counts.update({f"{name}.{detail}": each for detail, each in value.items() if type(each) is int})
    return Counter({name: count for name, count in counts.items() if count})


def as_usage(counts: Mapping[str, int]) -> dict[str, Any]:
    """Convert counts to the usage of a turn."""
    usage: dict[str, Any] = {}
    for name, count in counts.items():
        outer, _, detail = name.partition(".")
        if detail:
            usage.setdefault(outer, {})[detail] = count
        else:
            usage[outer] = count
    return usage
