"""Import of a `Draft`: its rows are encoded, counted and inserted in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import session_changes, sessions, values
from lango_store._operations.batches import Batch
from lango_store._operations.binds import MESSAGE, SESSION, TURN, of_session
from lango_store._operations.rows import encode_session
from lango_store._operations.sessions import New
from lango_store._rows.encoding import checked_key, encode_id, encode_json
from lango_store._values.model import Message
from lango_store.errors import DamagedMessage, InvalidMessage, SessionNotFound
from lango_store.interchange.draft import Draft, Part

_PAGE: Final = 500

Row = dict[str, Any]


def _insert(table: sa.Table) -> Statement:
    return Statement(
        lambda _: sa.insert(table).values({c.name: sa.bindparam(c.name, type_=c.type, required=True) for c in table.c})
    )


_insert_turn, _insert_message = _insert(TURN), _insert(MESSAGE)


@dataclass
class _Rows:
    """The rows of a draft and the counters of its session."""

    counters: Row = field(
        default_factory=lambda: {
            "last_seq": 0,
            "message_count": 0,
            "token_count": 0,
            "turn_count": 0,
            "last_turn_no": 0,
            "summary_turn": None,
            "summarized_upto": 0,
        }
    )
    turns: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)


def _encode(draft: Draft, now: datetime, counted: Callable[[Message], Message]) -> _Rows:
    """Encode the turns and messages of a draft; `InvalidMessage` for what cannot be stored."""
    rows = _Rows()
    counters = rows.counters
    for part in draft.parts:
        before, created_at = counters["last_seq"], part.created_at or now
        if part.kind is not None:
            counters["turn_count"] += 1
            counters["last_turn_no"] += 1
        if part.kind == "compaction":
            counters["last_seq"] += 1  # so that a writer who compares last_seq notices the compaction
            counters |= {"summary_turn": counters["turn_count"], "summarized_upto": before}
        first_seq = counters["last_seq"] + 1
        turn_no = counters["turn_count"] if part.kind else None
        batch = Batch([counted(message) for message in part.messages])
        for seq, row in enumerate(batch.rows, first_seq):
            place = {"session_key": draft.key, "seq": seq, "turn_no": turn_no}
            rows.messages.append(row | place | {"created_at": row["created_at"] or created_at})
        counters["last_seq"] += len(batch.rows)
        counters["message_count"] += len(batch.rows)
        counters["token_count"] += batch.tokens
        if part.kind is not None:
            replaced_upto = before if part.kind == "compaction" else None
            place = {"session_key": draft.key, "turn_no": turn_no, "first_seq": first_seq}
            place |= {"last_seq": counters["last_seq"], "replaced_upto": replaced_upto, "created_at": created_at}
            rows.turns.append(_encode_turn(part) | place)
    return rows


def _encode_turn(part: Part) -> Row:
    named = {"usage": part.usage, "metadata": part.metadata, "extra": part.extra}
    encoded = {name: None if value is None else encode_json(value, name) for name, value in named.items()}
    return {"id": encode_id(part.id), "kind": part.kind, **encoded}


def _encode_extra(draft: Draft) -> values.NamedJson:
    # With the key, so that a fork, which has copies of the values, is not taken for its origin.
    named = {system: {"key": draft.key, "extra": extra} for system, extra in draft.extra.items()}
    return values.encode_values(draft.key, named)


def import_draft(
    connection: sa.Connection,
    now: datetime,
    draft: Draft,
    *,
    ttl: timedelta | None,
    counted: Callable[[Message], Message],
) -> int | None:
    """Write a session and return how many messages it has; None, with nothing written, if its key is taken.

    Needs a transaction that is rolled back when this raises.
    """
    extra = _encode_extra(draft)
    if sessions.insert(connection, now, New(draft.key, ttl, draft.fields)) is None:
        return None
    rows = _encode(draft, now, counted)
    for statement, table_rows in ((_insert_turn, rows.turns), (_insert_message, rows.messages)):
        _write(connection, statement, table_rows)
    fields = {
        "created_at": draft.created_at or now,
        "updated_at": draft.updated_at or now,
        "last_consolidated": draft.last_consolidated,
        "forked_from": encode_session({"forked_from": draft.forked_from})["forked_from"],
    }
    session_changes.adopt(connection, draft.key, fields | rows.counters)
    values.write(connection, now, draft.key, extra)
    return len(rows.messages)


def _write(connection: sa.Connection, statement: Statement, rows: list[Row]) -> None:
    dialect = dialect_of(connection)
    for start in range(0, len(rows), _PAGE):
        page = [row | {"created_at": dialect.time(row["created_at"])} for row in rows[start : start + _PAGE]]
        try:
            statement.run_many(connection, page)
        except Exception as error:
            if dialect.is_duplicate(error):
                key = page[0]["session_key"]
                raise InvalidMessage("id", f"two of session {key!r} have the same id: make them differ") from None
            raise


def dry_run(connection: sa.Connection, now: datetime, draft: Draft, planned: set[str]) -> int | None:
    """Return how many messages `import_draft` would write, None if the key is taken; nothing is written.

    `planned` holds the keys that earlier drafts would have taken, and gets this one.
    """
    taken = sa.select(SESSION.c.key).where(of_session(SESSION, checked_key(draft.key)))
    if draft.key in planned or connection.execute(taken).first():
        return None
    planned.add(draft.key)
    return checked(now, draft)


def checked(now: datetime, draft: Draft) -> int:
    """Return how many messages a draft has; `InvalidMessage` for what cannot be stored, as `import_draft` raises it."""
    encode_session(draft.fields | {"forked_from": draft.forked_from})
    _encode_extra(draft)
    return len(_encode(draft, now, lambda message: message).messages)


def is_stored(log: Iterable[Message], draft: Draft) -> bool:
    """Whether a stored log begins with all messages of a draft, apart from their times and token counts."""
    stored = iter(log)
    try:
        return all(_same(next(stored, None), message) for message in draft.messages)
    except (SessionNotFound, DamagedMessage):  # an expired or damaged session does not hold what the file holds
        return False


_IGNORED: Final = {"seq", "turn_no", "created_at", "tokens"}


def _same(stored: Message | None, message: Message) -> bool:
    return stored is not None and stored.model_dump(exclude=_IGNORED) == message.model_dump(exclude=_IGNORED)
