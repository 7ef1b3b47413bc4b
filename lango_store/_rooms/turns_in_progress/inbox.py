"""The inbox: messages that wait outside of the log until a turn moves them to the log."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    MESSAGE,
    NOW,
    SESSION,
    column,
    numbered_insert,
    numbers_of_list,
    of_session,
    text,
    time,
)
from lango_store._operations.log import appends, messages
from lango_store._operations.log.appends import Batch
from lango_store._operations.rows import decode_waiting, encode_message, encode_redacted, encode_waiting, stored_time
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._rooms.turns_in_progress import owed
from lango_store._rooms.turns_in_progress.leases import Lease
from lango_store._rooms.turns_in_progress.tables import INBOX
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, encode_id
from lango_store._rows.payloads import Threshold
from lango_store._values.model import Message, MessageRole
from lango_store.errors import InvalidState, MessageNotFound, quoted

RESULT: Final = "lango-wait-"
"""The beginning of the ids of results of calls that have waited."""
EndOfWait = Callable[[sa.Connection, str, str], Callable[[int], object] | None]
ENDS: Final[list[EndOfWait]] = []
"""Functions of rooms that are called when a turn takes a result, with the key and the id of the message. Each returns a
function of its seq, or None if the call no longer exists, so that its result is deleted."""

_EARLIEST: Final = datetime(1000, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)

_insert: Final = Statement(numbered_insert(INBOX, "id", "message", "created_at", "due_at"))


def check_time(at: datetime | None, in_: timedelta | None) -> datetime | timedelta | None:
    """Return when a message is due: a time, a duration from now, or None for the next turn."""
    if at is None:
        return None if in_ is None else sessions.check_duration("in_", in_, most=sessions.MAX_TTL)
    if in_ is not None:
        raise ValueError("give at= or in_=, not both")
    return check_instant("at", at)


def check_instant(name: str, at: datetime) -> datetime:
    """Return an argument that is a time with a time zone, in the years that all databases hold."""
    if not isinstance(at, datetime):
        raise TypeError(f"{name} is {type(at).__name__}: give a datetime")
    if at.tzinfo is None or not _EARLIEST <= at <= _LATEST:
        raise ValueError(f"{name}={at} is not a time with a time zone in the years 1000 to 9000")
    return at


def enqueue(
    connection: sa.Connection,
    now: datetime,
    key: str,
    new: Batch,
    expected: Expected = ANYTHING,
    *,
    due: datetime | timedelta | None = None,
) -> list[Message]:
    """Store messages in the inbox, and restart the session's TTL.

    A message whose id is in the inbox or in the log already is not stored; the stored message is returned instead.
    """
    expected.check(key, sessions.lock(connection, now, key))
    known = messages.read_by_ids(connection, key, new.ids)
    stored: list[Message] = []
    dialect = dialect_of(connection)
    due_at = now + due if isinstance(due, timedelta) else due
    for row, message in zip(new.rows, new.messages, strict=True):
        if (id := row["id"]) is not None:
            existing = [known[id]] if id in known else _with_id(connection, key, id)
            if existing:
                stored.append(existing[0].model_copy(update={"replayed": True}))
                continue
        waiting = {"key": key, "id": id, "message": encode_waiting(row)}
        times = {"created_at": dialect.time(row["created_at"] or now), "due_at": dialect.time(due_at)}
        _insert.run_many(connection, [waiting | times])
        stored.append(_with_time(message._stored_as(0, now, None), due_at))
    if any(not each.replayed for each in stored):
        bound = {"key": key, "now": dialect.time(now)}
        if due_at is None:
            _note_activity.run_many(connection, [bound])
        else:
            _note_later.run_many(connection, [bound | {"due_at": dialect.time(due_at)}])
    return stored


def _activity(arrived: owed.Values) -> Statement:
    update = sa.update(SESSION).where(of_session(SESSION))
    return Statement(
        lambda dialect: update.values(updated_at=NOW, expires_at=dialect.later_expiry(NOW, SESSION.c), **arrived)
    )


_note_activity: Final = _activity(owed.arrived(owed.IN_INBOX))
_note_later: Final = _activity(owed.arrived(owed.LATER, time("due_at")))
_in_order: Final = (
    sa.select(
        INBOX.c.n,
        INBOX.c.id,
        as_stored(INBOX.c.message),
        as_stored(INBOX.c.created_at),
        as_stored(INBOX.c.due_at),
    )
    .where(of_session(INBOX))
    .order_by(INBOX.c.n)
)
_IS_DUE: Final = sa.or_(INBOX.c.due_at.is_(None), INBOX.c.due_at <= NOW)
_WITH_ID: Final = (of_session(INBOX), INBOX.c.id == column(INBOX.c.id))
_select: Final = Statement(_in_order)
_select_due: Final = Statement(_in_order.where(_IS_DUE))
_select_by_id: Final = Statement(_in_order.where(*_WITH_ID))


def read(connection: AnyConnection, now: Moment, key: str) -> list[Message]:
    """Return the messages in the inbox of a live session, in the order of their arrival; their `seq` is 0."""
    sessions.row_of(connection, now, key)
    return [_decoded(key, row) for row in _select.run(connection, {"key": checked_key(key)})]


def _with_id(connection: AnyConnection, key: str, id: str) -> list[Message]:
    return [_decoded(key, row) for row in _select_by_id.run(connection, {"key": key, "id": id})]


def _decoded(key: str, row: Any) -> Message:
    *waiting, due_at = row
    return _with_time(decode_waiting(key, *waiting), None if due_at is None else stored_time(key, "due_at", due_at))


def _with_time(message: Message, due_at: datetime | None) -> Message:
    if due_at is not None:
        message.__dict__["_due_at"] = due_at.astimezone(UTC)
    return message


_delete: Final = Statement(sa.delete(INBOX).where(*_WITH_ID).returning(INBOX.c.n))
_delete_row: Final = Statement(sa.delete(INBOX).where(of_session(INBOX), INBOX.c.n == column(INBOX.c.n)))
_note_empty: Final = Statement(
    sa.update(SESSION)
    .where(
        of_session(SESSION),
        owed.has(owed.IN_INBOX | owed.LATER),
        ~sa.exists().where(of_session(INBOX), INBOX.c.due_at.is_(None)),
    )
    .values(owed.EMPTIED)
)
_set_message: Final = Statement(sa.update(INBOX).where(*_WITH_ID).values(message=column(INBOX.c.message)))


def replace(connection: sa.Connection, now: datetime, key: str, id: str, new: Batch) -> Message:
    """Put a message with this id into the inbox of a locked session, in the place of one that waits with it, if any."""
    _delete.run(connection, {"key": key, "id": id})
    return enqueue(connection, now, key, new)[0]


def find(connection: sa.Connection, key: str, id: str) -> Message:
    """Return a message that is in the inbox, or that a turn has taken from it."""
    for message in _with_id(connection, key, id) or messages.read_by_ids(connection, key, frozenset([id])).values():
        return message.model_copy(update={"replayed": True})
    raise MessageNotFound(key, id)


def is_own(id: str | None) -> bool:
    """Return whether the message with an id is not the result of another room."""
    return not (id or "").startswith(RESULT)


def _own_id(id: str) -> str:
    """Return an id that belongs to no result of another room, without which the other room would wait for ever."""
    if not is_own(encoded := str(encode_id(id))):
        raise InvalidState(
            f"{quoted(id)} is the result of a call that waits: Store.calls.finish(…, failed=…) ends the wait"
        )
    return encoded


def delete(connection: sa.Connection, now: datetime, key: str, id: str) -> bool:
    """Delete a message from the inbox of a live session; return False if the inbox has no message with this id."""
    sessions.lock(connection, now, key)
    is_deleted = bool(_delete.run(connection, {"key": key, "id": _own_id(id)}))
    if is_deleted:
        _note_empty.run_many(connection, [{"key": key}])
    return is_deleted


def empty(connection: sa.Connection, now: datetime, key: str) -> None:
    """Delete all messages that are due from the inbox of a locked session, except those of other rooms."""
    _delete_own_due.run_many(connection, [{"key": key, "now": dialect_of(connection).time(now)}])
    _note_empty.run_many(connection, [{"key": key}])


def append(
    connection: sa.Connection,
    now: datetime,
    key: str,
    threshold: Threshold | None,
    is_chosen: Callable[[Message], bool],
) -> list[Message]:
    """Move the messages that are due and chosen to the log of a locked session, and return them."""
    bound = {"key": key, "now": dialect_of(connection).time(now)}
    due = [(row[0], decode_waiting(key, *row[:-1])) for row in _select_due.run(connection, bound)]
    chosen = {n: message for n, message in due if is_chosen(message)}
    if not chosen:
        return []
    _delete_row.run_many(connection, [{"key": key, "n": n} for n in chosen])
    _note_empty.run_many(connection, [{"key": key}])
    new = [*chosen.values()]
    return appends.append_new_ids(connection, now, key, Batch(new, threshold))


def update(connection: sa.Connection, now: datetime, key: str, new: Batch) -> Message:
    """Replace a message in the inbox of a live session by one with the same id, which takes its place."""
    sessions.lock(connection, now, key)
    (row,) = new.rows
    return _rewrite(connection, key, _own_id(row["id"]), row)


def _rewrite(connection: sa.Connection, key: str, id: str, row: Mapping[str, Any]) -> Message:
    _set_message.run_many(connection, [{"key": key, "id": id, "message": encode_waiting(row)}])
    for message in _with_id(connection, key, id):
        return message
    raise MessageNotFound(key, id)


def redact(connection: sa.Connection, now: datetime, key: str, id: str, reason: str | None = None) -> Message:
    """Redact a message in the inbox of a live session, as `edits.redact` redacts one in the log."""
    sessions.lock(connection, now, key)
    for message in _with_id(connection, key, str(encode_id(id))):
        row = encode_message(message)
        row |= encode_redacted(reason, row["role"]) | {"tokens": None if row["tokens"] is None else 0}
        return _rewrite(connection, key, id, row)
    raise MessageNotFound(key, id)


_mark_taken: Final = Statement(
    lambda dialect: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq.in_(numbers_of_list(dialect, "seqs")), MESSAGE.c.turn_no.is_(None))
        .values(taken_by=text("turn_id"), logged_at=sa.func.coalesce(MESSAGE.c.logged_at, MESSAGE.c.created_at))
    )
)
_note_taken: Final = Statement(sa.update(SESSION).where(of_session(SESSION)).values(owed.ALL_TAKEN))
_delete_due: Final = Statement(lambda _: sa.delete(INBOX).where(of_session(INBOX), _IS_DUE))
_IS_OWN: Final = sa.or_(INBOX.c.id.is_(None), ~INBOX.c.id.startswith(sa.literal_column(f"'{RESULT}'")))
_delete_own_due: Final = Statement(lambda _: sa.delete(INBOX).where(of_session(INBOX), _IS_DUE, _IS_OWN))


def take(
    connection: sa.Connection,
    now: datetime,
    key: str,
    turn_id: str,
    lease: Lease,
    ids: Iterator[str],
    threshold: Threshold | None,
) -> list[Message]:
    """Move the messages of the inbox that are due to the end of the log, in their order.

    They are marked with the id of the turn, so that a later attempt of the turn finds them. A message without an id
    gets one of `ids`.
    """
    sessions.lock(connection, now, key)
    lease.check(connection, key)
    sessions.row_of(connection, now, key)
    bound = {"key": key, "now": dialect_of(connection).time(now)}
    due = [decode_waiting(key, *row[:-1]) for row in _select_due.run(connection, bound)]
    results = [each.id for each in due if each.role is MessageRole.TOOL and each.id and each.id.startswith(RESULT)]
    ends: dict[str | None, Any] = {id: end(connection, key, id) for id in results for end in ENDS}
    waiting = [each for each in due if ends.get(each.id, each)]
    if not waiting:  # the session may wait for rows that an application or a damaged file has lost
        if due:
            _delete_due.run_many(connection, [bound])
        _note_empty.run_many(connection, [{"key": key}])
        return []
    new = [each._with_id(next(ids)) if each.id is None else each for each in waiting]
    taken = appends.append_new_ids(connection, now, key, Batch(new, threshold), Expected(guard=lease))
    seqs = json.dumps([each.seq for each in taken])
    _mark_taken.run_many(connection, [{"key": key, "seqs": seqs, "turn_id": turn_id}])
    for message in taken:
        if message.id in ends:
            ends[message.id](message.seq)
    is_any_of_turn = any(each.turn_no is None for each in taken)  # the id of another may name one of a saved turn
    _delete_due.run_many(connection, [bound])
    (_note_taken if is_any_of_turn else _note_empty).run_many(connection, [{"key": key}])
    return taken
