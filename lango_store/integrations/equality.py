"""Whether what was built back of an item is the item, as JSON."""

from __future__ import annotations

from typing import Any, Final

_ABSENT: Final = object()


def same_json(one: Any, other: Any) -> bool:
    """Whether two JSON values are written alike, names in any order; `==` takes true for 1 and 1 for 1.0.

    What is the same object is not looked into: so a value that shares its parts with the other costs little.
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
