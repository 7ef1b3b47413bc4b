"""Whether what is stored agrees with itself, and mending what can be mended without guessing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store.columns import TimeColumn, as_stored
from lango_store.dialect import dialect_of, reflected
from lango_store.errors import DamagedMessage
from lango_store.operations import counters, salvage, search
from lango_store.operations.binds import MESSAGE, SESSION, SHARED_VALUE, TURN, VALUE, key_column, of_session
from lango_store.operations.lists import aware
from lango_store.operations.rows import MESSAGE_COLUMNS, SESSION_COLUMNS, damaged_rows
from lango_store.reports import Finding
from lango_store.tables import Base

_PAGE = 1_000


def checks() -> list[Callable[[sa.Connection], Iterator[Finding]]]:
    """Return the checks, to be run one by one: what one stumbles over keeps no other from being run."""
    return [
        _settings,
        _distribution,
        _indexes,
        _counters,
        _summaries,
        _orphans,
        _times,
        _sessions,
        _messages,
        _values,
        _search_index,
    ]


def missing_tables(connection: sa.Connection) -> list[str]:
    """Return the names of the tables that are missing."""
    schema, inspector, tables = dialect_of(connection).schema(connection), sa.inspect(connection), Base.metadata.tables
    return [name for name in sorted(tables) if not inspector.has_table(name, schema=schema)]


def _settings(connection: sa.Connection) -> Iterator[Finding]:
    dialect = dialect_of(connection)
    for detail, remedy in dialect.health_warnings(connection):
        yield Finding(name="settings", subject=dialect.name, detail=detail, remedy=remedy)


def _distribution(connection: sa.Connection) -> Iterator[Finding]:
    distribution = dialect_of(connection).distribution
    for detail, remedy in () if distribution is None else distribution.differences(connection):
        yield Finding(name="distribution", subject=detail.split()[0], detail=detail, remedy=remedy)


def _indexes(connection: sa.Connection) -> Iterator[Finding]:
    for name in missing_indexes(connection):
        detail = f"index {name} is not there"
        yield Finding(name="missing index", subject=name, detail=detail, remedy="doctor --repair makes it")


def _counters(connection: sa.Connection) -> Iterator[Finding]:
    for key, detail in counters.wrong_counters(connection):
        yield Finding(name="wrong counters", subject=_shown(key), detail=detail, remedy="doctor --repair counts again")


def _summaries(connection: sa.Connection) -> Iterator[Finding]:
    for key, detail in counters.wrong_summaries(connection):
        remedy = "doctor --repair points at the last compaction there is"
        yield Finding(name="wrong summary", subject=_shown(key), detail=detail, remedy=remedy)


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
    for error in _all_or_reachable(connection, _damaged_sessions, salvage.damaged_sessions):
        remedy = "update the session with a new value, or delete it"
        yield Finding(name="unreadable session", subject=error.key, detail=f"{error.field}: {error}", remedy=remedy)


def _shown(key: Any) -> str:
    return key if isinstance(key, str) else repr(key)


def _all_or_reachable(
    connection: sa.Connection,
    all_: Callable[[sa.Connection], Iterable[DamagedMessage]],
    reachable: Callable[[sa.Connection], Iterable[DamagedMessage]],
) -> Iterable[DamagedMessage]:
    """Look through all rows; where the database is so damaged that it cannot give them, through those it can."""
    try:
        return all_(connection)
    except (sa.exc.DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
        if not dialect_of(connection).is_damage(getattr(error, "orig", None) or error):
            raise
        return reachable(connection)


def _damaged_sessions(connection: sa.Connection) -> Iterable[DamagedMessage]:
    found: list[DamagedMessage] = []
    key = ""
    while True:
        query = sa.select(*SESSION_COLUMNS).where(SESSION.c.key > key).order_by(SESSION.c.key).limit(_PAGE)
        rows = connection.execute(query).all()
        found += damaged_rows(rows)
        if len(rows) < _PAGE:
            return found
        before, key = key, rows[-1][0]
        if not isinstance(key, str) or key <= before:  # a damaged index would lead in a circle
            return salvage.damaged_sessions(connection)


def _messages(connection: sa.Connection) -> Iterator[Finding]:
    for error in _all_or_reachable(connection, _damaged_messages, salvage.damaged_messages):
        remedy = f"`lango-store sessions show` shows the rest; mend or delete seq {error.seq} of {error.key!r} by hand"
        yield Finding(name="unreadable message", subject=error.key, detail=str(error).split(";")[0], remedy=remedy)


def _values(connection: sa.Connection) -> Iterator[Finding]:
    for table, owner, name, reason in salvage.damaged_values(connection):
        yield Finding(
            name="unreadable value",
            subject=_shown(owner),
            detail=f"value {name!r} of {'session' if table is VALUE else 'scope'} {owner!r} {reason}",
            remedy=f"set or drop it, or delete its row of {table.name} by hand",
        )


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
        counters.count_again(connection, finding.subject)
    elif finding.name == "wrong summary":
        counters.sum_up_again(connection, finding.subject)
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


def _damaged_messages(connection: sa.Connection) -> Iterable[DamagedMessage]:
    found: list[DamagedMessage] = []
    key, seq = "", 0
    while True:
        query = (
            sa.select(MESSAGE.c.session_key, *MESSAGE_COLUMNS)
            .where(
                sa.tuple_(MESSAGE.c.session_key, MESSAGE.c.seq)
                > sa.tuple_(sa.literal(key, MESSAGE.c.session_key.type), seq)
            )
            .order_by(MESSAGE.c.session_key, MESSAGE.c.seq)
            .limit(_PAGE)
        )
        rows = connection.execute(query).all()
        for row_key, *row in rows:
            found += salvage.damaged_message(row_key, row)
        if len(rows) < _PAGE:
            return found
        before = key, seq
        key, seq = rows[-1][0], rows[-1][1]
        # Nothing follows a seq that is not a number, and a damaged index would lead in a circle.
        if not isinstance(key, str) or type(seq) is not int or (key, seq) <= before:
            return salvage.damaged_messages(connection)
