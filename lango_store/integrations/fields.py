"""JSON of a framework: compared, and as values that a column of a message or a session can hold."""

from __future__ import annotations

from typing import Any, Final

_MAX_ID_BYTES: Final = 512
_ABSENT: Final = object()


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged, an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def storable_text(value: Any) -> str | None:
    """Return a text that a column can store, None for any other value and for the empty text."""
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    return value if value.encode("utf-8", "replace").decode() == value else None


def storable_id(value: Any) -> str | None:
    """Return an id that an index can hold, None for any other value."""
    text = storable_text(value)
    return text if text is not None and len(text.encode()) <= _MAX_ID_BYTES else None


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
