"""Messages of a session: append them, read them, take the last ones away."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.dialects import postgresql

from lango_store import dialect
from lango_store.columns import (
    JsonColumn,
    RoleColumn,
    TimeColumn,
    checked_key,
    decode_json,
    decode_time,
    encode_id,
    encode_json,
    encode_role,
    encode_text,
)
from lango_store.dialect import Dialect, Lent
from lango_store.errors import Conflict, DamagedMessage, InvalidMessage
from lango_store.model import Message, Session, ToolCall
from lango_store.operations import sessions
from lango_store.operations.sessions import KEY, LIVE, MESSAGE, NOW, SESSION
from lango_store.statement import Statement

MAX_SEQ: Final = 2**63 - 1

_FIELDS: Final = ("id", "role", "author", "name", "tool_call_id", "content", "tool_calls", "tokens", "extra")
_GIVEN: Final = (*_FIELDS, "created_at")


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


def batch(messages: Sequence[Message]) -> Batch:
    """Encode messages for the database; `InvalidMessage` for what cannot be kept, before anything is written."""
    rows = [_encoded(message) for message in messages]
    return Batch(messages, rows, frozenset(row["id"] for row in rows if row["id"] is not None))


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
    given = {name: sa.bindparam(name, type_=MESSAGE.c[name].type, required=True) for name in _GIVEN}
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
    kinds: dict[str, Any] = {name: sa.Text() for name in _GIVEN} | {
        "tokens": sa.BigInteger(),
        "created_at": TimeColumn(),
    }
    arrays: list[Any] = [sa.bindparam(name, type_=postgresql.ARRAY(kinds[name]), required=True) for name in _GIVEN]
    given = sa.func.unnest(*arrays).table_valued(*_GIVEN, with_ordinality="place").render_derived(name="given")
    added = sa.bindparam("added", type_=sa.BigInteger(), required=True)
    columns = [sa.cast(given.c[name], MESSAGE.c[name].type) for name in _GIVEN]
    chosen = sa.select(KEY, bumped.c.last_seq - added + given.c.place, *columns).select_from(bumped, given)
    insert = sa.insert(MESSAGE).from_select(["session_key", "seq", *_GIVEN], chosen)
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
    stored = with_ids(connection, key, new.ids)
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
            columns = {name: [row[name] for row in rows] for name in _GIVEN}
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


# Read

_READ: Final = ("seq", "turn_no", *_GIVEN)
_MANY: Final = 500
_many: Final = TypeAdapter(list[Message])


def _unread(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Select a column as the database keeps it; `decoded` reads it, and can say which one is damaged."""
    if isinstance(column.type, JsonColumn):
        return sa.cast(column, sa.Text).label(column.name)
    return sa.type_coerce(column, sa.Text) if isinstance(column.type, RoleColumn) else column


COLUMNS: Final = [_unread(MESSAGE.c[name]) for name in _READ]


def _read(_: Dialect, *, backwards: bool) -> sa.Executable:
    # The session is asked for inside: one statement, and an expired session shows nothing.
    live = sa.exists().where(SESSION.c.key == KEY, LIVE)
    order = MESSAGE.c.seq.desc() if backwards else MESSAGE.c.seq
    return (
        sa.select(*COLUMNS)
        .where(
            MESSAGE.c.session_key == KEY,
            MESSAGE.c.seq > sa.bindparam("after", type_=sa.BigInteger(), required=True),
            MESSAGE.c.seq < sa.bindparam("before", type_=sa.BigInteger(), required=True),
            live,
        )
        .order_by(order)
        .limit(sa.bindparam("limit", type_=sa.BigInteger(), required=True))
    )


_forwards = Statement(lambda d: _read(d, backwards=False))
_backwards = Statement(lambda d: _read(d, backwards=True))


_whole = Statement(
    lambda _: (
        sa.select(*COLUMNS)
        .where(
            MESSAGE.c.session_key == KEY,
            MESSAGE.c.seq <= sa.bindparam("last_seq", type_=sa.BigInteger(), required=True),
            sa.select(SESSION.c.last_seq - SESSION.c.message_count).where(SESSION.c.key == KEY).scalar_subquery()
            == sa.bindparam("removed", type_=sa.BigInteger(), required=True),
        )
        .order_by(MESSAGE.c.seq)
    )
)


def load(connection: Lent, now: datetime, key: str) -> Session:
    """Load a live session and its messages as they were at one moment, without a transaction.

    An append adds as much to `last_seq` as to `message_count`; whatever takes messages away lets their difference grow.
    So messages up to `last_seq` are those that the session's row counted, unless that difference is another one now.
    """
    removed = -1
    while True:
        row = sessions.row_of(connection, now, key)
        known, removed = removed, row["last_seq"] - row["message_count"]
        if not row["message_count"]:
            return sessions.valued(Session, row)
        values = {"key": key, "last_seq": row["last_seq"], "removed": removed}
        if rows := _whole.run(connection, values):
            return sessions.valued(Session, row | {"messages": decoded(key, rows)})
        if removed == known:  # nobody took messages away: the count is wrong
            return sessions.valued(Session, row)


@dataclass(frozen=True)
class Range:
    """Which messages: those with `after < seq < before`, of these the first `limit` or the last `last`."""

    after: int = 0
    before: int = MAX_SEQ
    limit: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.last is not None:
            raise ValueError("limit counts from the front and last from the end: give one of them")
        for name in ("after", "before", "limit", "last"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} is negative: give 0 or more")


def read(connection: Lent, now: datetime, key: str, chosen: Range) -> list[Message]:
    """Read messages of a live session in the order of their seq."""
    return decoded(key, read_rows(connection, now, key, chosen))


def read_rows(connection: Lent, now: datetime, key: str, chosen: Range) -> list[Any]:
    """Read rows of messages, not decoded yet."""
    statement = _forwards if chosen.last is None else _backwards
    bound = chosen.limit if chosen.last is None else chosen.last
    values = {
        "key": checked_key(key),
        "now": dialect.of(connection).time(now),
        "after": min(chosen.after, MAX_SEQ),
        "before": min(chosen.before, MAX_SEQ),
        "limit": MAX_SEQ if bound is None else min(bound, MAX_SEQ),
    }
    rows = statement.run(connection, values)
    if not rows:
        sessions.refuse(connection, now, key)
    if chosen.last is not None:
        rows.reverse()
    return rows


def pages(read_page: Callable[[Range], list[Message]], chosen: Range, size: int) -> Iterator[list[Message]]:
    """Read messages page by page; nothing is held between two calls of `read_page`."""
    if size < 1:
        raise ValueError(f"page_size={size} is not positive")
    after = chosen.after
    while True:
        found = read_page(Range(after=after, before=chosen.before, limit=size))
        if found:
            yield found
        if len(found) < size:
            return
        after = found[-1].seq


_find = Statement(
    lambda _: sa.select(*COLUMNS).where(
        MESSAGE.c.session_key == KEY,
        MESSAGE.c.id == sa.bindparam("id", type_=sa.Text(), required=True),
        sa.exists().where(SESSION.c.key == KEY, LIVE),
    )
)


def find(connection: Lent, now: datetime, key: str, message_id: str) -> Message | None:
    """Look up a message of a live session by its id."""
    values = {"key": checked_key(key), "now": dialect.of(connection).time(now), "id": encode_id(message_id)}
    rows = _find.run(connection, values)
    if not rows:
        sessions.refuse(connection, now, key)
        return None
    return decoded(key, rows)[0]


def with_ids(connection: sa.Connection, key: str, ids: frozenset[str]) -> dict[str, Message]:
    """Look up messages by their ids, those that are there."""
    found: dict[str, Message] = {}
    wanted = sorted(ids)
    for start in range(0, len(wanted), 500):  # a statement binds a limited number of values
        part = MESSAGE.c.id.in_(wanted[start : start + 500])
        rows = connection.execute(sa.select(*COLUMNS).where(MESSAGE.c.session_key == key, part))
        found |= {str(message.id): message for message in decoded(key, rows.all())}
    return found


def decoded(key: str, rows: Sequence[Sequence[Any]]) -> list[Message]:
    """Make rows messages, all in one validation; `DamagedMessage` names the first that cannot be read."""
    if len(rows) < _MANY:
        return _decoded(key, rows)
    # Nothing here makes a cycle, and the collector, called again and again by so many new containers, would take as
    # long as all the rest.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _decoded(key, rows)
    finally:
        if collecting:
            gc.enable()


def _decoded(key: str, rows: Sequence[Sequence[Any]]) -> list[Message]:
    values: list[dict[str, Any]] = []
    for seq, turn_no, id_, role, author, name, tool_call_id, content, tool_calls, tokens, extra, created_at in rows:
        value = {"role": role, "seq": seq}
        if content is not None:
            value["content"] = _json(key, seq, "content", content)
        if tool_calls is not None:
            value["tool_calls"] = _json(key, seq, "tool_calls", tool_calls)
        if extra is not None:
            value["extra"] = _json(key, seq, "extra", extra)
        if turn_no is not None:
            value["turn_no"] = turn_no
        if id_ is not None:
            value["id"] = id_
        if author is not None:
            value["author"] = author
        if name is not None:
            value["name"] = name
        if tool_call_id is not None:
            value["tool_call_id"] = tool_call_id
        if tokens is not None:
            value["tokens"] = tokens
        try:
            value["created_at"] = decode_time(created_at)
        except ValueError as error:
            raise DamagedMessage(key, seq, "created_at", str(error)) from None
        values.append(value)
    try:
        return _many.validate_python(values)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place, *field = fault["loc"]
        raise DamagedMessage(key, values[int(place)]["seq"], ".".join(map(str, field)), fault["msg"]) from None


def salvaged(key: str, rows: Sequence[Sequence[Any]]) -> list[Message | DamagedMessage]:
    """Make rows messages, a damaged one the error that names it."""
    try:
        return list(decoded(key, rows))
    except DamagedMessage as error:
        if len(rows) == 1:
            return [error]
    middle = len(rows) // 2
    return salvaged(key, rows[:middle]) + salvaged(key, rows[middle:])


def _json(key: str, seq: int, field: str, text: str) -> Any:
    try:
        return decode_json(text)
    except ValueError as error:
        raise DamagedMessage(key, seq, field, str(error)) from None


# Take away


def truncate(connection: sa.Connection, now: datetime, key: str, after: int) -> int:
    """Drop the messages that came after a seq, and tell how many; uses one seq up if there were any."""
    if after < 0:
        raise ValueError(f"after={after} is negative: give 0 to drop every message")
    sessions.lock(connection, now, key)
    return _drop(connection, now, key, MESSAGE.c.seq > after)


def pop(connection: sa.Connection, now: datetime, key: str) -> Message | None:
    """Take the last message away and give it back, None if there is none; uses one seq up."""
    sessions.lock(connection, now, key)
    last = read(connection, now, key, Range(last=1))
    if not last:
        return None
    _drop(connection, now, key, MESSAGE.c.seq == last[0].seq)
    return last[0]


def clear(connection: sa.Connection, now: datetime, key: str, *, keep_system: bool) -> int:
    """Drop all messages, or all but those of the system, and tell how many; uses one seq up."""
    sessions.lock(connection, now, key)
    kept = ("system",) if keep_system else ()
    condition = sa.cast(MESSAGE.c.role, sa.Text).not_in(kept)
    return _drop(connection, now, key, condition, last_consolidated=0)


def _drop(connection: sa.Connection, now: datetime, key: str, condition: sa.ColumnElement[bool], **also: Any) -> int:
    gone = (
        connection.execute(
            sa.delete(MESSAGE).where(MESSAGE.c.session_key == key, condition).returning(MESSAGE.c.tokens)
        )
        .scalars()
        .all()
    )
    if not gone and not also:
        return 0
    left = SESSION.c.message_count - len(gone)
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "message_count": left,
        "token_count": SESSION.c.token_count - sum(tokens or 0 for tokens in gone),
        "last_consolidated": sa.case((SESSION.c.last_consolidated > left, left), else_=SESSION.c.last_consolidated),
        "updated_at": now,
    }
    connection.execute(sa.update(SESSION).where(SESSION.c.key == key).values(values | also))
    return len(gone)


def replace(
    connection: sa.Connection, now: datetime, key: str, new: Batch, *, after: int, expected: int | None
) -> list[Message]:
    """Drop what came after a seq and append, both or neither; a batch whose ids are all there was done before."""
    last_seq, _ = sessions.lock(connection, now, key)
    if new.rows and all(message.id is not None for message in new.messages):
        stored = with_ids(connection, key, new.ids)
        if len(stored) == len(new.ids):
            return [_replayed(stored[str(message.id)]) for message in new.messages]
    if expected is not None and last_seq != expected:
        raise Conflict(key, expected=expected, last_seq=last_seq)
    _drop(connection, now, key, MESSAGE.c.seq > after)
    return append_new_ids(connection, now, key, new) if new.ids else _append(connection, now, key, new, None)
