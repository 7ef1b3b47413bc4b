"""Histories of LangChain: `SQLChatMessageHistory` and `PostgresChatMessageHistory`. Each row becomes a message."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from typing import Any, Final

from lango_store.interchange import langchain_messages
from lango_store.interchange.adoption.source import (
    Database,
    Original,
    Piece,
    Row,
    escaped,
    following,
    rest_of,
    time_of,
)
from lango_store.interchange.draft import Part

NAME: Final = "langchain"

_COLUMNS: Final = frozenset({"id", "session_id", "message"})


def recognizes(database: Database) -> bool:
    """Return True if a table has the columns of a history."""
    return bool(database.with_columns(*_COLUMNS))


def columns(database: Database) -> dict[str, set[str]]:
    """Return nothing: all columns of a history are read."""
    return {}


def shared(database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nothing: histories have no shared values."""
    return iter(())


def sessions(database: Database) -> Iterator[Original]:
    """Yield the histories of each table, in one pass, because the tables may have no index."""
    for table in database.with_columns(*_COLUMNS):
        rows = database.rows(f'SELECT * FROM "{table}" WHERE session_id IS NOT NULL ORDER BY session_id, id')
        for id, history in groupby(rows, lambda row: str(row["session_id"])):
            yield Original(key=escaped(id), read=partial(_read, history))


def _read(rows: Iterator[Row], after: int) -> Iterator[Piece]:
    return following(islice(rows, max(after - 1, 0), None), after, _convert)


def _convert(row: Row) -> Part:
    stored = json.loads(row["message"]) if isinstance(row["message"], str) else row["message"]
    message = langchain_messages.message_of(stored)
    changes = {"id": f"{NAME}:{row['id']}", "created_at": time_of(row.get("created_at"))}
    extra = message.extra | rest_of(row, _COLUMNS | {"created_at"})
    return Part([message.model_copy(update=changes | {"extra": extra})])
