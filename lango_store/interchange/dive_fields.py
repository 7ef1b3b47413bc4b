"""Conversion between header, events and messages of Dive and a `SessionDraft`, a `Part` and a `Message`.

`extra["dive"]` holds data without a field of ours, as described in `fidelity`. On export, messages of other writers
become content blocks: text, tool_use and tool_result. Dive uses ids as file names, so characters that a file name
cannot contain are percent-escaped in ids.
"""

import re
from collections.abc import Container
from datetime import datetime
from typing import Any, Final

from lango_store import Message, MessageRole
from lango_store.content import CLAUDE, Result, ignore, parts
from lango_store.interchange.draft import Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import difference, read_role, restored, same
from lango_store.interchange.moments import go_text, moment
from lango_store.rows import mapping, storable_id, storable_text

NAME: Final = "dive"

_UNSAFE: Final = re.compile(r"[/\\]|^\.$|(?<=\.)\.|%(?=2F|5C|2E|25)")
_ESCAPED: Final = re.compile(r"%(2F|5C|2E|25)")


def id_of(key: str) -> str:
    """Return the id of a session in Dive: the key with `/`, `\\` and `..` escaped."""
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", key)


def key_of(id: str) -> str:
    """Return the session key of an id: the unescaped id if `id_of` created it, otherwise the id itself."""
    key = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), id)
    return key if id_of(key) == id else id


def id_fault(id: object) -> str | None:
    """Return the reason why Dive rejects an id, None if the id is valid."""
    if not isinstance(id, str) or id in ("", "."):
        return "is not an id"
    return next((f"contains {part!r}" for part in ("..", "/", "\\") if part in id), None)


# The header line


def columns(raw: dict[str, Any]) -> dict[str, Any]:
    """Return those values of an original header for which we have a column."""
    header = mapping(raw.get("header"))
    return {
        "id": _as_key(header.get("id")),
        "title": storable_text(header.get("title")),
        "created_at": moment(header.get("created_at")),
        "updated_at": moment(raw.get("updated_at", header.get("updated_at"))),
        "metadata": mapping(header.get("metadata")),
        "forked_from": _as_key(storable_text(header.get("forked_from"))),
    }


def _as_key(id: Any) -> Any:
    return key_of(id) if isinstance(id, str) else id


_SUSPENDED: Final = ("suspended", "pending_tool_calls", "completed_tool_calls")


def suspension_of(header: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of a suspended session, None if the session is not suspended."""
    return {name: header[name] for name in _SUSPENDED[1:] if name in header} if header.get("suspended") else None


def header_of(draft: SessionDraft, raw: dict[str, Any]) -> dict[str, Any]:
    """Return the original header, updated with changes made in the store."""
    header = dict(mapping(raw.get("header")))
    is_new = not header
    imported = columns(raw)
    current: dict[str, Any] = {
        "id": draft.key,
        "title": draft.fields.get("title"),
        "created_at": draft.created_at,
        "updated_at": draft.updated_at,
        "metadata": draft.fields.get("metadata") or {},
        "forked_from": draft.forked_from,
    }
    for name, value in current.items():
        if name.endswith("_at"):
            if is_new or imported[name] not in (None, value):
                header[name] = go_text(value)
        elif not same(value, imported[name]):
            header[name] = id_of(value) if value and name in ("id", "forked_from") else value
            if not value:
                del header[name]
    state = suspension_of(header)
    if state is not None and state not in draft.suspensions:  # it was answered
        header = {name: value for name, value in header.items() if name not in _SUSPENDED}
    return header


# Events


def part_from(event: dict[str, Any], repeated: Container[str], number: int, skipped: list[Skipped]) -> Part:
    """Convert the event of a line to a part. A repeated id is stored in `extra`."""
    created_at = moment(event.get("timestamp"))
    id = storable_id(event.get("id"))
    part = Part(
        messages=[
            message_from(message, created_at, repeated, number, skipped) for message in event.get("messages") or []
        ],
        kind="compaction" if event.get("type") == "compaction" else "turn",
        id=None if f"event {id}" in repeated else id,
        usage=event.get("usage") or None,
        metadata=event.get("metadata") or None,
        created_at=created_at,
    )
    original = {name: value for name, value in event.items() if name != "messages" or not value}
    written = {name: value for name, value in event_of(part).items() if name != "messages" or not value}
    raw = difference(original, written)
    part.extra = {NAME: raw} if raw else None
    return part


def event_of(part: Part) -> dict[str, Any]:
    """Convert a part to an event, without using its `extra`."""
    always = {
        "type": part.kind or "turn",
        "timestamp": go_text(part.created_at),
        "messages": [message_to(message) for message in part.messages] or None,
    }
    optional = {"usage": part.usage, "metadata": part.metadata}
    return ({"id": part.id} if part.id else {}) | always | {name: value for name, value in optional.items() if value}


def raw_of(part: Part) -> dict[str, Any]:
    """Return the part's `extra["dive"]`."""
    return mapping((part.extra or {}).get(NAME))


# Messages

_BLOCKS: Final = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_ROLES: Final = {
    MessageRole.DEVELOPER: "system",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "user",  # Dive stores tool results in user messages
    MessageRole.FUNCTION: "user",
}


def message_from(
    message: dict[str, Any], created_at: datetime | None, repeated: Container[str], line: int, skipped: list[Skipped]
) -> Message:
    """Convert a message of Dive. A repeated id, or an id that an index cannot store, is stored in `extra`."""
    id = storable_id(message.get("id"))
    role = read_role(message.get("role"), skipped, line, "a message")
    read = Message(
        role=role, content=message.get("content"), id=None if f"message {id}" in repeated else id, created_at=created_at
    )
    if raw := difference(message, _written(read)):
        read.extra = {NAME: raw}
    return read


def message_to(message: Message) -> dict[str, Any]:
    """Convert a message to a message of Dive."""
    return restored(_written(message), mapping(message.extra.get(NAME)))


def _written(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"id": message.id} if message.id is not None else {}
    return written | {"role": _ROLES.get(message.role, message.role.value), "content": _message_blocks(message)}


def _message_blocks(message: Message) -> list[Any] | None:
    content = message.content
    if isinstance(content, list) and all(map(_is_block, content)) and not (message.tool_calls or message.tool_call_id):
        return content
    role = "assistant" if message.role.canonical is MessageRole.ASSISTANT else "user"
    written = [CLAUDE.block(part, "user" if isinstance(part, Result) else role, ignore) for part in parts(message)]
    blocks = [block for block in written if block is not None]
    return blocks or None if content is None else blocks


def _is_block(block: Any) -> bool:
    """Return True for a block of Dive, which has Anthropic's."""
    return isinstance(block, dict) and (block.get("type") in _BLOCKS or isinstance(block.get("source"), dict))
