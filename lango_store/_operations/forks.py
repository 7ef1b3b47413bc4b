"""A session copied inside the database: no message travels."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations import removals, sessions
from lango_store._operations.binds import IN_SUMMARY, IS_RECORD, MESSAGE, OF_ITS_TURN, TURN, VALUE, of_session
from lango_store._operations.messages import check_seq
from lango_store._values.model import UNSET, MessageRole, SessionFields, SessionInfo, Unset

_TAKEN: Final = tuple(SessionFields.__annotations__)


def fork(
    connection: sa.Connection,
    now: datetime,
    source: str,
    new: str,
    *,
    upto: int | None = None,
    before_user_message: int | None = None,
    ttl: timedelta | None | Unset = UNSET,
) -> None:
    """Copy a live session under a new key, up to a seq if given, with the turns that lie wholly inside."""
    check_seq("upto", upto)
    locked = sessions.lock(connection, now, source)
    info = sessions.info(connection, now, source)
    if before_user_message is not None:
        upto = _seq_of_user_message(connection, source, before_user_message) - 1
    if upto is not None and upto >= info.last_seq:
        upto = None
    if upto is not None:
        removals.reject_blank(connection, source, upto)
    fields = {name: getattr(info, name) for name in _TAKEN} | {"forked_from": source}
    own = None if info.ttl_seconds is None else timedelta(seconds=info.ttl_seconds)
    made = sessions.New(new, own if isinstance(ttl, Unset) else ttl, fields)
    if sessions.insert(connection, now, made) is None:
        raise sessions.exists_error(connection, now, new)
    _copy(connection, MESSAGE, source, new, *([] if upto is None else [~removals.later(upto)]))
    _copy(connection, TURN, source, new, *([] if upto is None else [_is_whole(upto) | removals.summary_before(upto)]))
    _copy(connection, VALUE, source, new)  # as they are now, wherever the fork ends
    if upto is not None:
        connection.execute(removals.shortened(new, upto))
        _leave_cut_turns(connection, new)
    counters = _same(info) if upto is None else _counted(info, new, upto)
    sessions.change(connection, new, counters | {"last_turn_no": locked.last_turn_no})


def _seq_of_user_message(connection: sa.Connection, key: str, number: int) -> int:
    place = MESSAGE.c.seq if number > 0 else MESSAGE.c.seq.desc()
    said = (of_session(MESSAGE, key), MESSAGE.c.role == MessageRole.USER, ~IN_SUMMARY)
    query = sa.select(MESSAGE.c.seq).where(*said).order_by(place).offset(abs(number) - 1).limit(1)
    seq: int | None = connection.execute(query).scalar() if number else None
    if seq is None:
        raise ValueError(
            f"session {key!r} has no user message {number} (before_user_message): 1 is its first one, -1 its last one"
        )
    return seq


def _copy(connection: sa.Connection, table: sa.Table, source: str, new: str, *which: sa.ColumnElement[bool]) -> None:
    names = [column.name for column in table.c if column.name != "session_key"]
    # Columns without types: what a database keeps goes back into it as it is.
    copied: list[sa.ColumnElement[Any]] = [sa.literal_column(f"{table.name}.{name}") for name in names]
    key = sa.literal(new, table.c.session_key.type)
    chosen = sa.select(key.label("session_key"), *copied).where(of_session(table, source), *which)
    connection.execute(sa.insert(table).from_select(["session_key", *names], chosen))


def _is_whole(upto: int) -> sa.ColumnElement[bool]:
    return sa.and_(TURN.c.first_seq <= upto, TURN.c.last_seq <= upto)


def _leave_cut_turns(connection: sa.Connection, new: str) -> None:
    whole = sa.exists().where(OF_ITS_TURN)
    cut = (of_session(MESSAGE, new), MESSAGE.c.turn_no.is_not(None), ~whole)
    connection.execute(sa.update(MESSAGE).where(*cut).values(turn_no=None))


def _same(info: SessionInfo) -> dict[str, Any]:
    names = (
        "last_seq",
        "message_count",
        "record_count",
        "token_count",
        "turn_count",
        "summary_turn",
        "summarized_upto",
        "last_consolidated",
    )
    return {name: getattr(info, name) for name in names}


def _counted(info: SessionInfo, new: str, upto: int) -> dict[str, Any]:
    mine = of_session(MESSAGE, new)
    said = (mine, ~IS_RECORD)
    count = sa.select(sa.func.count()).where(*said).scalar_subquery()
    its_turns = of_session(TURN, new)
    end = sa.select(sa.func.max(TURN.c.last_seq)).where(its_turns).scalar_subquery()
    return {
        "last_seq": sa.case((end > upto, end), else_=upto),  # a summary's seq may be later than what it stands before
        "message_count": count,
        "record_count": sa.select(sa.func.count()).where(mine, IS_RECORD).scalar_subquery(),
        "token_count": sa.select(sa.func.coalesce(sa.func.sum(MESSAGE.c.tokens), 0)).where(*said).scalar_subquery(),
        "turn_count": sa.select(sa.func.count()).where(its_turns).scalar_subquery(),
        "last_consolidated": sa.case((count < info.last_consolidated, count), else_=info.last_consolidated),
    } | removals.latest_summary(new)
