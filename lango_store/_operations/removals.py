"""Messages taken away again, and with them the turns they made up; each removal uses one `seq` up."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from lango_store._operations import sessions
from lango_store._operations.binds import (
    IN_SUMMARY,
    IS_COMPACTION,
    IS_RECORD,
    MESSAGE,
    OF_ITS_TURN,
    SESSION,
    TURN,
    of_session,
)
from lango_store._operations.messages import check_seq
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import decode_json
from lango_store._values.model import MessageRole
from lango_store.errors import DamagedMessage, InvalidCut


def truncate(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Delete what came after a seq, records and turns too; return how many messages that were."""
    check_seq("after", after)
    last_seq = sessions.lock(connection, now, key).last_seq
    reject_blank(connection, key, after)
    return cut(connection, now, key, after, last_seq)


def summary_before(after: int) -> sa.ColumnElement[bool]:
    """Whether a turn is a compaction that speaks of nothing later than a seq, its summary standing there.

    Nothing stands before the start of a session.
    """
    said = sa.and_(IS_COMPACTION, sa.func.coalesce(TURN.c.replaced_upto, 0) <= after)
    return said if after else sa.false()


def in_later_summary_before(after: int) -> sa.ColumnElement[bool]:
    """Whether a message is of such a summary and was written after that seq: what came in meanwhile is before it."""
    its = OF_ITS_TURN
    return sa.exists().where(its, summary_before(after), TURN.c.first_seq > after)


def later(after: int) -> sa.ColumnElement[bool]:
    """Whether a message comes after a seq."""
    return sa.and_(MESSAGE.c.seq > after, ~in_later_summary_before(after))


def reject_blank(connection: sa.Connection, key: str, after: int) -> None:
    """Raise `InvalidCut` for a cut that takes a summary away and finds nothing left of what it speaks of.

    A cut at the start of the session asks for that.
    """
    upto = TURN.c.replaced_upto
    gone = (of_session(TURN, key), IS_COMPACTION, upto > after)
    query = sa.select(TURN.c.turn_no, upto, as_stored(TURN.c.metadata)).where(*gone)
    for turn_no, replaced_upto, metadata in connection.execute(query) if after else ():
        if _discarded(key, turn_no, metadata):
            raise InvalidCut(key, after, replaced_upto)


def _discarded(key: str, turn_no: int, metadata: str | None) -> bool:
    try:
        said = None if metadata is None else decode_json(metadata)
    except ValueError as error:
        raise DamagedMessage(key, 0, f"metadata of turn {turn_no}", str(error)) from None
    return isinstance(said, dict) and bool(said.get("discarded"))


def cut(connection: sa.Connection, now: datetime, key: str, after: int, last_seq: int) -> int:
    """Delete what comes after a seq in a locked session, a summary only with what it speaks of.

    Nothing comes after the last seq: a turn without messages that stands there stays.
    """
    if after >= last_seq:
        return 0
    gone = delete(connection, key, later(after))
    turns = delete_turns(connection, key, sa.and_(TURN.c.first_seq > after, ~summary_before(after)))
    if not any(gone) and not turns:
        return 0
    also: dict[str, Any] = {}
    if turns:
        also = {"turn_count": SESSION.c.turn_count - turns} | latest_summary(key)
    connection.execute(shortened(key, after))
    count(connection, now, key, gone, **also)
    return gone.messages


def shortened(key: str, after: int) -> sa.UpdateBase:
    """Let the turn that a cut went through end there."""
    through = (of_session(TURN, key), TURN.c.first_seq <= after, TURN.c.last_seq > after)
    return sa.update(TURN).where(*through).values(last_seq=after)


def clear(connection: sa.Connection, now: datetime, key: str, *, keep_system: bool) -> int:
    """Delete messages, or all but the system's, records, turns and the summary; return how many messages."""
    sessions.lock(connection, now, key)
    stays = sa.and_(MESSAGE.c.role == MessageRole.SYSTEM, ~IN_SUMMARY)
    gone = delete(connection, key, ~stays if keep_system else sa.true())
    delete_turns(connection, key, sa.true())
    leave_turns(connection, key, sa.true())
    count(connection, now, key, gone, last_consolidated=0, turn_count=0, summary_turn=None, summarized_upto=0)
    return gone.messages


class Gone(NamedTuple):
    """What was deleted: how many messages, their tokens, and how many records."""

    messages: int
    tokens: int
    records: int


def delete(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> Gone:
    """Delete messages and records of a locked session, and count them."""
    chosen = sa.delete(MESSAGE).where(of_session(MESSAGE, key), condition)
    deleted = connection.execute(chosen.returning(sa.case((IS_RECORD, 1), else_=0), MESSAGE.c.tokens)).all()
    said = [tokens for is_record, tokens in deleted if not is_record]
    return Gone(len(said), sum(tokens for tokens in said if isinstance(tokens, int)), len(deleted) - len(said))


def delete_turns(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> int:
    """Delete turns of a locked session, not their messages, and return how many there were."""
    return connection.execute(sa.delete(TURN).where(of_session(TURN, key), condition)).rowcount


def leave_turns(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> None:
    """Let messages that are left of turns that go be of none."""
    left = sa.update(MESSAGE).where(of_session(MESSAGE, key), MESSAGE.c.turn_no.is_not(None), condition)
    connection.execute(left.values(turn_no=None))


def count(connection: sa.Connection, now: datetime, key: str, gone: Gone, **also: Any) -> None:
    """Count what is left in a locked session, and use one seq up."""
    left = SESSION.c.message_count - gone.messages
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "message_count": left,
        "record_count": SESSION.c.record_count - gone.records,
        "token_count": SESSION.c.token_count - gone.tokens,
        "last_consolidated": sa.case((SESSION.c.last_consolidated > left, left), else_=SESSION.c.last_consolidated),
        "updated_at": now,
    }
    sessions.change(connection, key, values | also)


def latest_summary(key: str) -> dict[str, Any]:
    """Return which compaction is the last that is left, and up to where it speaks."""
    compactions = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(of_session(TURN, key), IS_COMPACTION)
    last = compactions.order_by(TURN.c.turn_no.desc()).limit(1).subquery()
    return {
        "summary_turn": sa.select(last.c.turn_no).scalar_subquery(),
        "summarized_upto": sa.func.coalesce(sa.select(last.c.replaced_upto).scalar_subquery(), 0),
    }
