"""Whole sessions as the database keeps them, out of one and into another: nothing is decoded, so nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store import dialect
from lango_store.columns import TimeColumn, as_kept, decode_time, encode_time_text
from lango_store.operations.sessions import MESSAGE, SESSION, TURN
from lango_store.statement import Statement

Row = dict[str, Any]
"""A row by its columns' names: JSON as its text, times as text in UTC."""

PAGE: Final = 1_000


def _row(table: sa.Table, values: Sequence[Any]) -> Row:
    return {
        column.name: encode_time_text(decode_time(value))
        if isinstance(column.type, TimeColumn) and value is not None
        else value
        for column, value in zip(table.c, values, strict=True)
    }


def sessions(connection: sa.Connection, keys: Sequence[str]) -> list[Row]:
    """Read the rows of sessions."""
    query = sa.select(*map(as_kept, SESSION.c)).where(SESSION.c.key.in_(keys))
    return [_row(SESSION, values) for values in connection.execute(query)]


def turns(connection: sa.Connection, keys: Sequence[str]) -> Iterator[list[Row]]:
    """Read the turns of sessions, page by page."""
    return _pages(connection, TURN, TURN.c.turn_no, keys)


def messages(connection: sa.Connection, keys: Sequence[str]) -> Iterator[list[Row]]:
    """Read the messages of sessions, page by page, however many a session has."""
    return _pages(connection, MESSAGE, MESSAGE.c.seq, keys)


def _pages(
    connection: sa.Connection, table: sa.Table, place: sa.Column[int], keys: Sequence[str]
) -> Iterator[list[Row]]:
    columns = [as_kept(column) for column in table.c]
    for key in keys:
        after = 0
        while True:
            query = sa.select(*columns).where(table.c.session_key == key, place > after).order_by(place).limit(PAGE)
            rows = [_row(table, values) for values in connection.execute(query)]
            if rows:
                yield rows
                after = rows[-1][place.name]
            if len(rows) < PAGE:
                break


def _insert(table: sa.Table) -> Statement:
    return Statement(
        lambda _: sa.insert(table).values({c.name: sa.bindparam(c.name, type_=c.type, required=True) for c in table.c})
    )


_INSERTS: Final = {table.name: _insert(table) for table in (SESSION, TURN, MESSAGE)}


def write(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows as `sessions`, `turns` and `messages` gave them."""
    time = dialect.of(connection).time
    times = [column.name for column in table.c if isinstance(column.type, TimeColumn)]
    for row in rows:
        kept = {column.name: row[column.name] for column in table.c}
        for name in times:
            if kept[name] is not None:
                kept[name] = time(datetime.fromisoformat(kept[name]))
        _INSERTS[table.name].run_many(connection, [kept])
