"""Changes of a session's log, and the log of an earlier moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import CHANGE, MESSAGE, TURN, number, of_session, time
from lango_store._operations.log import payloads
from lango_store._operations.log.messages import check_seq
from lango_store._operations.rows import MESSAGE_FIELDS, session_value, stored_time
from lango_store._operations.session import sessions
from lango_store._rooms.versions.errors import NotKept
from lango_store._rooms.versions.kept_copies import PERMANENT, valid
from lango_store._rooms.versions.tables import REMOVED_MESSAGE, REMOVED_TURN
from lango_store._rooms.versions.values import Change, Diff
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import aware
from lango_store._values.model import Message, MessageRole, SessionInfo
from lango_store._values.session import Session

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
    return read_changes(connection, key, after)


def read_changes(connection: sa.Connection, key: str, after: int = 0) -> list[Change]:
    stored = _select_changes.run(connection, {"key": key, "after": after})
    rows = [dict(zip(_FIELDS, row, strict=True)) for row in stored]
    for row in rows:
        row |= {name: stored_time(key, name, row[name]) for name in _TIMES if row[name] is not None}
    return [session_value(Change, row, key) for row in rows]


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
    turns = [TurnInLog(*row) for statement in _turns for row in statement.run(connection, {"key": key, "at": at})]
    return session_with(info, log, turns, at, records=records)


class TurnInLog(NamedTuple):
    """The columns of a turn that decide which messages are in the window."""

    turn_no: int
    kind: str
    first_seq: int
    replaced_upto: int | None


def session_with(
    info: SessionInfo, log: Sequence[Message], turns: Sequence[TurnInLog], last_seq: int, *, records: bool
) -> Session:
    """Return a session with another log than the present one: with its window, and counters of the log."""
    compactions = [(turn.turn_no, turn.replaced_upto) for turn in turns if turn.kind == "compaction"]
    summary_turn, upto = max(compactions, default=(None, 0))
    messages = [each for each in log if each.role is not MessageRole.RECORD]
    window = [each for each in (log if records else messages) if each.seq > (upto or 0)]
    if summary_turn is not None:
        window.sort(key=lambda message: message.turn_no != summary_turn)
    counted = {
        "last_seq": last_seq,
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
    Statement(sa.select(*(turns.c[name] for name in TurnInLog._fields)).where(valid(turns)))
    for turns in (TURN, REMOVED_TURN)
]


def messages_where(*of_messages: sa.ColumnElement[bool], of_copies: sa.ColumnElement[bool]) -> sa.CompoundSelect[Any]:
    """Build a query of messages and of copies of messages that meet the conditions."""
    parts = [
        sa.select(*(as_stored(rows.c[name]).label(name) for name in MESSAGE_FIELDS)).where(of_session(rows), condition)
        for rows, condition in ((MESSAGE, sa.and_(*of_messages)), (REMOVED_MESSAGE, of_copies))
    ]
    return sa.union_all(*parts)


_log: Final = Statement(messages_where(valid(MESSAGE), of_copies=valid(REMOVED_MESSAGE)).order_by("seq"))


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
    for change in read_changes(connection, key, at):
        if change.kind not in PERMANENT and not is_kept(change, now):
            raise NotKept(key, change.seq, change.undo_until)
    return at


def is_kept(change: Change, now: datetime) -> bool:
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
