"""Messages on their way in: encoded, given their place, written; the same id only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store import dialect
from lango_store.columns import TimeColumn, checked_key, encode_id, encode_json, encode_role, encode_text
from lango_store.dialect import Dialect, Lent
from lango_store.errors import Conflict, InvalidMessage
from lango_store.model import Message, ToolCall
from lango_store.operations import messages, sessions
from lango_store.operations.messages import GIVEN, check_seq
from lango_store.operations.sessions import KEY, LIVE, MESSAGE, NOW, SESSION
from lango_store.statement import Statement


class IdIsThere(Exception):
    """An append met an id that is there already: what is new has to be told from what is not."""


# Values in


@dataclass(frozen=True)
class Batch:
    """Messages about to be appended, and their rows as the driver takes them, all checked."""

    messages: Sequence[Message]
    rows: Sequence[dict[str, Any]]
    ids: frozenset[str]

    @property
    def tokens(self) -> int:
        """The tokens of all its messages; a message without a count counts 0."""
        return sum(message.tokens or 0 for message in self.messages)

    @property
    def repeats(self) -> bool:
        """Whether an id stands in it twice."""
        return sum(message.id is not None for message in self.messages) > len(self.ids)

    def only(self, positions: Sequence[int]) -> Batch:
        """Give the part of it at these positions."""
        messages = [self.messages[position] for position in positions]
        rows = [self.rows[position] for position in positions]
        return Batch(messages, rows, frozenset(message.id for message in messages if message.id is not None))


def batch(new: Sequence[Message]) -> Batch:
    """Encode messages for the database; `InvalidMessage` for what cannot be kept, before anything is written."""
    rows = [_encoded(message) for message in new]
    return Batch(new, rows, frozenset(row["id"] for row in rows if row["id"] is not None))


def _encoded(message: Message) -> dict[str, Any]:
    if not isinstance(message, Message):
        raise InvalidMessage(
            "message", f"is {type(message).__name__}, not a Message: Message.model_validate(…) makes it one"
        )
    created_at = message.created_at
    if created_at is not None and (not isinstance(created_at, datetime) or created_at.tzinfo is None):
        raise InvalidMessage("created_at", f"{created_at!r} is no time with a time zone: use datetime.now(UTC)")
    tokens = message.tokens
    if tokens is not None and (not isinstance(tokens, int) or not 0 <= tokens < 2**53):
        raise InvalidMessage("tokens", f"{tokens!r} is no count: give 0 or more, or None")
    return {
        "id": encode_id(message.id),
        "role": encode_role(message.role),
        "author": encode_text(message.author, "author"),
        "name": encode_text(message.name, "name"),
        "tool_call_id": encode_text(message.tool_call_id, "tool_call_id"),
        "content": None if message.content is None else encode_json(message.content, "content"),
        "tool_calls": _encoded_calls(message.tool_calls) if message.tool_calls else None,
        "tokens": tokens,
        "extra": encode_json(message.extra, "extra") if message.extra else None,
        "created_at": created_at,
    }


def _encoded_calls(calls: Sequence[ToolCall]) -> str:
    plain = [_plain_call(call) for call in calls]
    try:
        return encode_json(plain, "tool_calls")
    except InvalidMessage:  # each value by itself: one may use all levels, and the error names the guilty one
        return "[" + ",".join(_encoded_call(call, f"tool_calls[{n}]") for n, call in enumerate(plain)) + "]"


def _plain_call(call: ToolCall) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": call.id, "name": call.name}
    if "arguments" in call.model_fields_set:
        plain["arguments"] = call.arguments
    if call.answered:
        plain["output"] = call.output
    if call.extra:
        plain["extra"] = call.extra
    return plain


def _encoded_call(plain: Mapping[str, Any], field: str) -> str:
    members = (f'"{name}":{encode_json(value, f"{field}.{name}")}' for name, value in plain.items())
    return "{" + ",".join(members) + "}"


# Append


def _bump(spoken: Dialect, *, compare: bool) -> sa.UpdateBase:
    # Counting first takes the row lock, or SQLite's write lock: no two writers are handed the same seq, and their
    # order is the order of their commits.
    added = sa.bindparam("added", type_=sa.BigInteger(), required=True)
    statement = (
        sa.update(SESSION)
        .where(SESSION.c.key == KEY, LIVE)
        .values(
            last_seq=SESSION.c.last_seq + added,
            message_count=SESSION.c.message_count + added,
            token_count=SESSION.c.token_count + sa.bindparam("tokens_added", type_=sa.BigInteger(), required=True),
            updated_at=NOW,
            expires_at=spoken.slid(NOW, SESSION.c.ttl_seconds),
        )
        .returning(SESSION.c.last_seq)
    )
    if compare:
        statement = statement.where(SESSION.c.last_seq == sa.bindparam("after", type_=sa.BigInteger(), required=True))
    return statement


def _insert_one(last_seq: sa.ColumnElement[int]) -> dict[str, Any]:
    given = {name: sa.bindparam(name, type_=MESSAGE.c[name].type, required=True) for name in GIVEN}
    return {"session_key": KEY, "seq": last_seq} | given


def _append_one(spoken: Dialect, *, compare: bool) -> sa.Executable:
    """Count and insert one message in one statement."""
    bumped = _bump(spoken, compare=compare).cte("bumped")
    values = _insert_one(bumped.c.last_seq)
    added = sa.insert(MESSAGE).from_select(list(values), sa.select(*values.values()))
    return sa.select(bumped.c.last_seq).add_cte(added.cte("added"))


def _append_many(spoken: Dialect, *, compare: bool) -> sa.Executable:
    """Count and insert any number of messages in one statement, their columns as arrays."""
    bumped = _bump(spoken, compare=compare).cte("bumped")
    kinds: dict[str, Any] = {name: sa.Text() for name in GIVEN} | {
        "tokens": sa.BigInteger(),
        "created_at": TimeColumn(),
    }
    arrays: list[Any] = [sa.bindparam(name, type_=postgresql.ARRAY(kinds[name]), required=True) for name in GIVEN]
    given = sa.func.unnest(*arrays).table_valued(*GIVEN, with_ordinality="place").render_derived(name="given")
    added = sa.bindparam("added", type_=sa.BigInteger(), required=True)
    columns = [sa.cast(given.c[name], MESSAGE.c[name].type) for name in GIVEN]
    chosen = sa.select(KEY, bumped.c.last_seq - added + given.c.place, *columns).select_from(bumped, given)
    insert = sa.insert(MESSAGE).from_select(["session_key", "seq", *GIVEN], chosen)
    return sa.select(bumped.c.last_seq).add_cte(insert.cte("added"))


_append_one_statement = {c: Statement(lambda d, c=c: _append_one(d, compare=c)) for c in (False, True)}  # type: ignore[misc]
_append_many_statement = {c: Statement(lambda d, c=c: _append_many(d, compare=c)) for c in (False, True)}  # type: ignore[misc]
_bump_statement = {c: Statement(lambda d, c=c: _bump(d, compare=c)) for c in (False, True)}  # type: ignore[misc]
_insert_statement = Statement(
    lambda _: sa.insert(MESSAGE).values(_insert_one(sa.bindparam("seq", type_=sa.BigInteger(), required=True)))
)


def append(connection: Lent, now: datetime, key: str, new: Batch, after: int | None = None) -> list[Message]:
    """Add messages at the end of a live session, and give them back as stored.

    Raises `IdIsThere`, and wants to be rolled back, where telling old from new takes a transaction and this is none.
    """
    checked_key(key)
    check_seq("after", after)
    if new.ids and isinstance(connection, sa.Connection):  # a caller's transaction, which a duplicate would end
        return append_new_ids(connection, now, key, new, after)
    if new.repeats:
        raise IdIsThere
    try:
        return _append(connection, now, key, new, after)
    except Exception as error:
        if new.ids and (isinstance(error, Conflict) or dialect.of(connection).is_duplicate(error)):
            raise IdIsThere from None
        raise


def append_new_ids(
    connection: sa.Connection, now: datetime, key: str, new: Batch, after: int | None = None
) -> list[Message]:
    """Add those messages whose ids are not there yet; the others are given back as stored. Needs a transaction."""
    sessions.lock(connection, now, key)
    stored = messages.with_ids(connection, key, new.ids)
    positions: list[int] = []
    places: dict[str, int] = {}
    for position, message in enumerate(new.messages):
        if message.id is None or (message.id not in stored and message.id not in places):
            if message.id is not None:
                places[message.id] = len(positions)
            positions.append(position)
    written = _append(connection, now, key, new.only(positions), after) if positions else []
    fresh = iter(written)
    chosen = set(positions)
    return [
        next(fresh)
        if position in chosen
        else _replayed(stored.get(str(message.id)) or written[places[str(message.id)]])
        for position, message in enumerate(new.messages)
    ]


def _replayed(message: Message) -> Message:
    return message.model_copy(update={"replayed": True})


def _append(connection: Lent, now: datetime, key: str, new: Batch, after: int | None) -> list[Message]:
    if not new.rows:
        sessions.refuse(connection, now, key, after)
        return []
    spoken = dialect.of(connection)
    moment = spoken.time(now)
    rows = list(new.rows)
    for row, message in zip(rows, new.messages, strict=True):
        row["created_at"] = moment if message.created_at is None else spoken.time(message.created_at)
    values = {"key": key, "now": moment, "added": len(rows), "tokens_added": new.tokens, "after": after}
    while True:
        last_seq = _write(connection, spoken, values, rows, compare=after is not None)
        if last_seq is not None:
            break
        sessions.refuse(connection, now, key, after)
    first = last_seq - len(rows) + 1
    return [
        message.model_copy(
            update={
                "seq": first + place,
                "created_at": message.created_at or now,
                "turn_no": None,
                "replayed": False,
            }
        )
        for place, message in enumerate(new.messages)
    ]


def _write(
    connection: Lent, spoken: Dialect, values: Mapping[str, Any], rows: list[dict[str, Any]], *, compare: bool
) -> int | None:
    """Count and insert; None, with nothing written, if no live session was at that place."""
    if spoken.modifying_cte:
        if len(rows) == 1:
            found = _append_one_statement[compare].run(connection, values | rows[0])  # type: ignore[operator]
        else:
            columns = {name: [row[name] for row in rows] for name in GIVEN}
            found = _append_many_statement[compare].run(connection, values | columns)  # type: ignore[operator]
        return found[0][0] if found else None
    found = _bump_statement[compare].run(connection, values)
    if not found:
        return None
    last_seq: int = found[0][0]
    key = values["key"]
    for seq, row in enumerate(rows, last_seq - len(rows) + 1):
        row["key"] = key
        row["seq"] = seq
    _insert_statement.run_many(connection, rows)
    return last_seq


def replace(
    connection: sa.Connection, now: datetime, key: str, new: Batch, *, after: int, expected: int | None
) -> list[Message]:
    """Drop what came after a seq and append, both or neither; a batch whose ids are all there was done before."""
    check_seq("replace_after", after)
    check_seq("after", expected)
    last_seq, _ = sessions.lock(connection, now, key)
    if new.rows and all(message.id is not None for message in new.messages):
        stored = messages.with_ids(connection, key, new.ids)
        if len(stored) == len(new.ids):
            return [_replayed(stored[str(message.id)]) for message in new.messages]
    if expected is not None and last_seq != expected:
        raise Conflict(key, expected=expected, last_seq=last_seq)
    messages.drop(connection, now, key, MESSAGE.c.seq > after)
    return append_new_ids(connection, now, key, new) if new.ids else _append(connection, now, key, new, None)
