"""Whole sessions as the database keeps them, out of one and into another: nothing is decoded, so nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store import dialect
from lango_store.columns import TimeColumn, as_kept, decode_time, encode_time_text
from lango_store.dialect import Dialect
from lango_store.errors import DamagedMessage
from lango_store.operations.sessions import MESSAGE, SESSION, TURN
from lango_store.statement import Statement

Row = dict[str, Any]
"""A row by its columns' names: JSON as its text, times as text in UTC."""

PAGE: Final = 200


def _row(table: sa.Table, values: Sequence[Any]) -> Row:
    row = {column.name: value for column, value in zip(table.c, values, strict=True)}
    for name in _times(table):
        if row[name] is not None:
            try:
                row[name] = encode_time_text(decode_time(row[name]))
            except ValueError as error:
                raise DamagedMessage(*identity(row), name, str(error)) from None
    return row


def _times(table: sa.Table) -> list[str]:
    return [column.name for column in table.c if isinstance(column.type, TimeColumn)]


def identity(row: Mapping[str, Any]) -> tuple[str, int]:
    """Tell of which session a row is and its seq, 0 for a row that is no message."""
    return row.get("session_key") or row["key"], row.get("seq", 0)


def keys(connection: sa.Connection, after: str, limit: int) -> list[str]:
    """List the keys of sessions, live or expired, that sort after this one."""
    query = sa.select(SESSION.c.key).where(SESSION.c.key > after).order_by(SESSION.c.key).limit(limit)
    return list(connection.execute(query).scalars())


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


def _insert(table: sa.Table, spoken: Dialect) -> Any:
    values = {column.name: sa.bindparam(column.name, type_=column.type, required=True) for column in table.c}
    return spoken.insert(table).values(values)


_INSERTS: Final = {
    table.name: Statement(lambda spoken, table=table: _insert(table, spoken))  # type: ignore[misc]
    for table in (SESSION, TURN, MESSAGE)
}
_claim: Final = Statement(
    lambda spoken: (
        _insert(SESSION, spoken).on_conflict_do_nothing(index_elements=[SESSION.c.key]).returning(SESSION.c.key)
    )
)


def write(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows as `sessions`, `turns` and `messages` gave them."""
    _INSERTS[table.name].run_many(connection, [_kept(connection, table, row) for row in rows])


def claim(connection: sa.Connection, row: Mapping[str, Any]) -> bool:
    """Insert the row of a session unless its key is there already; False if it is."""
    return bool(_claim.run(connection, _kept(connection, SESSION, row)))


def _kept(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> Row:
    kept = {column.name: row[column.name] for column in table.c}
    for name in _times(table):
        if kept[name] is not None:
            kept[name] = dialect.of(connection).time(datetime.fromisoformat(kept[name]))
    return kept
