"""The history of a session: its changes, its earlier logs, and changes that are taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect import Moment
from lango_store._operations import counters, payloads, removals, removed, sessions
from lango_store._operations.binds import (
    CALL,
    CHANGE,
    IS_COMPACTION,
    MESSAGE,
    REMOVED_MESSAGE,
    REMOVED_TURN,
    SESSION,
    SUSPENSION,
    TURN,
    of_session,
)
from lango_store._operations.messages import check_seq
from lango_store._operations.rows import MESSAGE_FIELDS, session_value, stored_time
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware
from lango_store._values.model import Change, Diff, Message, MessageRole, Undone
from lango_store._values.session import Session
from lango_store.errors import Conflict, NotKept, quoted

_FIELDS: Final = tuple(Change.model_fields)
_COLUMNS: Final = [as_stored(CHANGE.c[name]) for name in _FIELDS]
_TIMES: Final = ("changed_at", "undo_until")
_PERMANENT: Final = ("redact", "drop_sent", "fork")
"""The kinds of changes that are never taken back."""


def changes(connection: sa.Connection, now: Moment, key: str, after: int = 0) -> list[Change]:
    """Read the changes of a live session after a seq, in their order."""
    check_seq("after", after)
    sessions.row_of(connection, now, key)
    return _changes(connection, key, after)


def _changes(connection: sa.Connection, key: str, after: int = 0) -> list[Change]:
    query = sa.select(*_COLUMNS).where(of_session(CHANGE, key), CHANGE.c.seq > after).order_by(CHANGE.c.seq)
    rows = [dict(zip(_FIELDS, row, strict=True)) for row in connection.execute(query)]
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
    turns = [row for part in (TURN, REMOVED_TURN) for row in connection.execute(_turns(part, key, at))]
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


def _turns(turns: sa.Table, key: str, at: int) -> sa.Select[Any]:
    columns = (turns.c.turn_no, turns.c.kind, turns.c.replaced_upto)
    return sa.select(*columns).where(removed.valid(turns, key, at))


def read(connection: sa.Connection, key: str, at: int) -> list[Message]:
    """Read the log that a session had when `at` was its last seq."""
    parts = [_messages_of(part, key).where(removed.valid(part, key, at)) for part in (MESSAGE, REMOVED_MESSAGE)]
    query = sa.union_all(*parts).order_by("seq")
    return payloads.decode_rows(connection, key, connection.execute(query).all())


def _messages_of(rows: sa.Table, key: str) -> sa.Select[Any]:
    columns = [as_stored(rows.c[name]).label(name) for name in MESSAGE_FIELDS]
    return sa.select(*columns).where(of_session(rows, key))


def seq_at(connection: sa.Connection, now: Moment, key: str, as_of: int | datetime, last_seq: int) -> int:
    """Return the last seq of the log at `as_of`; raise `NotKept` if rows removed since then are not kept."""
    if isinstance(as_of, datetime):
        moment = aware(as_of)
        rows = ((MESSAGE, "created_at"), (REMOVED_MESSAGE, "created_at"), (CHANGE, "changed_at"))
        later = [
            sa.select(sa.func.min(table.c.seq)).where(of_session(table, key), table.c[name] > moment)
            for table, name in rows
        ]
        seqs = [seq for query in later if (seq := connection.execute(query).scalar()) is not None]
        at = min(seqs, default=last_seq + 1) - 1
    else:
        check_seq("as_of", as_of)
        at = min(as_of, last_seq)
    # A change and the messages that it added are one step: the session had no state between them.
    within = (of_session(CHANGE, key), CHANGE.c.seq <= at, CHANGE.c.added_upto > at)
    at = connection.execute(sa.select(CHANGE.c.added_upto).where(*within)).scalar() or at
    now = now or sessions.server_time(connection)
    for change in _changes(connection, key, at):
        if change.kind not in _PERMANENT and not _is_kept(change, now):
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
    keep = None if removed.is_on(connection) else change.undo_until - now
    try:
        with removed.keeping(connection, keep), connection.begin_nested():
            return _invert(connection, now, key, change, kind)
    except sa.exc.IntegrityError as error:
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
        elif change.kind not in _PERMANENT:
            undoable.append(change)
            redoable.clear()
    return undoable, redoable


def _invert(
    connection: sa.Connection, now: datetime, key: str, change: Change, kind: Literal["undo", "redo"]
) -> Undone:
    """Remove the rows that a change added, and restore those that it removed or replaced.

    A load detects a change because the difference between `last_seq` and the numbers of rows grows. A restored message
    would decrease the difference, so an undo uses up one seq for each restored message, and one more.
    """
    copies = sa.select(sa.func.count()).select_from(_copied_at(MESSAGE, key, change.seq).subquery())
    sessions.change(connection, key, {"last_seq": SESSION.c.last_seq + copies.scalar_subquery()})
    (seq,) = connection.execute(sa.select(SESSION.c.last_seq + 1).where(of_session(SESSION, key))).one()
    is_consolidated = change.consolidated is not None
    removals.insert_change(connection, now, key, seq, kind, change.seq, moves_consolidated=is_consolidated)
    _delete_calls_of_other_versions(connection, key, change.seq)
    restored = deleted = 0
    for rows in (TURN, MESSAGE):
        replaced = rows.c[removed.NUMBER[rows]].in_(_copied_at(rows, key, change.seq))
        added = sa.and_(_added_by(rows, key, change), ~replaced)
        deleted = 0
        for condition, is_replaced in ((added, False), (replaced, True)):
            removed.keep(connection, key, rows, condition, replaced=is_replaced)
            deleted += connection.execute(sa.delete(rows).where(of_session(rows, key), condition)).rowcount
        restored = removed.restore(connection, key, rows, change.seq, seq)
    removals.delete_unasked(connection, key)
    payloads.release(connection, key)
    consolidated = {"last_consolidated": change.consolidated} if is_consolidated else {}
    sessions.change(connection, key, {"last_seq": seq, "updated_at": now} | consolidated)
    counters.correct(connection, key)  # also limits `last_consolidated` to the number of messages
    return Undone(change=change, seq=seq, restored=restored, removed=deleted)


def _delete_calls_of_other_versions(connection: sa.Connection, key: str, seq: int) -> None:
    """Delete the calls and suspensions of a message if its restored version asks for different calls."""
    for table in (CALL, SUSPENSION):
        begun = sa.select(table.c.message_seq).where(
            of_session(table, key), table.c.message_seq.in_(_copied_at(MESSAGE, key, seq))
        )
        for message_seq in set(connection.execute(begun).scalars()):
            stored = _messages_of(MESSAGE, key).where(MESSAGE.c.seq == message_seq)
            is_copy = (REMOVED_MESSAGE.c.seq == message_seq, REMOVED_MESSAGE.c.removed_at == seq)
            rows = [*connection.execute(sa.union_all(stored, _messages_of(REMOVED_MESSAGE, key).where(*is_copy)))]
            before, after = payloads.decode_rows(connection, key, rows)
            if before.tool_calls != after.tool_calls:
                connection.execute(sa.delete(table).where(of_session(table, key), table.c.message_seq == message_seq))


def _copied_at(rows: sa.Table, key: str, seq: int) -> sa.Select[Any]:
    copies = removed.COPY_OF[rows]
    return sa.select(copies.c[removed.NUMBER[rows]]).where(of_session(copies, key), copies.c.removed_at == seq)


def _added_by(rows: sa.Table, key: str, change: Change) -> sa.ColumnElement[bool]:
    """Match the rows that a change added: its own messages, its compaction, and rows that it restored."""
    copies, number = removed.COPY_OF[rows], removed.NUMBER[rows]
    is_restored = (copies.c.next_at == change.seq, copies.c.removed_at < change.seq)
    restored = rows.c[number].in_(sa.select(copies.c[number]).where(of_session(copies, key), *is_restored))
    if change.added_upto is None:
        return restored
    if rows is MESSAGE:
        return sa.or_(restored, sa.and_(rows.c.seq > change.seq, rows.c.seq <= change.added_upto))
    return sa.or_(restored, sa.and_(IS_COMPACTION, TURN.c.first_seq == change.seq + 1))
