"""Transfer: read the rows of a session as stored, and insert them into another database.

The copy gets a new revision, and a new incarnation unless the row to insert has one. Leases, copies of removed or
replaced rows, and payloads that only these copies refer to are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store._dialect import Dialect, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import paging
from lango_store._operations.binds import (
    MESSAGE,
    PAYLOAD,
    SESSION,
    arrays_of,
    column,
    key_column,
    number,
    of_sessions,
)
from lango_store._operations.log import payloads
from lango_store._operations.paging import Pages
from lango_store._operations.rows import next_start, seq_or_zero
from lango_store._operations.session.sessions import new_incarnation
from lango_store._operations.session_tables import CHILDREN, HAS_ASIDE, TABLES
from lango_store._rows.columns import TimeColumn
from lango_store._rows.encoding import decode_time
from lango_store.errors import DamagedMessage, DatabaseUnavailable

Row = dict[str, Any]
"""A row as a dict by column name: JSON as text, times as aware datetimes."""


def stored_row(table: sa.Table, values: Sequence[Any]) -> Row:
    """Return a row as a dict; raise `DamagedMessage` for text or a time that cannot be decoded."""
    row = dict(zip(TABLES[table].names, values, strict=True))
    if bytes in map(type, values):
        name = next(name for name, value in row.items() if type(value) is bytes)
        raise damaged(table, row, name, "is bytes, not text")
    for name in TABLES[table].times:
        if row[name] is not None:
            try:
                row[name] = decode_time(row[name])
            except ValueError as error:
                raise damaged(table, row, name, str(error)) from None
    return row


def damaged(table: sa.Table, row: Mapping[str, Any], field: str, reason: str) -> DamagedMessage:
    """Return the error for a row that cannot be read; it names the session or the shared scope, and the row."""
    name = TABLES[table].stored.name.format_map(row)
    key, seq = str(row[key_column(table).name] or ""), seq_or_zero(row.get("seq"))
    return DamagedMessage(key, seq, f"{name}, {field}" if name else field, reason)


def sessions(connection: sa.Connection, keys: Sequence[str]) -> list[Row]:
    """Read the session rows with these keys."""
    query = sa.select(*TABLES[SESSION].selected).where(of_sessions(SESSION, keys))
    return [stored_row(SESSION, values) for values in connection.execute(query)]


def incarnations(connection: sa.Connection, keys: Sequence[str]) -> dict[str, int]:
    """Read the incarnations of sessions by their keys."""
    query = sa.select(SESSION.c.key, SESSION.c.incarnation).where(of_sessions(SESSION, keys))
    return {row[0]: row[1] for row in connection.execute(query)}


def heads(connection: sa.Connection, after: str, limit: int) -> list[tuple[str, int]]:
    """List the sessions after a key: each key, and the number of rows according to the session's counters."""
    counted = SESSION.c.message_count + SESSION.c.record_count + SESSION.c.turn_count
    query = sa.select(SESSION.c.key, counted).where(SESSION.c.key > after).order_by(SESSION.c.key).limit(limit)
    return [(key, rows) for key, rows in connection.execute(query)]


_READ_AHEAD: Final = 50  # rows, each of which may have megabytes


def whole_sessions(connection: sa.Connection, keys: Sequence[str]) -> Iterator[tuple[sa.Table, Row]]:
    """Yield the rows of sessions in the order of their keys, each session's own row first.

    Needs a snapshot, because each table is read with a separate cursor.
    """
    with ExitStack() as stack:

        def rows_of(table: sa.Table) -> Iterator[Row]:
            query = sa.select(*TABLES[table].selected).where(of_sessions(table, keys)).order_by(*table.primary_key)
            result = stack.enter_context(closing(connection.execute(query, execution_options=_STREAMED)))
            return (stored_row(table, values) for values in result)

        children = [(each.table, rows_of(each.table)) for each in CHILDREN]
        waiting = [next(rows, None) for _, rows in children]
        for session in rows_of(SESSION):
            yield SESSION, session
            has_aside = any(session[each.name] is not None for each in HAS_ASIDE)
            referenced = payloads.referenced(connection, session["key"]) if has_aside else set()
            for number, (table, rows) in enumerate(children):
                while (row := waiting[number]) is not None and row["session_key"] == session["key"]:
                    if table is MESSAGE and row["payloads"] is not None:
                        referenced |= payloads.digests_of([row["payloads"]])
                    if table is not PAYLOAD or row["digest"] in referenced:
                        yield table, row
                    waiting[number] = next(rows, None)
        if any(waiting):
            raise DatabaseUnavailable("the database returned rows out of order, it is damaged: run `doctor`")


_STREAMED: Final = {"yield_per": _READ_AHEAD}


def whole_session(connection: sa.Connection, key: str) -> Iterator[tuple[sa.Table, list[Row]]]:
    """Yield the rows of a session page by page, the session row first; yield nothing if it does not exist."""
    if rows := sessions(connection, [key]):
        yield SESSION, rows
        for each in CHILDREN:
            for page in parts(connection, each.table, key):
                yield each.table, page


_PAGES: Final = {each.table: Pages(each.table, each.selected) for each in CHILDREN}


def parts(connection: sa.Connection, table: sa.Table, key: str) -> Iterator[list[Row]]:
    """Yield pages of a session's rows in one of `CHILDREN`, without payloads that no message uses."""
    referenced = payloads.referenced(connection, key) if table is PAYLOAD else set()
    for page in _PAGES[table].read(connection, key):
        rows = [stored_row(table, values) for values in page]
        yield [row for row in rows if table is not PAYLOAD or row["digest"] in referenced]


# Rows of scopes


@cache
def _shared_page(table: sa.Table) -> Statement:
    after = sa.tuple_(*table.primary_key) > sa.tuple_(column(table.c.scope), column(table.c.name))
    query = sa.select(*TABLES[table].selected).where(after).order_by(*table.primary_key)
    return Statement(query.limit(number("limit")))


def shared_rows(connection: sa.Connection, table: sa.Table) -> Iterator[Row | DamagedMessage]:
    """Read all rows of one of `SHARED`; yield a `DamagedMessage` in place of each damaged one."""
    after = "", ""
    while True:
        page = _shared_page(table).run(connection, {"scope": after[0], "name": after[1], "limit": paging.ROWS})
        for values in page:
            try:
                yield stored_row(table, values)
            except DamagedMessage as error:
                yield error
        if len(page) < paging.ROWS:
            return
        scope, name, *_ = page[-1]
        after = next_start(after, (scope, name))


def shared_row(connection: sa.Connection, table: sa.Table, scope: str, name: str) -> Row | None:
    """Read a row of one of `SHARED`, or None."""
    query = sa.select(*TABLES[table].selected).where(table.c.scope == scope, table.c.name == name)
    values = connection.execute(query).first()
    return None if values is None else stored_row(table, values)


# Write


def _insert(table: sa.Table, dialect: Dialect) -> Any:
    written = [each for each in table.c if each.computed is None]
    if not dialect.takes_arrays:
        return dialect.insert(table).values({each.name: column(each) for each in written})
    kinds = {each.name: each.type if isinstance(each.type, _NO_TEXTS) else sa.Text() for each in written}
    arrays: list[Any] = [
        sa.bindparam(name, type_=postgresql.ARRAY(kind), required=True) for name, kind in kinds.items()
    ]
    bound = sa.func.unnest(*arrays).table_valued(*kinds).render_derived(name="given")
    columns = [sa.cast(bound.c[each.name], each.type) for each in written]
    return dialect.insert(table).from_select(list(kinds), sa.select(*columns))


_NO_TEXTS: Final = (sa.BigInteger, sa.Double, TimeColumn)
_INSERTS: Final = {
    table: Statement(lambda dialect, table=table: _insert(table, dialect))  # type: ignore[misc]
    for table in TABLES
}
_insert_sessions: Final = Statement(
    lambda dialect: (
        _insert(SESSION, dialect).on_conflict_do_nothing(index_elements=[SESSION.c.key]).returning(SESSION.c.key)
    )
)


def insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert rows, in one statement with arrays if the database supports this."""
    _INSERTS[table].run_many(connection, _bound(connection, table, rows))


def insert_sessions(connection: sa.Connection, rows: Sequence[Row]) -> set[str]:
    """Insert session rows whose keys do not exist yet; return the inserted keys."""
    bound = _bound(connection, SESSION, rows)
    return {key for values in bound for (key,) in _insert_sessions.run(connection, values)}


def _bound(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the values of each statement that inserts the rows: one with arrays, or one for each row."""
    encoded = [_encoded(connection, table, row) for row in rows]
    return [arrays_of(encoded, table.c.keys())] if dialect_of(connection).takes_arrays and encoded else encoded


def _encoded(connection: sa.Connection, table: sa.Table, row: Row) -> Row:
    described, time = TABLES[table], dialect_of(connection).time
    encoded = dict.fromkeys(described.stored.unset) | (new_incarnation() if table is SESSION else {}) | row
    for name in described.times:
        encoded[name] = time(row[name])
    return encoded
