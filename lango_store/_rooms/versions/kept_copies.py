"""Copies of the messages and turns that a change removes or replaces, so that it can be taken back.

A copy is a version of the row that was in the log until `removed_at`, the `seq` of the change. If the row has a later
version, because the change replaced the row or a later change restored it, `next_at` is the `seq` from which that
version is in the log.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import CHANGE, MESSAGE, NOW, SESSION, TURN, number, of_session, session_key
from lango_store._operations.log import payloads
from lango_store._operations.log.changes import LogChange, Rows
from lango_store._operations.session import sessions
from lango_store._rooms.versions.tables import REMOVED_MESSAGE, REMOVED_TURN
from lango_store.errors import quoted

PERMANENT: Final = ("redact", "drop_sent", "fork")
"""The kinds of changes that are never taken back."""

COPY_OF: Final = {MESSAGE: REMOVED_MESSAGE, TURN: REMOVED_TURN}
"""By table: the table of its removed rows."""

NUMBER: Final = {MESSAGE: "seq", TURN: "turn_no"}
_AT_ONCE: Final = 200


def copying(
    source: sa.Table, target: sa.Table, values: Mapping[str, sa.ColumnElement[Any]], *conditions: sa.ColumnElement[bool]
) -> sa.Insert:
    """Build an insert of rows of one table into another one, with `values` for some columns."""
    # Columns without types, so that stored values are copied unchanged.
    columns = [values.get(each.name, sa.literal_column(f"{source.name}.{each.name}")) for each in target.c]
    return sa.insert(target).from_select([each.name for each in target.c], sa.select(*columns).where(*conditions))


def valid(rows: sa.Table) -> sa.ColumnElement[bool]:
    """Match the session's rows, stored or copied, that were in its log when the bound `at` was the last seq."""
    at = number("at")
    copies = COPY_OF.get(rows, rows)
    name = "turn_no" if copies is REMOVED_TURN else "seq"
    earlier = copies.alias("earlier")
    before = [of_session(earlier), earlier.c[name] == rows.c[name]]
    conditions = [of_session(rows)]
    if rows is copies:
        before.append(earlier.c.removed_at < rows.c.removed_at)
        conditions.append(rows.c.removed_at > at)
    first = rows.c.last_seq if copies is REMOVED_TURN else rows.c.seq
    began = sa.select(sa.func.max(earlier.c.next_at)).where(*before).scalar_subquery()
    return sa.and_(first <= at, sa.func.coalesce(began, first) <= at, *conditions)


# Record

_VERSION: Final = {"removed_at": number("removed_at"), "next_at": number("next_at")}


@functools.cache
def _copying(rows: Rows) -> Statement:
    return Statement(lambda dialect: copying(rows.table, COPY_OF[rows.table], _VERSION, *rows.where(dialect)))


@dataclass(frozen=True)
class Keeper:
    """Keeps what changes remove or replace, for a time after each change: the `Recorder` of a transaction."""

    duration: timedelta

    def copy(self, change: LogChange, rows: Rows, bound: Mapping[str, Any], next_at: int | None) -> None:
        """Copy rows that a change removes or replaces, unless the change is permanent."""
        if change.kind not in PERMANENT:
            version = {"key": change.key, "removed_at": change.seq, "next_at": next_at}
            _copying(rows).run_many(change.connection, [{**bound, **version}])

    def columns(self, change: LogChange) -> dict[str, Any]:
        """Return the columns of the change's row that an undo needs."""
        until = dialect_of(change.connection).time(change.now + self.duration)
        return {"undo_until": until, "added_upto": change.added_upto, "noted": int(change.moves_consolidated)}


def keeper(keep_removed: timedelta | None) -> Keeper | None:
    """Return the recorder of a store; None for a store that keeps nothing."""
    if keep_removed is None:
        return None
    if not (isinstance(keep_removed, timedelta) and timedelta(0) < keep_removed <= sessions.MAX_TTL):
        raise ValueError(
            f"keep_removed={quoted(keep_removed)}: give a timedelta of more than 0, up to 100 years, or None"
        )
    return Keeper(keep_removed)


# Purge

_IS_EXPIRED: Final = CHANGE.c.undo_until <= NOW
_expired_keys: Final = Statement(
    sa.select(CHANGE.c.session_key)
    .where(_IS_EXPIRED, CHANGE.c.session_key > session_key("after"))
    .where(sa.exists().where(of_session(SESSION, CHANGE.c.session_key), sessions.NOT_ON_HOLD))
    .distinct()
    .order_by(CHANGE.c.session_key)
    .limit(_AT_ONCE)
)
# If a change restored the row, the copy is kept until that change expires, to show when it was missing.
_delete_expired: Final = [
    Statement(
        sa.delete(copies).where(
            of_session(copies),
            sa.func.coalesce(copies.c.next_at, copies.c.removed_at).in_(
                sa.select(CHANGE.c.seq).where(of_session(CHANGE), _IS_EXPIRED)
            ),
        )
    )
    for copies in COPY_OF.values()
]
_forget: Final = Statement(sa.update(CHANGE).where(of_session(CHANGE), _IS_EXPIRED).values(undo_until=sa.null()))


def purge(context: Context, moment: datetime | None) -> None:
    """Delete the copies in all sessions whose time has passed, by default now."""
    after: str | None = ""
    while after is not None:
        after = context.transact(_purge, after, moment)


def _purge(connection: sa.Connection, now: datetime, after: str, moment: datetime | None) -> str | None:
    """Delete the expired copies of the next sessions after a key; return the last of their keys, or None."""
    bound = {"now": dialect_of(connection).time(moment or now)}
    keys = [key for (key,) in _expired_keys.run(connection, bound | {"after": after})]
    for key in keys:
        sessions.lock_any(connection, key)
        for statement in (*_delete_expired, _forget):
            statement.run_many(connection, [bound | {"key": key}])
        payloads.release(connection, key)
    return keys[-1] if keys else None
