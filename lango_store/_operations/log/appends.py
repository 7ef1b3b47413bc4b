"""Appends: assign seqs to new messages or a new turn, and write them; an id is stored only once per session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, AppendMethod, Moment, dialect_of
from lango_store._dialect.statement import Statement, is_single_operation, run_in_order, run_together
from lango_store._operations.binds import MESSAGE, arrays_of, number, of_session
from lango_store._operations.log import append_statements as statements
from lango_store._operations.log import changes, messages, payloads, removals
from lango_store._operations.log.append_statements import Conditions
from lango_store._operations.log.messages import check_seq
from lango_store._operations.rows import (
    MESSAGE_INPUT_FIELDS,
    encode_message,
    stored_time,
    whole_number,
)
from lango_store._operations.session import sessions
from lango_store._operations.session.guards import Guard
from lango_store._operations.session.sessions import ANYTHING, Expected, NewSession
from lango_store._rows.encoding import checked_key
from lango_store._rows.payloads import JSON_COLUMNS, Threshold, move
from lango_store._values.model import Message, MessageRole
from lango_store.errors import InvalidMessage, SessionExpired, SessionNotFound, UniqueViolation, quoted

_RECORD: Final = MessageRole.RECORD.value
_json_of: Final = itemgetter(*JSON_COLUMNS)


class Batch:
    """Messages to append, checked and encoded as rows for the driver.

    `repeats` is true if two messages have the same id. `tokens` is the sum over all messages except records. `bodies`
    holds the payloads of the messages by digest. `may_be_stored` is set to True if it was not checked yet whether an id
    is stored.
    """

    __slots__ = ("bodies", "ids", "may_be_stored", "messages", "records", "repeats", "rows", "threshold", "tokens")

    def __init__(
        self,
        messages: Sequence[Message],
        threshold: Threshold | None = None,
        *,
        rows: list[dict[str, Any]] | None = None,
    ) -> None:
        """Encode messages for the database.

        Args:
            messages: The messages.
            threshold: The lengths from which strings become payloads. With None (the default), no strings do.
            rows: The encoded messages, if they were encoded before.

        Raises:
            InvalidMessage: A message cannot be stored.
        """
        self.may_be_stored = False
        self.messages: Final = list(messages)
        self.rows: list[dict[str, Any]] = []
        self.bodies: dict[str, str] = {}
        self.threshold: Final = threshold
        ids: list[str] = []
        records = tokens = 0
        for position, message in enumerate(self.messages):
            row = encode_message(message) if rows is None else rows[position]
            self.rows.append(row)
            if threshold is not None:
                may_move = any(_json_of(row)) or len(row["text"] or "") >= threshold.small
                if may_move and (moved := move(row, threshold)):
                    row["moved"] = moved
            if "moved" in row:
                self.bodies |= row["moved"]
            if row["id"] is not None:
                ids.append(row["id"])
            if row["role"] == _RECORD:
                records += 1
            elif row["tokens"]:
                tokens += row["tokens"]
        self.ids: Final = frozenset(ids)
        self.repeats: Final = len(ids) > len(self.ids)
        self.records: Final = records
        self.tokens: Final = tokens

    def only(self, positions: Sequence[int]) -> Batch:
        """Return a batch with only the messages at these positions."""
        rows = [self.rows[position] for position in positions]
        return Batch([self.messages[position] for position in positions], rows=rows)


@dataclass(frozen=True)
class NewTurn:
    """An encoded turn to save. `copied_from` is the key of the session in which its usage was spent, if not here."""

    id: str | None = None
    usage: str | None = None
    metadata: str | None = None
    kind: str = "turn"
    replaced_upto: int | None = None
    copied_from: str | None = None


class AppendResult(NamedTuple):
    """The result of an append: the stored messages, the session's new `last_seq`, the time and the turn number."""

    messages: list[Message]
    last_seq: int
    created_at: datetime
    turn_no: int | None


def append(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    expected: Expected = ANYTHING,
    create: NewSession | None = None,
) -> list[Message]:
    """Append messages to a live session, and return them as stored.

    With `create`, a missing session is created. Without messages, only the session is
    checked. If an id is already stored, the database refuses the write, and the caller
    falls back to `append_new_ids`.
    """
    if new.rows:
        return write(connection, now, key, new, expected, create).messages
    if create is not None:
        sessions.insert(connection, now, create)
    sessions.raise_unmatched(connection, now, checked_key(key), expected)
    return []


def append_new_ids(
    connection: sa.Connection, now: Moment, key: str, new: Batch, expected: Expected = ANYTHING
) -> list[Message]:
    """Append the messages whose ids are not stored yet; return all messages of the batch as stored.

    Needs a transaction.
    """
    sessions.lock(connection, now, key)
    if not new.rows:
        return append(connection, now, key, new, expected)
    stored = messages.read_by_ids(connection, key, new.ids)
    fresh = select_unstored(new, stored)
    if not fresh.rows and expected.guard is not None:
        expected.guard.renew(connection, now, key)
    return merge_stored(new, stored, append(connection, now, key, fresh, expected) if fresh.rows else [])


def select_unstored(new: Batch, stored: Mapping[str, Message]) -> Batch:
    """Return the batch without messages whose id is stored, or is the id of an earlier message of the batch."""
    seen: set[str | None] = set(stored)
    positions: list[int] = []
    for position, message in enumerate(new.messages):
        if message.id is None or message.id not in seen:
            positions.append(position)
            seen.add(message.id)
    return new.only(positions)


def merge_stored(new: Batch, stored: Mapping[str, Message], written: Sequence[Message]) -> list[Message]:
    """Return the stored messages of a batch; mark those with an already stored or repeated id as replayed."""
    existing: dict[str | None, Message] = dict(stored.items())
    fresh = iter(written)
    merged: list[Message] = []
    for message in new.messages:
        if message.id in existing:
            merged.append(_replayed(existing[message.id]))
            continue
        merged.append(next(fresh))
        if message.id is not None:
            existing[message.id] = merged[-1]
    return merged


def _replayed(message: Message) -> Message:
    return message.model_copy(update={"replayed": True})


# Write


def write(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    expected: Expected = ANYTHING,
    create: NewSession | None = None,
    turn: NewTurn | None = None,
) -> AppendResult:
    """Write messages, optionally as a turn, at the end of a live session.

    If an id is already stored, the database refuses the write. With `create`, a missing
    session is created, but an expired session still raises `SessionExpired`.
    """
    checked_key(key)
    dialect = dialect_of(connection)
    added = len(new.rows)
    params = {
        "key": key,
        "now": dialect.time(now),
        "after": expected.last_seq,
        "expect": expected.revision,
        "added": added,
        "seqs_added": added,
        "messages_added": added - new.records,
        "records_added": new.records,
        "tokens_added": new.tokens,
        "turns_added": 0,
    }
    guard, taken_by = expected.guard, None
    if guard is not None:
        params |= guard.bound(dialect, now)
        params["taken_by"] = taken_by = guard.turn_id
    if expected.intact_since is not None:
        params |= sessions.bound_intact(expected.intact_since)
    if turn is not None:
        params |= {f"turn_{name}": value for name, value in vars(turn).items()}
        params["turns_added"] = 1
    if new.bodies:
        params |= {"digests": list(new.bodies), "bodies": list(new.bodies.values())}
    method = _METHODS[dialect.append_method]
    conditions = statements.conditions_of(None if guard is None else guard.sql, "since" in params, new.may_be_stored)
    tries = sessions.MAX_TRIES
    while (row := method(connection, now, params, new.rows, create, conditions, guard)) is None:
        tries -= 1
        try:
            sessions.raise_unmatched(connection, now, key, expected, tries_left=tries)
        except SessionExpired:
            raise
        except SessionNotFound:  # the session had expired, and was purged since the statement
            if create is None or not tries:
                raise
        if new.may_be_stored:
            raise UniqueViolation(f"session {quoted(key)} has messages outside of its log, which may have the same ids")
    last_seq = row[0] if type(row[0]) is int else whole_number(key, "last_seq", row[0])
    created_at = now or stored_time(key, "updated_at", row[1])
    turn_no = None if turn is None else whole_number(key, "last_turn_no", row[2])
    stored: list[Message] = []
    for seq, message in enumerate(new.messages, last_seq - added + 1):
        stored.append(message._stored_as(seq, created_at, turn_no, taken_by))
    return AppendResult(stored, last_seq, created_at, turn_no)


Row = dict[str, Any]

_Method = Callable[
    [AnyConnection, Moment, dict[str, Any], Sequence[Row], NewSession | None, Conditions, Guard | None],
    Sequence[Any] | None,
]
"""Writes messages and returns the session's counters; if no session matches, writes nothing and returns None."""


def _by_statement(
    connection: AnyConnection,
    now: Moment,
    params: dict[str, Any],
    rows: Sequence[Row],
    create: NewSession | None,
    conditions: Conditions,
    guard: Guard | None,
) -> Sequence[Any] | None:
    statement = statements.append(
        one=len(rows) == 1,
        turn=params["turns_added"] > 0,
        creates=create is not None,
        conditions=conditions,
        payloads="digests" in params,
    )
    if create is not None:
        params = params | create.row | sessions.new_incarnation()
    counters = statement.run(connection, params | _messages(rows))
    return counters[0] if counters else None


def _in_transaction(
    connection: AnyConnection,
    now: Moment,
    params: dict[str, Any],
    rows: Sequence[Row],
    create: NewSession | None,
    conditions: Conditions,
    guard: Guard | None,
) -> Sequence[Any] | None:
    has_numbers = params["after"] is not None or params["expect"] is not None
    count = statements.count(conditions, has_numbers=has_numbers)
    counters = count.run(connection, params)
    if not counters and create is not None and sessions.insert(connection, now, create):
        counters = count.run(connection, params)
    if not counters:
        return None
    last_seq, updated_at, last_turn_no = counters[0]
    if type(last_seq) is not int:  # check before the first row is written
        whole_number(params["key"], "last_seq", last_seq)
    turn_no = last_turn_no if params["turns_added"] else None
    key = params["key"]
    have_times = False
    # Changes the rows in place, because copies would cost more.
    for seq, row in enumerate(rows, last_seq - len(rows) + 1):
        created_at = row["created_at"]
        row["session_key"], row["seq"], row["turn_no"] = key, seq, turn_no
        row["stored_at"], row["logged_at"] = updated_at, None
        if created_at is not None:
            row["stored_at"], row["logged_at"] = dialect_of(connection).time(created_at), updated_at
            have_times = True
    if "digests" in params:
        payloads.insert(connection, key, dict(zip(params["digests"], params["bodies"], strict=True)))
    if len(rows) == 1:
        names = [name for name in MESSAGE_INPUT_FIELDS if rows[0][name] is not None]
    else:
        names = [name for name in MESSAGE_INPUT_FIELDS if any(True for row in rows if row[name] is not None)]
    if have_times:
        names.append("logged_at")
    if turn_no is not None:
        names.append("turn_no")
    if "taken_by" in params:
        names.append("taken_by")
        for row in rows:
            row["taken_by"] = params["taken_by"]
    statements.insert_messages(*names).run_many(connection, rows)
    if turn_no is not None:
        statements.insert_turn.run_many(connection, [params | {"last_seq": last_seq, "turn_no": turn_no}])
    return counters[0]  # type: ignore[no-any-return]


def _by_pipeline(
    connection: AnyConnection,
    now: Moment,
    params: dict[str, Any],
    rows: Sequence[Row],
    create: NewSession | None,
    conditions: Conditions,
    guard: Guard | None,
) -> Sequence[Any] | None:
    pipeline = statements.pipeline(
        min(len(rows), 2),
        turn=params["turns_added"] > 0,
        conditions=conditions,
        payloads="digests" in params,
    )
    params = params | _messages(rows)
    if is_single_operation(connection):
        counters = run_together(connection, pipeline, params)
        if counters or create is None:
            return counters[0] if counters else None
    # Bind the time: the server's now() returns the start of the transaction, which may be long ago.
    now = now or sessions.server_time(connection)
    params["now"] = now
    if guard is not None:
        params |= guard.bound(dialect_of(connection), now)
    with dialect_of(connection).short_transaction(connection):
        counters = run_in_order(connection, pipeline, params)
        if not counters and create is not None and sessions.insert(connection, now, create):
            counters = run_in_order(connection, pipeline, params)
    return counters[0] if counters else None


def _messages(rows: Sequence[Row]) -> Row:
    return rows[0] if len(rows) == 1 else arrays_of(rows, MESSAGE_INPUT_FIELDS)


_METHODS: Final[Mapping[AppendMethod, _Method]] = {
    AppendMethod.STATEMENT: _by_statement,
    AppendMethod.TRANSACTION: _in_transaction,
    AppendMethod.PIPELINE: _by_pipeline,
}


# Replace


def replace(
    connection: sa.Connection, now: datetime, key: str, new: Batch, *, after: int, expected: Expected, cut: removals.Cut
) -> list[Message]:
    """Replace the messages after the seq `after` in one transaction.

    The new messages may reuse the ids of deleted ones. If a message that stays has the id
    of a new one, the new one is not stored. If all new messages have ids, a repeated call
    changes nothing. An id of a message that is set aside cannot be used again.
    """
    check_seq("replace_after", after)
    session = sessions.lock(connection, now, key)
    stored = messages.read_by_ids(connection, key, new.ids)
    is_aside = _is_any_aside(connection, now, key, stored)
    is_known = len(stored) == len(new.ids) and all(message.id is not None for message in new.messages)
    if is_known and (is_aside or _follows(connection, key, new, after)):
        return [_replayed(stored[str(message.id)]) for message in new.messages]
    if is_aside:
        raise InvalidMessage("id", "is the id of a message that is set aside: drop its alternative, or give another id")
    expected.check(key, session)
    if expected.guard is not None:
        expected.guard.check(connection, key)
    removals.reject_gap(connection, key, after)
    cut(connection, now, key, after, session.last_seq)
    appended = append_new_ids(connection, now, key, new, Expected(guard=expected.guard))
    if appended:
        changes.note_added(connection, key, session.last_seq + 1, max(each.seq for each in appended))
    return appended


def _is_any_aside(connection: sa.Connection, now: datetime, key: str, stored: Mapping[str, Message]) -> bool:
    chosen = messages.Range(seqs=[each.seq for each in stored.values()])
    return len(messages.read(connection, now, key, chosen, "raise", "reference")) < len(stored) if stored else False


_ids_after: Final = Statement(
    sa.select(MESSAGE.c.id).where(of_session(MESSAGE), removals.IS_AFTER).order_by(MESSAGE.c.seq).limit(number("limit"))
)


def _follows(connection: sa.Connection, key: str, new: Batch, after: int) -> bool:
    """Return True if the log after `after` consists of the batch's ids in order, except those stored up to `after`.

    All messages of the batch have ids.
    """
    if not new.rows:
        return False
    rows = _ids_after.run(connection, {"key": key, "after": after, "limit": len(new.ids) + 1})
    ids = [id for (id,) in rows]
    return ids == [id for id in dict.fromkeys(message.id for message in new.messages) if id in ids]
