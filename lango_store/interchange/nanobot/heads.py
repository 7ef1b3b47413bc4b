"""The lines of a nanobot file that are not messages: the metadata line and the provider state line."""

from __future__ import annotations

from typing import Any, Final, Literal

from lango_store.interchange.fidelity import is_storable_json, is_storable_text
from lango_store.interchange.json_text import read_json
from lango_store.interchange.nanobot.names import NAME

Head = Literal["metadata", "provider_state"]
HEADS: Final[tuple[Head, ...]] = ("metadata", "provider_state")

OFFSETS: Final = ("last_archived", "last_consolidated")
"""The names of one number, in the order in which nanobot reads them; the first is there since 0.3.5."""

_MAX_LEVELS: Final = 201  # a value of 200 levels in its line


def read_object(text: str) -> dict[str, Any] | str:
    """Return the object of a line, or the reason why it has none."""
    try:
        found = read_json(text.strip(), levels=_MAX_LEVELS, strict=False)
    except ValueError as error:
        return str(error)
    return found if isinstance(found, dict) else f"is not a JSON object ({type(found).__name__})"


def metadata_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a metadata line, {} if it cannot be stored."""
    found = line.get("metadata")
    return found if isinstance(found, dict) and is_storable(found) else {}


def offset_of(line: dict[str, Any]) -> int | None:
    """Return the number of consolidated messages in a metadata line, None if it has none."""
    return next((line[name] for name in OFFSETS if type(line.get(name)) is int), None)


def title_of(metadata: dict[str, Any]) -> str | None:
    """Return the title in metadata, None if there is none that can be stored."""
    title = metadata.get("title")
    return title if is_storable_text(title) else None


def is_storable(value: Any) -> bool:
    """Return whether a value can be stored in a session's `extra`."""
    return is_storable_json({NAME: {"": value}})
