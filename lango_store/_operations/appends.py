"""Appends: number and write messages, alone or as a turn, each id only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, AppendMethod, Moment, dialect_of
from lango_store._dialect.statement import is_single_operation, run_in_order, run_together
from lango_store._operations import append_statements as statements
from lango_store._operations import messages, removals, sessions
from lango_store._operations.binds import MESSAGE, of_session
from lango_store._operations.messages import check_seq
from lango_store._operations.rows import MESSAGE_INPUT_FIELDS, encode_message, stored_time, whole_number
from lango_store._operations.sessions import ANYTHING, Expected, New
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message, MessageRole
from lango_store.errors import SessionExpired, SessionNotFound

_RECORD: Final = MessageRole.RECORD.value


class Batch:
    """Messages to append, checked and encoded as rows for the driver.

    `repeats` is true if two messages have the same id. `tokens` is the sum of the messages' tokens without records.
    """

    __slots__ = ("ids", "messages", "records", "repeats", "rows", "tokens")

    def __init__(self, messages: Sequence[Message], *, rows: list[dict[str, Any]] | None = None) -> None:
        """Encode messages for the database.

        Raises:
            InvalidMessage: A message cannot be stored.
        """
        self.messages: Final = list(messages)
        self.rows: list[dict[str, Any]] = []
        ids: list[str] = []
        records = tokens = 0
        for position, message in enumerate(self.messages):
            row = encode_message(message) if rows is None else rows[position]
            self.rows.append(row)
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
        """Return a batch of the messages at these positions."""
        rows = [self.rows[position] for position in positions]
        return Batch([self.messages[position] for position in positions], rows=rows)


@dataclass(frozen=True)
class NewTurn:
    """An encoded turn to save; a compaction skips seqs before its summary."""

    id: str | None = None
    usage: str | None = None
    metadata: str | None = None
    kind: str = "turn"
    replaced_upto: int | None = None
    skipped: int = 0


class Appended(NamedTuple):
    """Stored messages, with their last seq, their time and their turn."""

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
    create: New | None = None,
) -> list[Message]:
    """Append messages to a live session without looking up their ids, and return them as stored.

    The database refuses a stored id; `append_new_ids` does not append it.
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
    """Append the messages whose ids are not stored, and return all as stored. Needs a transaction."""
    sessions.lock(connection, now, key)
    if not new.rows:
        return append(connection, now, key, new, expected)
    stored = messages.read_by_ids(connection, key, new.ids)
    fresh = select_unstored(new, stored)
    return merge_stored(new, stored, append(connection, now, key, fresh, expected) if fresh.rows else [])


def select_unstored(new: Batch, stored: Mapping[str, Message]) -> Batch:
    """Return the messages whose ids are not stored; of two with one id, the first."""
    seen: set[str | None] = set(stored)
    positions: list[int] = []
    for position, message in enumerate(new.messages):
        if message.id is None or message.id not in seen:
            positions.append(position)
            seen.add(message.id)
    return new.only(positions)


def merge_stored(new: Batch, stored: Mapping[str, Message], written: Sequence[Message]) -> list[Message]:
    """Return all messages as stored, in their order: the `written` ones, and those that existed."""
    existing: dict[str | None, Message] = dict(stored.items())
    fresh = iter(written)
    found: list[Message] = []
    for message in new.messages:
        if message.id in existing:
            found.append(_replayed(existing[message.id]))
            continue
        found.append(next(fresh))
        if message.id is not None:
            existing[message.id] = found[-1]
    return found


def _replayed(message: Message) -> Message:
    return message.model_copy(update={"replayed": True})


# Written


def write(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    expected: Expected = ANYTHING,
    create: New | None = None,
    turn: NewTurn | None = None,
) -> Appended:
    """Write messages, or a turn of them, at the end of a live session without looking up their ids.

    With `create`, a missing session is created, but an expired one is not replaced.
    """
    checked_key(key)
    dialect = dialect_of(connection)
    added = len(new.rows)
    bound = {
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
    if turn is not None:
        bound |= {f"turn_{name}": value for name, value in vars(turn).items()}
        bound |= {"seqs_added": added + turn.skipped, "turns_added": 1}
    method = _METHODS[dialect.append_method]
    tries = sessions.MAX_TRIES
    while (row := method(connection, now, bound, new.rows, create)) is None:
        tries -= 1
        try:
            sessions.raise_unmatched(connection, now, key, expected, tries_left=tries)
        except SessionExpired:
            raise
        except SessionNotFound:  # an expired one that was purged since
            if create is None or not tries:
                raise
    last_seq = whole_number(key, "last_seq", row[0])
    created_at = now or stored_time(key, "updated_at", row[1])
    turn_no = None if turn is None else whole_number(key, "last_turn_no", row[2])
    stored: list[Message] = []
    for seq, message in enumerate(new.messages, last_seq - added + 1):
        stored.append(message.stored_as(seq, created_at, turn_no))
    return Appended(stored, last_seq, created_at, turn_no)


Row = dict[str, Any]

_Method = Callable[[AnyConnection, Moment, dict[str, Any], Sequence[Row], New | None], Sequence[Any] | None]
"""Writes messages and returns the session's counters; writes nothing and returns None without a matching session."""


def _by_statement(
    connection: AnyConnection, now: Moment, bound: dict[str, Any], rows: Sequence[Row], create: New | None
) -> Sequence[Any] | None:
    statement = statements.append(one=len(rows) == 1, turn=bound["turns_added"] > 0, creates=create is not None)
    if create is not None:
        bound = bound | create.row | sessions.new_incarnation()
    found = statement.run(connection, bound | _messages(rows))
    return found[0] if found else None


def _in_transaction(
    connection: AnyConnection, now: Moment, bound: dict[str, Any], rows: Sequence[Row], create: New | None
) -> Sequence[Any] | None:
    found = statements.count.run(connection, bound)
    if not found and create is not None and sessions.insert(connection, now, create):
        found = statements.count.run(connection, bound)
    if not found:
        return None
    last_seq, updated_at, last_turn_no = found[0]
    if type(last_seq) is not int:  # before rows are written after it
        whole_number(bound["key"], "last_seq", last_seq)
    turn_no = last_turn_no if bound["turns_added"] else None
    key = bound["key"]
    for seq, row in enumerate(rows, last_seq - len(rows) + 1):  # changes the rows, because copies would cost more
        created_at = row["created_at"]
        row["session_key"], row["seq"], row["turn_no"] = key, seq, turn_no
        row["stored_at"] = updated_at if created_at is None else dialect_of(connection).time(created_at)
    names: Sequence[str] = MESSAGE_INPUT_FIELDS
    if len(rows) > 1:  # SQLite writes a row with half of the columns a fourth faster
        names = tuple(name for name in names if any(row[name] is not None for row in rows))
    statements.insert_messages(*names).run_many(connection, rows)
    if turn_no is not None:
        statements.insert_turn.run_many(connection, [bound | {"last_seq": last_seq, "turn_no": turn_no}])
    return found[0]  # type: ignore[no-any-return]


def _by_pipeline(
    connection: AnyConnection, now: Moment, bound: dict[str, Any], rows: Sequence[Row], create: New | None
) -> Sequence[Any] | None:
    together = statements.pipeline(min(len(rows), 2), turn=bound["turns_added"] > 0)
    bound = bound | _messages(rows)
    if is_single_operation(connection):
        found = run_together(connection, together, bound)
        if found or create is None:
            return found[0] if found else None
    # The server's now() is the start of the transaction, which may be long ago.
    now = now or sessions.server_time(connection)
    bound["now"] = now
    with dialect_of(connection).short_transaction(connection):
        found = run_in_order(connection, together, bound)
        if not found and create is not None and sessions.insert(connection, now, create):
            found = run_in_order(connection, together, bound)
    return found[0] if found else None


def _messages(rows: Sequence[Row]) -> Row:
    return rows[0] if len(rows) == 1 else {name: [row[name] for row in rows] for name in MESSAGE_INPUT_FIELDS}


_METHODS: Final[Mapping[AppendMethod, _Method]] = {
    AppendMethod.STATEMENT: _by_statement,
    AppendMethod.TRANSACTION: _in_transaction,
    AppendMethod.PIPELINE: _by_pipeline,
}


# Replaced


def replace(
    connection: sa.Connection, now: datetime, key: str, new: Batch, *, after: int, expected: Expected = ANYTHING
) -> list[Message]:
    """Replace the messages after a seq in one transaction; a repeated call changes nothing.

    The ids of deleted messages can be used again; a message whose id is still stored is not moved.
    """
    check_seq("replace_after", after)
    found = sessions.lock(connection, now, key)
    stored = messages.read_by_ids(connection, key, new.ids)
    if len(stored) == len(new.ids) and _follows(connection, key, new, after):
        return [_replayed(stored[str(message.id)]) for message in new.messages]
    expected.check(key, found.last_seq, found.revision)
    removals.reject_gap(connection, key, after)
    removals.cut(connection, now, key, after, found.last_seq)
    return append_new_ids(connection, now, key, new)


def _follows(connection: sa.Connection, key: str, new: Batch, after: int) -> bool:
    """Return whether only messages of the batch, by id and in their order, follow a seq."""
    if not new.rows or any(message.id is None for message in new.messages):
        return False
    query = sa.select(MESSAGE.c.id).where(of_session(MESSAGE, key), removals.is_after(after))
    ids = connection.execute(query.order_by(MESSAGE.c.seq).limit(len(new.ids) + 1)).scalars().all()
    return ids == [id for id in dict.fromkeys(message.id for message in new.messages) if id in ids]
