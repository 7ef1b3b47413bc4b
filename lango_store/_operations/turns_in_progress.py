"""Turns in progress: begin a turn with a lease, append messages while it runs, and save the turn at the end."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations import appends, drafts, leases, levels, messages, payloads, removed, sessions, turns
from lango_store._operations.appends import Batch, NewTurn
from lango_store._operations.binds import DRAFT, MESSAGE, TURN, of_session
from lango_store._operations.rows import MESSAGE_COLUMNS, MESSAGE_INPUT_FIELDS, encode_message
from lango_store._operations.sessions import Expected, Lease
from lango_store._values.model import Message, Turn

_SEQS_AT_ONCE: Final = 500  # a statement binds a limited number of values


def begin(
    connection: sa.Connection, now: datetime, key: str, turn_id: str, lease: Lease
) -> tuple[Turn | None, list[Message]]:
    """Take the lease of a live session for a turn.

    Returns:
        If the turn was saved before, the stored turn and no messages; the lease is then not
        taken. Otherwise None, and the messages that unfinished attempts have appended.

    Raises:
        TurnInProgress: The session has a lease that has not ended.
    """
    tries = sessions.MAX_TRIES
    while True:
        is_taken = leases.take(connection, now, key, turn_id, lease)
        # Read after the update has locked the row: the turn may have been saved while the update waited.
        for stored in turns.read(connection, key, TURN.c.id == turn_id):
            if is_taken:
                leases.release(connection, key, lease.token)
            return turns.replayed(connection, now, key, stored), []
        if is_taken:
            return None, _appended_before(connection, key, turn_id)
        tries -= 1
        leases.check_free(connection, now, key, turn_id)
        sessions.raise_unmatched(connection, now, key, tries_left=tries)


def _appended_before(connection: sa.Connection, key: str, turn_id: str) -> list[Message]:
    prefix = id_prefix(turn_id)
    in_range = sa.and_(MESSAGE.c.id >= prefix, MESSAGE.c.id < f"{prefix}g", MESSAGE.c.turn_no.is_(None))
    appended = messages.where(connection, key, in_range)
    # Two queries, because each has its own index.
    taken = messages.where(connection, key, sa.and_(MESSAGE.c.taken_by == turn_id, MESSAGE.c.turn_no.is_(None)))
    found = {each.seq: each for each in (*appended, *taken)}
    return [found[seq] for seq in sorted(found)]


def finish(
    connection: sa.Connection, now: datetime, key: str, new: NewTurn, seqs: Collection[int], lease: Lease
) -> Turn:
    """Save a turn whose messages are already in the log, delete its drafts and release its lease.

    A turn that is already stored is returned unchanged: an earlier try was committed, or `save_turn` stored the id.

    Raises:
        LeaseLost: The session no longer has the lease, and the turn is not stored with
            these messages.
    """
    is_ours = leases.release(connection, key, lease.token)
    stored = turns.read(connection, key, TURN.c.id == new.id)
    if not is_ours and not (stored and set(seqs) <= {*range(stored[0].first_seq, stored[0].last_seq + 1)}):
        sessions.raise_unmatched(connection, now, key, Expected(lease=lease), tries_left=0)
    drafts.delete(connection, key, DRAFT.c.turn_id == new.id)
    if stored:
        return turns.replayed(connection, now, key, stored[0])
    saved = turns.save(connection, now, key, Batch([]), turn=new)
    rows: list[Sequence[Any]] = []
    for part in levels.chunks(sorted(seqs), _SEQS_AT_ONCE):
        of_turn = (of_session(MESSAGE, key), MESSAGE.c.seq.in_(part), MESSAGE.c.turn_no.is_(None))
        rows += connection.execute(
            sa.update(MESSAGE).where(*of_turn).values(turn_no=saved.turn_no).returning(*MESSAGE_COLUMNS)
        )
    members = payloads.decode_rows(connection, key, sorted(rows, key=lambda row: row[0]))
    if not members:
        return saved
    # Not the copies of messages that were removed meanwhile: the turn does not contain these.
    for part in levels.chunks([each.seq for each in members], _SEQS_AT_ONCE):
        removed.join_turn(connection, key, part, saved.turn_no)
    bounds = {"first_seq": members[0].seq, "last_seq": members[-1].seq}
    connection.execute(sa.update(TURN).where(of_session(TURN, key), TURN.c.turn_no == saved.turn_no).values(bounds))
    return saved.model_copy(update=bounds | {"messages": members})


def abandon(
    connection: sa.Connection, now: datetime, key: str, turn_id: str, token: int, text: str, whole: bool
) -> None:
    """If an attempt still has the lease, release the lease and store the rest of the attempt's draft."""
    if leases.release(connection, key, token) and text:
        drafts.write(connection, now, key, turn_id, token, text, whole)


def append_answer(connection: sa.Connection, now: datetime, key: str, new: Batch, lease: Lease) -> list[Message]:
    """Append messages under a lease, and delete the draft of the answer that they contain."""
    stored = appends.append_new_ids(connection, now, key, new, Expected(lease=lease))
    drafts.delete(connection, key, DRAFT.c.token == lease.token)
    return stored


# Ids of the turn's messages

_COMPARED: Final = [name for name in MESSAGE_INPUT_FIELDS if name not in ("id", "created_at", "tokens")]


def id_prefix(turn_id: str) -> str:
    """Return the beginning of the ids that the messages of a turn get."""
    return f"turn{hashlib.sha256(turn_id.encode()).hexdigest()[:24]}"


def with_ids(new: Sequence[Message], ids: Iterator[str], earlier: list[Message], least: int | None) -> Batch:
    """Encode messages of a turn, and assign the next of `ids` to each message without an id.

    `earlier` are messages that an earlier attempt of the turn may have stored. A message that equals one of these gets
    its id instead, so that it is not stored again; the equal message is removed from `earlier`.
    """
    rows = [encode_message(message) for message in new]
    identified = list(new)
    for position, row in enumerate(rows):
        if row["id"] is None:
            row["id"] = id = _id_of_equal(row, earlier) or next(ids)
            identified[position] = new[position].with_id(id)
    return Batch(identified, least, rows=rows)


def _id_of_equal(row: Mapping[str, Any], earlier: list[Message]) -> str | None:
    for position, message in enumerate(earlier):
        other = encode_message(message)
        if all(row[name] == other[name] for name in _COMPARED):
            return earlier.pop(position).id
    return None
