"""lango's SQLite database, read only: its sessions and their messages, ordered by instant, then by row.

Columns that we have no field for, and texts that our fields do not give back exactly (times with nanoseconds and their
own offsets), are in `extra["lango"]` of the session and of each message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.errors import InvalidKey
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.fidelity import check_key, known_role, mapping, storable_text
from lango_store.interchange.files import LONGEST_LINE
from lango_store.interchange.json_text import read_json
from lango_store.interchange.lango.database import Database, Row
from lango_store.interchange.moments import moment

NAME: Final = "lango"

_SESSION_FIELDS: Final = ("id", "key", "agent_id", "model", "metadata")
_MESSAGE_FIELDS: Final = ("id", "role", "content", "author", "tool_calls", "session_messages")
_CALL_FIELDS: Final = {"id": "id", "name": "name", "input": "arguments", "output": "output"}


def read(path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> Iterator[Draft]:
    """Read the sessions one after the other; a row that cannot be stored unchanged is skipped, by its id."""
    database = Database(path)
    strays = (
        "SELECT id FROM messages WHERE session_messages IS NULL OR session_messages NOT IN (SELECT id FROM sessions)"
    )
    for row in database.rows(strays):
        skipped.append(Skipped(_number(row), f"message row {row['id']} belongs to no session: left out"))
    for row in database.rows("SELECT * FROM sessions ORDER BY id"):
        try:
            key = check_key(row["key"])
        except InvalidKey as error:
            skipped.append(Skipped(_number(row), f"session row {row['id']} was left out: {error}"))
        else:
            yield _draft(database, key, row, skipped)


def _draft(database: Database, key: str, row: Row, skipped: list[Skipped]) -> Draft:
    metadata = _json(row.get("metadata"))
    fields = {name: text for name in ("agent_id", "model") if (text := storable_text(row.get(name)))}
    if mapping(metadata):
        fields["metadata"] = metadata
    raw = _raw(row, _SESSION_FIELDS)
    raw |= {name: row[name] for name in ("agent_id", "model") if row.get(name) and name not in fields}
    if row.get("metadata") is not None and not isinstance(metadata, dict):
        raw["metadata"] = row["metadata"]
    created_at = moment(row.get("created_at"))
    return Draft(
        key=key,
        parts=[Part([_message(each, skipped) for each in database.messages(row["id"])], created_at=created_at)],
        fields=fields,
        created_at=created_at,
        updated_at=moment(row.get("updated_at")),
        extra={NAME: raw} if raw else {},
    )


def _message(row: Row, skipped: list[Skipped]) -> Message:
    raw = _raw(row, _MESSAGE_FIELDS)
    role = known_role(row["role"])
    if role is None:
        role, raw["role"] = MessageRole.USER, row["role"]
        skipped.append(Skipped(_number(row), f"message row {row['id']}: its role {row['role']!r} was stored as user"))
    author = storable_text(row.get("author"))
    if row.get("author") and author is None:
        raw["author"] = row["author"]
    calls = _calls(row.get("tool_calls"))
    if calls is None:
        raw["tool_calls"] = row["tool_calls"]
        skipped.append(Skipped(_number(row), f"message row {row['id']}: its tool calls are damaged, stored in extra"))
    return Message(
        role=role,
        content=row["content"],
        author=author,
        tool_calls=calls or [],
        created_at=moment(row["timestamp"]),
        extra={NAME: raw} if raw else {},
    )


def _raw(row: Row, fields: tuple[str, ...]) -> Row:
    return {name: value for name, value in row.items() if name not in fields and value is not None}


def _number(row: Row) -> int:
    return row["id"] if isinstance(row["id"], int) else 0


def _json(text: Any) -> Any:
    try:
        return read_json(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _calls(text: Any) -> list[ToolCall] | None:
    """Read the tool calls of a message, None if they are damaged."""
    if text is None or text == "":
        return []
    calls = _json(text)
    if calls is None and text == "null":
        return []
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return None
    return [_call(call) for call in calls]


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and all(isinstance(call.get(name, ""), str) for name in ("id", "name"))


def _call(call: dict[str, Any]) -> ToolCall:
    """Read a call; what a model passed and a tool gave stays the text that lango has."""
    known = {"id": "", "name": ""} | {ours: call[name] for name, ours in _CALL_FIELDS.items() if name in call}
    return ToolCall(**known, extra={name: value for name, value in call.items() if name not in _CALL_FIELDS})
