"""The way in: a `Draft` becomes rows, inside the caller's transaction, a page of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from lango_store._rows.encoding import checked_key, encode_id, encode_large_json
from lango_store._values.model import Message
from lango_store.errors import DamagedMessage, InvalidMessage, SessionNotFound
from lango_store.interchange.draft import Draft, Part

PAGE: Final = 500
_PAGE_SIZE: Final = 1 << 20


def _insert(table: sa.Table) -> Statement:
    return Statement(
        lambda _: sa.insert(table).values({c.name: sa.bindparam(c.name, type_=c.type, required=True) for c in table.c})
    )


_insert_turn, _insert_message = _insert(TURN), _insert(MESSAGE)


def _size(row: Mapping[str, Any], *names: str) -> int:
    return sum(len(row[name] or "") for name in names)


@dataclass
class DraftRows:
    """The rows of a draft: the turns and messages that wait to be written, and the counters of the session.

    `waiting` is how many characters they have.
    """

    key: str
    now: datetime
    counted: Callable[[Message], Message]
    last_seq: int = 0
    message_count: int = 0
    token_count: int = 0
    turn_count: int = 0
    summary_turn: int | None = None
    summarized_upto: int = 0
    waiting: int = 0
    turns: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Add a part behind the others, and take its messages out of it; `InvalidMessage` for what cannot be stored."""
        upto = self.last_seq
        if part.kind is not None:
            self.turn_count += 1
        if part.kind == "compaction":
            self.last_seq += 1  # whoever compares last_seq notices it
            self.summary_turn, self.summarized_upto = self.turn_count, upto
        first = self.last_seq + 1
        self._add_messages(part)
        if part.kind is not None:
            turn = self._turn(part, first, upto if part.kind == "compaction" else None)
            self.waiting += _size(turn, "usage", "metadata", "extra")
            self.turns.append(turn)

    def _add_messages(self, part: Part) -> None:
        new = Batch([self.counted(message) for message in part.messages], encode_large_json)
        turn_no = None if part.kind is None else self.turn_count
        otherwise = part.created_at or self.now
        part.messages.clear()  # one may be large: whoever holds the part holds only the row from here on
        for row in new.rows:
            self.last_seq += 1
            self.waiting += _size(row, "text", "content", "tool_calls", "extra")
            created_at = row["created_at"] or otherwise
            self.messages.append(
                row | {"session_key": self.key, "seq": self.last_seq, "turn_no": turn_no, "created_at": created_at}
            )
        self.message_count += len(new.rows)
        self.token_count += new.tokens

    def _turn(self, part: Part, first_seq: int, replaced_upto: int | None) -> dict[str, Any]:
        given = {"usage": part.usage, "metadata": part.metadata, "extra": part.extra}
        return {
            "session_key": self.key,
            "turn_no": self.turn_count,
            "id": encode_id(part.id),
            "kind": part.kind,
            "first_seq": first_seq,
            "last_seq": self.last_seq,
            "replaced_upto": replaced_upto,
            **{name: None if value is None else encode_large_json(value, name) for name, value in given.items()},
            "created_at": part.created_at or self.now,
        }

    def write(self, connection: sa.Connection) -> None:
        """Write the rows that wait."""
        time = dialect_of(connection).time
        for statement, rows in ((_insert_turn, self.turns), (_insert_message, self.messages)):
            try:
                statement.run_many(connection, [row | {"created_at": time(row["created_at"])} for row in rows])
            except Exception as error:
                if dialect_of(connection).is_duplicate(error):
                    raise InvalidMessage(
                        "id", f"two of session {self.key!r} have the same id: make them differ"
                    ) from None
                raise
            rows.clear()
            if self.waiting >= _PAGE_SIZE:
                statement.release(connection)
        self.waiting = 0

    def counters(self) -> Mapping[str, Any]:
        """Return what the session's row says of its messages."""
        return {
            "last_seq": self.last_seq,
            "message_count": self.message_count,
            "token_count": self.token_count,
            "turn_count": self.turn_count,
            "last_turn_no": self.turn_count,
            "summary_turn": self.summary_turn,
            "summarized_upto": self.summarized_upto,
        }


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
    extra = _encoded_extra(draft)
    if sessions.insert(connection, now, New(draft.key, ttl, draft.fields)) is None:
        return None
    rows = DraftRows(draft.key, now, counted)
    for part in draft.parts():
        rows.add(part)
        del part  # it may be large, and the next one is read before it is replaced
        if len(rows.messages) + len(rows.turns) >= PAGE or rows.waiting >= _PAGE_SIZE:
            rows.write(connection)
    rows.write(connection)
    fields = {
        "created_at": draft.created_at or now,
        "updated_at": draft.updated_at or now,
        "last_consolidated": draft.last_consolidated,
        "forked_from": encode_session({"forked_from": draft.forked_from})["forked_from"],
        **rows.counters(),
    }
    session_changes.adopt(connection, draft.key, fields)
    values.write(connection, now, draft.key, extra)
    return rows.message_count


def _encoded_extra(draft: Draft) -> values.NamedJson:
    # With the key, so that a fork, which has copies of the values, is not taken for its origin.
    named = {system: {"key": draft.key, "extra": extra} for system, extra in draft.extra.items()}
    return values.encode_values(draft.key, named)


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
    """Return how many messages a draft has; `InvalidMessage` for what cannot be stored, as `import_draft` has it."""
    encode_session(draft.fields | {"forked_from": draft.forked_from})
    _encoded_extra(draft)
    rows = DraftRows(draft.key, now, lambda message: message)
    for part in draft.parts():
        rows.add(part)
        rows.turns.clear()
        rows.messages.clear()
    return rows.message_count


def is_there(stored: Iterable[Message], draft: Draft) -> bool:
    """Whether a stored log begins with all messages of a draft, whatever their times and token counts.

    The draft is read to its end, so that what its file is told to lack is the same whatever is stored.
    """
    log = iter(stored)
    same = True
    for part in draft.parts():
        for message in part.messages:
            try:
                same = same and _same(next(log, None), message)
            except (SessionNotFound, DamagedMessage):  # expired, or damaged: what it holds is not what the file holds
                same = False
    return same


_PLACE: Final = {"seq", "turn_no", "created_at", "tokens"}


def _same(stored: Message | None, message: Message) -> bool:
    return stored is not None and stored.model_dump(exclude=_PLACE) == message.model_dump(exclude=_PLACE)
