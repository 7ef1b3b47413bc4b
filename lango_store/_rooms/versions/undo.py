"""Undo and redo: take changes of a session's log back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa

from lango_store._dialect.statement import Statement
from lango_store._operations.binds import IS_COMPACTION, MESSAGE, TURN, number, of_session
from lango_store._operations.log import payloads
from lango_store._operations.log.changes import LogChange, Rows, counted, recorder_of, recording
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import OF_MESSAGES
from lango_store._rooms.versions.earlier_logs import is_kept, messages_where, read_changes
from lango_store._rooms.versions.errors import NotKept
from lango_store._rooms.versions.kept_copies import COPY_OF, NUMBER, PERMANENT, Keeper, copying
from lango_store._rooms.versions.tables import REMOVED_MESSAGE
from lango_store._rooms.versions.values import Change, Undone
from lango_store.errors import Conflict, quoted


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
    undoable, redoable = _stacks(read_changes(connection, key))
    waiting = undoable if kind == "undo" else redoable
    if not waiting:
        return None
    change = waiting[-1]
    if change.undo_until is None or not is_kept(change, now):
        raise NotKept(key, change.seq, change.undo_until)
    # Even if the store keeps no removed rows, keep those of an undo, so that it can be taken back.
    keeper = None if recorder_of(connection) is not None else Keeper(change.undo_until - now)
    try:
        with recording(connection, keeper), connection.begin_nested():
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
        elif change.kind == "switch":  # alternatives have changed too: another switch takes it back
            undoable.clear()
            redoable.clear()
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
            restored = _restore(undo, rows, change.seq)
        undo.consolidated = change.consolidated
        undo.moves_consolidated = change.consolidated is not None
    return Undone(change=change, seq=seq, restored=restored, removed=deleted)


class _Copies:
    """The copies that the change bound as `change` made of messages or turns, with statements to restore the rows."""

    def __init__(self, table: sa.Table, copies: sa.Table) -> None:
        chosen = (of_session(copies), copies.c.removed_at == number("change"))
        self.count = Statement(sa.select(*counted(copies)).where(*chosen))
        self.restore = Statement(copying(copies, table, {}, *chosen))
        end = sa.update(copies).where(*chosen, copies.c.next_at.is_(None)).values(next_at=number("next_at"))
        self.end = Statement(end)


_COPIES: Final = {table: _Copies(table, copies) for table, copies in COPY_OF.items()}


def _restore(undo: LogChange, table: sa.Table, removed_at: int) -> int:
    """Restore the messages or turns that the change `removed_at` removed or replaced; return how many."""
    copies, bound = _COPIES[table], {"key": undo.key, "change": removed_at, "next_at": undo.seq}
    restored = undo.count(table, copies.count.run(undo.connection, bound), -1)
    copies.restore.run_many(undo.connection, [bound])
    copies.end.run_many(undo.connection, [bound])
    return restored


def _copied_at(rows: sa.Table) -> sa.Select[Any]:
    copies = COPY_OF[rows]
    of_change = (of_session(copies), copies.c.removed_at == number("change"))
    return sa.select(copies.c[NUMBER[rows]]).where(*of_change)


def _added(rows: sa.Table) -> sa.ColumnElement[bool]:
    """Match the rows that a change added: its own messages, its compaction, and rows that it restored."""
    change, upto = number("change"), number("added_upto")
    copies, name = COPY_OF[rows], NUMBER[rows]
    is_restored = (of_session(copies), copies.c.next_at == change, copies.c.removed_at < change)
    if rows is MESSAGE:
        added = sa.and_(rows.c.seq > change, rows.c.seq <= upto)
    else:  # A discarding compaction also adds a turn without messages, for the usage of copied turns.
        is_added = sa.or_(IS_COMPACTION, TURN.c.last_seq == change)
        added = sa.and_(is_added, TURN.c.first_seq == change + sa.literal_column("1"), upto.is_not(None))
    return sa.or_(rows.c[name].in_(sa.select(copies.c[name]).where(*is_restored)), added)


_IS_REPLACED: Final = {rows: rows.c[NUMBER[rows]].in_(_copied_at(rows)) for rows in COPY_OF}
_REPLACED: Final = {rows: Rows(rows, is_replaced) for rows, is_replaced in _IS_REPLACED.items()}
_ADDED: Final = {rows: Rows(rows, _added(rows), ~is_replaced) for rows, is_replaced in _IS_REPLACED.items()}
_count_copies: Final = Statement(sa.select(sa.func.count()).select_from(_copied_at(MESSAGE).subquery()))
_versions: Final = Statement(
    messages_where(
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
