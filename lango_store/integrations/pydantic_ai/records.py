"""A conversation's record: what a session's row says of it, and beside it the session's value `pydantic_ai`.

The value holds what the row does not: the revision that the framework gave, where the log stood then, the usage, the
requests that a run waits for, the branches. Where the log moved on without the framework, the revision is another one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.usage import RunUsage

from lango_store._connections.context import Context
from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import sessions, turns
from lango_store._operations.appends import NewTurn
from lango_store._operations.binds import (
    IS_RECORD,
    LIVE,
    MESSAGE,
    SESSION,
    VALUE,
    number,
    of_session,
    session_key,
    text,
)
from lango_store._operations.lists import end_of_prefix
from lango_store._operations.messages import MAX_SEQ
from lango_store._operations.rows import SESSION_FIELDS, encode_session, stored_json
from lango_store._operations.sessions import New
from lango_store._operations.values import NamedJson, encode_values
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key, encode_text
from lango_store._values.model import UNSET
from lango_store.errors import InvalidMessage, SessionNotFound
from lango_store.integrations.pydantic_ai.dumping import DEFERRED, USAGE, dumped, loaded
from lango_store.integrations.pydantic_ai.items import NAME
from lango_store.interchange.fidelity import mapping


class Known(str):
    """An entry's id, or a revision, that knows what was read of its conversation: the text alone does not tell."""

    state: State

    @classmethod
    def of(cls, text: str, state: State) -> Known:
        """Return a text as it was read."""
        known = cls(text)
        known.state = state
        return known


@dataclass(frozen=True)
class Log:
    """Where a session's log stands: what every append, removal and branch moves, and no title or TTL does."""

    last_seq: int
    messages: int
    records: int

    def grown(self, messages: int, records: int = 0) -> Log:
        """Return where it stands after an append."""
        return Log(self.last_seq + messages + records, self.messages + messages, self.records + records)

    @property
    def json(self) -> list[int]:
        """What the value holds of it."""
        return [self.last_seq, self.messages, self.records]


@dataclass(frozen=True)
class State:
    """What the database said of a conversation when it was read."""

    key: str
    number: int
    """How often the session was written to: its `revision`, which is not the framework's."""

    revision: str
    log: Log
    head: str | None
    head_seq: int
    turns: int
    summary_turn: int | None
    usage: dict[str, Any]
    user_id: str | None
    forked_from: str | None


# Read

_HEAD: Final = MESSAGE.alias("head")


def _last(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    shown = (of_session(MESSAGE, SESSION.c.key), MESSAGE.c.seq > SESSION.c.summarized_upto, ~IS_RECORD, *conditions)
    last = sa.select(MESSAGE.c.seq).where(*shown).order_by(MESSAGE.c.seq.desc()).limit(sa.literal_column("1"))
    return last.correlate(SESSION).scalar_subquery()


def _select(*, recorded: bool) -> sa.Select[Any]:
    # What came in while a summary was being written stands after it, and has a lower seq. No turn has the number 0.
    summary_turn = sa.func.coalesce(SESSION.c.summary_turn, sa.literal_column("0"))
    last = sa.func.coalesce(_last(MESSAGE.c.turn_no.is_distinct_from(summary_turn)), _last())
    its_value = sa.and_(of_session(VALUE, SESSION.c.key), VALUE.c.name == sa.literal_column(f"'{NAME}'"))
    its_head = sa.and_(of_session(_HEAD, SESSION.c.key), _HEAD.c.seq == last)
    rows = SESSION.join(VALUE, its_value, isouter=not recorded).join(_HEAD, its_head, isouter=True)
    columns = (*sessions.LIFE, as_stored(VALUE.c.value), _HEAD.c.seq.label("head_seq"), _HEAD.c.id.label("head_id"))
    return sa.select(*columns).select_from(rows)


_SIZE: Final = len(sessions.LIFE)
_KEY: Final = _SIZE - len(SESSION_FIELDS) + SESSION_FIELDS.index("key")
_USAGE_FIELDS: Final = frozenset(dumped(USAGE, RunUsage()))

_one = Statement(lambda _: _select(recorded=False).where(of_session(SESSION)))


@functools.cache
def _many(*, scoped: bool, prefixed: bool) -> Statement:
    conditions: list[sa.ColumnElement[bool]] = [LIVE]
    if scoped:
        conditions.append(SESSION.c.user_id == text("user_id"))
    if prefixed:
        conditions += [SESSION.c.key >= session_key("prefix"), SESSION.c.key < session_key("prefix_end")]
    order = (SESSION.c.updated_at.desc(), SESSION.c.key.desc())
    return Statement(lambda _: _select(recorded=True).where(*conditions).order_by(*order).limit(number("limit")))


def read(connection: AnyConnection, now: Moment, prefix: str, key: str) -> ConversationRecord | None:
    """Return the record of a live session; None if there is none."""
    try:
        return find(connection, now, prefix, key)[0]
    except SessionNotFound:
        return None


def find(connection: AnyConnection, now: Moment, prefix: str, key: str) -> tuple[ConversationRecord, State]:
    """Return the record of a live session, and what was read of it; `SessionNotFound` if there is none."""
    values = {"key": checked_key(key), "now": dialect_of(connection).time(now)}
    return _found(connection, prefix, key, _one.run(connection, values))


def read_many(
    connection: AnyConnection, now: Moment, prefix: str, scope: str | None, limit: int | None
) -> list[ConversationRecord]:
    """Return the records of all live sessions that have one, of a scope if given, the newest first."""
    statement = _many(scoped=scope is not None, prefixed=bool(prefix))
    values = {"now": dialect_of(connection).time(now), "limit": MAX_SEQ if limit is None else limit}
    values |= {"user_id": encode_text(scope, "scope"), "prefix": prefix, "prefix_end": end_of_prefix(prefix)}
    rows = statement.run(connection, values)
    return [_found(connection, prefix, str(row[_KEY]), [row])[0] for row in rows]


def _found(
    connection: AnyConnection, prefix: str, key: str, rows: Sequence[Sequence[Any]]
) -> tuple[ConversationRecord, State]:
    incarnation, row = sessions.decoded_life(key, [each[:_SIZE] for each in rows])
    stored, head_seq, head_id = rows[0][_SIZE:]
    value = {} if stored is None else mapping(stored_json(key, 0, f"values.{NAME}", stored))
    log = Log(row["last_seq"], row["message_count"], row["record_count"])
    own = str(value.get("revision", ""))
    moved = "@".join(map(str, [own, incarnation, *log.json]))
    plain = mapping(value.get("usage"))
    if value.get("turns") != row["turn_count"]:  # another writer spent something, too
        summed = turns.total(turns.usages(connection, key))
        plain = {name: each for name, each in summed.items() if name in _USAGE_FIELDS}
    state = State(
        key=key,
        number=row["revision"],
        revision=own if value.get("log") == log.json else moved,
        log=log,
        head=None if head_seq is None else entry_id(key, head_seq, head_id),
        head_seq=head_seq or 0,
        turns=row["turn_count"],
        summary_turn=row.get("summary_turn"),
        usage=plain,
        user_id=row.get("user_id"),
        forked_from=row.get("forked_from"),
    )
    forked_from = state.forked_from and state.forked_from.removeprefix(prefix)
    forked = mapping(value.get("forked"))
    branches = value.get("branches")
    deferred = value.get("deferred")
    record = ConversationRecord(
        conversation_id=key.removeprefix(prefix),
        head_id=None if state.head is None else Known.of(state.head, state),
        usage=loaded(key, "usage", USAGE, plain),
        deferred_tool_requests=None if deferred is None else loaded(key, "deferred", DEFERRED, deferred),
        scope=state.user_id,
        forked_from=forked_from,
        forked_at=forked.get("at") if forked.get("from") == forked_from else None,
        branches=[Known.of(str(tip), state) for tip in branches] if isinstance(branches, list) else [],
        revision=Known.of(state.revision, state),
        updated_at=row["updated_at"],
    )
    return record, state


def entry_id(key: str, seq: int, id: str | None) -> str:
    """Return the id of an entry: its message's, or one made of its place if something else stored it without."""
    return f"{key}#{seq}" if id is None else id


# Written


def noted(
    prefix: str,
    record: ConversationRecord,
    state: State | None,
    log: Log,
    *,
    turn: bool,
    is_new: bool,
) -> tuple[dict[str, Any], NamedJson]:
    """Return the fields and the value of the session that a write changes."""
    usage = dumped(USAGE, record.usage)
    value: dict[str, Any] = {
        "revision": record.revision,
        "log": log.json,
        "usage": usage,
        "turns": (0 if state is None else state.turns) + turn,
    }
    if record.deferred_tool_requests is not None:
        value["deferred"] = dumped(DEFERRED, record.deferred_tool_requests)
    if record.branches:
        value["branches"] = list(map(str, record.branches))
    if record.forked_at is not None:
        value["forked"] = {"from": record.forked_from, "at": str(record.forked_at)}
    if record.updated_at.tzinfo is None:
        raise InvalidMessage("updated_at", f"{record.updated_at!r} has no time zone: use datetime.now(UTC)")
    fields: dict[str, Any] = {"updated_at": record.updated_at}
    if is_new:
        fields["created_at"] = fields["updated_at"]
    if state is not None and record.scope != state.user_id:
        fields |= encode_session({"user_id": record.scope})
    if state is not None and (forked_from := _source(prefix, record)) != state.forked_from:
        fields |= encode_session({"forked_from": forked_from})
    key = prefix + record.conversation_id
    return fields, encode_values(key, {NAME: value})


def new_session(context: Context, prefix: str, record: ConversationRecord) -> New:
    """Return what the session of a new conversation is made of."""
    key = prefix + record.conversation_id
    fields = {"user_id": record.scope, "forked_from": _source(prefix, record)}
    return New(key, context.ttl(key, UNSET), encode_session(fields))


def new_turn(record: ConversationRecord, state: State | None) -> NewTurn:
    """Return the turn of a save: what the conversation cost since it was saved before."""
    usage = dumped(USAGE, record.usage)
    return turns.new_turn(None, usage if state is None or not state.turns else _grown(usage, state.usage), None)


def _source(prefix: str, record: ConversationRecord) -> str | None:
    return None if record.forked_from is None else prefix + record.forked_from


def _grown(usage: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much a usage grew: numbers by their differences; of what is none, a cost, the new one."""
    grown: dict[str, Any] = {}
    for name in {**before, **usage}:
        value, old = usage.get(name), before.get(name)
        if isinstance(value, dict) or isinstance(old, dict):
            difference: Any = _grown(mapping(value), mapping(old))
        elif _is_number(value) or (value is None and _is_number(old)):
            difference = (value or 0) - (old or 0) if old is None or _is_number(old) else value
        else:
            difference = None if value == old else value
        if difference:
            grown[name] = difference
    return grown


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
