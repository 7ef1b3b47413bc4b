"""Forks: copy a session to a new key with INSERT … SELECT, so that no row leaves the database."""

from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    BEFORE_ANY_EXPIRY,
    CHANGE,
    MESSAGE,
    OF_ITS_TURN,
    TURN,
    column,
    number,
    of_session,
    session_key,
)
from lango_store._operations.log import counters, payloads, removals
from lango_store._operations.log.changes import LogChange, delete_orphans
from lango_store._operations.log.messages import check_seq
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import CHILDREN
from lango_store._rooms.versions import earlier_logs
from lango_store._rooms.versions.kept_copies import COPY_OF, copying, valid
from lango_store._values.model import UNSET, SessionFields, Unset
from lango_store.errors import SessionExists

_COPIED_FIELDS: Final = tuple(SessionFields.__annotations__)
# Without `last_turn_no`, which is not a field of `SessionInfo`.
_COPIED_COUNTERS: Final = tuple(name for name in counters.NAMES if name != "last_turn_no")


def fork(
    connection: sa.Connection,
    now: datetime,
    source: str,
    new: str,
    *,
    upto: int | None = None,
    as_of: int | datetime | None = None,
    ttl: timedelta | None | Unset = UNSET,
) -> None:
    """Copy a live session to a new key: its fields, log, turns, changes and values.

    Args:
        connection: A connection in a transaction.
        now: The time of the fork.
        source: The session to copy.
        new: The key of the copy.
        upto: Copy only messages up to this seq, turns that end at or before it, and
            summaries of these messages.
        as_of: Copy the log of the moment when this seq was its last one, or at this time.
            Values have no history: the current ones are copied.
        ttl: The TTL of the copy. By default, the TTL of `source`.

    Raises:
        SessionExists: `new` is the key of another session.
        InvalidCut: `upto` would leave out the summary of discarded messages.
        NotKept: `as_of` is before a change whose removed rows are not kept.
    """
    check_seq("upto", upto)
    locked = sessions.lock(connection, now, source)
    info = sessions.info(connection, now, source)
    fields = {name: getattr(info, name) for name in _COPIED_FIELDS} | {"forked_from": source}
    source_ttl = None if info.ttl_seconds is None else timedelta(seconds=info.ttl_seconds)
    created = sessions.NewSession(new, source_ttl if isinstance(ttl, Unset) else ttl, fields)
    if upto is not None and upto >= info.last_seq:
        upto = None
    if as_of is not None:
        upto = earlier_logs.seq_at(connection, now, source, as_of, info.last_seq)
    elif upto is not None:
        removals.reject_gap(connection, source, upto)
    if sessions.insert(connection, now, created) is None:
        raise sessions.exists_error(connection, now, new)
    which = "whole" if upto is None else "upto" if as_of is None else "as_of"
    bound = {"key": source, "new": new, "source": source, "after": upto, "at": upto}
    for statement in _COPIES[which]:
        statement.run_many(connection, [bound])
    payloads.release(connection, new)
    counted = {name: getattr(info, name) for name in _COPIED_COUNTERS} | {"last_turn_no": locked.last_turn_no}
    sessions.change(connection, new, counted if upto is None else counted | {"last_seq": upto})
    if upto is not None:
        _detach.run_many(connection, [{"key": new}])  # from turns that were not copied
        delete_orphans(connection, new)
        counters.correct(connection, new)
        _explain_cut(connection, now, source, new, upto)


_IS_WHOLE: Final = sa.and_(TURN.c.first_seq <= number("after"), TURN.c.last_seq <= number("after"))
_EARLIER_CHANGES: Final = [(CHANGE, CHANGE.c.seq <= number("after"))]
_PARTS: Final[dict[str, dict[sa.Table, list[Any]]]] = {
    "whole": {},
    "upto": {
        MESSAGE: [(MESSAGE, ~removals.IS_AFTER)],
        TURN: [(TURN, sa.or_(_IS_WHOLE, removals.IS_SUMMARY_BEFORE))],
        CHANGE: _EARLIER_CHANGES,
    },
    "as_of": {
        **{rows: [(part, valid(part)) for part in (rows, copies)] for rows, copies in COPY_OF.items()},
        CHANGE: _EARLIER_CHANGES,
    },
}
"""The rows to copy, if a fork does not copy all rows of a table. Values have no history: it gets the current ones."""


def _copying(table: sa.Table, part: sa.Table, *conditions: sa.ColumnElement[bool]) -> Statement:
    values: dict[str, sa.ColumnElement[Any]] = {"session_key": session_key("new")}
    if table is CHANGE:
        values["undo_until"] = sa.null()
    if table is TURN:  # the copy of a copy still names the session that spent the usage
        values["copied_from"] = sa.func.coalesce(part.c.copied_from, column(TURN.c.copied_from, "source"))
    return Statement(copying(part, table, values, of_session(part), *conditions))


_TABLES: Final = [each.table for each in CHILDREN if each.stored.in_forks]
_COPIES: Final = {
    which: [_copying(table, *part) for table in _TABLES for part in parts.get(table, [(table,)])]
    for which, parts in _PARTS.items()
}
_has_changes_after: Final = Statement(
    sa.select(CHANGE.c.seq).where(of_session(CHANGE), CHANGE.c.seq > number("after")).limit(1)
)


def _explain_cut(connection: sa.Connection, now: datetime, source: str, new: str, upto: int) -> None:
    """Insert a `fork` change if a copied summary has a seq after `upto`, or the source was changed after `upto`."""
    last_seq = sessions.lock(connection, BEFORE_ANY_EXPIRY, new).last_seq
    if last_seq > upto or _has_changes_after.run(connection, {"key": source, "after": upto}):
        with LogChange(connection, now, new, "fork", last_seq + 1, upto):
            pass  # it only uses up a seq


_detach: Final = Statement(
    sa.update(MESSAGE)
    .where(of_session(MESSAGE), MESSAGE.c.turn_no.is_not(None), ~sa.exists().where(OF_ITS_TURN))
    .values(turn_no=sa.null())
)


def create(
    context: Context,
    source: str,
    new: str,
    *,
    own_key: bool,
    upto: int | None,
    as_of: int | datetime | None,
    ttl: timedelta | None | Unset,
) -> None:
    """Copy a session to the key `new`; if the store generated it (`own_key`), a retry accepts the first try's copy."""

    def run() -> None:
        try:
            with context.transaction(source) as connection:
                fork(connection, context.now(connection), source, new, upto=upto, as_of=as_of, ttl=ttl)
        except SessionExists as error:
            if not own_key:
                raise context.taken(error) from None

    context.trying(run)
