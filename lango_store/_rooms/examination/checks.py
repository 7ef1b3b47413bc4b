"""The checks of the core: they find damage and risky settings, and repair faults that have only one correct repair."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of, reflected
from lango_store._operations.binds import (
    MESSAGE,
    SESSION,
    TURN,
    VALUE,
    key_column,
    of_session,
)
from lango_store._operations.derived_data import DERIVED
from lango_store._operations.log import changes, counters, payloads, removals
from lango_store._operations.rows import SESSION_COLUMNS, session_info
from lango_store._operations.session_tables import CHILDREN, SHARED, TABLES
from lango_store._parts.checks import Check, Fault, lock, shown
from lango_store._rooms.examination import payload_faults
from lango_store._rooms.examination.values import Finding
from lango_store._rows.buckets import TRIGGERS, Bucket, create_triggers
from lango_store.errors import DamagedMessage
from lango_store.rows import transfer
from lango_store.rows.portable import SEE_DOCTOR, RowEncoder
from lango_store.tables import Base

_PAGE: Final = 1_000


def _settings(connection: sa.Connection) -> Iterator[Fault]:
    dialect = dialect_of(connection)
    for detail, remedy in dialect.health_warnings(connection):
        yield dialect.name, detail, remedy


def _damage(connection: sa.Connection) -> Iterator[Fault]:
    dialect = dialect_of(connection)
    for detail, remedy in dialect.damage(connection):
        yield dialect.name, detail, remedy


def _triggers(connection: sa.Connection) -> Iterator[Fault]:
    ours = {*TRIGGERS, *(name for each in DERIVED for name in each.triggers)}
    for table, name in sorted(map(tuple, connection.exec_driver_sql(dialect_of(connection).select_triggers))):
        if table in Base.metadata.tables and name not in ours:
            detail = f"trigger {name} on {table} may change or drop rows that a call has reported as stored"
            yield name, detail, f"drop it, or make sure that it only reads the rows of {table}"


def _missing_indexes(connection: sa.Connection) -> Iterator[Fault]:
    schema, tables = dialect_of(connection).schema(connection), Base.metadata.tables
    with reflected():
        by_table = sa.inspect(connection).get_multi_indexes(schema=schema, filter_names=[*tables])
    existing = {index["name"] for indexes in by_table.values() for index in indexes}
    for name in sorted({str(index.name) for table in tables.values() for index in table.indexes} - existing):
        yield name, f"index {name} is missing", "doctor --repair creates it"


_BUCKETS: Final = {SESSION.c[f"{name}_bucket"]: Bucket(SESSION.c[f"{name}_at"]) for name in ("updated", "expires")}
_WRONG_BUCKET: Final = sa.or_(*(column.is_distinct_from(bucket) for column, bucket in _BUCKETS.items()))


def _wrong_buckets(connection: sa.Connection) -> Iterator[Fault]:
    names = {name for _, name in connection.exec_driver_sql(dialect_of(connection).select_triggers)}
    for name in () if dialect_of(connection).generates_columns else TRIGGERS.keys() - names:
        yield name, f"trigger {name} is missing: lists of sessions and purges miss sessions", _SETS_BUCKETS
    number = connection.execute(sa.select(sa.func.count()).select_from(SESSION).where(_WRONG_BUCKET)).scalar_one()
    if number:
        yield SESSION.name, f"lists and purges miss {number} sessions, whose buckets are wrong", _SETS_BUCKETS


_SETS_BUCKETS: Final = "doctor --repair creates the triggers and sets the buckets"


def _set_buckets(connection: sa.Connection, _: str) -> None:
    create_triggers(connection)
    connection.execute(sa.update(SESSION).where(_WRONG_BUCKET).values(_BUCKETS))


def _counters(connection: sa.Connection) -> Iterator[Fault]:
    for key, wrong in counters.wrong(connection):
        faults = "; ".join(f"{name} is {stored}, its rows say {counted}" for name, (stored, counted) in wrong.items())
        yield shown(key), f"session {key!r}: {faults}", "doctor --repair counts again"


def _misplaced(connection: sa.Connection) -> Iterator[Fault]:
    query = sa.select(MESSAGE.c.session_key, sa.func.count(), sa.func.min(MESSAGE.c.seq)).where(removals.is_misplaced())
    for key, number, seq in connection.execute(query.group_by(MESSAGE.c.session_key)):
        detail = f"session {key!r}: {number} messages, such as {seq}, name a turn that does not contain them"
        yield shown(key), detail, "doctor --repair removes them from the turn"


def _repeated_ids(connection: sa.Connection) -> Iterator[Fault]:
    for table in (each.table for each in CHILDREN if "id" in each.table.c):
        # Grouped by an expression, so that the database does not read a damaged index.
        id = table.c.id.concat(sa.literal_column("''", sa.Text()))
        ids = sa.select(table.c.session_key, id.label("id")).where(table.c.id.is_not(None))
        repeated = ids.group_by(table.c.session_key, id).having(sa.func.count() > sa.literal_column("1")).subquery()
        query = sa.select(repeated.c.session_key, sa.func.count(), sa.func.min(repeated.c.id))
        for key, number, example in connection.execute(query.group_by(repeated.c.session_key)):
            detail = f"session {key!r}: {number} ids are stored more than once in {table.name}, such as {example!r}"
            remedy = f"set id to NULL in all rows but the first of each id, then rebuild the index uq_{table.name}_id"
            yield shown(key), detail, remedy


def _orphans(connection: sa.Connection) -> Iterator[Fault]:
    for table in (table for table in Base.metadata.tables.values() if "session_key" in table.c):
        number = connection.execute(sa.select(sa.func.count()).select_from(table).where(_orphaned(table))).scalar_one()
        if number:
            yield table.name, f"{number} rows of {table.name} belong to no session", "doctor --repair deletes them"


def _without_message(connection: sa.Connection) -> Iterator[Fault]:
    for key, table, number, seq in changes.orphans(connection):
        detail = f"session {key!r}: {number} rows of {table} belong to messages that do not exist, such as {seq}"
        yield shown(key), detail, "doctor --repair deletes them"


def _missing_payloads(connection: sa.Connection) -> Iterator[Fault]:
    for key, seq, digest in payload_faults.missing(connection):
        detail = f"session {key!r}: payload {digest} of message {seq} is missing"
        yield shown(key), detail, f"restore a backup, or redact or delete message {seq}"


def _unused_payloads(connection: sa.Connection) -> Iterator[Fault]:
    for key, number in payload_faults.unused(connection):
        yield shown(key), f"session {key!r}: {number} payloads belong to no message", "doctor --repair deletes them"


def _orphaned(table: sa.Table) -> sa.ColumnElement[bool]:
    return ~sa.exists().where(of_session(SESSION, table.c.session_key))


def _times(connection: sa.Connection) -> Iterator[Fault]:
    for column in (table.c[name] for table, described in TABLES.items() for name in described.times):
        key = key_column(column.table)
        wrong = sa.and_(column.is_not(None), dialect_of(connection).is_malformed_time(column))
        query = sa.select(key, sa.func.count(), sa.func.min(sa.cast(column, sa.Text))).where(wrong).group_by(key)
        for owner, number, example in connection.execute(query):
            detail = f"session {owner!r}: {column} holds {number} in a form that does not sort, such as {example!r}"
            remedy = "doctor --repair rewrites those that have a time zone; correct the others with SQL"
            yield shown(owner), detail, f"{remedy}, in the form 2026-11-21T12:00:00.123456+00:00"


def _rewrite_times(connection: sa.Connection, finding: Finding) -> bool:
    """Rewrite the times of a finding that have a time zone; return True if the others are none."""
    are_all = True
    for column in (table.c[name] for table, described in TABLES.items() for name in described.times):
        if f": {column} holds " not in finding.detail:
            continue
        stored = sa.cast(column, sa.Text)
        wrong = dialect_of(connection).is_malformed_time(column)
        of_owner = key_column(column.table) == finding.subject
        for (text,) in connection.execute(sa.select(stored).where(of_owner, column.is_not(None), wrong).distinct()):
            with suppress(ValueError, TypeError):  # a TypeError for text that is not UTF-8
                moment = datetime.fromisoformat(text)
                if moment.tzinfo is not None:
                    is_stored = sa.and_(of_owner, stored == text)
                    connection.execute(sa.update(column.table).where(is_stored).values({column: moment}))
                    continue
            are_all = False
    return are_all


def _sessions(connection: sa.Connection) -> Iterator[Fault]:
    def decode(*row: Any) -> None:
        session_info(row)

    for fault in _damaged(connection, SESSION_COLUMNS, decode):
        yield fault.key, fault.fact, "update the session with a new value, or delete it"


def _unreadable(*tables: sa.Table) -> Callable[[sa.Connection], Iterator[Fault]]:
    """Return a check that finds the rows of tables that a backup would refuse."""

    def check(connection: sa.Connection) -> Iterator[Fault]:
        for table in tables:

            def decode(*values: Any, table: sa.Table = table) -> None:
                _decode(table, values)

            key, owner = ("scope", "scope") if table in SHARED else ("session_key", "session")
            for fault in _damaged(connection, TABLES[table].selected, decode):
                fact = fault.fact.removesuffix(SEE_DOCTOR).replace("session", owner, 1)
                remedy = "doctor --repair --delete-unreadable deletes its row"
                yield fault.key, fact, f"{remedy}; or correct it with SQL: {table.name}, {key} {fault.key!r}"

    return check


def _decode(table: sa.Table, values: Sequence[Any]) -> None:
    RowEncoder().encode_stored(table, transfer.stored_row(table, values))


def _delete_unreadable(connection: sa.Connection, table: sa.Table, owner: str) -> bool:
    """Delete the unreadable rows of a session or scope; return False if one of them cannot be found by its key."""
    if table not in SHARED:
        lock(connection, owner)
    described = TABLES[table]
    query = sa.select(*described.selected).where(key_column(table) == owner)
    with dialect_of(connection).bytes_for_bad_text(connection):
        rows = connection.execute(query).all()
    are_all = True
    for row in rows:
        try:
            _decode(table, row)
        except DamagedMessage:
            stored = dict(zip(described.names, row, strict=True))
            of_row = [column == stored[column.name] for column in table.primary_key]
            are_all &= connection.execute(sa.delete(table).where(*of_row)).rowcount == 1
    if table is TURN:
        removals.detach_misplaced(connection, owner)
    if table is MESSAGE:
        payloads.release(connection, owner)
    if table in (MESSAGE, TURN):
        counters.correct(connection, owner)
    return are_all


def _damaged(
    connection: sa.Connection, columns: Sequence[sa.ColumnElement[Any]], decode: Callable[..., None]
) -> list[DamagedMessage]:
    """Decode all rows of a table, and return the errors in the order of the rows' keys.

    The query has no ORDER BY, because sorting could use a damaged index. Text that is not UTF-8 is read as bytes.
    """
    errors: list[DamagedMessage] = []
    with dialect_of(connection).bytes_for_bad_text(connection):
        for row in connection.execute(sa.select(*columns), execution_options={"yield_per": _PAGE}):
            try:
                decode(*row)
            except DamagedMessage as error:
                errors.append(error)
    return sorted(errors, key=lambda each: (each.key, each.seq, each.field))


UNREADABLE: Final[dict[str, tuple[sa.Table, ...]]] = {
    "unreadable message": (MESSAGE,),
    "unreadable turn": (TURN,),
    "unreadable value": (VALUE, *SHARED),
    "unreadable draft, inbox, call or suspension": tuple(
        each.table for each in CHILDREN if each.table not in (MESSAGE, TURN, VALUE)
    ),
}
"""The tables of each check for unreadable rows."""


def _create_index(connection: sa.Connection, name: str) -> None:
    for table in Base.metadata.sorted_tables:
        for index in table.indexes:
            if index.name == name:
                index.create(connection)


def _release_payloads(connection: sa.Connection, key: str) -> None:
    lock(connection, key)
    payloads.release(connection, key)


def _delete_without_message(connection: sa.Connection, key: str) -> None:
    lock(connection, key)
    changes.delete_orphans(connection, key)


def _delete_orphans(connection: sa.Connection, name: str) -> None:
    table = Base.metadata.tables[name]
    connection.execute(sa.delete(table).where(_orphaned(table)))


CHECKS: Final = [
    Check("settings", _settings),
    Check("damaged file", _damage),
    Check("trigger", _triggers),
    Check("missing index", _missing_indexes, _create_index),
    Check("wrong bucket", _wrong_buckets, _set_buckets),
    Check("wrong counters", _counters, counters.correct),
    Check("misplaced message", _misplaced, removals.detach_misplaced),
    Check("repeated id", _repeated_ids),
    Check("orphans", _orphans, _delete_orphans),
    Check("row without message", _without_message, _delete_without_message),
    Check("missing payload", _missing_payloads),
    Check("unused payload", _unused_payloads, _release_payloads),
    Check("time in another form", _times),
    Check("unreadable session", _sessions),
    *(Check(name, _unreadable(*tables)) for name, tables in UNREADABLE.items()),
]


def find(connection: sa.Connection, check: Check) -> list[Finding]:
    """Run a check and return its findings."""
    return [
        Finding(name=check.name, subject=subject, detail=detail, remedy=remedy)
        for subject, detail, remedy in check.find(connection)
    ]


def repair(connection: sa.Connection, check: Check, finding: Finding, *, delete_unreadable: bool) -> bool:
    """Repair the fault of a finding; return False if this function cannot repair it."""
    if finding.name in UNREADABLE and delete_unreadable:
        tables = UNREADABLE[finding.name]
        return sum(_delete_unreadable(connection, each, finding.subject) for each in tables) == len(tables)
    if finding.name == "time in another form":
        return _rewrite_times(connection, finding)
    if check.repair is None:
        return False
    check.repair(connection, finding.subject)
    return True
