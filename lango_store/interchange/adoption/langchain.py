"""Histories of LangChain: `SQLChatMessageHistory` and `PostgresChatMessageHistory`. Each row becomes a message."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from typing import Final

from lango_store.interchange import langchain_messages
from lango_store.interchange.adoption.source import (
    Damaged,
    Database,
    Original,
    Piece,
    Row,
    Shared,
    converted,
    escaped,
    following,
    rest_of,
    time_of,
)
from lango_store.interchange.draft import Part

NAME: Final = "langchain"

_COLUMNS: Final = frozenset({"id", "session_id", "message"})
_SAMPLE: Final = 100


def tables(database: Database) -> list[str]:
    """Return the tables that have the columns of a history and, if they have rows, messages of LangChain."""
    return [table for table in database.with_columns(*_COLUMNS) if _is_history(database, table)]


def _is_history(database: Database, table: str) -> bool:
    query = f"SELECT message FROM {database.named(table)} WHERE session_id IS NOT NULL LIMIT {_SAMPLE}"
    rows = [*database.rows(query)]
    for row in rows:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            langchain_messages.message_of(json.loads(row["message"]))
            return True
    return not rows


def columns(database: Database) -> dict[str, frozenset[str]]:
    """Return the tables that have the columns of a history, but no messages of LangChain. They are not read."""
    return dict.fromkeys({*database.with_columns(*_COLUMNS)}.difference(tables(database)), frozenset())


def shared(database: Database) -> Iterator[Shared | Damaged]:
    """Yield nothing: histories have no shared values."""
    return iter(())


def sessions(database: Database, tables: Sequence[str], prefix: str) -> Iterator[Original | Damaged]:
    """Yield the histories of each table, in one pass, because the tables may have no index."""
    for table in tables:
        query = f"SELECT * FROM {database.named(table)} WHERE session_id IS NOT NULL ORDER BY session_id, id"
        for id, history in groupby(database.rows(query), lambda row: row["session_id"]):
            convert = partial(_original, table, prefix, history)
            yield from converted(table, [{"session_id": id}], ["session_id"], convert)


def _original(table: str, prefix: str, history: Iterator[Row], row: Row) -> Iterator[Original]:
    yield Original(prefix + escaped(row["session_id"]), table, partial(_read, table, history))


def _read(table: str, rows: Iterator[Row], after: int) -> Iterator[Piece]:
    return following(table, islice(rows, max(after - 1, 0), None), after, _convert)


def _convert(row: Row) -> Part:
    message = langchain_messages.message_of(json.loads(row["message"]))
    changes = {"id": f"{NAME}:{row['id']}", "created_at": time_of(row.get("created_at"))}
    extra = message.extra | rest_of(row, _COLUMNS | {"created_at"})
    return Part([message.model_copy(update=changes | {"extra": extra})])
