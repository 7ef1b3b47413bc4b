"""The tables of an archive: ours, by the columns that a transfer has, and an index of words."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlite_utils import Database

from lango_store._operations import transfer
from lango_store._operations.binds import MESSAGE, SESSION, TURN, VALUE
from lango_store._operations.transfer import Row
from lango_store._rows.encoding import NO_CONTENT, decode_json, encode_time_text, json_of_content
from lango_store._values.content_blocks import parts_of

VALUES_TABLE: Final = "session_values"


def create(db: Database) -> None:
    """Create the tables of an archive."""
    if db["messages_fts"].exists():
        return
    with db.atomic():
        db.table("sessions").create({"id": int, **_columns(SESSION), "archived_at": str}, pk="id", if_not_exists=True)
        _index_lives(db)
        for name, table, pk in (("turns", TURN, "turn_no"), ("messages", MESSAGE, "seq")):
            extra = {"text": str} if name == "messages" else {}
            db.table(name).create(
                {"session_id": int, **_columns(table), **extra},
                pk=("session_id", pk),
                foreign_keys=[("session_id", "sessions", "id")],
                if_not_exists=True,
            )
        _create_values(db)
        db.table("messages").enable_fts(["text"], create_triggers=True)


def _create_values(db: Database) -> None:
    db.table(VALUES_TABLE).create(
        {"session_id": int, **_columns(VALUE)},
        pk=("session_id", "name"),
        foreign_keys=[("session_id", "sessions", "id")],
        if_not_exists=True,
    )


def _index_lives(db: Database) -> None:
    db.table("sessions").create_index(["key", "incarnation"], unique=True, if_not_exists=True)


def archived_row(table: sa.Table, row: Row) -> dict[str, Any]:
    """Return a stored row as a row of the archive, without its session's key: `text` holds the words to search for."""
    archived = {
        name: encode_time_text(value) if isinstance(value, datetime) else value
        for name, value in row.items()
        if name != "session_key"
    }
    if table is MESSAGE:
        archived["content"] = json_of_content(row["text"], row["content"])
        archived["text"] = _words(archived)
    return archived


def stored_row(table: sa.Table, archived: dict[str, Any]) -> Row:
    """Return a row of the archive as a row of one of our tables."""
    row = {column.name: archived.get(column.name) for column in transfer.COLUMNS[table.name]}
    return row | {"text": None, "content": row["content"] or NO_CONTENT} if table is MESSAGE else row


def _words(archived: dict[str, Any]) -> str:
    """Return the words of a message: its content, and the arguments and outputs of its tool calls."""
    words: list[str] = []
    for name in ("content", "tool_calls"):
        if archived[name] is not None:
            try:
                value = decode_json(archived[name])
                _collect(value if name != "content" else parts_of(value) or value, words)
            except ValueError:
                words.append(archived[name])  # damaged JSON is searched as text
    return " ".join(words).encode("utf-8", "replace").decode().replace("\0", " ")


def _collect(value: Any, words: list[str]) -> None:
    if isinstance(value, str):
        words.append(value)
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else value.values():
            _collect(item, words)
    elif value is not None:
        words.append(json.dumps(value))


def _columns(table: sa.Table) -> dict[str, type]:
    columns = {column.name: _kind(column.type) for column in transfer.COLUMNS[table.name]}
    columns.pop("session_key", None)
    return columns | ({"incarnation": int} if table is SESSION else {})


def _kind(column_type: sa.types.TypeEngine[Any]) -> type:
    if isinstance(column_type, sa.Integer):
        return int
    return float if isinstance(column_type, sa.Numeric | sa.Float) else str
