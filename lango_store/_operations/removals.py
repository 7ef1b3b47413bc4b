"""Removals of messages with the turns that they formed; each uses up one `seq`, which a row of changes explains.

A message is at its seq. A summary is, as a whole, at the last seq that it covers, whatever the seqs of its messages: a
cut removes what is at a later seq, and the turns that began there. So a cut further back never keeps more.
"""

from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import sessions
from lango_store._operations.binds import (
    CHANGE,
    IN_SUMMARY,
    IS_COMPACTION,
    IS_RECORD,
    MESSAGE,
    OF_ITS_TURN,
    SESSION,
    TURN,
    column,
    of_session,
)
from lango_store._operations.messages import check_seq
from lango_store._operations.rows import turn_json
from lango_store._rows.columns import as_stored
from lango_store._values.model import MessageRole
from lango_store.errors import InvalidCut


def truncate(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Delete the messages, records and turns after a seq; return the number of messages."""
    check_seq("after", after)
    last_seq = sessions.lock(connection, now, key).last_seq
    reject_gap(connection, key, after)
    return cut(connection, now, key, after, last_seq)


def is_summary_before(after: int) -> sa.ColumnElement[bool]:
    """Match the compactions that cover no message later than a seq, none at the start of a session."""
    return sa.and_(IS_COMPACTION, sa.func.coalesce(TURN.c.replaced_upto, 0) <= after) if after else sa.false()


def is_after(after: int) -> sa.ColumnElement[bool]:
    """Match the messages after a seq, except summaries of earlier messages."""
    return sa.and_(MESSAGE.c.seq > after, ~sa.exists().where(OF_ITS_TURN, is_summary_before(after)))


def reject_gap(connection: sa.Connection, key: str, after: int) -> None:
    """Raise `InvalidCut` for a cut that removes a summary whose messages were discarded, unless it removes all."""
    upto = TURN.c.replaced_upto
    removed = (of_session(TURN, key), IS_COMPACTION, upto > after)
    query = sa.select(TURN.c.turn_no, upto, as_stored(TURN.c.metadata)).where(*removed, TURN.c.metadata.is_not(None))
    for turn_no, replaced_upto, text in connection.execute(query) if after else ():
        if has_discarded(key, turn_no, text):
            raise InvalidCut(key, after, replaced_upto)


def has_discarded(key: str, turn_no: int, metadata: str | None) -> bool:
    """Return whether a compaction deleted the messages that it replaced, by its stored metadata."""
    decoded = None if metadata is None else turn_json(key, turn_no, "metadata", metadata)
    return isinstance(decoded, dict) and bool(decoded.get("discarded"))


def cut(connection: sa.Connection, now: datetime, key: str, after: int, last_seq: int) -> int:
    """Delete the messages after a seq in a locked session, a summary only with messages that it covers."""
    if after > last_seq:
        return 0
    removed = delete(connection, key, is_after(after))
    turns = delete_turns(connection, key, sa.and_(TURN.c.first_seq > after, ~is_summary_before(after)))
    if not any(removed) and not turns:
        return 0
    also: dict[str, Any] = {}
    if turns:
        also = {"turn_count": SESSION.c.turn_count - turns} | latest_summary(key)
    divided = (of_session(TURN, key), TURN.c.first_seq <= after, TURN.c.last_seq > after, ~IS_COMPACTION)
    connection.execute(sa.update(TURN).where(*divided).values(last_seq=after))
    count(connection, now, key, removed, **also)
    explain(connection, now, key, last_seq + 1, "truncate", after)
    return removed.messages


def clear(connection: sa.Connection, now: datetime, key: str, *, keep_system: bool) -> int:
    """Delete messages, or all but the system's, records, turns and the summary; return how many messages."""
    last_seq = sessions.lock(connection, now, key).last_seq
    stays = sa.and_(MESSAGE.c.role == MessageRole.SYSTEM, ~IN_SUMMARY)
    removed = delete(connection, key, ~stays if keep_system else sa.true())
    delete_turns(connection, key, sa.true())
    detach_from_turns(connection, key, sa.true())
    count(connection, now, key, removed, last_consolidated=0, turn_count=0, summary_turn=None, summarized_upto=0)
    explain(connection, now, key, last_seq + 1, "clear", 0)
    return removed.messages


def remove_compaction(connection: sa.Connection, key: str, turn_no: int) -> dict[str, Any]:
    """Remove a compaction without messages, so that what it replaced is back; return what changes in the session."""
    delete_turns(connection, key, TURN.c.turn_no == turn_no)
    detach_from_turns(connection, key, MESSAGE.c.turn_no == turn_no)
    return {"turn_count": SESSION.c.turn_count - 1} | latest_summary(key)


class Removed(NamedTuple):
    """The numbers by which a session's counters decrease."""

    messages: int = 0
    tokens: int = 0
    records: int = 0


def delete(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> Removed:
    """Delete messages and records of a locked session, and count them."""
    chosen = sa.delete(MESSAGE).where(of_session(MESSAGE, key), condition)
    deleted = connection.execute(chosen.returning(sa.case((IS_RECORD, 1), else_=0), MESSAGE.c.tokens)).all()
    said = [tokens for is_record, tokens in deleted if not is_record]
    return Removed(len(said), sum(tokens for tokens in said if isinstance(tokens, int)), len(deleted) - len(said))


def delete_turns(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> int:
    """Delete turns of a locked session, not their messages, and return how many there were."""
    return connection.execute(sa.delete(TURN).where(of_session(TURN, key), condition)).rowcount


def detach_from_turns(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> None:
    """Remove the turn number from the remaining messages of deleted turns."""
    left = sa.update(MESSAGE).where(of_session(MESSAGE, key), MESSAGE.c.turn_no.is_not(None), condition)
    connection.execute(left.values(turn_no=None))


def count(connection: sa.Connection, now: datetime, key: str, removed: Removed, **also: Any) -> None:
    """Decrease the counters of a locked session, and use one seq up."""
    left = SESSION.c.message_count - removed.messages
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "message_count": left,
        "record_count": SESSION.c.record_count - removed.records,
        "token_count": SESSION.c.token_count - removed.tokens,
        "last_consolidated": sa.case((SESSION.c.last_consolidated > left, left), else_=SESSION.c.last_consolidated),
        "updated_at": now,
    }
    sessions.change(connection, key, values | also)


Change = Literal["truncate", "clear", "pop", "delete", "update", "redact", "compact", "discard", "fork"]

_explain: Final = Statement(
    lambda _: sa.insert(CHANGE).values({each.name: column(each) for each in CHANGE.c if each.name != "changed_by"})
)


def explain(connection: AnyConnection, now: datetime, key: str, seq: int, kind: Change, after_seq: int) -> None:
    """Write the row that explains a seq which a change used up; `after_seq` as the page about tables defines it."""
    row = {"session_key": key, "seq": seq, "kind": kind, "after_seq": after_seq}
    _explain.run_many(connection, [row | {"changed_at": dialect_of(connection).time(now)}])


def latest_summary(key: str) -> dict[str, Any]:
    """Return the last remaining compaction, and the seq up to which it replaced messages."""
    compactions = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(of_session(TURN, key), IS_COMPACTION)
    last = compactions.order_by(TURN.c.turn_no.desc()).limit(1).subquery()
    return {
        "summary_turn": sa.select(last.c.turn_no).scalar_subquery(),
        "summarized_upto": sa.func.coalesce(sa.select(last.c.replaced_upto).scalar_subquery(), 0),
    }
