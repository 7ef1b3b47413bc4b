"""The tables of an archive: ours, by the columns that a transfer has, and an index of words."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlite_utils import Database

from lango_store._operations import transfer
from lango_store._operations.binds import MESSAGE, SESSION, TURN, VALUE

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


def row(table: sa.Table, archived: dict[str, Any]) -> transfer.Row:
    """Return an archived row as a row of one of our tables."""
    return {column.name: archived.get(column.name) for column in transfer.COLUMNS[table.name]}


def _columns(table: sa.Table) -> dict[str, type]:
    columns = {column.name: _kind(column.type) for column in transfer.COLUMNS[table.name]}
    columns.pop("session_key", None)
    return columns | ({"incarnation": int} if table is SESSION else {})


def _kind(column_type: sa.types.TypeEngine[Any]) -> type:
    if isinstance(column_type, sa.Integer):
        return int
    return float if isinstance(column_type, sa.Numeric | sa.Float) else str
