"""Messages taken away again, and with them the turns they made up; each removal uses one `seq` up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from lango_store.model import Message, MessageRole
from lango_store.operations import messages, sessions
from lango_store.operations.messages import check_seq
from lango_store.operations.sessions import MESSAGE, SESSION, TURN


def truncate(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Drop what came after a seq, turns too, and tell how many messages that were."""
    check_seq("after", after)
    sessions.lock(connection, now, key)
    return cut(connection, now, key, after)


def cut(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Drop what came after a seq in a locked session; a summary among it is one no more."""
    gone = delete(connection, key, MESSAGE.c.seq > after)
    mine = TURN.c.session_key == key
    turns = connection.execute(sa.delete(TURN).where(mine, TURN.c.first_seq > after)).rowcount
    if not gone and not turns:
        return 0
    also: dict[str, Any] = {}
    if turns:
        also = {"turn_count": SESSION.c.turn_count - turns} | latest_summary(key)
    connection.execute(sa.update(TURN).where(mine, TURN.c.last_seq > after).values(last_seq=after))
    count(connection, now, key, gone, **also)
    return len(gone)


def pop(connection: sa.Connection, now: datetime, key: str) -> Message | None:
    """Take the last message of the window away and give it back, None if there is none."""
    sessions.lock(connection, now, key)
    tail = messages.tail(connection, now, key, 1)
    last = tail.messages
    if not last:
        return None
    seq, mine = last[0].seq, sa.and_(TURN.c.session_key == key, TURN.c.turn_no == last[0].turn_no)
    gone = delete(connection, key, MESSAGE.c.seq == seq)
    emptied = connection.execute(sa.delete(TURN).where(mine, TURN.c.first_seq == seq, TURN.c.last_seq == seq)).rowcount
    also: dict[str, Any] = {}
    if emptied:
        also = {"turn_count": SESSION.c.turn_count - emptied} | latest_summary(key)
    connection.execute(sa.update(TURN).where(mine, TURN.c.last_seq == seq).values(last_seq=seq - 1))
    count(connection, now, key, gone, **also)
    return last[0]


def clear(connection: sa.Connection, now: datetime, key: str, *, keep_system: bool) -> int:
    """Drop all messages, or all but those of the system, all turns and the summary, and tell how many messages."""
    sessions.lock(connection, now, key)
    kept = sa.and_(MESSAGE.c.role == MessageRole.SYSTEM, ~messages.IN_SUMMARY)
    gone = delete(connection, key, ~kept if keep_system else sa.true())
    connection.execute(sa.delete(TURN).where(TURN.c.session_key == key))
    left = sa.update(MESSAGE).where(MESSAGE.c.session_key == key, MESSAGE.c.turn_no.is_not(None))
    connection.execute(left.values(turn_no=None))
    count(connection, now, key, gone, last_consolidated=0, turn_count=0, summary_turn=None, summarized_upto=0)
    return len(gone)


def delete(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> Sequence[int | None]:
    """Delete messages of a locked session, and give their tokens."""
    chosen = sa.delete(MESSAGE).where(MESSAGE.c.session_key == key, condition)
    return connection.execute(chosen.returning(MESSAGE.c.tokens)).scalars().all()


def count(connection: sa.Connection, now: datetime, key: str, gone: Sequence[int | None], **also: Any) -> None:
    """Count what is left in a locked session, and use one seq up."""
    left = SESSION.c.message_count - len(gone)
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "message_count": left,
        "token_count": SESSION.c.token_count - sum(tokens or 0 for tokens in gone),
        "last_consolidated": sa.case((SESSION.c.last_consolidated > left, left), else_=SESSION.c.last_consolidated),
        "updated_at": now,
    }
    connection.execute(sa.update(SESSION).where(SESSION.c.key == key).values(values | also))


def latest_summary(key: str) -> dict[str, Any]:
    """Say which compaction is the last that is left, and up to where it speaks."""
    compactions = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(
        TURN.c.session_key == key, TURN.c.kind == "compaction"
    )
    last = compactions.order_by(TURN.c.turn_no.desc()).limit(1).subquery()
    return {
        "summary_turn": sa.select(last.c.turn_no).scalar_subquery(),
        "summarized_upto": sa.func.coalesce(sa.select(last.c.replaced_upto).scalar_subquery(), 0),
    }
