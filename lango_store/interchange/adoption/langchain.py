"""Histories of LangChain: `SQLChatMessageHistory` and `PostgresChatMessageHistory`. Each row becomes a message."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import groupby, islice
from typing import Any, Final

from lango_store.interchange import langchain_messages
from lango_store.interchange.adoption.source import Database, Found, Piece, Row, mark_of, rest_of, time_of
from lango_store.interchange.draft import Part

NAME: Final = "langchain"

_COLUMNS: Final = ("id", "session_id", "message")


def recognizes(database: Database) -> bool:
    """Return True if a table has the columns of a history."""
    return bool(database.with_columns(*_COLUMNS))


def shared(database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nothing: histories have no shared values."""
    return iter(())


def sessions(database: Database) -> Iterator[Found]:
    """Yield the histories of each table, in one pass, because the tables may have no index."""
    for table in database.with_columns(*_COLUMNS):
        rows = database.rows(f'SELECT * FROM "{table}" WHERE session_id IS NOT NULL ORDER BY session_id, id')
        for id, history in groupby(rows, lambda row: str(row["session_id"])):
            yield Found(key=id.replace("%", "%25").replace("/", "%2F"), read=partial(_read, history))


def _read(rows: Iterator[Row], after: int) -> Iterator[Piece]:
    for number, row in enumerate(islice(rows, max(after - 1, 0), None), max(after, 1)):
        text = row["message"]
        mark = mark_of(row["id"], text)
        if number == after:
            yield Piece(Part([]), 1, mark)
            continue
        try:
            message = langchain_messages.message_of(json.loads(text) if isinstance(text, str) else text)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            yield Piece(Part([]), 1, mark, [f"row {row['id']} is damaged ({error}): left out"])
            continue
        changes: dict[str, Any] = {"id": f"{NAME}:{row['id']}", "created_at": time_of(row.get("created_at"))}
        if others := rest_of(row, *_COLUMNS, "created_at"):
            changes["extra"] = message.extra | {"adopted": others}
        yield Piece(Part([message.model_copy(update=changes)]), 1, mark, size=len(str(text)))
