"""Appends: messages get their place and are written, alone or as a turn; the same id only once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store.dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store.encoding import checked_key
from lango_store.errors import SessionExpired, SessionNotFound
from lango_store.model import Message, MessageRole
from lango_store.operations import append_statements as statements
from lango_store.operations import messages, removals, sessions
from lango_store.operations.append_statements import Shape, shape_of
from lango_store.operations.batches import Batch
from lango_store.operations.binds import MESSAGE, of_session
from lango_store.operations.messages import check_seq
from lango_store.operations.rows import MESSAGE_GIVEN, stored_time, whole_number
from lango_store.operations.sessions import ANYTHING, Expected, New
from lango_store.session import Session
from lango_store.statement import run_together, sends_together


@dataclass(frozen=True)
class NewTurn:
    """A turn about to be saved, encoded; a compaction uses `skipped` places up before its summary."""

    id: str | None = None
    usage: str | None = None
    metadata: str | None = None
    kind: str = "turn"
    replaced_upto: int | None = None
    skipped: int = 0

    def values(self) -> dict[str, Any]:
        """Return its values by the names that the statements bind."""
        return {f"turn_{name}": value for name, value in vars(self).items()}


@dataclass
class Terms:
    """What an append asks of its session: where it has to be, and what it is made of.

    With `make` the session is made if there is none, but not in the place of an expired one.
    """

    expected: Expected = ANYTHING
    make: New | None = None
    shape: Shape = field(init=False)
    """What the statement of the append has to do."""

    values: Mapping[str, Any] = field(init=False)
    """What the statement binds."""

    def __post_init__(self) -> None:
        self.values = {"after": self.expected.last_seq, "expect": self.expected.revision}
        self.shape = shape_of(
            compare=self.expected.last_seq is not None,
            expect=self.expected.revision is not None,
            makes="never" if self.make is None or self.expected.needs_session else "missing",
        )


NO_TERMS: Final = Terms()


class Place(NamedTuple):
    """Where messages were written: up to which seq, when, and in which turn if in one.

    Of a session that was created without a turn, `told` is expiry and revision, as stored.
    """

    last_seq: int
    updated_at: datetime
    turn_no: int | None = None
    told: Sequence[Any] = ()


def append(connection: AnyConnection, now: Moment, key: str, new: Batch, terms: Terms = NO_TERMS) -> list[Message]:
    """Append messages to a live session, whatever their ids, and return them as stored.

    The database refuses an id that is stored already: `append_new_ids` leaves it out.
    """
    checked_key(key)
    if new.rows:
        return write(connection, now, key, new, terms)[0]
    if terms.make is not None and terms.shape.inserts:
        sessions.insert(connection, now, terms.make)
    sessions.refuse(connection, now, key, terms.expected)
    return []


def create(connection: AnyConnection, now: Moment, make: New, new: Batch) -> Session | None:
    """Create a session with its first messages, whose ids are all different; None if its key is taken."""
    if not new.rows:
        info = sessions.insert(connection, now, make)
        return None if info is None else Session(**dict(info))
    found = _write(connection, now, make.key, new, shape_of(makes="always"), {}, make)
    if found is None:
        return None
    stored, place = found
    expires_at, revision = place.told
    until = None if expires_at is None else stored_time(make.key, "expires_at", expires_at)
    made = sessions.made(make, place.updated_at, until, revision)
    records = new.records
    counts = {"message_count": len(stored) - records, "record_count": records, "token_count": new.tokens}
    shown = [message for message in stored if message.role is not MessageRole.RECORD]
    return Session(**dict(made) | counts | {"last_seq": place.last_seq}, messages=shown)


def append_new_ids(
    connection: sa.Connection, now: Moment, key: str, new: Batch, terms: Terms = NO_TERMS
) -> list[Message]:
    """Append those messages whose ids are not stored yet; the others are returned as stored. Needs a transaction."""
    sessions.lock(connection, now, key)
    if not new.rows:
        return append(connection, now, key, new, terms)
    known = Known.look(connection, key, new)
    fresh = known.fresh(new)
    return known.merged(new, write(connection, now, key, fresh, terms)[0] if fresh.rows else [])


@dataclass(frozen=True)
class Known:
    """Which messages of a batch are stored already, by their ids."""

    stored: Mapping[str, Message]
    positions: Sequence[int]
    places: Mapping[str, int]

    @classmethod
    def look(cls, connection: sa.Connection, key: str, new: Batch) -> Known:
        """Look ids up; of an id that stands in the batch twice, the first is new."""
        stored = messages.with_ids(connection, key, new.ids)
        positions: list[int] = []
        places: dict[str, int] = {}
        for position, message in enumerate(new.messages):
            if message.id not in stored and message.id not in places:
                if message.id is not None:
                    places[message.id] = len(positions)
                positions.append(position)
        return cls(stored, positions, places)

    def fresh(self, new: Batch) -> Batch:
        """Return the part of the batch that is not stored yet."""
        return new.only(self.positions)

    def merged(self, new: Batch, written: Sequence[Message]) -> list[Message]:
        """Return the whole batch as stored, in its order: what was written now, and what was there."""
        fresh = iter(written)
        chosen = set(self.positions)
        return [
            next(fresh)
            if position in chosen
            else _replayed(self.stored.get(str(message.id)) or written[self.places[str(message.id)]])
            for position, message in enumerate(new.messages)
        ]


def _replayed(message: Message) -> Message:
    return message.model_copy(update={"replayed": True})


def write(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    terms: Terms = NO_TERMS,
    turn: NewTurn | None = None,
) -> tuple[list[Message], Place]:
    """Write messages at the end of a live session, in a turn if there is one, whatever their ids."""
    shape, values = terms.shape, terms.values
    if turn is not None:
        shape, values = shape.of_turn, {**values, **turn.values()}
    tries = sessions.TRIES
    together = sends_together(connection)
    while (written := _write(connection, now, key, new, shape, values, terms.make, together)) is None:
        tries -= 1
        together = False  # one by one, so that an error says what was not written
        try:
            sessions.refuse(connection, now, key, terms.expected, tries_left=tries)
        except SessionExpired:
            raise
        except SessionNotFound:  # an expired one that somebody has purged since
            if not shape.inserts:
                raise
            if not tries:
                raise sessions.not_made(key) from None
    return written


def _write(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    shape: Shape,
    values: Mapping[str, Any],
    make: New | None = None,
    together: bool = False,
) -> tuple[list[Message], Place] | None:
    """Count and insert; None, with nothing written, if no live session was at that place."""
    dialect = dialect_of(connection)
    values = {"key": key, "now": dialect.time(now), "added": len(new.rows), "tokens_added": new.tokens, **values}
    if records := new.records:
        shape, values["records_added"] = shape.of_records, records
    rows = [row | {"created_at": dialect.time(row["created_at"])} for row in new.rows]
    made = {} if make is None else sessions.encoded(make)
    together = together and bool(rows)
    found = _run_together(connection, shape.updating, values, rows) if together else None
    if found is None and (shape.inserts or not together):
        found = _run(connection, dialect, shape, values, rows, made)
    if found is None:
        return None
    last_seq, updated_at, *told = found
    written_at = now or stored_time(key, "updated_at", updated_at)
    turn_no = whole_number(key, "last_turn_no", told[0]) if shape.turn else None
    place = Place(last_seq, written_at, turn_no, told)
    first = last_seq - len(rows) + 1
    stored = [
        message.model_copy(
            update={
                "seq": first + number,
                "created_at": message.created_at or written_at,
                "turn_no": turn_no,
                "replayed": False,
            }
        )
        for number, message in enumerate(new.messages)
    ]
    return stored, place


def _run(
    connection: AnyConnection,
    dialect: Dialect,
    shape: Shape,
    values: dict[str, Any],
    rows: list[dict[str, Any]],
    made: dict[str, Any],
) -> Sequence[Any] | None:
    """Run the statements; return what the first one tells of the session's row, which is `made` if there is none."""
    if not dialect.modifying_cte:
        with dialect.several(connection):
            return _run_several(connection, shape, values, rows, made)
    if shape.inserts:
        values |= made | sessions.new_life()
    if len(rows) == 1:
        found = statements.with_one(shape).run(connection, values | rows[0])
    else:
        found = statements.with_many(shape).run(connection, values | _columns(rows))
    return _row(values["key"], found)


def _run_several(
    connection: AnyConnection,
    shape: Shape,
    values: dict[str, Any],
    rows: list[dict[str, Any]],
    made: dict[str, Any],
) -> Sequence[Any] | None:
    key = values["key"]
    found = statements.counting(shape.updating).run(connection, values) if shape.updates else []
    if not found and shape.inserts:
        found = statements.counting(shape).run(connection, values | made | sessions.new_life())
    row = _row(key, found)
    if row is None:
        return None
    last_seq, updated_at, *_ = row
    turn_no = row[-1] if shape.turn else None
    now = values["now"] = values["now"] or updated_at
    statements.insert_message.run_many(
        connection,
        [
            each | {"key": key, "seq": seq, "turn_no": turn_no, "created_at": each["created_at"] or now}
            for seq, each in enumerate(rows, last_seq - len(rows) + 1)
        ],
    )
    if shape.turn:
        statements.insert_turn.run_many(connection, [values | {"last_seq": last_seq, "turn_no": turn_no}])
    return row


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in MESSAGE_GIVEN}


def _row(key: str, found: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
    if not found:
        return None
    whole_number(key, "last_seq", found[0][0])
    return found[0]


def _run_together(
    connection: AnyConnection, shape: Shape, values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Sequence[Any] | None:
    """Run the statements in one round trip, and commit; None, with nothing written, as `_run` does."""
    one = len(rows) == 1
    messages = rows[0] if one else _columns(rows)
    first, *others = statements.together(shape, one=one)
    found = run_together(connection, [(first, {**values, **messages}), *((each, values) for each in others)])
    return _row(values["key"], found)


def replace(
    connection: sa.Connection, now: datetime, key: str, new: Batch, *, after: int, terms: Terms = NO_TERMS
) -> list[Message]:
    """Delete what comes after a seq and append, both or neither; what stands there just so was done before.

    An id of what is dropped is free again; a message whose id stays stays where it is.
    """
    check_seq("replace_after", after)
    found = sessions.lock(connection, now, key)
    stored = messages.with_ids(connection, key, new.ids)
    if len(stored) == len(new.ids) and _follows(connection, key, new, after):
        return [_replayed(stored[str(message.id)]) for message in new.messages]
    terms.expected.check(key, found.last_seq, found.revision)
    removals.refuse_blank(connection, key, after, found.last_seq)
    removals.cut(connection, now, key, after, found.last_seq)
    return append_new_ids(connection, now, key, new, dataclasses.replace(terms, expected=ANYTHING))


def _follows(connection: sa.Connection, key: str, new: Batch, after: int) -> bool:
    """Return whether all that comes after a seq are messages of these, by their ids, and in their order."""
    if not new.rows or any(message.id is None for message in new.messages):
        return False
    query = sa.select(MESSAGE.c.id).where(of_session(MESSAGE, key), removals.later(after))
    there = connection.execute(query.order_by(MESSAGE.c.seq).limit(len(new.ids) + 1)).scalars().all()
    return there == [id for id in dict.fromkeys(message.id for message in new.messages) if id in there]
