"""A word in every column of every table, and a search for its bytes."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from lango_store import MessageRole, Store
from lango_store._operations.binds import SESSION
from lango_store._operations.session_tables import MESSAGES, SHARED
from lango_store._rows.columns import JsonColumn, RoleColumn, TimeColumn
from lango_store.tables import Base

WORD: Final = "Mnemosyne7planted"
TIME: Final = datetime(2026, 11, 21, tzinfo=UTC)
TABLES: Final = [SESSION, *(each for each in Base.metadata.sorted_tables if "session_key" in each.c)]


def _value(column: sa.Column[Any]) -> Any:
    if isinstance(column.type, JsonColumn):
        return {WORD: [f"in {column}"]}
    if isinstance(column.type, TimeColumn):
        return TIME
    if isinstance(column.type, RoleColumn):
        return MessageRole.USER
    return f"{WORD} in {column}" if isinstance(column.type, sa.Text) else 1


def plant(store: Store, key: str, user_id: str | None, **fields: Any) -> None:
    """Store a session whose rows have the word in each column; messages have it in the text and in the content."""
    with store.engine.begin() as connection:
        for table in TABLES:
            row = (
                {each.name: _value(each) for each in table.c if each.computed is None}
                | {"user_id": user_id, "hold": None}
                | fields
            )
            row |= {"key": key, "session_key": key}
            row = {name: value for name, value in row.items() if name in table.c}
            if table not in MESSAGES:
                connection.execute(table.insert(), row)
                continue
            connection.execute(table.insert(), row | {"content": None, "payloads": None})
            connection.execute(table.insert(), row | {"text": None, "seq": 2, "id": None, "payloads": None})


def plant_shared(store: Store, scope: str, holder: str) -> None:
    """Store a row in each table of scopes that has the word in each column, apart from the session that holds it."""
    with store.engine.begin() as connection:
        for table in SHARED:
            row = {each.name: _value(each) for each in table.c} | {"scope": scope}
            connection.execute(table.insert(), row | ({"holder": holder} if "holder" in table.c else {}))


def files_with(word: str, paths: Iterable[Path]) -> list[str]:
    """Return the names of the files that contain the bytes of a word."""
    return [path.name for path in paths if path.is_file() and word.encode() in path.read_bytes()]
