"""Stop a turn: take its lease away, and save it with the streamed text, so that no attempt of it follows."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import SESSION, of_session
from lango_store._operations.log import appends
from lango_store._operations.rows import encode_object
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import Expected
from lango_store._rooms.turns_in_progress import drafts, inbox, leases, owed, running
from lango_store._rooms.turns_in_progress.leases import Lease
from lango_store._rows.encoding import encode_id, encode_text
from lango_store._rows.payloads import Threshold
from lango_store._values.model import Message, MessageRole, Turn

_state: Final = Statement(
    lambda _: sa.select(
        SESSION.c.lease_turn, SESSION.c.lease_token, SESSION.c.waiting, SESSION.c.owed_at.is_not(None)
    ).where(of_session(SESSION))
)


def encode_metadata(by: str | None, reason: str | None) -> str | None:
    """Return the metadata of a stopped turn as JSON."""
    stopped = {"by": encode_text(by, "by"), "reason": encode_text(reason, "reason")}
    return encode_object({running.STOPPED: stopped}, "metadata")


def stop(
    connection: sa.Connection,
    now: datetime,
    key: str,
    metadata: str | None,
    counted: Callable[[Message], Message],
    threshold: Threshold | None,
    new_turn: str | None,
    *,
    keeps_removed: bool,
) -> tuple[Turn | None, int | None]:
    """Save the turn of a live session that is open, or that is to be tried again; its draft becomes an answer.

    If there is none, and the session is owed a turn, save this turn with the id `new_turn`, unless this is None.

    Returns:
        The turn, and the token of the lease that was taken away; None for what does not exist.
    """
    sessions.lock(connection, now, key)
    ((turn_id, token, waiting, is_owed),) = _state.run(connection, {"key": key})
    has_begun = turn_id is not None and (token is not None or is_owed)
    id = turn_id if has_begun else new_turn
    lease = Lease(leases.new_token(), leases.SHORTEST_LEASE.total_seconds(), str(encode_id(id)))
    if has_begun:
        leases.seize(connection, now, key, lease)
    elif new_turn is None or not leases.claim(connection, now, key, new_turn, lease, counts=False):
        return None, None
    if stored := running.find(connection, key, lease.turn_id):
        leases.settle(connection, now, key, lease.token)
        drafts.delete_of_turn(connection, key, lease.turn_id)
        return running.replayed(connection, now, key, stored), token
    ids = running.new_ids(lease.turn_id, lease.token)
    if not has_begun or (waiting or 0) & owed.TO_TAKE:
        inbox.take(connection, now, key, lease.turn_id, lease, ids, threshold)
    members = running.appended_before(connection, key, lease.turn_id)
    if text := _streamed(connection, now, key, lease.turn_id, token, members):
        answer = counted(Message.assistant(text, extra=dict(drafts.INTERRUPTED)))
        batch = running.with_ids([answer], ids, [], threshold)
        members += appends.append(connection, now, key, batch, Expected(guard=lease))
    seqs = [each.seq for each in members]
    encoded = None, metadata
    turn = running.finish(
        connection, now, key, lease.turn_id, encoded, seqs, lease, has_drafts=True, keeps_removed=keeps_removed
    )
    return turn, token


def _streamed(
    connection: AnyConnection, now: datetime, key: str, turn_id: str, token: int | None, members: Sequence[Message]
) -> str:
    """Return the text of the last draft of a turn; "" if the turn has appended an answer since."""
    written = [each for each in drafts.read(connection, now, key) if each.turn_id == turn_id]
    if not written:
        return ""
    answers = [each.created_at for each in members if each.role.canonical is MessageRole.ASSISTANT and each.created_at]
    is_current = token is not None and written[-1].id == leases.draft_id(key, token)
    is_last = is_current or not answers or written[-1].updated_at >= max(answers)
    return written[-1].text if is_last else ""
