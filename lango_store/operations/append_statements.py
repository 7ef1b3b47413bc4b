"""The statements of an append: each counts in the session's row and writes what it counted, as one if it can."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store.columns import TimeColumn
from lango_store.dialect import Dialect
from lango_store.operations import sessions
from lango_store.operations.binds import (
    KEY,
    LIVE,
    LIVE_SESSION,
    MESSAGE,
    NOW,
    NOW_TOGETHER,
    SESSION,
    TURN,
    column,
    number,
    of_session,
)
from lango_store.operations.rows import MESSAGE_GIVEN
from lango_store.statement import Statement
from lango_store.tables import live_at

_ONE: Final = sa.literal_column("1", sa.BigInteger())  # returned of a row that may be written and not be read


@dataclass(frozen=True)
class Shape:
    """What an append does beside writing messages at the end of a session."""

    compare: bool = False
    """Whether the session has to be at a certain `last_seq`."""

    turn: bool = False
    """Whether the messages are a turn, which is written too."""

    expect: bool = False
    """Whether the session has to be at a certain revision."""

    records: bool = False
    """Whether some of the messages are records, which are counted apart."""

    makes: Literal["never", "missing", "always"] = "never"
    """Whether a session is made: if there is none under the key, or always, since one that is there is an error."""

    @property
    def updates(self) -> bool:
        """Whether a session may be there."""
        return self.makes != "always"

    @property
    def inserts(self) -> bool:
        """Whether a session may be made."""
        return self.makes != "never"

    @functools.cached_property
    def of_turn(self) -> Shape:
        """The same for messages that are a turn."""
        return replace(self, turn=True)

    @functools.cached_property
    def of_records(self) -> Shape:
        """The same for messages of which some are records."""
        return replace(self, records=True)

    @functools.cached_property
    def updating(self) -> Shape:
        """The same for a session that is there: an upsert costs more than an update, where neither is a round trip."""
        return replace(self, makes="never")


@functools.cache
def shape_of(**does: Any) -> Shape:
    """Return the shape with these attributes, always the same one, so that what it knows by itself is kept."""
    return Shape(**does)


def _bump(dialect: Dialect, shape: Shape) -> sa.UpdateBase:
    # Counting first takes the row lock, or SQLite's write lock: no two writers are handed the same seq, and their
    # order is the order of their commits.
    there, counted = _is_as_expected(shape), _counted(dialect, shape, NOW)
    if shape.makes == "never":
        return sa.update(SESSION).where(LIVE_SESSION, *there).values(counted).returning(*_told(shape))
    counts: dict[str, Any] = {
        "last_seq": number("added"),
        "message_count": _messages_added(shape),
        "token_count": number("tokens_added"),
    }
    if shape.records:
        counts["record_count"] = number("records_added")
    if shape.turn:
        counts |= {"turn_count": sa.literal_column("1"), "last_turn_no": sa.literal_column("1")}
    made: Any = sessions.insertion(dialect, counts)
    if shape.makes == "always" or not dialect.reckons_in_upserts:
        return made.on_conflict_do_nothing(index_elements=[SESSION.c.key]).returning(*_told(shape))  # type: ignore[no-any-return]
    found = made.on_conflict_do_update(index_elements=[SESSION.c.key], set_=counted, where=sa.and_(LIVE, *there))
    return found.returning(*_told(shape))  # type: ignore[no-any-return]


def _messages_added(shape: Shape) -> sa.ColumnElement[int]:
    return number("added") - number("records_added") if shape.records else number("added")


def _is_as_expected(shape: Shape) -> list[sa.ColumnElement[bool]]:
    compared = [SESSION.c.last_seq == number("after")] if shape.compare else []
    return [*compared, SESSION.c.revision == number("expect")] if shape.expect else compared


def _counted(dialect: Dialect, shape: Shape, now: sa.ColumnElement[datetime]) -> dict[sa.Column[Any], Any]:
    added = number("added")
    changed: dict[str, Any] = {
        "last_seq": SESSION.c.last_seq + added,
        "message_count": SESSION.c.message_count + _messages_added(shape),
        "token_count": SESSION.c.token_count + number("tokens_added"),
        "updated_at": now,
        "expires_at": dialect.later_expiry(now, SESSION.c),
    }
    if shape.records:
        changed["record_count"] = SESSION.c.record_count + number("records_added")
    changed |= sessions.REVISED
    if shape.turn:
        changed["last_seq"] += number("turn_skipped")
        changed |= {"turn_count": SESSION.c.turn_count + 1, "last_turn_no": SESSION.c.last_turn_no + 1}
    return {SESSION.c[name]: value for name, value in changed.items()}


def _told(shape: Shape) -> list[sa.Column[Any]]:
    # No more than is needed: what cannot be read, such as a damaged expiry, must not fail a write that has landed.
    told = [SESSION.c.last_seq, SESSION.c.updated_at]
    if shape.turn:
        return [*told, SESSION.c.last_turn_no]
    return [*told, SESSION.c.expires_at, SESSION.c.revision] if shape.makes == "always" else told


def _message(last_seq: sa.ColumnElement[int]) -> dict[str, Any]:
    given = {name: column(MESSAGE.c[name]) for name in MESSAGE_GIVEN}
    return {"session_key": KEY, "seq": last_seq} | given


def _with_one(dialect: Dialect, shape: Shape) -> sa.Executable:
    """Count and insert one message in one statement, and its turn if it is one."""
    bumped = _bump(dialect, shape).cte("bumped")
    row = _message(bumped.c.last_seq)
    row["created_at"] = sa.func.coalesce(row["created_at"], bumped.c.updated_at)
    if shape.turn:
        row["turn_no"] = bumped.c.last_turn_no
    added = sa.insert(MESSAGE).from_select(list(row), sa.select(*row.values())).returning(_ONE)
    return _told_with(dialect, shape, bumped, (MESSAGE, added.cte("added"), _ONE))


_Written = tuple[sa.Table, sa.CTE, sa.ColumnElement[int]]
"""Where rows are written, what writes them, and how many they have to be."""


def _told_with(dialect: Dialect, shape: Shape, bumped: sa.CTE, *written: _Written) -> sa.Executable:
    """Tell of the session's row, if all rows were written that had to be, the turn's too."""
    if shape.turn:
        row = _turn(bumped.c.last_turn_no, bumped.c.last_seq)
        saved = sa.insert(TURN).from_select(list(row), sa.select(*row.values()))
        written = (*written, (TURN, saved.returning(_ONE).cte("saved"), _ONE))
    withheld = ((table, _lacks(rows, n)) for table, rows, n in written)
    last_seq, *others = bumped.c
    return sa.select(dialect.unless_withheld(last_seq, *withheld), *others).add_cte(*(rows for _, rows, _ in written))


def _lacks(rows: sa.CTE, wanted: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Whether fewer rows were written than had to be."""
    if wanted is _ONE:  # a row is found faster than rows are counted
        return ~sa.exists(sa.select(_ONE).select_from(rows))
    return sa.select(sa.func.count()).select_from(rows).scalar_subquery() != wanted


def _given() -> Any:
    """The messages that are bound, as a table."""
    kinds: dict[str, Any] = {name: sa.Text() for name in MESSAGE_GIVEN} | {
        "tokens": sa.BigInteger(),
        "created_at": TimeColumn(),
    }
    arrays: list[Any] = [
        sa.bindparam(name, type_=postgresql.ARRAY(kinds[name]), required=True) for name in MESSAGE_GIVEN
    ]
    return sa.func.unnest(*arrays).table_valued(*MESSAGE_GIVEN, with_ordinality="place").render_derived(name="given")


def _with_many(dialect: Dialect, shape: Shape) -> sa.Executable:
    """Count and insert any number of messages in one statement, their columns as arrays, and their turn if in one."""
    bumped = _bump(dialect, shape).cte("bumped")
    given = _given()
    columns = {"session_key": KEY, "seq": bumped.c.last_seq - number("added") + given.c.place}
    columns |= {name: sa.cast(given.c[name], MESSAGE.c[name].type) for name in MESSAGE_GIVEN}
    columns["created_at"] = sa.func.coalesce(columns["created_at"], bumped.c.updated_at)
    if shape.turn:
        columns["turn_no"] = bumped.c.last_turn_no
    chosen = sa.select(*columns.values()).select_from(bumped, given)
    insert = sa.insert(MESSAGE).from_select(list(columns), chosen)
    return _told_with(dialect, shape, bumped, (MESSAGE, insert.returning(_ONE).cte("added"), number("added")))


def _turn(
    turn_no: sa.ColumnElement[int],
    last_seq: sa.ColumnElement[int],
    key: sa.ColumnElement[str] = KEY,
    now: sa.ColumnElement[datetime] = NOW,
) -> dict[str, Any]:
    names = ("id", "usage", "metadata", "kind", "replaced_upto")
    given = {name: column(TURN.c[name], f"turn_{name}") for name in names}
    places = {"turn_no": turn_no, "first_seq": last_seq - number("added") + 1, "last_seq": last_seq}
    return {"session_key": key, "created_at": now} | places | given


# The same in several statements that are sent together. What was written is counted last: in the session's row nobody
# writes meanwhile, and nothing stands behind its `last_seq` but what was written just now.

_new: Final = (of_session(MESSAGE), MESSAGE.c.seq > SESSION.c.last_seq)


def _messages_first(shape: Shape, *, one: bool) -> sa.Executable:
    """Lock the session, and write messages behind its last one if it lives and is as expected."""
    names = ("key", "last_seq", "last_turn_no")
    live = sa.and_(of_session(SESSION), live_at(NOW_TOGETHER))
    chosen = sa.select(*(SESSION.c[name] for name in names)).where(live, *_is_as_expected(shape))
    session = chosen.with_for_update(key_share=True).subquery("session")
    last_seq = _behind(session.c.last_seq, shape)
    if one:
        row = _message(last_seq + 1)
        source: Any = session
    else:
        given = _given()
        row = {"seq": last_seq + given.c.place}
        row |= {name: sa.cast(given.c[name], MESSAGE.c[name].type) for name in MESSAGE_GIVEN}
        source = session.join(given, sa.true())
    row |= {"session_key": session.c.key, "created_at": sa.func.coalesce(row["created_at"], NOW_TOGETHER)}
    if shape.turn:
        row["turn_no"] = session.c.last_turn_no + 1
    return sa.insert(MESSAGE).from_select(list(row), sa.select(*row.values()).select_from(source))


def _behind(last_seq: sa.ColumnElement[int], shape: Shape) -> sa.ColumnElement[int]:
    return last_seq + number("turn_skipped") if shape.turn else last_seq


def _turn_next(shape: Shape) -> sa.Executable:
    """Write the turn of the messages, if they were written."""
    last_seq = _behind(SESSION.c.last_seq, shape) + number("added")
    row = _turn(SESSION.c.last_turn_no + 1, last_seq, SESSION.c.key, NOW_TOGETHER)
    written = sa.exists(sa.select(_ONE).where(*_new))
    return sa.insert(TURN).from_select(list(row), sa.select(*row.values()).where(of_session(SESSION), written))


def _count_last(dialect: Dialect, shape: Shape) -> sa.UpdateBase:
    """Count what was written, and fail if that is not all."""
    counted = _counted(dialect, shape, NOW_TOGETHER)
    number_of = sa.select(sa.func.count()).where(*_new).scalar_subquery()
    withheld = [(MESSAGE, number_of != number("added"))]
    if shape.turn:
        there = (of_session(TURN), TURN.c.turn_no == SESSION.c.last_turn_no + 1)
        withheld.append((TURN, ~sa.exists(sa.select(_ONE).where(*there))))
    counted[SESSION.c.last_seq] = dialect.unless_withheld(counted[SESSION.c.last_seq], *withheld)
    written = sa.exists(sa.select(_ONE).where(*_new))
    return sa.update(SESSION).where(of_session(SESSION), written).values(counted).returning(*_told(shape))


@functools.cache
def together(shape: Shape, *, one: bool) -> Sequence[Statement]:
    """Return the statements that write messages, and their turn if they are one, and count; of an existing session."""
    first = Statement(lambda _: _messages_first(shape, one=one))
    turn = [Statement(lambda _: _turn_next(shape))] if shape.turn else []
    return [first, *turn, Statement(lambda dialect: _count_last(dialect, shape))]


@functools.cache
def counting(shape: Shape) -> Statement:
    """Return the statement that counts alone, in the session's row."""
    return Statement(lambda dialect: _bump(dialect, shape))


@functools.cache
def with_one(shape: Shape) -> Statement:
    """Return the statement that counts and writes one message, and its turn if it is one."""
    return Statement(lambda dialect: _with_one(dialect, shape))


@functools.cache
def with_many(shape: Shape) -> Statement:
    """Return the statement that counts and writes any number of messages, and their turn if they are one."""
    return Statement(lambda dialect: _with_many(dialect, shape))


insert_message = Statement(
    lambda _: sa.insert(MESSAGE).values(_message(number("seq")) | {"turn_no": number("turn_no")})
)
insert_turn = Statement(lambda _: sa.insert(TURN).values(_turn(number("turn_no"), number("last_seq"))))
