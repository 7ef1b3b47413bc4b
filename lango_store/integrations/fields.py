"""Values of a framework as values that a column of a message or a session can hold."""

from __future__ import annotations

from typing import Any, Final

_MAX_ID_BYTES: Final = 512


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
