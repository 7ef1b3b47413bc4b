"""Values of other systems, before they are stored: objects, texts and ids that may be something else."""

from typing import Any

from lango_store._rows.encoding import encode_id, encode_text
from lango_store.errors import InvalidValue


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged, and {} for any other value."""
    return value if isinstance(value, dict) else {}


def is_storable_text(value: Any) -> bool:
    """Return True if a value is a text that a column can store."""
    try:
        return isinstance(value, str) and encode_text(value, "text") is not None
    except InvalidValue:
        return False


def storable_text(value: Any) -> str | None:
    """Return a text that a column can store, and None for any other value, including the empty text."""
    return value if value and is_storable_text(value) else None


def storable_id(value: Any) -> str | None:
    """Return an id that an index can store, and None for any other value."""
    try:
        return encode_id(value) if isinstance(value, str) else None
    except InvalidValue:
        return None


def key_level(id: str) -> str:
    """Return an id as one level of a session key, with `%` and `/` escaped."""
    return id.replace("%", "%25").replace("/", "%2F")
