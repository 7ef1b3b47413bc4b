"""What stands in a nanobot file beside its messages: the metadata line and the provider state line."""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal

from lango_store.columns import encode_json, encode_text
from lango_store.errors import InvalidMessage

NAME: Final = "nanobot"

Head = Literal["metadata", "provider_state"]
HEADS: Final[tuple[Head, ...]] = ("metadata", "provider_state")

OFFSETS: Final = ("last_archived", "last_consolidated")
"""The names of one number, in the order in which nanobot reads them; the first is there since 0.3.5."""

_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|([\[{])|([\]}])')
_MAX_LEVELS: Final = 201  # a value of 200 levels in its line


def read_object(text: str) -> dict[str, Any] | str:
    """Read a line as an object, or say why it is none."""
    if _levels(text) > _MAX_LEVELS:
        return f"is nested more than {_MAX_LEVELS} levels deep"
    try:
        found = json.loads(text.strip())
    except (ValueError, RecursionError) as error:
        return f"is no JSON ({error})"
    return found if isinstance(found, dict) else f"is no JSON object ({type(found).__name__})"


def _levels(text: str) -> int:
    """Tell how deep brackets are nested, up to one more than a parser may meet."""
    if text.count("[") + text.count("{") <= _MAX_LEVELS:
        return 0
    deepest = level = 0
    for found in _BRACKETS.finditer(text):
        level += 1 if found[1] else -1 if found[2] else 0
        deepest = max(deepest, level)
        if deepest > _MAX_LEVELS:
            break
    return deepest


def metadata_of(line: dict[str, Any]) -> dict[str, Any]:
    """Give the metadata that a metadata line says, {} if it is none that can be kept."""
    found = line.get("metadata")
    return found if isinstance(found, dict) and is_kept(found) else {}


def offset_of(line: dict[str, Any]) -> int | None:
    """Give how many messages a metadata line says are consolidated, None if it says no number."""
    return next((line[name] for name in OFFSETS if type(line.get(name)) is int), None)


def title_of(metadata: dict[str, Any]) -> str | None:
    """Give the title in metadata, None if there is none that can be kept."""
    title = metadata.get("title")
    try:
        return encode_text(title, "title") if isinstance(title, str) else None
    except InvalidMessage:
        return None


def is_kept(value: Any) -> bool:
    """Tell whether a value can lie in a session's `extra`."""
    try:
        encode_json({NAME: {"": value}}, "extra")
    except InvalidMessage:
        return False
    return True
