"""Removals: delete messages of a session together with their turns.

Each removal uses up one `seq` of the session. No message has this `seq`; a row of `lango_change` explains it.

A cut after a `seq` deletes the messages with a higher `seq`, and the turns that begin after it. A turn that begins
before the cut and ends after it is shortened.

Summaries need a separate rule. Their messages are appended at the end of the log, so their `seq` is higher than that of
the messages that they replace. A cut keeps a summary if it keeps all messages that the summary covers
(`replaced_upto`), and deletes it otherwise. With this rule, a cut at a lower `seq` never keeps a message that a
cut at a higher `seq` would delete.
"""

from datetime import datetime
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from lango_store._operations import payloads, removed, sessions
from lango_store._operations.binds import (
    CALL,
    CHANGE,
    IN_SUMMARY,
    IS_COMPACTION,
    IS_RECORD,
    MESSAGE,
    OF_ITS_TURN,
    SESSION,
    SUSPENSION,
    TURN,
    of_session,
)
from lango_store._operations.messages import check_seq
from lango_store._operations.rows import turn_json
from lango_store._rows.columns import as_stored
from lango_store._values.model import MessageRole
from lango_store.errors import InvalidCut


def truncate(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Delete the messages, records and turns after a seq, except summaries of earlier messages.

    Returns the number of deleted messages.
    """
    check_seq("after", after)
    last_seq = sessions.lock(connection, now, key).last_seq
    reject_gap(connection, key, after)
    return cut(connection, now, key, after, last_seq)


def is_summary_before(after: int) -> sa.ColumnElement[bool]:
    """Match the compactions that cover only messages up to a seq; for seq 0, match none."""
    return sa.and_(IS_COMPACTION, sa.func.coalesce(TURN.c.replaced_upto, 0) <= after) if after else sa.false()


def is_after(after: int) -> sa.ColumnElement[bool]:
    """Match the messages that a cut after a seq deletes: later ones, except summaries of earlier messages."""
    return sa.and_(MESSAGE.c.seq > after, ~sa.exists().where(OF_ITS_TURN, is_summary_before(after)))


def reject_gap(connection: sa.Connection, key: str, after: int) -> None:
    """Raise `InvalidCut` if a cut deletes a summary of discarded messages, unless the cut deletes the whole log."""
    upto = TURN.c.replaced_upto
    removed = (of_session(TURN, key), IS_COMPACTION, upto > after)
    query = sa.select(TURN.c.turn_no, upto, as_stored(TURN.c.metadata)).where(*removed, TURN.c.metadata.is_not(None))
    for turn_no, replaced_upto, text in connection.execute(query) if after else ():
        if has_discarded(key, turn_no, text):
            raise InvalidCut(key, after, replaced_upto)


def has_discarded(key: str, turn_no: int, metadata: str | None) -> bool:
    """Return True if a compaction deleted the messages that it replaced, according to its stored metadata."""
    decoded = None if metadata is None else turn_json(key, turn_no, "metadata", metadata)
    return isinstance(decoded, dict) and bool(decoded.get("discarded"))


def cut(connection: sa.Connection, now: datetime, key: str, after: int, last_seq: int) -> int:
    """Delete the log after a seq of a locked session, by the module's rules; return the number of deleted messages."""
    if after > last_seq:
        return 0
    deleted = delete_messages(connection, key, is_after(after))
    turns = delete_turns(connection, key, sa.and_(TURN.c.first_seq > after, ~is_summary_before(after)))
    if not any(deleted) and not turns:
        return 0
    changes: dict[str, Any] = {}
    if turns:
        changes = {"turn_count": SESSION.c.turn_count - turns} | latest_summary(key)
    divided = sa.and_(TURN.c.first_seq <= after, TURN.c.last_seq > after, ~IS_COMPACTION)
    removed.keep(connection, key, TURN, divided, replaced=True)
    connection.execute(sa.update(TURN).where(of_session(TURN, key), divided).values(last_seq=after))
    insert_change(connection, now, key, last_seq + 1, "truncate", after)
    decrease_counters(connection, now, key, deleted, **changes)
    return deleted.messages


def clear(connection: sa.Connection, now: datetime, key: str, *, keep_system: bool) -> int:
    """Delete all messages, records and turns; return the number of deleted messages.

    With `keep_system`, system messages stay, except those of summaries.
    """
    last_seq = sessions.lock(connection, now, key).last_seq
    is_system = sa.and_(MESSAGE.c.role == MessageRole.SYSTEM, ~IN_SUMMARY)
    deleted = delete_messages(connection, key, ~is_system if keep_system else sa.true())
    delete_turns(connection, key, sa.true())
    detach_from_turns(connection, key, sa.true())
    insert_change(connection, now, key, last_seq + 1, "clear", 0)
    decrease_counters(
        connection, now, key, deleted, last_consolidated=0, turn_count=0, summary_turn=None, summarized_upto=0
    )
    return deleted.messages


def remove_compaction(connection: sa.Connection, key: str, turn_no: int) -> dict[str, Any]:
    """Delete a compaction, so that its replaced messages are in the window again; return session columns to set."""
    delete_turns(connection, key, TURN.c.turn_no == turn_no)
    detach_from_turns(connection, key, MESSAGE.c.turn_no == turn_no)
    return {"turn_count": SESSION.c.turn_count - 1} | latest_summary(key)


class Removed(NamedTuple):
    """The numbers by which a session's counters decrease."""

    messages: int = 0
    tokens: int = 0
    records: int = 0


def delete_messages(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> Removed:
    """Delete messages and records of a locked session; return how much the session's counters decrease."""
    removed.keep(connection, key, MESSAGE, condition)
    statement = sa.delete(MESSAGE).where(of_session(MESSAGE, key), condition)
    deleted = connection.execute(statement.returning(sa.case((IS_RECORD, 1), else_=0), MESSAGE.c.tokens)).all()
    tokens = [tokens for is_record, tokens in deleted if not is_record]  # one item per message, None without a count
    return Removed(len(tokens), sum(each for each in tokens if isinstance(each, int)), len(deleted) - len(tokens))


def delete_turns(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> int:
    """Delete turns of a locked session, but not their messages; return how many turns."""
    removed.keep(connection, key, TURN, condition)
    return connection.execute(sa.delete(TURN).where(of_session(TURN, key), condition)).rowcount


def detach_from_turns(connection: sa.Connection, key: str, condition: sa.ColumnElement[bool]) -> None:
    """Remove the turn number from the remaining messages of deleted turns."""
    in_turn = sa.and_(MESSAGE.c.turn_no.is_not(None), condition)
    removed.keep(connection, key, MESSAGE, in_turn, replaced=True)
    connection.execute(sa.update(MESSAGE).where(of_session(MESSAGE, key), in_turn).values(turn_no=None))


def is_misplaced() -> sa.ColumnElement[bool]:
    """Match the messages that name a turn that does not contain them."""
    contains = sa.exists().where(OF_ITS_TURN, TURN.c.first_seq <= MESSAGE.c.seq, MESSAGE.c.seq <= TURN.c.last_seq)
    return sa.and_(MESSAGE.c.turn_no.is_not(None), ~contains)


def detach_misplaced(connection: sa.Connection, key: str | None = None) -> None:
    """Repair misplaced messages of one session, or of all: remove the number of the turn."""
    of_key = sa.true() if key is None else of_session(MESSAGE, key)
    connection.execute(sa.update(MESSAGE).where(of_key, is_misplaced()).values(turn_no=None))


def decrease_counters(connection: sa.Connection, now: datetime, key: str, deleted: Removed, **changes: Any) -> None:
    """Subtract removed rows from the counters of a locked session, and use up one seq for the removal.

    Calls and suspensions of removed messages are deleted too, and so are unused payloads.
    """
    if deleted.messages or deleted.records:
        delete_unasked(connection, key)
    payloads.release(connection, key)
    remaining = SESSION.c.message_count - deleted.messages
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "message_count": remaining,
        "record_count": SESSION.c.record_count - deleted.records,
        "token_count": SESSION.c.token_count - deleted.tokens,
        "last_consolidated": sa.case(
            (SESSION.c.last_consolidated > remaining, remaining), else_=SESSION.c.last_consolidated
        ),
        "updated_at": now,
    }
    sessions.change(connection, key, values | changes)


def delete_unasked(connection: sa.Connection, key: str) -> None:
    """Delete those calls and suspensions of a locked session whose message no longer exists."""
    for table in (CALL, SUSPENSION):
        asking = sa.exists().where(of_session(MESSAGE, key), MESSAGE.c.seq == table.c.message_seq)
        gone = (of_session(table, key), table.c.message_seq.is_not(None), ~asking)
        connection.execute(sa.delete(table).where(*gone))


Edit = Literal["pop", "delete", "update", "redact", "drop_sent"]
Change = Edit | Literal["truncate", "clear", "compact", "discard", "fork", "undo", "redo"]


def insert_change(
    connection: sa.Connection,
    now: datetime,
    key: str,
    seq: int,
    kind: Change,
    after_seq: int,
    *,
    added_upto: int | None = None,
    moves_consolidated: bool = True,
) -> None:
    """Insert the row that explains the seq of a change. Call this before the session's counters change.

    The meaning of `after_seq` depends on the kind of change. With `moves_consolidated`, an undo of the change also
    restores the `last_consolidated` that the session has now.
    """
    row: dict[str, Any] = {"session_key": key, "seq": seq, "kind": kind, "after_seq": after_seq, "changed_at": now}
    until = removed.keep_until(connection, now)
    if until is None:
        connection.execute(sa.insert(CHANGE).values(row))
        return
    row |= {"undo_until": until, "added_upto": added_upto}
    values: dict[str, Any] = {name: sa.bindparam(name, value, CHANGE.c[name].type) for name, value in row.items()}
    if moves_consolidated:
        values["consolidated"] = SESSION.c.last_consolidated
    source = sa.select(*values.values()).where(of_session(SESSION, key))
    connection.execute(sa.insert(CHANGE).from_select(list(values), source))


def note_added(connection: sa.Connection, key: str, seq: int, upto: int) -> None:
    """Note in the row of the change `seq` that it added the messages up to `upto`, if the store keeps removed rows."""
    if not removed.is_on(connection):
        return
    is_change = (of_session(CHANGE, key), CHANGE.c.seq == seq)
    connection.execute(sa.update(CHANGE).where(*is_change).values(added_upto=upto))


def latest_summary(key: str) -> dict[str, Any]:
    """Return the session columns that describe its latest compaction, as subqueries."""
    compactions = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(of_session(TURN, key), IS_COMPACTION)
    last = compactions.order_by(TURN.c.turn_no.desc()).limit(1).subquery()
    return {
        "summary_turn": sa.select(last.c.turn_no).scalar_subquery(),
        "summarized_upto": sa.func.coalesce(sa.select(last.c.replaced_upto).scalar_subquery(), 0),
    }
