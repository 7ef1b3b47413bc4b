"""Messages given their place and written, alone or as a turn; the same id only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store.columns import TimeColumn
from lango_store.dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store.encoding import checked_key, decode_time
from lango_store.errors import Conflict
from lango_store.model import Message
from lango_store.operations import messages, removals, sessions
from lango_store.operations.batches import Batch
from lango_store.operations.binds import KEY, LIVE_SESSION, MESSAGE, NOW, SESSION, TURN, column, number, of_session
from lango_store.operations.messages import check_seq
from lango_store.operations.rows import MESSAGE_GIVEN, whole_number
from lango_store.statement import Statement


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


class Place(NamedTuple):
    """Where messages were written: up to which seq, when, as the database keeps it, and in which turn if in one."""

    last_seq: int
    updated_at: Any
    last_turn_no: int | None = None


def _bump(dialect: Dialect, *, compare: bool, turn: bool) -> sa.UpdateBase:
    # Counting first takes the row lock, or SQLite's write lock: no two writers are handed the same seq, and their
    # order is the order of their commits.
    added, next_expiry = number("added"), dialect.next_expiry(NOW, SESSION.c.ttl_seconds)
    values: dict[str, Any] = {
        "last_seq": SESSION.c.last_seq + added,
        "message_count": SESSION.c.message_count + added,
        "token_count": SESSION.c.token_count + number("tokens_added"),
        "updated_at": NOW,
        "expires_at": sa.case(
            (next_expiry > SESSION.c.expires_at, next_expiry), else_=SESSION.c.expires_at
        ),  # never back
    }
    given: list[sa.Column[Any]] = [SESSION.c.last_seq, SESSION.c.updated_at]
    if turn:
        values["last_seq"] += number("turn_skipped")
        values |= {"turn_count": SESSION.c.turn_count + 1, "last_turn_no": SESSION.c.last_turn_no + 1}
        given.append(SESSION.c.last_turn_no)
    statement = sa.update(SESSION).where(LIVE_SESSION).values(values).returning(*given)
    if compare:
        statement = statement.where(SESSION.c.last_seq == number("after"))
    return statement


def _insert_one(last_seq: sa.ColumnElement[int]) -> dict[str, Any]:
    given = {name: column(MESSAGE.c[name]) for name in MESSAGE_GIVEN}
    return {"session_key": KEY, "seq": last_seq} | given


def _append_one(dialect: Dialect, *, compare: bool) -> sa.Executable:
    """Count and insert one message in one statement."""
    bumped = _bump(dialect, compare=compare, turn=False).cte("bumped")
    values = _insert_one(bumped.c.last_seq)
    values["created_at"] = sa.func.coalesce(values["created_at"], bumped.c.updated_at)
    added = sa.insert(MESSAGE).from_select(list(values), sa.select(*values.values()))
    return sa.select(*bumped.c).add_cte(added.cte("added"))


def _append_many(dialect: Dialect, *, compare: bool, turn: bool) -> sa.Executable:
    """Count and insert any number of messages in one statement, their columns as arrays, and their turn if in one."""
    bumped = _bump(dialect, compare=compare, turn=turn).cte("bumped")
    kinds: dict[str, Any] = {name: sa.Text() for name in MESSAGE_GIVEN} | {
        "tokens": sa.BigInteger(),
        "created_at": TimeColumn(),
    }
    arrays: list[Any] = [
        sa.bindparam(name, type_=postgresql.ARRAY(kinds[name]), required=True) for name in MESSAGE_GIVEN
    ]
    given = sa.func.unnest(*arrays).table_valued(*MESSAGE_GIVEN, with_ordinality="place").render_derived(name="given")
    columns = {"session_key": KEY, "seq": bumped.c.last_seq - number("added") + given.c.place}
    columns |= {name: sa.cast(given.c[name], MESSAGE.c[name].type) for name in MESSAGE_GIVEN}
    columns["created_at"] = sa.func.coalesce(columns["created_at"], bumped.c.updated_at)
    if turn:
        columns["turn_no"] = bumped.c.last_turn_no
    chosen = sa.select(*columns.values()).select_from(bumped, given)
    insert = sa.insert(MESSAGE).from_select(list(columns), chosen)
    statement = sa.select(*bumped.c).add_cte(insert.cte("added"))
    if turn:
        values = _turn_values(bumped.c.last_turn_no, bumped.c.last_seq)
        saved = sa.insert(TURN).from_select(list(values), sa.select(*values.values()))
        statement = statement.add_cte(saved.cte("saved"))
    return statement


def _turn_values(turn_no: sa.ColumnElement[int], last_seq: sa.ColumnElement[int]) -> dict[str, Any]:
    names = ("id", "usage", "metadata", "kind", "replaced_upto")
    given = {name: column(TURN.c[name], f"turn_{name}") for name in names}
    places = {"turn_no": turn_no, "first_seq": last_seq - number("added") + 1, "last_seq": last_seq}
    return {"session_key": KEY, "created_at": NOW} | places | given


_append_one_statement = {c: Statement(lambda d, c=c: _append_one(d, compare=c)) for c in (False, True)}  # type: ignore[misc]
_WAYS = [(compare, turn) for compare in (False, True) for turn in (False, True)]
_append_many_statement = {
    (c, t): Statement(lambda d, c=c, t=t: _append_many(d, compare=c, turn=t))  # type: ignore[misc]
    for c, t in _WAYS
}
_bump_statement = {
    (c, t): Statement(lambda d, c=c, t=t: _bump(d, compare=c, turn=t))  # type: ignore[misc]
    for c, t in _WAYS
}
_insert_statement = Statement(
    lambda _: sa.insert(MESSAGE).values(_insert_one(number("seq")) | {"turn_no": number("turn_no")})
)
_insert_turn_statement = Statement(
    lambda _: sa.insert(TURN).values(_turn_values(number("turn_no"), number("last_seq")))
)


def append(connection: AnyConnection, now: Moment, key: str, new: Batch, after: int | None = None) -> list[Message]:
    """Append messages to a live session, whatever their ids, and return them as stored.

    Of an id that is stored already the database makes an error: `append_new_ids` leaves it out.
    """
    checked_key(key)
    check_seq("after", after)
    return write(connection, now, key, new, after)[0]


def append_new_ids(
    connection: sa.Connection, now: Moment, key: str, new: Batch, after: int | None = None
) -> list[Message]:
    """Append those messages whose ids are not stored yet; the others are returned as stored. Needs a transaction."""
    checked_key(key)
    check_seq("after", after)
    sessions.lock(connection, now, key)
    known = Known.look(connection, key, new)
    fresh = known.fresh(new)
    return known.merged(new, write(connection, now, key, fresh, after)[0] if fresh.rows else [])


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
            if message.id is None or (message.id not in stored and message.id not in places):
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
    connection: AnyConnection, now: Moment, key: str, new: Batch, after: int | None = None, turn: NewTurn | None = None
) -> tuple[list[Message], Place]:
    """Write messages at the end of a live session, in a turn if there is one, whatever their ids."""
    if not new.rows and turn is None:
        sessions.refuse(connection, now, key, after)
        return [], Place(0, now)
    dialect = dialect_of(connection)
    moment = dialect.time(now)
    rows = [
        row | {"created_at": moment if message.created_at is None else dialect.time(message.created_at)}
        for row, message in zip(new.rows, new.messages, strict=True)
    ]
    values = {"key": key, "now": moment, "added": len(rows), "tokens_added": new.tokens, "after": after}
    if turn is not None:
        values |= turn.values()
    tries = sessions.TRIES
    while (
        place := _write(connection, dialect, values, rows, compare=after is not None, turn=turn is not None)
    ) is None:
        tries -= 1
        sessions.refuse(connection, now, key, after, tries_left=tries)
    whole_number(key, "last_seq", place.last_seq)
    if place.last_turn_no is not None:
        whole_number(key, "last_turn_no", place.last_turn_no)
    first = place.last_seq - len(rows) + 1
    written_at = now or decode_time(place.updated_at)
    stored = [
        message.model_copy(
            update={
                "seq": first + number,
                "created_at": message.created_at or written_at,
                "turn_no": place.last_turn_no,
                "replayed": False,
            }
        )
        for number, message in enumerate(new.messages)
    ]
    return stored, place._replace(updated_at=written_at)


def _write(
    connection: AnyConnection,
    dialect: Dialect,
    values: Mapping[str, Any],
    rows: list[dict[str, Any]],
    *,
    compare: bool,
    turn: bool,
) -> Place | None:
    """Count and insert; None, with nothing written, if no live session was at that place."""
    if dialect.modifying_cte:
        if len(rows) == 1 and not turn:
            found = _append_one_statement[compare].run(connection, values | rows[0])  # type: ignore[operator]
        else:
            columns = {name: [row[name] for row in rows] for name in MESSAGE_GIVEN}
            found = _append_many_statement[compare, turn].run(connection, values | columns)  # type: ignore[operator]
        return Place(*found[0]) if found else None
    found = _bump_statement[compare, turn].run(connection, values)
    if not found:
        return None
    key = values["key"]
    place = Place(whole_number(key, "last_seq", found[0][0]), *found[0][1:])
    for seq, row in enumerate(rows, place.last_seq - len(rows) + 1):
        row["key"] = key
        row["seq"] = seq
        row["turn_no"] = place.last_turn_no
    _insert_statement.run_many(connection, rows)
    if turn:
        _insert_turn_statement.run_many(
            connection,
            [values | {"last_seq": place.last_seq, "turn_no": place.last_turn_no}],  # type: ignore[operator]
        )
    return place


def replace(
    connection: sa.Connection, now: datetime, key: str, new: Batch, *, after: int, expected: int | None
) -> list[Message]:
    """Delete what comes after a seq and append, both or neither; what stands there just so was done before.

    An id of what is dropped is free again; a message whose id stays stays where it is.
    """
    check_seq("replace_after", after)
    check_seq("after", expected)
    last_seq = sessions.lock(connection, now, key).last_seq
    stored = messages.with_ids(connection, key, new.ids)
    if len(stored) == len(new.ids) and _follows(connection, key, new, after):
        return [_replayed(stored[str(message.id)]) for message in new.messages]
    if expected is not None and last_seq != expected:
        raise Conflict(key, expected=expected, last_seq=last_seq)
    removals.refuse_blank(connection, key, after, last_seq)
    removals.cut(connection, now, key, after)
    return append_new_ids(connection, now, key, new) if new.ids else write(connection, now, key, new)[0]


def _follows(connection: sa.Connection, key: str, new: Batch, after: int) -> bool:
    """Return whether all that comes after a seq are messages of these, by their ids, and in their order."""
    if not new.rows or any(message.id is None for message in new.messages):
        return False
    query = sa.select(MESSAGE.c.id).where(of_session(MESSAGE, key), removals.later(after))
    there = connection.execute(query.order_by(MESSAGE.c.seq).limit(len(new.ids) + 1)).scalars().all()
    return list(there) == [id for id in dict.fromkeys(message.id for message in new.messages) if id in there]
