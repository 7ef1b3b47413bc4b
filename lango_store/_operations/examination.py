"""The doctor: checks of what is stored, and repairs that need no guess."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of, reflected
from lango_store._dialect.search import TRIGGERS as SEARCH_TRIGGERS
from lango_store._operations import counters, search
from lango_store._operations.binds import MESSAGE, SESSION, SHARED_VALUE, TURN, VALUE, key_column, of_session
from lango_store._operations.lists import aware
from lango_store._operations.rows import (
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    decode_messages,
    decode_session,
    seq_or_zero,
    session_value,
)
from lango_store._rows.columns import TimeColumn, as_stored
from lango_store._rows.encoding import checked_name, decode_json, decode_time
from lango_store._values.model import SessionInfo
from lango_store._values.reports import Finding
from lango_store.errors import DamagedMessage
from lango_store.tables import Base

_PAGE: Final = 1_000


def missing_tables(connection: sa.Connection) -> list[str]:
    """Return the names of the tables that are missing."""
    schema, inspector, tables = dialect_of(connection).schema(connection), sa.inspect(connection), Base.metadata.tables
    return [name for name in sorted(tables) if not inspector.has_table(name, schema=schema)]


def _settings(connection: sa.Connection) -> Iterator[Finding]:
    dialect = dialect_of(connection)
    for detail, remedy in dialect.health_warnings(connection):
        yield Finding(name="settings", subject=dialect.name, detail=detail, remedy=remedy)


def _triggers(connection: sa.Connection) -> Iterator[Finding]:
    for table, name in sorted(dialect_of(connection).triggers(connection)):
        if table in Base.metadata.tables and name not in SEARCH_TRIGGERS:
            yield Finding(
                name="trigger",
                subject=name,
                detail=f"trigger {name} on {table} may change or drop rows that a call has reported as stored",
                remedy=f"drop it, or make sure that it only reads the rows of {table}",
            )


def _distribution(connection: sa.Connection) -> Iterator[Finding]:
    for table in dialect_of(connection).undistributed_tables(connection):
        detail = f"{table} is not distributed, and others of our tables are"
        yield Finding(name="distribution", subject=table, detail=detail, remedy="run `lango-store db distribute`")


def _indexes(connection: sa.Connection) -> Iterator[Finding]:
    for name in missing_indexes(connection):
        detail = f"index {name} is not there"
        yield Finding(name="missing index", subject=name, detail=detail, remedy="doctor --repair makes it")


def _counters(connection: sa.Connection) -> Iterator[Finding]:
    for key, wrong in counters.wrong(connection):
        faults = "; ".join(f"{name} is {stored}, its rows say {found}" for name, (stored, found) in wrong.items())
        yield Finding(
            name="wrong counters",
            subject=_shown(key),
            detail=f"session {key!r}: {faults}",
            remedy="doctor --repair counts again",
        )


def _orphans(connection: sa.Connection) -> Iterator[Finding]:
    for table in (MESSAGE, TURN, VALUE):
        number = connection.execute(sa.select(sa.func.count()).select_from(table).where(_orphaned(table))).scalar_one()
        if number:
            detail = f"{number} rows of {table.name} belong to no session"
            yield Finding(name="orphans", subject=table.name, detail=detail, remedy="doctor --repair deletes them")


def _times(connection: sa.Connection) -> Iterator[Finding]:
    for table, _, column in _TIME_COLUMNS:
        key = key_column(table)
        wrong = sa.and_(column.is_not(None), dialect_of(connection).misformed(column))
        query = sa.select(key, sa.func.count(), sa.func.min(sa.cast(column, sa.Text))).where(wrong).group_by(key)
        for key_, number, example in connection.execute(query):
            yield Finding(
                name="time in another form",
                subject=_shown(key_),
                detail=f"session {key_!r}: {column} holds {number} in a form that does not sort, such as {example!r}",
                remedy="doctor --repair writes those anew that name their zone; write the others by hand, such as "
                "2026-11-21T12:00:00.123456+00:00",
            )


def _sessions(connection: sa.Connection) -> Iterator[Finding]:
    damaged: list[DamagedMessage] = []
    for row in _rows(connection, SESSION_COLUMNS):
        try:
            session_value(SessionInfo, decode_session(row))
        except DamagedMessage as error:
            damaged.append(error)
    for fault in sorted(damaged, key=lambda each: each.key):
        remedy = "update the session with a new value, or delete it"
        yield Finding(name="unreadable session", subject=fault.key, detail=fault.fact, remedy=remedy)


def _messages(connection: sa.Connection) -> Iterator[Finding]:
    damaged: list[DamagedMessage] = []
    for key, *row in _rows(connection, [MESSAGE.c.session_key, *MESSAGE_COLUMNS]):
        try:
            if not isinstance(key, str):
                raise DamagedMessage(repr(key), seq_or_zero(row[0]), "session_key", "is not text")
            decode_messages(key, [row])
        except DamagedMessage as error:
            damaged.append(error)
    for fault in sorted(damaged, key=lambda each: (each.key, each.seq)):
        remedy = f"`lango-store sessions show` shows the rest; fix or delete seq {fault.seq} of {fault.key!r} by hand"
        yield Finding(name="unreadable message", subject=fault.key, detail=fault.fact, remedy=remedy)


def _values(connection: sa.Connection) -> Iterator[Finding]:
    for table in (VALUE, SHARED_VALUE):
        damaged: list[tuple[str, str, str]] = []
        columns = [key_column(table), table.c.name, as_stored(table.c.value), as_stored(table.c.updated_at)]
        for owner, name, text, updated_at in _rows(connection, columns):
            try:
                checked_name(owner, name)
                decode_json(text)
                decode_time(updated_at)
            except ValueError as error:
                damaged.append((_shown(owner), repr(name), str(error)))
        for owner, name, reason in sorted(damaged):
            yield Finding(
                name="unreadable value",
                subject=owner,
                detail=f"value {name} of {'session' if table is VALUE else 'scope'} {owner!r} cannot be read: {reason}",
                remedy=f"set or drop it, or delete its row of {table.name} by hand",
            )


def _rows(connection: sa.Connection, columns: Sequence[sa.ColumnElement[Any]]) -> Iterator[Sequence[Any]]:
    """Yield all rows of a table, without an order, since an index may be damaged; text that is not UTF-8 as bytes."""
    with dialect_of(connection).bytes_for_bad_text(connection):
        yield from connection.execute(sa.select(*columns), execution_options={"yield_per": _PAGE})


def _shown(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _search_index(connection: sa.Connection) -> Iterator[Finding]:
    for fault in search.faults(connection):
        detail, _, remedy = fault.rpartition(": ")
        yield Finding(name="search index", subject="lango_search", detail=detail, remedy=remedy)


def repair(connection: sa.Connection, finding: Finding) -> bool:
    """Repair what a finding found, and return whether that was possible."""
    if finding.name == "missing index":
        for table in Base.metadata.sorted_tables:
            for index in table.indexes:
                if index.name == finding.subject:
                    index.create(connection)
    elif finding.name == "wrong counters":
        counters.correct(connection, finding.subject)
    elif finding.name == "time in another form":
        return _write_times_anew(connection, finding.subject)
    elif finding.name == "orphans":
        table = Base.metadata.tables[finding.subject]
        connection.execute(sa.delete(table).where(_orphaned(table)))
    else:
        return False
    return True


_TIME_COLUMNS: Final = [
    (table, place, column)
    for table, place in (
        (SESSION, ["key"]),
        (TURN, ["session_key", "turn_no"]),
        (MESSAGE, ["session_key", "seq"]),
        (VALUE, ["session_key", "name"]),
        (SHARED_VALUE, ["scope", "name"]),
    )
    for column in table.c
    if isinstance(column.type, TimeColumn)
]


def _write_times_anew(connection: sa.Connection, key: str) -> bool:
    """Write the times of a session in our form; False if one is left that is not a time, or does not name its zone."""
    whole = True
    for table, place, column in _TIME_COLUMNS:
        wrong = (column.is_not(None), dialect_of(connection).misformed(column), of_session(table, key))
        query = sa.select(as_stored(column), *(table.c[name] for name in place)).where(*wrong)
        for stored, *at in connection.execute(query).all():
            try:
                moment = aware(datetime.fromisoformat(stored))
            except (ValueError, TypeError):  # no text, no time, or no zone
                whole = False
                continue
            row = (table.c[name] == value for name, value in zip(place, at, strict=True))
            connection.execute(sa.update(table).where(*row).values({column: moment}))
    return whole


def missing_indexes(connection: sa.Connection) -> list[str]:
    """Return the names of the indexes that are missing."""
    schema, tables = dialect_of(connection).schema(connection), Base.metadata.tables
    with reflected():
        found = sa.inspect(connection).get_multi_indexes(schema=schema, filter_names=[*tables])
    there = {index["name"] for indexes in found.values() for index in indexes}
    return sorted(str(index.name) for table in tables.values() for index in table.indexes if index.name not in there)


def _orphaned(table: sa.Table) -> sa.ColumnElement[bool]:
    return ~sa.exists().where(of_session(SESSION, table.c.session_key))


CHECKS: Final = (
    _settings,
    _triggers,
    _distribution,
    _indexes,
    _counters,
    _orphans,
    _times,
    _sessions,
    _messages,
    _values,
    _search_index,
)
"""The checks of a store whose tables are complete. Each runs by itself: an error of one keeps no other from running."""
