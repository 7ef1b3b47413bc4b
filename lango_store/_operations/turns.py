"""Turns: messages saved together with what they cost, and what all of them cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment
from lango_store._dialect.statement import Statement
from lango_store._operations import messages, sessions
from lango_store._operations.appends import NewTurn, merged, unstored, write
from lango_store._operations.batches import Batch
from lango_store._operations.binds import MESSAGE, TURN, of_session
from lango_store._operations.messages import Range
from lango_store._operations.rows import TURN_COLUMNS, decode_turn, encode_object, turn_json
from lango_store._operations.sessions import ANYTHING, Expected, New
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, decode_json, encode_id
from lango_store._values.model import Message, Turn


def new_turn(id: str | None, usage: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None) -> NewTurn:
    """Encode what a caller says of a turn; `InvalidValue` for what cannot be stored."""
    return NewTurn(encode_id(id), encode_object(usage, "usage"), encode_object(metadata, "metadata"))


# Save


def save(
    connection: AnyConnection,
    now: Moment,
    key: str,
    new: Batch,
    expected: Expected = ANYTHING,
    create: New | None = None,
    *,
    turn: NewTurn,
) -> Turn:
    """Append a turn to a live session, whatever its ids; see `appends.append`.

    The database refuses an id that is stored already: `save_new` leaves it out.
    """
    saved = write(connection, now, key, new, expected, create, turn)
    return Turn(
        turn_no=saved.turn_no,
        kind=turn.kind,
        id=turn.id,
        first_seq=saved.last_seq - len(saved.messages) + 1,
        last_seq=saved.last_seq,
        replaced_upto=turn.replaced_upto,
        usage={} if turn.usage is None else decode_json(turn.usage),
        metadata={} if turn.metadata is None else decode_json(turn.metadata),
        created_at=saved.created_at,
        messages=saved.messages,
    )


def save_new(
    connection: sa.Connection, now: Moment, key: str, new: Batch, expected: Expected = ANYTHING, *, turn: NewTurn
) -> Turn:
    """Append a turn unless it is stored, by its own id or by those of all its messages. Needs a transaction."""
    sessions.lock(connection, now, key)
    if turn.id is not None:
        for there in read(connection, key, TURN.c.id == turn.id):
            return _replayed(connection, now, key, there)
    stored = messages.with_ids(connection, key, new.ids)
    fresh = unstored(new, stored)
    if turn.id is None and new.rows and not fresh.rows:
        # Those that were there before it are of no turn or of earlier ones: it is the last.
        numbers = {message.turn_no for message in stored.values()} - {None}
        for there in read(connection, key, TURN.c.turn_no.in_(numbers))[-1:]:
            return _replayed(connection, now, key, there)
        turn = replace(turn, id=_id_of(new))
        for there in read(connection, key, TURN.c.id == turn.id):
            return there.model_copy(update={"messages": merged(new, stored, []), "replayed": True})
    saved = save(connection, now, key, fresh, expected, turn=turn)
    return saved.model_copy(update={"messages": merged(new, stored, saved.messages)})


def _id_of(new: Batch) -> str:
    """Return an id by which a retry finds the turn of messages that were all stored before it, in no turn."""
    ids = json.dumps([message.id for message in new.messages])
    return f"messages:{hashlib.sha256(ids.encode()).hexdigest()}"


def _replayed(connection: sa.Connection, now: Moment, key: str, turn: Turn) -> Turn:
    stored = messages.read(connection, now, key, Range(after=turn.first_seq - 1, before=turn.last_seq + 1))
    return turn.model_copy(update={"messages": stored, "replayed": True})


# Read


def read(connection: sa.Connection, key: str, *conditions: sa.ColumnElement[bool]) -> list[Turn]:
    """Read turns of a session, in their order, without their messages."""
    query = sa.select(*TURN_COLUMNS).where(of_session(TURN, key), *conditions).order_by(TURN.c.turn_no)
    return [decode_turn(key, row) for row in connection.execute(query)]


def find(connection: sa.Connection, key: str, id: str) -> Turn | None:
    """Return the turn of a session with an id, None if it has none."""
    found = read(connection, key, TURN.c.id == encode_id(id))
    return found[0] if found else None


def messages_of(connection: sa.Connection, key: str, turn: Turn) -> list[Message]:
    """Read the messages of a turn that are still there."""
    its = (MESSAGE.c.seq >= turn.first_seq, MESSAGE.c.seq <= turn.last_seq, MESSAGE.c.turn_no == turn.turn_no)
    return messages.where(connection, key, sa.and_(*its))


# Usage

_usages = Statement(
    lambda _: (
        sa.select(TURN.c.turn_no, as_stored(TURN.c.usage))
        .where(of_session(TURN), TURN.c.usage.is_not(None))
        .order_by(TURN.c.turn_no)
    )
)


def usages(connection: AnyConnection, key: str) -> Iterator[dict[str, Any]]:
    """Read what each turn cost."""
    for turn_no, text in _usages.run(connection, {"key": checked_key(key)}):
        yield turn_json(key, turn_no, "usage", text)


def total(usages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of usages field by field, nested ones too; of what is not a number the last one stands."""
    summed: dict[str, Any] = {}
    for usage in usages:
        _add(summed, usage)
    return summed


def _add(summed: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for name, value in usage.items():
        there = summed.get(name)
        if isinstance(value, dict):
            if there is None:
                there = summed[name] = {}
            if isinstance(there, dict):
                _add(there, value)
        elif _is_number(value) and _is_number(there):
            summed[name] = there + value
        elif there is None or not (value is None or _is_number(there) or isinstance(there, dict)):
            summed[name] = value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
