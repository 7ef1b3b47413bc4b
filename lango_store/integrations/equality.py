"""Comparison of JSON values by their text."""

from __future__ import annotations

from typing import Any, Final

_ABSENT: Final = object()


def same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values have the same text, with names in any order; with `==`, true equals 1 equals 1.0.

    Parts that are the same object are not compared, so that values with shared parts compare quickly.
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        if len(one) != len(other):
            return False
        for name, value in one.items():
            found = other.get(name, _ABSENT)
            if found is not value and not same_json(value, found):
                return False
        return True
    if kind is list:
        return len(one) == len(other) and all(map(same_json, one, other))
    if kind is float:
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)
