"""Forks: copy a session to a new key with INSERT … SELECT, so that no row leaves the database."""

from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations import counters, history, payloads, removals, removed, sessions
from lango_store._operations.binds import CHANGE, MESSAGE, OF_ITS_TURN, PAYLOAD, SESSION, TURN, VALUE, of_session
from lango_store._operations.messages import check_seq
from lango_store._values.model import UNSET, SessionFields, Unset

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
        as_of: Copy the log as it was when this seq was its last one, or at this time.
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
    created = sessions.New(new, source_ttl if isinstance(ttl, Unset) else ttl, fields)
    if upto is not None and upto >= info.last_seq:
        upto = None
    if as_of is not None:
        upto = history.seq_at(connection, now, source, as_of, info.last_seq)
    elif upto is not None:
        removals.reject_gap(connection, source, upto)
    if sessions.insert(connection, now, created) is None:
        raise sessions.exists_error(connection, now, new)
    if as_of is not None and upto is not None:
        for table in (MESSAGE, TURN):
            for part in (table, removed.COPY_OF[table]):
                _copy(connection, table, source, new, removed.valid(part, source, upto), part=part)
    else:
        _copy(connection, MESSAGE, source, new, *([] if upto is None else [~removals.is_after(upto)]))
        whole = [] if upto is None else [_is_whole(upto) | removals.is_summary_before(upto)]
        _copy(connection, TURN, source, new, *whole)
    _copy(connection, CHANGE, source, new, *([] if upto is None else [CHANGE.c.seq <= upto]))
    _copy(connection, PAYLOAD, source, new)
    payloads.release(connection, new)
    _copy(connection, VALUE, source, new)  # values have no history: the fork gets the current values
    counted = {name: getattr(info, name) for name in _COPIED_COUNTERS} | {"last_turn_no": locked.last_turn_no}
    sessions.change(connection, new, counted if upto is None else counted | {"last_seq": upto})
    if upto is not None:
        _detach_from_cut_turns(connection, new)
        counters.correct(connection, new)
        _explain_cut(connection, now, source, new, upto)


def _copy(
    connection: sa.Connection,
    table: sa.Table,
    source: str,
    new: str,
    *conditions: sa.ColumnElement[bool],
    part: sa.Table | None = None,
) -> None:
    part = table if part is None else part
    values: dict[str, sa.ColumnElement[Any]] = {"session_key": sa.literal(new, table.c.session_key.type)}
    if table is CHANGE:
        values["undo_until"] = sa.null()
    if table is TURN:  # the copy of a copy still names the session that spent the usage
        values["copied_from"] = sa.func.coalesce(part.c.copied_from, sa.literal(source, TURN.c.copied_from.type))
    removed.copy_rows(connection, part, table, values, of_session(part, source), *conditions)


def _is_whole(upto: int) -> sa.ColumnElement[bool]:
    return sa.and_(TURN.c.first_seq <= upto, TURN.c.last_seq <= upto)


def _explain_cut(connection: sa.Connection, now: datetime, source: str, new: str, upto: int) -> None:
    """Insert a `fork` change if a copied summary has a seq after `upto`, or the source was changed after `upto`."""
    (last_seq,) = connection.execute(sa.select(SESSION.c.last_seq).where(of_session(SESSION, new))).one()
    later = sa.select(CHANGE.c.seq).where(of_session(CHANGE, source), CHANGE.c.seq > upto).limit(1)
    if last_seq > upto or connection.execute(later).first():
        sessions.change(connection, new, {"last_seq": SESSION.c.last_seq + 1})
        removals.insert_change(connection, now, new, last_seq + 1, "fork", upto)


def _detach_from_cut_turns(connection: sa.Connection, new: str) -> None:
    """Remove the turn number from messages whose turn was not copied."""
    has_turn = sa.exists().where(OF_ITS_TURN)
    detached = (of_session(MESSAGE, new), MESSAGE.c.turn_no.is_not(None), ~has_turn)
    connection.execute(sa.update(MESSAGE).where(*detached).values(turn_no=None))
