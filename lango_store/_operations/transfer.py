"""Whole sessions as they are stored, out of one database and into another: nothing is decoded, so nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import paging
from lango_store._operations.binds import (
    MESSAGE,
    SESSION,
    SHARED_VALUE,
    TURN,
    VALUE,
    column,
    number,
    of_session,
    of_sessions,
)
from lango_store._operations.paging import Pages
from lango_store._operations.rows import next_place
from lango_store._operations.sessions import new_life
from lango_store._rows.columns import TimeColumn, as_stored
from lango_store._rows.encoding import content_fault, content_of_json, decode_time, encode_time_text, json_of_content
from lango_store.errors import DamagedMessage

Row = dict[str, Any]
"""A row by its columns' names: JSON as its text, times as text in UTC. A message's content is JSON, a text too."""

_ANEW: Final = ("incarnation", "revision")
"""What a session gets anew wherever it comes into being."""

COLUMNS: Final = {
    table.name: [column for column in table.c if column.name not in _ANEW and column is not MESSAGE.c.text]
    for table in (SESSION, TURN, MESSAGE, VALUE, SHARED_VALUE)
}
"""What travels: all columns but those, and `text`, which is part of the content."""

_KEPT: Final = COLUMNS | {MESSAGE.name: list(MESSAGE.c)}


def _row(table: sa.Table, values: Sequence[Any]) -> Row:
    row = {column.name: value for column, value in zip(_KEPT[table.name], values, strict=True)}
    if table is MESSAGE:
        if fault := content_fault(row["text"], row["content"]):
            raise damaged(row, *fault)
        row["content"] = json_of_content(row.pop("text"), row["content"])
    for name in _TIMES[table.name]:
        if row[name] is not None:
            try:
                row[name] = encode_time_text(decode_time(row[name]))
            except ValueError as error:
                raise damaged(row, name, str(error)) from None
    return row


_TIMES: Final = {
    table.name: [column.name for column in table.c if isinstance(column.type, TimeColumn)]
    for table in (SESSION, TURN, MESSAGE, VALUE, SHARED_VALUE)
}


def damaged(row: Mapping[str, Any], field: str, reason: str) -> DamagedMessage:
    """Return the error for a row that cannot be read, by its session or shared scope."""
    key = row.get("session_key") or row.get("key") or row["scope"]
    where = f"value {row['name']!r}, {field}" if "value" in row else field
    return DamagedMessage(key, row.get("seq", 0), where, reason)


def keys(connection: sa.Connection, after: str, limit: int) -> list[str]:
    """List the keys of sessions, live or expired, that sort after this one."""
    query = sa.select(SESSION.c.key).where(SESSION.c.key > after).order_by(SESSION.c.key).limit(limit)
    return list(connection.execute(query).scalars())


def sessions(connection: sa.Connection, keys: Sequence[str]) -> list[Row]:
    """Read the rows of sessions."""
    query = sa.select(*map(as_stored, COLUMNS[SESSION.name])).where(of_sessions(SESSION, keys))
    return [_row(SESSION, values) for values in connection.execute(query)]


def incarnations(connection: sa.Connection, keys: Sequence[str]) -> dict[str, int]:
    """Read which life of its key each of these sessions is."""
    query = sa.select(SESSION.c.key, SESSION.c.incarnation).where(of_sessions(SESSION, keys))
    return {row[0]: row[1] for row in connection.execute(query)}


_one: Final = Statement(lambda _: sa.select(*map(as_stored, COLUMNS[SESSION.name])).where(of_session(SESSION)))


def session(connection: sa.Connection, key: str) -> Row | None:
    """Read the row of a session, None if there is none."""
    rows = _one.run(connection, {"key": key})
    return _row(SESSION, rows[0]) if rows else None


def turns(connection: sa.Connection, keys: Sequence[str]) -> Iterator[list[Row]]:
    """Read the turns of sessions, page by page."""
    return _pages(connection, TURN, keys)


def messages(connection: sa.Connection, keys: Sequence[str]) -> Iterator[list[Row]]:
    """Read the messages of sessions, page by page, however many a session has."""
    return _pages(connection, MESSAGE, keys)


def values(connection: sa.Connection, keys: Sequence[str]) -> Iterator[list[Row]]:
    """Read the values of sessions, page by page."""
    return _pages(connection, VALUE, keys)


def _page(table: sa.Table, place: str, first: int | str) -> Pages:
    return Pages(table, place, [as_stored(column) for column in _KEPT[table.name]], first=first)


_PAGES: Final = {
    TURN.name: _page(TURN, "turn_no", 0),
    MESSAGE.name: _page(MESSAGE, "seq", 0),
    VALUE.name: _page(VALUE, "name", ""),
}


def _pages(connection: sa.Connection, table: sa.Table, keys: Sequence[str]) -> Iterator[list[Row]]:
    for key in keys:
        for found in _PAGES[table.name].read(connection, key):
            found.reverse()
            yield [_row(table, found.pop()) for _ in range(len(found))]


# Values that sessions share

_place = sa.tuple_(SHARED_VALUE.c.scope, SHARED_VALUE.c.name)
_shared: Final = sa.select(*map(as_stored, _KEPT[SHARED_VALUE.name]))
_after: Final = sa.tuple_(column(SHARED_VALUE.c.scope), column(SHARED_VALUE.c.name))
_shared_page: Final = Statement(
    lambda _: _shared.where(_place > _after).order_by(*SHARED_VALUE.primary_key).limit(number("limit"))
)
_shared_one: Final = Statement(lambda _: _shared.where(_place == _after))


def shared_values(connection: sa.Connection) -> Iterator[list[Row | DamagedMessage]]:
    """Read the values of shared scopes page by page, a damaged one as the error that names it."""
    after = "", ""
    while True:
        found = _shared_page.run(connection, {"scope": after[0], "name": after[1], "limit": paging.ROWS})
        if found:
            yield [_row_or_damage(SHARED_VALUE, values) for values in found]
            scope, name, *_ = found[-1]
            after = next_place(after, (scope, name))
        if len(found) < paging.ROWS:
            return


def _row_or_damage(table: sa.Table, values: Sequence[Any]) -> Row | DamagedMessage:
    try:
        return _row(table, values)
    except DamagedMessage as error:
        return error


def shared_value(connection: sa.Connection, scope: str, name: str) -> Row | None:
    """Read a value of a shared scope, None if there is none."""
    rows = _shared_one.run(connection, {"scope": scope, "name": name})
    return _row(SHARED_VALUE, rows[0]) if rows else None


def _insert(table: sa.Table, dialect: Dialect) -> Any:
    values = {each.name: column(each) for each in table.c}
    return dialect.insert(table).values(values)


_INSERTS: Final = {
    table.name: Statement(lambda dialect, table=table: _insert(table, dialect))  # type: ignore[misc]
    for table in (SESSION, TURN, MESSAGE, VALUE, SHARED_VALUE)
}
_claim: Final = Statement(
    lambda dialect: (
        _insert(SESSION, dialect).on_conflict_do_nothing(index_elements=[SESSION.c.key]).returning(SESSION.c.key)
    )
)


def arrived(table: sa.Table, row: Row) -> Row:
    """Return a row as it is written: a message's content in the column that is its own. What is not JSON text stays."""
    if table is not MESSAGE:
        return row
    content = row["content"]
    columns = content_of_json(content) if isinstance(content, str | None) else (None, content)
    return row | dict(zip(("text", "content"), columns, strict=True))


def write(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that have `arrived`."""
    _INSERTS[table.name].run_many(connection, [_encoded(connection, table, row) for row in rows])


def claim(connection: sa.Connection, row: Mapping[str, Any]) -> bool:
    """Insert the row of a session unless its key is taken; False if it is."""
    return bool(_claim.run(connection, _encoded(connection, SESSION, row)))


def amend(connection: sa.Connection, key: str, values: Mapping[str, Any]) -> None:
    """Set columns of a session that was just written."""
    if values:
        connection.execute(sa.update(SESSION).where(of_session(SESSION, key)).values(dict(values)))


def _encoded(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> Row:
    encoded = {column.name: row[column.name] for column in _KEPT[table.name]}
    if table is SESSION:
        encoded |= new_life()
    for name in _TIMES[table.name]:
        if encoded[name] is not None:
            encoded[name] = dialect_of(connection).time(datetime.fromisoformat(encoded[name]))
    return encoded
