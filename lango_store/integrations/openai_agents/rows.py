"""A session's rows as items, and what is done to the end of it: steps over an open connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store.dialect import AnyConnection, Moment, dialect_of
from lango_store.encoding import NO_CONTENT, content_fault
from lango_store.errors import DamagedMessage, SessionNotFound
from lango_store.integrations.openai_agents.items import NAME, Item, items_from, without_last
from lango_store.model import MessageRole
from lango_store.operations import appends, compactions, edits, messages, removals, sessions
from lango_store.operations.batches import Batch
from lango_store.operations.binds import IS_RECORD, LIVE_SESSION, MESSAGE, SESSION, number, of_session
from lango_store.operations.compactions import PendingCompaction
from lango_store.operations.messages import MAX_SEQ
from lango_store.operations.rows import MESSAGE_COLUMNS, MESSAGE_FIELDS, decode_messages, seq_or_zero, stored_json
from lango_store.statement import Statement

_READ: Final = ("seq", "turn_no", "role", "tool_call_id", "text", "content", "tool_calls", "extra")
_COLUMNS: Final = [MESSAGE_COLUMNS[MESSAGE_FIELDS.index(name)] for name in _READ]
_ROLES: Final = frozenset(role.value for role in MessageRole)
_DELETED_AT_ONCE: Final = 500  # a statement binds a limited number of values


def _of_live_session(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    return sa.select(column).where(LIVE_SESSION).scalar_subquery()


def _window(*, backwards: bool) -> sa.Executable:
    # Records are what nobody said; those of the author are items that no message could hold.
    shown = sa.or_(~IS_RECORD, MESSAGE.c.author == sa.literal_column(f"'{NAME}'", sa.Text()))
    found = sa.select(*_COLUMNS, _of_live_session(SESSION.c.summary_turn)).where(
        of_session(MESSAGE), MESSAGE.c.seq > _of_live_session(SESSION.c.summarized_upto), shown
    )
    if not backwards:
        return found.order_by(MESSAGE.c.seq)
    return found.order_by(MESSAGE.c.seq.desc()).limit(number("limit"))


_all = Statement(lambda _: _window(backwards=False))
_last = Statement(lambda _: _window(backwards=True))


class Stored(NamedTuple):
    """The items of one row, and its `seq`."""

    seq: int
    items: list[Item]


def read(connection: AnyConnection, now: Moment, key: str, last: int | None = None) -> list[Stored]:
    """Read the rows of a live session's window, or the last of them; none of a session that is not there.

    Each has one item at least. A summary stands first. One statement; two where a summary is among the last rows.
    """
    values = {"key": key, "now": dialect_of(connection).time(now)}
    if last is not None:
        limit = min(last, MAX_SEQ)
        rows = _last.run(connection, values | {"limit": limit})
        rows.reverse()
        if len(rows) < limit or not any(_in_summary(row) for row in rows):
            return [_stored(key, row) for row in _summary_first(rows)]
    rows = _summary_first(_all.run(connection, values))
    return [_stored(key, row) for row in (rows if last is None else rows[max(len(rows) - last, 0) :])]


def _in_summary(row: Sequence[Any]) -> bool:
    return row[-1] is not None and row[1] == row[-1]


def _summary_first(rows: list[Any]) -> list[Any]:
    # What came in while a summary was being written has a lower seq than the summary.
    if not rows or rows[0][-1] is None:
        return rows
    return sorted(rows, key=lambda row: not _in_summary(row))


def _stored(key: str, row: Sequence[Any]) -> Stored:
    seq, _, role, call_id, text, content, tool_calls, extra, _ = row
    if role not in _ROLES or ((type(text) is not str or content is not None) and content_fault(text, content)):
        raise _damage(key, row)
    if text is None and content != NO_CONTENT:
        text = stored_json(key, seq, "content", content)
    calls = stored_json(key, seq, "tool_calls", tool_calls) if tool_calls is not None else ()
    others = stored_json(key, seq, "extra", extra) if extra is not None else {}
    try:
        return Stored(seq, items_from(role, text, calls, call_id, others))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damage(key, row) from error


def _damage(key: str, row: Sequence[Any]) -> DamagedMessage:
    """Return the error that names which field of a row cannot be read."""
    values: dict[str, Any] = dict.fromkeys(MESSAGE_FIELDS) | dict(zip(_READ, row, strict=False))
    values["created_at"] = datetime.now(UTC)
    try:
        decode_messages(key, [list(values.values())])
    except DamagedMessage as error:
        return error
    return DamagedMessage(key, seq_or_zero(row[0]), "extra", f"{NAME} does not fit the message")


def latest(found: Sequence[Stored], limit: int | None = None) -> list[Item]:
    """Return the items of rows, the last so many of them."""
    items = [item for stored in found for item in stored.items]
    return items if limit is None else items[max(len(items) - limit, 0) :]


def pop(connection: sa.Connection, now: Moment, key: str) -> Item | None:
    """Take the last item of a live session away, and return it; None if there is none. Needs a transaction.

    What a summary replaced stays out of the window when the summary goes.
    """
    try:
        sessions.lock(connection, now, key)
    except SessionNotFound:
        return None
    found = read(connection, now, key, last=1)
    if not found:
        return None
    seq, items = found[-1].seq, found[-1].items
    (message,) = messages.where(connection, key, MESSAGE.c.seq == seq) if len(items) > 1 else [None]
    left = None if message is None else without_last(message)
    if left is None:
        edits.delete(connection, now, key, seq)
    else:
        edits.update(connection, now, key, seq, left)
    return items[-1]


# Compaction


@dataclass(frozen=True)
class Snapshot:
    """A session's window as a compaction saw it, and what of it has to be there still when it is replaced."""

    pending: PendingCompaction
    rows: list[Stored]
    complete: bool

    @property
    def items(self) -> list[Item]:
        """The items that the compaction speaks of."""
        return latest(self.rows)


def snapshot(connection: sa.Connection, now: Moment, key: str, limit: int | None) -> Snapshot | None:
    """Read the window of a live session, or as many of its last rows; None if there is no session."""
    try:
        pending = compactions.begin(connection, now, key)
    except SessionNotFound:
        return None
    rows = read(connection, now, key)
    shown = rows if limit is None else rows[max(len(rows) - limit, 0) :]
    return Snapshot(pending, shown, len(shown) == len(rows))


def snapshot_locked(connection: sa.Connection, now: Moment, key: str) -> Snapshot | None:
    """Read the window of a live session that nobody else writes to until the transaction ends."""
    try:
        sessions.lock(connection, now, key)
    except SessionNotFound:
        return None
    return snapshot(connection, now, key, None)


def replace_all(connection: sa.Connection, now: datetime, seen: Snapshot, summary: Batch) -> None:
    """Put a summary in the place of a window; `Conflict` if it was compacted or cut since.

    What came in meanwhile stays, after the summary; what is replaced stays in the log.
    """
    compactions.finish(connection, now, seen.pending, summary, discard=False)


def replace_end(connection: sa.Connection, now: datetime, seen: Snapshot, start: int, new: Batch) -> bool:
    """Put messages in the place of the last items of a window; False, with nothing changed, if it has changed since."""
    key = seen.pending.session.key
    rows, skipped = list(seen.rows), 0
    while rows and skipped < start:
        skipped += len(rows.pop(0).items)
    if skipped != start or not rows:  # inside of a row, whose other items stay
        return False
    try:
        found = sessions.lock(connection, now, key)
    except SessionNotFound:
        return False
    if (found.state, found.last_seq) != (seen.pending.state, seen.pending.session.last_seq):
        return False
    seqs = [row.seq for row in rows]
    for at in range(0, len(seqs), _DELETED_AT_ONCE):
        gone = removals.delete(connection, key, MESSAGE.c.seq.in_(seqs[at : at + _DELETED_AT_ONCE]))
        removals.count(connection, now, key, gone)
    appends.append(connection, now, key, new)
    return True
