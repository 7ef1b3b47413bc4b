"""Copies of the messages and turns that a change removes or replaces, so that it can be taken back.

A copy is a version of the row that was in the log until `removed_at`, the `seq` of the change. If the row has a later
version, because the change replaced the row or a later change restored it, `next_at` is the `seq` from which that
version is in the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations import payloads, sessions
from lango_store._operations.binds import CHANGE, MESSAGE, REMOVED_MESSAGE, REMOVED_TURN, SESSION, TURN, of_session

_KEEP: Final = "lango_store_keep_removed"
"""The execution option that holds how long the store keeps removed rows; missing or None if it does not."""

COPY_OF: Final = {MESSAGE: REMOVED_MESSAGE, TURN: REMOVED_TURN}
"""By table: the table of its removed rows."""

NUMBER: Final = {MESSAGE: "seq", TURN: "turn_no"}
_AT_ONCE: Final = 200


@contextmanager
def keeping(connection: sa.Connection, duration: timedelta | None) -> Iterator[None]:
    """While the block runs, keep removed rows for `duration`; None leaves the current setting unchanged."""
    if duration is None:
        yield
        return
    connection.execution_options(**{_KEEP: duration})
    try:
        yield
    finally:  # the connection may be the caller's
        connection.execution_options(**{_KEEP: None})


def keep_until(connection: sa.Connection, now: datetime) -> datetime | None:
    """Return the time until which rows that are removed now are kept; None if they are not kept."""
    keep: timedelta | None = connection.get_execution_options().get(_KEEP)
    return None if keep is None else now + keep


def is_on(connection: sa.Connection) -> bool:
    """Return True if the store keeps removed rows."""
    return connection.get_execution_options().get(_KEEP) is not None


def keep(
    connection: sa.Connection, key: str, rows: sa.Table, condition: sa.ColumnElement[bool], *, replaced: bool = False
) -> None:
    """Copy rows that the next change of a locked session removes or replaces, if the store keeps them."""
    if not is_on(connection):
        return
    session = SESSION.alias()  # joined: a Citus cluster refuses a subquery
    seq = session.c.last_seq + 1
    versions = {"removed_at": seq, "next_at": seq if replaced else sa.cast(sa.null(), sa.BigInteger)}
    of_key = (of_session(rows, key), of_session(session, rows.c.session_key))
    copy_rows(connection, rows, COPY_OF[rows], versions, *of_key, condition)


def copy_rows(
    connection: sa.Connection,
    source: sa.Table,
    target: sa.Table,
    values: Mapping[str, sa.ColumnElement[Any]],
    *conditions: sa.ColumnElement[bool],
) -> int:
    """Insert rows of one table into another one, with `values` for some columns; return how many."""
    # Columns without types, so that stored values are copied unchanged.
    columns = [values.get(each.name, sa.literal_column(f"{source.name}.{each.name}")) for each in target.c]
    insert = sa.insert(target).from_select([each.name for each in target.c], sa.select(*columns).where(*conditions))
    return connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount


def join_turn(connection: sa.Connection, key: str, seqs: Sequence[int], turn_no: int) -> None:
    """Assign the earlier versions of messages to the turn that was just saved with their current versions."""
    if not is_on(connection):
        return
    copies = (of_session(REMOVED_MESSAGE, key), REMOVED_MESSAGE.c.seq.in_(seqs), REMOVED_MESSAGE.c.turn_no.is_(None))
    connection.execute(sa.update(REMOVED_MESSAGE).where(*copies).values(turn_no=turn_no))


def restore(connection: sa.Connection, key: str, rows: sa.Table, removed_at: int, at: int) -> int:
    """Restore the rows that the change `removed_at` removed or replaced, from the seq `at` on; return how many."""
    copies = COPY_OF[rows]
    is_chosen = (of_session(copies, key), copies.c.removed_at == removed_at)
    restored = copy_rows(connection, copies, rows, {}, *is_chosen)
    connection.execute(sa.update(copies).where(*is_chosen, copies.c.next_at.is_(None)).values(next_at=at))
    return restored


def valid(rows: sa.Table, key: str, at: int) -> sa.ColumnElement[bool]:
    """Match the session's rows in `rows`, stored or copied, that were in its log when `at` was the last seq."""
    copies = COPY_OF.get(rows, rows)
    number = "turn_no" if copies is REMOVED_TURN else "seq"
    earlier = copies.alias("earlier")
    before = [of_session(earlier, key), earlier.c[number] == rows.c[number]]
    conditions = [of_session(rows, key)]
    if rows is copies:
        before.append(earlier.c.removed_at < rows.c.removed_at)
        conditions.append(rows.c.removed_at > at)
    first = rows.c.last_seq if copies is REMOVED_TURN else rows.c.seq
    began = sa.select(sa.func.max(earlier.c.next_at)).where(*before).scalar_subquery()
    return sa.and_(first <= at, sa.func.coalesce(began, first) <= at, *conditions)


def purge(connection: sa.Connection, now: datetime, after: str, moment: datetime | None) -> str | None:
    """Delete the expired copies of the next sessions after a key; return the last of their keys, or None."""
    is_expired = CHANGE.c.undo_until <= (moment or now)
    query = sa.select(CHANGE.c.session_key).where(is_expired, CHANGE.c.session_key > after).distinct()
    keys = connection.execute(query.order_by(CHANGE.c.session_key).limit(_AT_ONCE)).scalars().all()
    for key in keys:
        sessions.lock_any(connection, key)
        expired = sa.select(CHANGE.c.seq).where(of_session(CHANGE, key), is_expired)
        for copies in COPY_OF.values():
            # If a change restored the row, the copy is kept until that change expires, to show when it was missing.
            last = sa.func.coalesce(copies.c.next_at, copies.c.removed_at)
            connection.execute(sa.delete(copies).where(of_session(copies, key), last.in_(expired)))
        connection.execute(sa.update(CHANGE).where(of_session(CHANGE, key), is_expired).values(undo_until=None))
        payloads.release(connection, key)
    return keys[-1] if keys else None
