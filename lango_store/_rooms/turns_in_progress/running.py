"""Turns in progress: begin a turn with a lease, append messages while it runs, and save the turn at the end."""

import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from itertools import count
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    CHANGE,
    IS_STORED_TURN,
    LIVE_SESSION,
    MESSAGE,
    SESSION,
    TURN,
    number,
    numbers_of_list,
    of_session,
    text,
)
from lango_store._operations.log import append_statements, appends, messages, payloads, removals
from lango_store._operations.log.appends import Batch
from lango_store._operations.log.turns import replayed as replayed
from lango_store._operations.rows import (
    MESSAGE_COLUMNS,
    MESSAGE_INPUT_FIELDS,
    SEQ,
    TURN_COLUMNS,
    TURN_FIELDS,
    decode_turn,
    encode_message,
    stored_time,
    whole_number,
)
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import Expected
from lango_store._operations.session_tables import MESSAGES, select_stored, with_aside
from lango_store._rooms.turns_in_progress import drafts, leases, owed
from lango_store._rooms.turns_in_progress.leases import Lease, Retry
from lango_store._rooms.turns_in_progress.tables import DRAFT
from lango_store._rows.encoding import decode_json
from lango_store._rows.payloads import Threshold
from lango_store._values.model import Message, Turn

STOPPED: Final = "stopped"
"""The name in the metadata of a stopped turn: who has stopped it, and why."""


class TurnLimit(Protocol):
    """Decides whether a turn may begin, in the transaction that begins it. The token is that of the turn's lease."""

    def _admit(self, connection: sa.Connection, now: datetime, key: str, token: int) -> None:
        """Note that the turn begins; raise `BudgetExhausted` if it must not."""

    def _has_room(self, connection: sa.Connection, now: datetime, key: str) -> bool:
        """Return whether a turn that was refused could begin now, unless other turns have reserved too much."""

    def _settle(self, connection: sa.Connection, now: datetime, key: str, token: int) -> None:
        """Note what the turn has used, after it was saved."""


def begin(
    connection: AnyConnection, now: Moment, key: str, turn_id: str, lease: Lease, *, is_new: bool
) -> tuple[Turn | None, list[Message]]:
    """Take the lease of a live session for a turn. `is_new` promises that no attempt of the turn was begun before.

    Returns:
        If the turn was saved before, the stored turn and no messages; the lease is then not
        taken. Otherwise None, and the messages that unfinished attempts have appended.

    Raises:
        TurnInProgress: The session has a lease that has not ended.
    """
    tries = sessions.MAX_TRIES
    with nullcontext() if is_new else dialect_of(connection).short_transaction(connection):
        while True:
            is_taken = leases.take(connection, now, key, turn_id, lease)
            # Read after the update has locked the row: the turn may have been saved while the update waited.
            if not is_new and (stored := find(connection, key, turn_id)):
                if is_taken:
                    leases.release(connection, key, lease.token)
                return replayed(connection, now, key, stored), []
            if is_taken:
                return None, [] if is_new else appended_before(connection, key, turn_id)
            tries -= 1
            leases.check_free(connection, now, key, turn_id)
            sessions.raise_unmatched(connection, now, key, tries_left=tries)


class Replaced(NamedTuple):
    """The part of the log that a turn replaces: it is after a seq, and `cut` removes it."""

    after: int
    cut: removals.Cut


def begin_with(
    connection: sa.Connection,
    now: datetime,
    key: str,
    turn_id: str,
    lease: Lease,
    limit: TurnLimit | None,
    replaced: Replaced | None,
    *,
    is_new: bool,
) -> tuple[Turn | None, list[Message]]:
    """Begin a turn as `begin` does, unless the limit refuses it, and cut the log if no earlier attempt did it."""
    stored, before = begin(connection, now, key, turn_id, lease, is_new=is_new)
    if stored is None and limit is not None:
        limit._admit(connection, now, key, lease.token)
    if stored is None and replaced is not None and all(each.seq <= replaced.after for each in before):
        removals.reject_gap(connection, key, replaced.after)
        replaced.cut(connection, now, key, replaced.after, sessions.lock(connection, now, key).last_seq)
    return stored, before


_turn: Final = Statement(select_stored(TURN, TURN_FIELDS, lambda rows: rows.c.id == text("turn_id")))


def find(connection: AnyConnection, key: str, turn_id: str) -> Turn | None:
    """Return a saved turn without its messages, even if it is set aside."""
    rows = _turn.run(connection, {"key": key, "turn_id": turn_id})
    return decode_turn(key, rows[0]) if rows else None


def _select_appended_before(_: Dialect) -> sa.Executable:
    in_range = sa.and_(MESSAGE.c.id >= text("prefix"), MESSAGE.c.id < text("prefix_end"))
    # Two queries, because each has its own index.
    conditions = (in_range, MESSAGE.c.taken_by == text("turn_id"))
    without_turn = sa.select(*MESSAGE_COLUMNS).where(of_session(MESSAGE), MESSAGE.c.turn_no.is_(None))
    return sa.union_all(*(without_turn.where(each) for each in conditions)).order_by("seq")


_before: Final = Statement(_select_appended_before)


def appended_before(connection: AnyConnection, key: str, turn_id: str) -> list[Message]:
    prefix = id_prefix(turn_id)
    bound = {"prefix": prefix, "prefix_end": f"{prefix}g", "turn_id": turn_id}
    return [*{each.seq: each for each in messages.select(connection, _before, key, **bound)}.values()]


_has_discarded: Final = Statement(
    sa.select(CHANGE.c.seq)
    .where(of_session(CHANGE), CHANGE.c.kind == sa.literal_column("'discard'", sa.Text()))
    .limit(1)
)


def has_discarded(connection: AnyConnection, _: Moment, key: str) -> bool:
    """Return True if a compaction of the session has ever deleted messages."""
    return bool(_has_discarded.run(connection, {"key": key}))


def start_of(connection: AnyConnection, now: Moment, key: str, turn_id: str) -> int:
    """Return the seq before the first message of a saved turn or of a turn in progress. Needs a snapshot."""
    first = [int(sessions.row_of(connection, now, key)["last_seq"]) + 1]
    first += [each.first_seq for each in turns_within(connection, now, key, turn_id)]
    if turn := find(connection, key, turn_id):
        first.append(turn.first_seq)
    else:
        first += [each.seq for each in appended_before(connection, key, turn_id)]
    return min(first) - 1


_within: Final = Statement(
    lambda _: (
        sa.select(*TURN_COLUMNS)
        .join(MESSAGE, sa.and_(MESSAGE.c.session_key == TURN.c.session_key, MESSAGE.c.seq == TURN.c.last_seq))
        .where(of_session(TURN), MESSAGE.c.taken_by == text("turn_id"), TURN.c.id.is_distinct_from(text("turn_id")))
        .order_by(TURN.c.turn_no)
    )
)


def turns_within(connection: AnyConnection, _: Moment, key: str, turn_id: str) -> list[Turn]:
    """Return the turns that were saved under the lease of a turn, such as by the adapter of a framework."""
    return [decode_turn(key, row) for row in _within.run(connection, {"key": key, "turn_id": turn_id})]


def finish(
    connection: AnyConnection,
    now: Moment,
    key: str,
    turn_id: str,
    encoded: tuple[str | None, str | None],
    seqs: Collection[int],
    lease: Lease,
    *,
    has_drafts: bool,
    keeps_removed: bool,
) -> Turn:
    """Save a turn whose messages are already in the log, delete its drafts and release its lease.

    `encoded` has the usage and the metadata of the turn as JSON.

    A turn that is already stored is returned unchanged: an earlier try was committed, or `save_turn` stored the id. But
    a turn that was stopped has lost its lease.

    Raises:
        LeaseLost: The session no longer has the lease, and the turn is not stored with
            these messages.
        UniqueViolation: `save_turn` stored the id at the same time; nothing was written.
    """
    dialect, (usage, metadata) = dialect_of(connection), encoded
    bound = {"key": key, "now": dialect.time(now), "lease_token": lease.token, "seqs": json.dumps([*seqs])}
    bound |= {"turn_id": turn_id, "turn_usage": usage, "turn_metadata": metadata, **_ONE_TURN}
    rows = _end_at_once[keeps_removed].run(connection, bound) if dialect.modifying_cte else []
    if rows:
        # Each row has the counters and a message; no message if the turn has none.
        counters, stored = rows[0][:-_WIDTH], [row[-_WIDTH:] for row in rows if row[SEQ - _WIDTH] is not None]
        members = payloads.decode_rows(connection, key, stored)
    else:
        with dialect.short_transaction(connection):
            tries = sessions.MAX_TRIES
            while not (rows := _end.run(connection, bound)):
                tries -= 1
                turn = find(connection, key, turn_id)
                if turn and (STOPPED not in turn.metadata or STOPPED in decode_json(metadata or "{}")):
                    is_ours = leases.release(connection, key, lease.token)
                    if is_ours or set(seqs) <= {*range(turn.first_seq, turn.last_seq + 1)}:
                        drafts.delete_of_turn(connection, key, turn_id)
                        return replayed(connection, now, key, turn)
                sessions.raise_unmatched(connection, now, key, Expected(guard=lease), tries_left=tries)
            *counters, _ = rows[0]
            members = _insert_turn(connection, key, bound, counters, has_drafts=has_drafts, keeps_removed=keeps_removed)
    last_seq, updated_at, turn_no = counters
    return Turn(
        turn_no=turn_no,
        id=turn_id,
        first_seq=members[0].seq if members else last_seq + 1,
        last_seq=members[-1].seq if members else last_seq,
        usage={} if usage is None else decode_json(usage),
        metadata={} if metadata is None else decode_json(metadata),
        created_at=now or stored_time(key, "updated_at", updated_at),
        messages=members,
    )


def finish_limited(
    connection: sa.Connection,
    now: datetime,
    key: str,
    limit: TurnLimit,
    saved: tuple[str, tuple[str | None, str | None], Collection[int], Lease],
    *,
    has_drafts: bool,
    keeps_removed: bool,
) -> Turn:
    """Save a turn as `finish` does, and note its usage in the limit."""
    turn = finish(connection, now, key, *saved, has_drafts=has_drafts, keeps_removed=keeps_removed)
    limit._settle(connection, now, key, saved[-1].token)
    return turn


def _insert_turn(
    connection: AnyConnection,
    key: str,
    bound: dict[str, Any],
    counters: Sequence[Any],
    *,
    has_drafts: bool,
    keeps_removed: bool,
) -> list[Message]:
    """Insert a turn that was counted, and return its messages."""
    last_seq, updated_at, turn_no = counters
    if type(last_seq) is not int or type(turn_no) is not int:
        whole_number(key, "last_seq", last_seq)
        whole_number(key, "last_turn_no", turn_no)
    bound |= {"now": updated_at, "turn_no": turn_no, "last_seq": last_seq, "added": 0}
    members: list[Message] = []
    seqs = {*decode_json(bound["seqs"]), *[seq for (seq,) in _written.run(connection, bound)]}
    if seqs:
        bound["seqs"] = json.dumps([*seqs])
        members = _join.run(connection, bound, payloads.decoder(connection, key))
        members.sort(key=attrgetter("seq"))
    if members:
        bound |= {"last_seq": members[-1].seq, "added": members[-1].seq - members[0].seq + 1}
        # not the versions of messages that were removed since: they are not part of the turn
        for join in _join_versions if keeps_removed else ():
            join.run_many(connection, [bound | {"seqs": json.dumps([each.seq for each in members])}])
    append_statements.insert_turn.run_many(connection, [bound])
    if has_drafts:
        drafts.delete_of_turn(connection, key, bound["turn_id"])
    return members


def end_of_turn(dialect: Dialect) -> sa.Update:
    """Count a turn in progress and release its lease, if the session has the lease and the turn is not stored."""
    values = append_statements.counted(dialect) | {SESSION.c[name]: value for name, value in owed.SAVED.items()}
    ended = sa.update(SESSION).where(LIVE_SESSION, leases.IS_OURS, ~IS_STORED_TURN).values(values)
    return ended.returning(*append_statements.COUNTED)


_end: Final = owed.EndOfTurn(end_of_turn)
_TURN_NO: Final = number("turn_no")
_ONE_TURN: Final = {
    "seqs_added": 0,
    "messages_added": 0,
    "records_added": 0,
    "tokens_added": 0,
    "turns_added": 1,
    "turn_kind": "turn",
    "turn_replaced_upto": None,
    "turn_copied_from": None,
}


def _build_join(rows: sa.Table, seqs: sa.Select[tuple[int]], turn_no: sa.ColumnElement[int] = _TURN_NO) -> sa.Update:
    # Also matches rows that have the number, so that the statement is repeatable.
    is_free = sa.or_(rows.c.turn_no.is_(None), rows.c.turn_no == turn_no)
    return sa.update(rows).where(of_session(rows), rows.c.seq.in_(seqs), is_free).values(turn_no=turn_no)


_IS_WRITTEN: Final = (of_session(MESSAGE), MESSAGE.c.taken_by == text("turn_id"), MESSAGE.c.turn_no.is_(None))
_written: Final = Statement(sa.select(MESSAGE.c.seq).where(*_IS_WRITTEN))
_join: Final = Statement(
    lambda dialect: _build_join(MESSAGE, numbers_of_list(dialect, "seqs")).returning(*MESSAGE_COLUMNS), repeatable=True
)
_VERSIONS: Final = [rows for rows in MESSAGES if rows not in with_aside(MESSAGE)]
_join_versions: Final = [
    Statement(lambda dialect, rows=rows: _build_join(rows, numbers_of_list(dialect, "seqs")))  # type: ignore[misc]
    for rows in _VERSIONS
]


def _all_seqs(dialect: Dialect) -> sa.Select[tuple[int]]:
    """Select the bound seqs, and those of all messages that were written in the turn and belong to no other turn."""
    written = sa.select(MESSAGE.c.seq).where(*_IS_WRITTEN)
    return sa.select(numbers_of_list(dialect, "seqs").union_all(written).subquery().c[0])


def _build_end_at_once(dialect: Dialect, *, keeps_removed: bool) -> sa.Executable:
    """Build a statement that ends a turn and returns its counters and messages; nothing if it has to be done in steps.

    While the statement waits for the session's lock, another writer may commit. The statement would not see what was
    written, so it changes nothing unless the session's revision is the one that it sees. It changes nothing either if
    a message has payloads, or messages were put for later, which have to be read under the lock.
    """
    seen, seqs = SESSION.alias("seen"), _all_seqs(dialect)
    is_seen = SESSION.c.revision == sa.select(seen.c.revision).where(of_session(seen)).scalar_subquery()
    have_payloads = sa.exists().where(of_session(MESSAGE), MESSAGE.c.seq.in_(seqs), MESSAGE.c.payloads.is_not(None))
    session = end_of_turn(dialect).where(is_seen, ~have_payloads, ~owed.has(owed.LATER)).cte("session")
    last_seq, updated_at, turn_no = session.c
    members = _build_join(MESSAGE, seqs, turn_no).returning(*MESSAGE_COLUMNS).cte("members")
    first, last = (sa.select(each(members.c.seq)).scalar_subquery() for each in (sa.func.min, sa.func.max))
    none, one = (sa.literal_column(each, sa.BigInteger()) for each in "01")
    added = sa.func.coalesce(last - first + one, none)
    row = append_statements.turn_row(turn_no, sa.func.coalesce(last, last_seq), now=updated_at, added=added)
    turn = sa.insert(TURN).from_select(list(row), sa.select(*row.values()).select_from(session))
    is_ended = sa.exists(sa.select(turn_no))
    others: list[Any] = [sa.delete(DRAFT).where(of_session(DRAFT), DRAFT.c.turn_id == text("turn_id"), is_ended)]
    if keeps_removed:
        others += [_build_join(rows, sa.select(members.c.seq), turn_no) for rows in _VERSIONS]
    ctes = [each.cte(f"part_{number}") for number, each in enumerate([turn, *others])]
    rows = sa.select(*session.c, *members.c).select_from(session.outerjoin(members, sa.true()))
    return rows.order_by(members.c.seq).add_cte(*ctes)


_WIDTH: Final = len(MESSAGE_COLUMNS)
_end_at_once: Final = {
    keeps_removed: Statement(functools.partial(_build_end_at_once, keeps_removed=keeps_removed))
    for keeps_removed in (False, True)
}


def replace(connection: sa.Connection, now: datetime, key: str, new: Batch, lease: Lease, after: int) -> list[Message]:
    """Append messages of a turn in the place of the log after a seq. An answer ends the draft."""
    expected = Expected(guard=lease)
    stored = appends.replace(connection, now, key, new, after=after, expected=expected, cut=removals.cut)
    if lease.needs_more(new.messages):
        lease.write_more(connection, key)
    return stored


def abandon(
    connection: sa.Connection,
    now: datetime,
    key: str,
    turn_id: str,
    token: int,
    text: str,
    whole: bool,
    retry: Retry | None = None,
) -> bool:
    """If an attempt still has the lease, release the lease and store the rest of the attempt's draft.

    With `retry`, the session is owed another attempt of the turn. Return False if the attempt had lost the lease.
    """
    if retry is None:
        has_lease = leases.release(connection, key, token)
    else:
        has_lease = leases.postpone(connection, now, key, token, retry)
    if has_lease and text:
        drafts.write(connection, now, key, turn_id, token, text, whole)
    return has_lease


# Ids of the turn's messages

_COMPARED: Final = [name for name in MESSAGE_INPUT_FIELDS if name not in ("id", "created_at", "tokens")]


def id_prefix(turn_id: str) -> str:
    """Return the beginning of the ids that the messages of a turn get."""
    return f"turn{hashlib.sha256(turn_id.encode()).hexdigest()[:24]}"


def new_ids(turn_id: str, token: int) -> Iterator[str]:
    """Generate ids for the messages of one attempt of a turn."""
    prefix = f"{id_prefix(turn_id)}{token:016x}"
    return map(f"{prefix}{{:x}}".format, count())


def with_ids(new: Sequence[Message], ids: Iterator[str], earlier: list[Message], threshold: Threshold | None) -> Batch:
    """Encode messages of a turn, and assign the next of `ids` to each message without an id.

    `earlier` are messages that an earlier attempt of the turn may have stored. A message that equals one of these gets
    its id instead, so that it is not stored again; the equal message is removed from `earlier`.
    """
    rows: list[dict[str, Any]] = []
    identified: list[Message] = []
    for message in new:
        row = encode_message(message)
        if row["id"] is None:
            row["id"] = id = (_id_of_equal(row, earlier) if earlier else None) or next(ids)
            message = message._with_id(id)
        rows.append(row)
        identified.append(message)
    return Batch(identified, threshold, rows=rows)


def _id_of_equal(row: Mapping[str, Any], earlier: list[Message]) -> str | None:
    for position, message in enumerate(earlier):
        other = encode_message(message)
        if all(row[name] == other[name] for name in _COMPARED):
            return earlier.pop(position).id
    return None
