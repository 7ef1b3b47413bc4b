"""The inbox: messages that wait outside of the log until a turn moves them to the log."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import appends, messages, sessions
from lango_store._operations.appends import Batch
from lango_store._operations.binds import (
    INBOX,
    MESSAGE,
    NOW,
    SESSION,
    numbered_insert,
    numbers_of_list,
    of_session,
    text,
)
from lango_store._operations.rows import MESSAGE_INPUT_FIELDS, decode_messages
from lango_store._operations.sessions import Expected, Lease
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message
from lango_store.errors import DamagedMessage

_FIELDS: Final = MESSAGE_INPUT_FIELDS[:-1]  # large strings stay in the row until the message is in the log

ROWS: Final = [
    INBOX.c.n.label("seq"),
    sa.null().label("turn_no"),
    *(as_stored(INBOX.c[name]) for name in _FIELDS),
    sa.null().label("payloads"),
]
"""The columns of a message in the order that `decode_messages` expects."""


_insert: Final = Statement(lambda _: numbered_insert(INBOX, *_FIELDS))


def enqueue(connection: sa.Connection, now: datetime, key: str, new: Batch) -> Message:
    """Store one message in the inbox, and restart the session's TTL.

    If a message in the inbox or the log already has the id, return that message and change nothing.
    """
    sessions.lock(connection, now, key)
    (row,), (message,) = new.rows, new.messages
    if new.ids:
        for stored in (*messages.read_by_ids(connection, key, new.ids).values(), *read(connection, now, key)):
            if stored.id in new.ids:
                return stored.model_copy(update={"replayed": True})
    created_at = dialect_of(connection).time(row["created_at"] or now)
    _insert.run_many(connection, [row | {"key": key, "created_at": created_at}])
    _note_activity.run_many(connection, [{"key": key, "now": dialect_of(connection).time(now)}])
    return message.stored_as(0, now, None)


_note_activity: Final = Statement(
    lambda dialect: (
        sa.update(SESSION)
        .where(of_session(SESSION))
        .values(updated_at=NOW, expires_at=dialect.later_expiry(NOW, SESSION.c))
    )
)
_select: Final = Statement(lambda _: sa.select(*ROWS).where(of_session(INBOX)).order_by(INBOX.c.n))


def read(connection: AnyConnection, now: Moment, key: str) -> list[Message]:
    """Return the messages in the inbox of a live session, in the order of their arrival; their `seq` is 0."""
    sessions.row_of(connection, now, key)
    try:
        waiting = decode_messages(key, _select.run(connection, {"key": checked_key(key)}))
    except DamagedMessage as error:
        raise DamagedMessage(key, 0, f"inbox message {error.seq}, {error.field}", error.reason) from None
    return [each.model_copy(update={"seq": 0}) for each in waiting]


_mark_taken: Final = Statement(
    lambda dialect: (
        sa.update(MESSAGE)
        .where(of_session(MESSAGE), MESSAGE.c.seq.in_(numbers_of_list(dialect, "seqs")), MESSAGE.c.turn_no.is_(None))
        .values(taken_by=text("turn_id"))
    )
)
_delete_all: Final = Statement(lambda _: sa.delete(INBOX).where(of_session(INBOX)))


def take(
    connection: sa.Connection,
    now: datetime,
    key: str,
    turn_id: str,
    lease: Lease,
    ids: Iterator[str],
    least: int | None,
) -> list[Message]:
    """Move the messages of the inbox to the end of the log, in their order.

    They are marked with the id of the turn, so that a later attempt of the turn finds them. A message without an id
    gets one of `ids`.
    """
    sessions.lock(connection, now, key)
    sessions.check_lease(connection, key, lease)
    waiting = read(connection, now, key)
    if not waiting:
        return []
    new = [each.with_id(next(ids)) if each.id is None else each for each in waiting]
    taken = appends.append_new_ids(connection, now, key, Batch(new, least), Expected(lease=lease))
    seqs = json.dumps([each.seq for each in taken])
    _mark_taken.run_many(connection, [{"key": key, "seqs": seqs, "turn_id": turn_id}])
    _delete_all.run_many(connection, [{"key": key}])
    return taken
