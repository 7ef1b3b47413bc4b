"""Changes of the log: units of work that delete, replace or restore messages and turns of a locked session.

Each change uses up one `seq` of the session, by which a concurrent load or compaction detects it; see
`messages.load_with_incarnation`. No message has this `seq`; a row of `lango_change` explains it.

When a change ends, it has stored its row, corrected the session's counters, and deleted the payloads and the rows of
other tables that belong to messages which no longer exist. Before rows are deleted or replaced, the `Recorder` of the
transaction can copy them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, Self

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    CHANGE,
    IS_COMPACTION,
    KEY,
    MESSAGE,
    NOW,
    RECORD,
    SESSION,
    TURN,
    column,
    number,
    of_session,
)
from lango_store._operations.log import payloads
from lango_store._operations.session import sessions
from lango_store._operations.session_tables import HAS_ASIDE, OF_MESSAGES, SessionTable, with_aside
from lango_store._values.model import ChangeKind

_ZERO: Final = sa.literal_column("0", sa.BigInteger())
_ONE: Final = sa.literal_column("1", sa.BigInteger())


def counted(rows: sa.Table) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the columns of messages or turns from which the counters of the session are computed."""
    if "role" not in rows.c:
        return (rows.c.turn_no,)
    return sa.case((rows.c.role == RECORD, _ONE), else_=_ZERO), rows.c.tokens


Condition = sa.ColumnElement[bool] | Callable[[Dialect], sa.ColumnElement[bool]]
"""A condition, or a function that builds it for a database."""


class Rows:
    """Messages or turns of the session bound as `key` that meet conditions, with statements to change them.

    `values` are the new values of columns, for a change that replaces the rows.
    """

    def __init__(self, table: sa.Table, *conditions: Condition, **values: sa.ColumnElement[Any]) -> None:
        self.table, self._conditions = table, conditions
        self.changes_counters = bool(values.keys() & {"role", "tokens"})
        columns = counted(table)
        self.count = Statement(lambda dialect: sa.select(*columns).where(*self.where(dialect)))
        self.delete = Statement(lambda dialect: sa.delete(table).where(*self.where(dialect)).returning(*columns))
        update = sa.update(table).values(values).returning(*columns)
        self.update = Statement(lambda dialect: update.where(*self.where(dialect)))

    def where(self, dialect: Dialect) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for a database, with the one for the session."""
        given = (each if isinstance(each, sa.ColumnElement) else each(dialect) for each in self._conditions)
        return [of_session(self.table), *given]


class Recorder(Protocol):
    """Records what the changes of a transaction delete and replace; see `recording`."""

    def copy(self, change: "LogChange", rows: Rows, bound: Mapping[str, Any], next_at: int | None) -> None:
        """Copy rows before a change deletes them or, if `next_at` is its seq, replaces them by other versions."""

    def columns(self, change: "LogChange") -> Mapping[str, Any]:
        """Return values for the row of a change: `undo_until`, `added_upto`, and `noted`.

        With `noted=1`, the row also stores the session's `last_consolidated`.
        """


_RECORDER: Final = "lango_store_recorder"
"""The execution option with the `Recorder` of a transaction."""

NOT_RECORDED: Final = {"undo_until": None, "added_upto": None, "noted": 0}


@contextmanager
def recording(connection: sa.Connection, recorder: Recorder | None) -> Iterator[None]:
    """While the block runs, pass its changes to a recorder; None leaves the current one."""
    if recorder is None:
        yield
        return
    before = recorder_of(connection)
    connection.execution_options(**{_RECORDER: recorder})
    try:
        yield
    finally:  # the connection may be the caller's
        connection.execution_options(**{_RECORDER: before})


def recorder_of(connection: sa.Connection) -> Recorder | None:
    """Return the recorder of a transaction, if it has one."""
    return connection.get_execution_options().get(_RECORDER)


@dataclass
class LogChange:
    """A change of a locked session's log: make it in a `with` block, at whose end it is completed.

    Attributes:
        connection: A connection in a transaction.
        now: The time of the change.
        key: The session, which must be locked.
        kind: The kind of the change.
        seq: The seq that the change uses up: usually the session's next one.
        after_seq: The seq that the change refers to. Its meaning depends on `kind`.
        added_upto: The last seq of the messages that the caller adds after the block.
        unless_empty: Do nothing if the block changes no row.
        messages: The number of messages that the change removed, less those that it restored.
        records: The same for records, `tokens` for the tokens of the messages, and `turns` for turns.
        unconsolidated: The number by which the change decreases `last_consolidated`.
        consolidated: The new `last_consolidated`; None to decrease it instead.
        moves_consolidated: False if an undo of the change does not restore `last_consolidated`.
    """

    connection: sa.Connection
    now: datetime
    key: str
    kind: ChangeKind
    seq: int
    after_seq: int
    added_upto: int | None = None
    unless_empty: bool = False
    messages: int = 0
    records: int = 0
    tokens: int = 0
    turns: int = 0
    unconsolidated: int = 0
    consolidated: int | None = None
    moves_consolidated: bool = True
    _rows: int = 0
    _removes_messages: bool = False
    _changes_turns: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not (self.unless_empty and self.is_empty):
            self._complete()

    @property
    def is_empty(self) -> bool:
        """True if no row was changed yet."""
        return not self._rows

    def delete(self, rows: Rows, *, replaced: bool = False, **bound: Any) -> int:
        """Delete rows; return how many. With `replaced`, the change restores other versions of them afterwards."""
        self.copy(rows, bound, self.seq if replaced else None)
        deleted = rows.delete.run(self.connection, bound | {"key": self.key})
        self._removes_messages |= bool(deleted) and rows.table is MESSAGE
        return self.count(rows.table, deleted, 1)

    def replace(self, rows: Rows, **bound: Any) -> int:
        """Replace rows by versions with the new values; return how many."""
        self.copy(rows, bound, self.seq)
        bound |= {"key": self.key}
        before = rows.count.run(self.connection, bound) if rows.changes_counters else ()
        after = rows.update.run(self.connection, bound)
        if rows.changes_counters:
            self.count(rows.table, before, 1)
            self.count(rows.table, after, -1)
        self._rows += len(after)
        return len(after)

    def copy(self, rows: Rows, bound: Mapping[str, Any], next_at: int | None) -> None:
        """Pass rows to the recorder, before they are deleted or, with `next_at`, replaced."""
        if (recorder := recorder_of(self.connection)) is not None:
            recorder.copy(self, rows, bound, next_at)

    def count(self, table: sa.Table, rows: Sequence[Any], sign: int) -> int:
        """Count rows with the columns of `counted` as removed, or with the sign -1 as added; return how many."""
        self._rows += len(rows)
        if table is TURN:
            self._changes_turns |= bool(rows)
            self.turns += sign * len(rows)
        else:
            records = sum(is_record for is_record, _ in rows)
            self.records += sign * records
            self.messages += sign * (len(rows) - records)
            counts = [tokens for is_record, tokens in rows if not is_record and isinstance(tokens, int)]
            self.tokens += sign * sum(counts)
        return len(rows)

    def _complete(self) -> None:
        recorder = recorder_of(self.connection)
        columns = NOT_RECORDED if recorder is None else recorder.columns(self)
        bound = vars(self) | {"now": dialect_of(self.connection).time(self.now), **columns}
        _insert_change.run_many(self.connection, [bound])
        if self._removes_messages:
            delete_orphans(self.connection, self.key)
        payloads.release(self.connection, self.key)
        rows = _correct_counters[self._changes_turns].run(self.connection, bound)
        if not rows:
            raise sessions.not_permitted(self.key)
        if self._removes_messages and any(has_aside is not None for has_aside in rows[0][1:]):
            for call in AFTER_REMOVALS:
                call(self)


AFTER_REMOVALS: Final[list[Callable[[LogChange], None]]] = []
"""Functions of rooms, called after a change that removed messages of a session with messages outside of its log."""


_INSERTED: Final[dict[str, sa.ColumnElement[Any]]] = {
    "session_key": KEY,
    "changed_at": NOW,
    "consolidated": sa.case((number("noted") == _ONE, SESSION.c.last_consolidated)),
    **{name: column(CHANGE.c[name]) for name in ("seq", "kind", "after_seq", "undo_until", "added_upto")},
}
_insert_change: Final = Statement(
    sa.insert(CHANGE).from_select([*_INSERTED], sa.select(*_INSERTED.values()).where(of_session(SESSION)))
)


def _build_correction(with_turns: bool) -> sa.Update:
    remaining = SESSION.c.message_count - number("messages")
    decreased = SESSION.c.last_consolidated - number("unconsolidated")
    consolidated = sa.func.coalesce(number("consolidated"), decreased)
    values: dict[str, Any] = {
        "last_seq": number("seq"),
        "message_count": remaining,
        "record_count": SESSION.c.record_count - number("records"),
        "token_count": SESSION.c.token_count - number("tokens"),
        "last_consolidated": sa.case(
            (consolidated > remaining, remaining), (consolidated < _ZERO, _ZERO), else_=consolidated
        ),
        "updated_at": NOW,
        **sessions.REVISED,
    }
    if with_turns:
        compactions = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(of_session(TURN), IS_COMPACTION)
        last = compactions.order_by(TURN.c.turn_no.desc()).limit(1).subquery()
        values |= {
            "turn_count": SESSION.c.turn_count - number("turns"),
            "summary_turn": sa.select(last.c.turn_no).scalar_subquery(),
            "summarized_upto": sa.func.coalesce(sa.select(last.c.replaced_upto).scalar_subquery(), _ZERO),
        }
    return sa.update(SESSION).where(of_session(SESSION)).values(values).returning(SESSION.c.last_seq, *HAS_ASIDE)


_correct_counters: Final = {each: Statement(_build_correction(each)) for each in (False, True)}


_note_added: Final = Statement(
    sa.update(CHANGE).where(of_session(CHANGE), CHANGE.c.seq == number("seq")).values(added_upto=number("upto"))
)


def note_added(connection: sa.Connection, key: str, seq: int, upto: int) -> None:
    """Note in the row of the change `seq` that it added the messages up to `upto`, if the change was recorded."""
    if recorder_of(connection) is not None:
        _note_added.run_many(connection, [{"key": key, "seq": seq, "upto": upto}])


def _has_no_message(rows: SessionTable) -> sa.ColumnElement[bool]:
    seq, key = rows.message_seq, rows.table.c.session_key
    tables = with_aside(MESSAGE) if rows.stored.kept_aside else [MESSAGE]
    is_stored = (sa.exists().where(of_session(each, key), each.c.seq == seq) for each in tables)
    return sa.and_(seq.is_not(None), *(~each for each in is_stored))


_delete_orphans: Final = [
    Statement(sa.delete(each.table).where(of_session(each.table), _has_no_message(each))) for each in OF_MESSAGES
]


def delete_orphans(connection: sa.Connection, key: str) -> None:
    """Delete the rows of a session that belong to messages which no longer exist or, in most tables, are set aside."""
    for statement in _delete_orphans:
        statement.run_many(connection, [{"key": key}])


def orphans(connection: sa.Connection) -> Iterator[tuple[str, str, int, int]]:
    """Yield session, table, number of rows and one seq where rows belong to messages that do not exist."""
    for each in OF_MESSAGES:
        rows = each.table.c.session_key
        query = sa.select(rows, sa.func.count(), sa.func.min(each.message_seq)).where(_has_no_message(each))
        for key, count, seq in connection.execute(query.group_by(rows)):
            yield key, each.table.name, count, seq
