"""Sound rows of messages, decoded without pydantic: the types of the columns show which fields are valid.

The result is what validation would return, and takes less time. A row with payloads, or with any value whose type is
not enough to tell, is left to `rows`, which validates it and names the fault.
"""

from datetime import UTC, datetime
from functools import lru_cache
from types import NoneType
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import from_json

from lango_store._rows.encoding import NO_CONTENT
from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store._values.value import built

_TEXT: Final = frozenset[type]({str, NoneType})
_NUMBER: Final = frozenset[type]({int, NoneType})
COLUMN_TYPES: Final[dict[str, frozenset[type]]] = {
    "seq": frozenset({int}),
    "turn_no": _NUMBER,
    "id": _TEXT,
    "role": frozenset({str}),
    "author": _TEXT,
    "name": _TEXT,
    "tool_call_id": _TEXT,
    "text": _TEXT,
    "content": _TEXT,
    "tool_calls": _TEXT,
    "tokens": _NUMBER,
    "extra": _TEXT,
    "created_at": frozenset({str, datetime}),
    "sent": _TEXT,
    "payloads": frozenset({NoneType}),
}
"""The types of the columns of a sound row, in the order of `MESSAGE_FIELDS`."""

ROLES: Final[dict[Any, Any]] = {role.value: role for role in MessageRole}
_decode_calls: Final = TypeAdapter(list[ToolCall]).validator.validate_json


def decode_sound(row: Any) -> Message | None:
    """Decode a row of `MESSAGE_COLUMNS`; return None if it has payloads or may be damaged."""
    fields = _fields_of(tuple(map(type, row)))
    if fields is None:
        return None
    seq, turn_no, id, role, author, name, tool_call_id, text, content, calls, tokens, extra, created_at, sent, _ = row
    try:
        moment = created_at if type(created_at) is datetime else datetime.fromisoformat(created_at)
        values = {
            "role": ROLES[role],
            "content": text if content is None else from_json(content),
            "author": author,
            "name": name,
            "tool_call_id": tool_call_id,
            "tool_calls": [] if calls is None else _decode_calls(calls),
            "tokens": tokens,
            "id": id,
            "extra": {} if extra is None else from_json(extra),
            "created_at": moment,
            "sent": None if sent is None else from_json(sent),
            "seq": seq,
            "turn_no": turn_no,
            "replayed": False,
        }
    except (KeyError, ValueError):
        return None
    if seq < 0 or id == "" or not 0 <= (tokens or 0) < 2**53 or moment.tzinfo is not UTC:
        return None
    if extra is not None and type(values["extra"]) is not dict:
        return None
    return built(Message, values, {*fields} - {"content"} if content == NO_CONTENT else {*fields})


@lru_cache(maxsize=1_000)
def _fields_of(types: tuple[type, ...]) -> frozenset[str] | None:
    """Return the fields that a row with these types sets; None if a sound row has other types."""
    row = dict(zip(COLUMN_TYPES, types, strict=True))
    if any(row[name] not in sound for name, sound in COLUMN_TYPES.items()) or row["text"] is row["content"]:
        return None
    return frozenset("content" if name == "text" else name for name, kind in row.items() if kind is not NoneType)
