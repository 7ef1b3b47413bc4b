"""Changes of a session's log: list them, read earlier logs, and take changes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    CHANGE,
    IS_COMPACTION,
    MESSAGE,
    REMOVED_MESSAGE,
    REMOVED_TURN,
    TURN,
    number,
    of_session,
    time,
)
from lango_store._operations.log import kept_copies, payloads
from lango_store._operations.log.changes import PERMANENT, LogChange, Rows
from lango_store._operations.log.messages import check_seq
from lango_store._operations.rows import MESSAGE_FIELDS, session_value, stored_time
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import OF_MESSAGES
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware
from lango_store._values.model import Change, Diff, Message, MessageRole, Undone
from lango_store._values.session import Session
from lango_store.errors import Conflict, NotKept, quoted

_FIELDS: Final = tuple(Change.model_fields)
_COLUMNS: Final = [as_stored(CHANGE.c[name]) for name in _FIELDS]
_TIMES: Final = ("changed_at", "undo_until")
_select_changes: Final = Statement(
    sa.select(*_COLUMNS).where(of_session(CHANGE), CHANGE.c.seq > number("after")).order_by(CHANGE.c.seq)
)


def changes(connection: sa.Connection, now: Moment, key: str, after: int = 0) -> list[Change]:
    """Read the changes of a live session after a seq, in their order."""
    check_seq("after", after)
    sessions.row_of(connection, now, key)
    return _changes(connection, key, after)


def _changes(connection: sa.Connection, key: str, after: int = 0) -> list[Change]:
    stored = _select_changes.run(connection, {"key": key, "after": after})
    rows = [dict(zip(_FIELDS, row, strict=True)) for row in stored]
    for row in rows:
        row |= {name: stored_time(key, name, row[name]) for name in _TIMES if row[name] is not None}
    return [session_value(Change, row, key) for row in rows]


# As of a seq


def load(
    connection: sa.Connection,
    now: Moment,
    key: str,
    as_of: int | datetime,
    clock: Callable[[sa.Connection], datetime],
    *,
    records: bool = False,
) -> Session:
    """Load a live session with the window that it had at the time `as_of`, or when `as_of` was its last seq.

    `clock` returns the current time, which decides whether removed rows are still kept. To read an expired session,
    callers pass an earlier time as `now`.
    """
    info = sessions.info(connection, now, key)
    at = seq_at(connection, clock(connection), key, as_of, info.last_seq)
    log = read(connection, key, at)
    turns = [row for statement in _turns for row in statement.run(connection, {"key": key, "at": at})]
    compactions = [(turn_no, upto) for turn_no, kind, upto in turns if kind == "compaction"]
    summary_turn, upto = max(compactions, default=(None, 0))
    messages = [each for each in log if each.role is not MessageRole.RECORD]
    window = [each for each in (log if records else messages) if each.seq > (upto or 0)]
    if summary_turn is not None:
        window.sort(key=lambda message: message.turn_no != summary_turn)
    counted = {
        "last_seq": at,
        "message_count": len(messages),
        "record_count": len(log) - len(messages),
        "token_count": sum(message.tokens or 0 for message in messages),
        "turn_count": len(turns),
        "summary_turn": summary_turn,
        "summarized_upto": upto or 0,
        "last_consolidated": min(info.last_consolidated, len(messages)),
    }
    return Session.model_validate(dict(info) | counted | {"messages": window})


_turns: Final = [
    Statement(sa.select(turns.c.turn_no, turns.c.kind, turns.c.replaced_upto).where(kept_copies.valid(turns)))
    for turns in (TURN, REMOVED_TURN)
]


def _messages_where(*of_messages: sa.ColumnElement[bool], of_copies: sa.ColumnElement[bool]) -> sa.CompoundSelect[Any]:
    """Build a query of messages and of copies of messages that meet the conditions."""
    parts = [
        sa.select(*(as_stored(rows.c[name]).label(name) for name in MESSAGE_FIELDS)).where(of_session(rows), condition)
        for rows, condition in ((MESSAGE, sa.and_(*of_messages)), (REMOVED_MESSAGE, of_copies))
    ]
    return sa.union_all(*parts)


_log: Final = Statement(
    _messages_where(kept_copies.valid(MESSAGE), of_copies=kept_copies.valid(REMOVED_MESSAGE)).order_by("seq")
)


def read(connection: sa.Connection, key: str, at: int) -> list[Message]:
    """Read the log that a session had when `at` was its last seq."""
    return payloads.decode_rows(connection, key, _log.run(connection, {"key": key, "at": at}))


_later_than: Final = [
    Statement(sa.select(sa.func.min(rows.c.seq)).where(of_session(rows), moment > time("moment")))
    for rows, moment in (
        *((rows, sa.func.coalesce(rows.c.logged_at, rows.c.created_at)) for rows in (MESSAGE, REMOVED_MESSAGE)),
        (CHANGE, CHANGE.c.changed_at),
    )
]
_adding: Final = Statement(
    sa.select(CHANGE.c.added_upto).where(
        of_session(CHANGE), CHANGE.c.seq <= number("at"), CHANGE.c.added_upto > number("at")
    )
)


def seq_at(connection: sa.Connection, now: Moment, key: str, as_of: int | datetime, last_seq: int) -> int:
    """Return the last seq of the log at `as_of`; raise `NotKept` if rows removed since then are not kept."""
    if not isinstance(as_of, int):
        bound = {"key": key, "moment": dialect_of(connection).time(aware(as_of, "as_of"))}
        later = [each.run(connection, bound)[0][0] for each in _later_than]
        at = min([seq for seq in later if seq is not None], default=last_seq + 1) - 1
    else:
        check_seq("as_of", as_of)
        at = min(as_of, last_seq)
    # A change and the messages that it added are one step: the session had no state between them.
    for (added_upto,) in _adding.run(connection, {"key": key, "at": at}):
        at = added_upto
    now = now or sessions.server_time(connection)
    for change in _changes(connection, key, at):
        if change.kind not in PERMANENT and not _is_kept(change, now):
            raise NotKept(key, change.seq, change.undo_until)
    return at


def _is_kept(change: Change, now: datetime) -> bool:
    return change.undo_until is not None and now < change.undo_until


def diff(connection: sa.Connection, now: Moment, key: str, a: int | datetime, b: int | datetime) -> Diff:
    """Compare the log of a live session at two seqs or times."""
    info = sessions.info(connection, now, key)
    old, new = (
        {each.seq: each for each in read(connection, key, seq_at(connection, now, key, at, info.last_seq))}
        for at in (a, b)
    )
    return Diff(
        added=[new[seq] for seq in new if seq not in old],
        removed=[old[seq] for seq in old if seq not in new],
        changed=[(old[seq], new[seq]) for seq in old if seq in new and old[seq] != new[seq]],
    )


# Undo


def undo(connection: sa.Connection, now: datetime, key: str) -> Undone | None:
    """Take back the last change that is not taken back yet; return None if there is none.

    Redactions, `drop_sent` and forks cannot be taken back, and are passed over.

    Raises:
        NotKept: The removed rows of the change are not kept, or are no longer kept.
        Conflict: An id that the change removed was used again.
    """
    return _take_back(connection, now, key, "undo")


def redo(connection: sa.Connection, now: datetime, key: str) -> Undone | None:
    """Take back the last undo; return None if there is none.

    After a new change other than a redaction, `drop_sent` or a fork, earlier undos can no
    longer be taken back.

    Raises:
        NotKept: The removed rows of the undo are no longer kept.
        Conflict: An id that the undo removed was used again.
    """
    return _take_back(connection, now, key, "redo")


def _take_back(connection: sa.Connection, now: datetime, key: str, kind: Literal["undo", "redo"]) -> Undone | None:
    locked = sessions.lock(connection, now, key)
    undoable, redoable = _stacks(_changes(connection, key))
    waiting = undoable if kind == "undo" else redoable
    if not waiting:
        return None
    change = waiting[-1]
    if change.undo_until is None or not _is_kept(change, now):
        raise NotKept(key, change.seq, change.undo_until)
    # Even if the store keeps no removed rows, keep those of an undo, so that it can be taken back.
    keep = None if kept_copies.is_on(connection) else change.undo_until - now
    try:
        with kept_copies.keeping(connection, keep), connection.begin_nested():
            return _invert(connection, now, key, change, kind, locked.last_seq)
    except connection.dialect.loaded_dbapi.IntegrityError as error:
        raise Conflict(
            key,
            expected=change.seq,
            last_seq=locked.last_seq,
            message=f"session {quoted(key)}: an id that change {change.seq} removed was used again: nothing was "
            f"changed; fork(as_of={change.seq - 1}) copies the log before this change",
        ) from error


def _stacks(log: Sequence[Change]) -> tuple[list[Change], list[Change]]:
    """Return the changes for `undo` to take back, and those for `redo`; the last one in a list is taken back next."""
    undoable: list[Change] = []
    redoable: list[Change] = []
    for change in log:
        if change.kind == "undo":
            del undoable[-1:]
            redoable.append(change)
        elif change.kind == "redo":
            del redoable[-1:]
            undoable.append(change)
        elif change.kind not in PERMANENT:
            undoable.append(change)
            redoable.clear()
    return undoable, redoable


def _invert(
    connection: sa.Connection, now: datetime, key: str, change: Change, kind: Literal["undo", "redo"], last_seq: int
) -> Undone:
    """Remove the rows that a change added, and restore those that it removed or replaced.

    A load detects a change because the difference between `last_seq` and the numbers of rows grows. A restored message
    would decrease the difference, so an undo uses up one seq for each restored message, and one more.
    """
    bound: dict[str, Any] = {"change": change.seq, "added_upto": change.added_upto}
    ((copies,),) = _count_copies.run(connection, bound | {"key": key})
    seq = last_seq + copies + 1
    _delete_rows_of_other_calls(connection, bound | {"key": key})
    with LogChange(connection, now, key, kind, seq, change.seq) as undo:
        for rows in (TURN, MESSAGE):
            deleted = undo.delete(_ADDED[rows], **bound) + undo.delete(_REPLACED[rows], replaced=True, **bound)
            restored = undo.restore(rows, change.seq)
        undo.consolidated = change.consolidated
        undo.moves_consolidated = change.consolidated is not None
    return Undone(change=change, seq=seq, restored=restored, removed=deleted)


def _copied_at(rows: sa.Table) -> sa.Select[Any]:
    copies = kept_copies.COPY_OF[rows]
    of_change = (of_session(copies), copies.c.removed_at == number("change"))
    return sa.select(copies.c[kept_copies.NUMBER[rows]]).where(*of_change)


def _added(rows: sa.Table) -> sa.ColumnElement[bool]:
    """Match the rows that a change added: its own messages, its compaction, and rows that it restored."""
    change, upto = number("change"), number("added_upto")
    copies, name = kept_copies.COPY_OF[rows], kept_copies.NUMBER[rows]
    is_restored = (of_session(copies), copies.c.next_at == change, copies.c.removed_at < change)
    if rows is MESSAGE:
        added = sa.and_(rows.c.seq > change, rows.c.seq <= upto)
    else:  # A discarding compaction also adds a turn without messages, for the usage of copied turns.
        is_added = sa.or_(IS_COMPACTION, TURN.c.last_seq == change)
        added = sa.and_(is_added, TURN.c.first_seq == change + sa.literal_column("1"), upto.is_not(None))
    return sa.or_(rows.c[name].in_(sa.select(copies.c[name]).where(*is_restored)), added)


_IS_REPLACED: Final = {rows: rows.c[kept_copies.NUMBER[rows]].in_(_copied_at(rows)) for rows in kept_copies.COPY_OF}
_REPLACED: Final = {rows: Rows(rows, is_replaced) for rows, is_replaced in _IS_REPLACED.items()}
_ADDED: Final = {rows: Rows(rows, _added(rows), ~is_replaced) for rows, is_replaced in _IS_REPLACED.items()}
_count_copies: Final = Statement(sa.select(sa.func.count()).select_from(_copied_at(MESSAGE).subquery()))
_versions: Final = Statement(
    _messages_where(
        MESSAGE.c.seq == number("seq"),
        of_copies=sa.and_(REMOVED_MESSAGE.c.seq == number("seq"), REMOVED_MESSAGE.c.removed_at == number("change")),
    )
)
_NAMING_CALLS: Final = [each for each in OF_MESSAGES if each.stored.names_calls]
_naming: Final = [
    Statement(
        sa.select(each.message_seq).where(of_session(each.table), each.message_seq.in_(_copied_at(MESSAGE))).distinct()
    )
    for each in _NAMING_CALLS
]
_delete_naming: Final = [
    Statement(sa.delete(each.table).where(of_session(each.table), each.message_seq == number("seq")))
    for each in _NAMING_CALLS
]


def _delete_rows_of_other_calls(connection: sa.Connection, bound: Mapping[str, Any]) -> None:
    """Delete the rows that refer to calls of a message if its restored version asks for different calls."""
    for naming, delete in zip(_naming, _delete_naming, strict=True):
        for (seq,) in naming.run(connection, bound):
            of_message = {**bound, "seq": seq}
            before, after = payloads.decode_rows(connection, bound["key"], _versions.run(connection, of_message))
            if before.tool_calls != after.tool_calls:
                delete.run_many(connection, [of_message])
