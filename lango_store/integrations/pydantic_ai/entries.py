"""A conversation's entries as rows of its session's log, and the way that leads through them to one of them.

The window is the current history: there an entry follows the one before it. What a branch leaves lies in the log as
records, and each of them says which role it had, and which entry it follows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationEntry

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    IS_RECORD,
    LIVE,
    LIVE_SESSION,
    MESSAGE,
    SESSION,
    number,
    of_session,
    session_key,
    text,
)
from lango_store._operations.lists import end_of_prefix
from lango_store._operations.rows import MESSAGE_COLUMNS, MESSAGE_FIELDS, decode_messages, seq_or_zero, stored_json
from lango_store._rows.encoding import content_fault, decode_time
from lango_store._values.model import Message, MessageRole
from lango_store.errors import DamagedMessage
from lango_store.integrations.pydantic_ai.dumping import loaded_messages
from lango_store.integrations.pydantic_ai.items import NAME, Fields, Json, foreign, item_of, time_text
from lango_store.integrations.pydantic_ai.records import Known, State, entry_id
from lango_store.interchange.fidelity import mapping, storable_id

_LEFT: Final = "left"
"""Names the role that an entry had before its branch was left."""

_PARENT: Final = "parent"
"""Names the seq of the entry that it follows; 0 is none."""


@dataclass(frozen=True)
class Row:
    """A row of the log, as far as a way through the log must know it."""

    key: str
    seq: int
    turn_no: int | None
    id: str
    role: str
    own: Json
    columns: Sequence[Any]

    @property
    def extra(self) -> Any:
        """Its `extra`, as it is stored."""
        return self.columns[_EXTRA]

    @property
    def tokens(self) -> Any:
        """Its tokens, as they are stored."""
        return self.columns[_TOKENS]

    @classmethod
    def of(cls, key: str, columns: Sequence[Any]) -> Row:
        """Read a row of `MESSAGE_COLUMNS`."""
        seq, turn_no, id, role, *_ = columns
        extra = columns[_EXTRA]
        own = {} if extra is None else mapping(mapping(stored_json(key, seq, "extra", extra)).get(NAME))
        return cls(key, seq, turn_no, entry_id(key, seq, id), role, own, columns)

    @property
    def is_shown(self) -> bool:
        """Whether it is in the window, if no summary speaks of it."""
        return self.role != MessageRole.RECORD

    @property
    def is_entry(self) -> bool:
        """Whether it is a message of the conversation, in its history or in a branch that was left."""
        return self.is_shown or _LEFT in self.own

    @property
    def role_in_history(self) -> str:
        """The role that it has in a history."""
        return str(self.own.get(_LEFT, self.role))


_EXTRA: Final = MESSAGE_FIELDS.index("extra")
_TOKENS: Final = MESSAGE_FIELDS.index("tokens")


# Read


def _live(column: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    return sa.select(column).where(LIVE_SESSION).correlate(None).scalar_subquery()


def _shown() -> list[sa.ColumnElement[bool]]:
    in_summary = MESSAGE.c.turn_no == _live(SESSION.c.summary_turn)
    is_before = sa.or_(MESSAGE.c.seq <= number("head_seq"), in_summary)
    return [of_session(MESSAGE), MESSAGE.c.seq > _live(SESSION.c.summarized_upto), ~IS_RECORD, is_before]


_history = Statement(
    lambda _: sa.select(*MESSAGE_COLUMNS, _live(SESSION.c.summary_turn)).where(*_shown()).order_by(MESSAGE.c.seq)
)


def _of_the_one_before(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    before = sa.select(column).where(*_shown()).order_by(MESSAGE.c.seq.desc()).offset(number("limit")).limit(1)
    return before.correlate(None).scalar_subquery()


_end_of_history = Statement(
    lambda _: (
        sa.select(
            *MESSAGE_COLUMNS,
            _live(SESSION.c.summary_turn),
            _of_the_one_before(MESSAGE.c.seq),
            _of_the_one_before(MESSAGE.c.id),
        )
        .where(*_shown())
        .order_by(MESSAGE.c.seq.desc())
        .limit(number("limit"))
    )
)


def _log(key: sa.ColumnElement[str]) -> sa.Select[Any]:
    joined = SESSION.join(MESSAGE, of_session(MESSAGE, SESSION.c.key))
    columns = (SESSION.c.key, SESSION.c.summarized_upto, SESSION.c.summary_turn, *MESSAGE_COLUMNS)
    return sa.select(*columns).select_from(joined).where(of_session(SESSION, key), LIVE).order_by(MESSAGE.c.seq)


def _key_of_entry() -> sa.ScalarSelect[str]:
    # By way of the sessions, whose messages have an index of their ids.
    joined = SESSION.join(MESSAGE, sa.and_(of_session(MESSAGE, SESSION.c.key), MESSAGE.c.id == text("id")))
    within = (SESSION.c.key >= session_key("prefix"), SESSION.c.key < session_key("prefix_end"), LIVE)
    found = sa.select(SESSION.c.key).select_from(joined).where(*within).limit(sa.literal_column("1"))
    return found.correlate(None).scalar_subquery()


_log_of_session = Statement(lambda _: _log(session_key("key")))
_log_of_entry = Statement(lambda _: _log(_key_of_entry()))


def history(connection: AnyConnection, now: Moment, head: Known, limit: int | None) -> list[ConversationEntry] | None:
    """Return a conversation's history up to what was its head, or the end of it; None if it is the history no more."""
    state = head.state
    if head != state.head:
        return None
    values = {"key": state.key, "now": dialect_of(connection).time(now), "head_seq": state.head_seq}
    if limit is None or state.summary_turn is not None:
        found = _history.run(connection, values)
    else:
        found = _end_of_history.run(connection, values | {"limit": limit})[::-1]
    if not found or (summary_turn := found[-1][_SIZE]) != state.summary_turn:
        return None
    rows = _summary_first([Row.of(state.key, each[:_SIZE]) for each in found], summary_turn)
    if rows[-1].id != head:
        return None
    before = found[0][_SIZE + 1 :]
    parent = entry_id(state.key, *before) if before and before[0] is not None else None
    return _entries(rows, parent, limit, state)


def _summary_first(rows: list[Row], summary_turn: int | None) -> list[Row]:
    # What came in while a summary was being written has a lower seq than the summary.
    return sorted(rows, key=lambda row: summary_turn is None or row.turn_no != summary_turn)


class Log:
    """All rows of a session's log: its window, and what its branches left."""

    def __init__(self, key: str, found: Sequence[Sequence[Any]]) -> None:
        self.key = key
        self.summarized_upto: int = found[0][1] if found else 0
        summary_turn = found[0][2] if found else None
        rows = [Row.of(key, columns) for _, _, _, *columns in found]
        self.entries = [row for row in rows if row.is_entry]
        self.by_id = {row.id: row for row in self.entries}
        shown = [row for row in rows if row.is_shown]
        self.window = _summary_first([row for row in shown if row.seq > self.summarized_upto], summary_turn)
        summed_up = [row for row in shown if row.seq <= self.summarized_upto]
        lines = (self.window, summed_up)
        self._lines = {row.seq: (line, place) for line in lines for place, row in enumerate(line)}
        self._by_seq = {row.seq: row for row in self.entries}

    def left_by(self, history: Collection[str]) -> list[tuple[Row, Json]]:
        """Return the rows of the window that a history leaves, and what each is to say of itself then."""
        before = [0, *(row.seq for row in self.window)]
        pairs = zip(before, self.window, strict=False)
        return [(row, row.own | left(row.role, parent)) for parent, row in pairs if row.id not in history]

    def way(self, id: str) -> list[Row]:
        """Return the rows from the first one to an entry; KeyError for an entry that is not there, or one before it."""
        row = self.by_id[id]
        way: list[Row] = []
        while row.seq not in self._lines:
            way.append(row)
            parent = row.own.get(_PARENT, 0)
            if not parent:
                return way[::-1]
            if parent not in self._by_seq or len(way) == len(self.entries):
                raise KeyError(f"entry {row.id!r} of session {self.key!r} comes after message {parent}, which is gone")
            row = self._by_seq[parent]
        line, place = self._lines[row.seq]
        return line[: place + 1] + way[::-1]


def left(role: str, parent: int) -> Json:
    """Return what a record says of the entry that it was: its role, and the seq of the one before it, 0 for none."""
    return {_LEFT: str(role), _PARENT: parent}


def taken(own: Json) -> Json:
    """Return what an entry says of itself in a window, without what it says as a record."""
    return {name: value for name, value in own.items() if name not in (_LEFT, _PARENT)}


def log_of(connection: AnyConnection, now: Moment, key: str) -> Log:
    """Read the whole log of a live session."""
    return Log(key, _log_of_session.run(connection, {"key": key, "now": dialect_of(connection).time(now)}))


def log_with(connection: AnyConnection, now: Moment, prefix: str, id: str) -> Log:
    """Read the whole log of a live session that has an entry; KeyError if none has it."""
    if isinstance(id, Known):
        log = log_of(connection, now, id.state.key)
    else:
        values = {"now": dialect_of(connection).time(now), "prefix": prefix, "prefix_end": end_of_prefix(prefix)}
        found = _log_of_entry.run(connection, values | {"id": storable_id(id) or ""})
        key, _, seq = id.rpartition("#")
        if found:
            log = Log(found[0][0], found)
        elif seq.isdecimal() and key.startswith(prefix):  # of a message that something else stored without an id
            log = log_of(connection, now, key)
        else:
            raise KeyError(id)
    if id not in log.by_id:
        raise KeyError(id)
    return log


def way_to(connection: AnyConnection, now: Moment, prefix: str, id: str, limit: int | None) -> list[ConversationEntry]:
    """Return the entries up to one, in a history or in a branch that was left; KeyError if it is not there."""
    rows = log_with(connection, now, prefix, id).way(id)
    return _entries(rows, None, limit, id.state if isinstance(id, Known) else None)


# Decoded


_SIZE: Final = len(MESSAGE_FIELDS)


def _entries(
    rows: Sequence[Row], parent: str | None, limit: int | None, state: State | None
) -> list[ConversationEntry]:
    first = 0 if limit is None else max(len(rows) - limit, 0)
    ids = [row.id if state is None else Known.of(row.id, state) for row in rows]
    parents = [parent, *ids][first:]
    chosen = rows[first:]
    messages = loaded_messages(rows[0].key if rows else "", [row.seq for row in chosen], [_item(row) for row in chosen])
    return [
        ConversationEntry(id=id, parent_id=before, message=message)
        for id, before, message in zip(ids[first:], parents, messages, strict=False)
    ]


def _item(row: Row) -> Json:
    """Return the item that a row holds; `DamagedMessage` names what of it cannot be read."""
    key, seq = row.key, seq_or_zero(row.seq)
    _, _, _, _, _, name, call_id, plain, content, tool_calls, tokens, _, created_at = row.columns
    if damaged := content_fault(plain, content):
        raise DamagedMessage(key, seq, *damaged)
    calls = [] if tool_calls is None else stored_json(key, seq, "tool_calls", tool_calls)
    said = plain if plain is not None else stored_json(key, seq, "content", content)
    field = "role"
    try:
        role = MessageRole(row.role_in_history)
        field = "created_at"
        time = time_text(decode_time(created_at))
        field = f"extra.{NAME}"
        fields = Fields(role, said, calls, tokens, row.own, time)
        return item_of(fields if taken(row.own) else foreign(fields, call_id, name))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise DamagedMessage(key, seq, field, str(error)) from None


def message_of_row(row: Row) -> Message:
    """Return the message of an entry, to be stored elsewhere: with its id, in its own role, of no turn."""
    found = decode_messages(row.key, [row.columns])[0]
    own = taken(row.own)
    rest = {name: value for name, value in found.extra.items() if name != NAME}
    return found.model_copy(
        update={
            "id": row.id,
            "role": MessageRole(row.role_in_history),
            "extra": rest | ({NAME: own} if own else {}),
            "seq": 0,
            "turn_no": None,
        }
    )
