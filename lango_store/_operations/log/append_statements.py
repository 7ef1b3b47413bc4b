"""SQL statements of an append: lock the session's row, increase its counters to reserve seqs, and insert the rows.

There are three variants: one statement (PostgreSQL), a short transaction (SQLite), and a pipeline (Citus).
"""

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store._dialect import Dialect
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    KEY,
    LIVE,
    LIVE_SESSION,
    MESSAGE,
    NOW,
    NOW_TOGETHER,
    PAYLOAD,
    SESSION,
    TURN,
    column,
    number,
    of_session,
)
from lango_store._operations.rows import MESSAGE_INPUT_FIELDS
from lango_store._operations.session import sessions
from lango_store._operations.session.guards import GuardSql
from lango_store._operations.session_tables import HAS_ASIDE
from lango_store._rows.columns import TimeColumn
from lango_store.tables import live_at

_ADDED: Final[dict[str, sa.ColumnElement[int]]] = {
    "last_seq": number("seqs_added"),
    "message_count": number("messages_added"),
    "record_count": number("records_added"),
    "token_count": number("tokens_added"),
    "turn_count": number("turns_added"),
    "last_turn_no": number("turns_added"),
}
"""The bound increments of a session's counters."""

_IS_EXPECTED: Final = tuple(
    SESSION.c[name] == sa.func.coalesce(number(bound), SESSION.c[name])
    for name, bound in (("last_seq", "after"), ("revision", "expect"))
)
"""Conditions for `after` and `expect`. A bound NULL matches every session, so calls on a server use the same SQL."""

_IS_INTACT: Final = (
    SESSION.c.revision.between(number("since"), number("since_limit")),
    SESSION.c.last_seq - SESSION.c.message_count - SESSION.c.record_count == number("removed"),
)
"""The conditions of an append with `intact_since`."""


class Conditions(NamedTuple):
    """The conditions that only some appends have. Only their statements contain them; other appends cost no more."""

    guard: GuardSql | None = None
    """The append has a guard."""
    intact: bool = False
    """The append needs a session of which no message was changed or removed."""
    all_in_log: bool = False
    """The append needs a session without messages outside of its log, which could have one of the ids."""


conditions_of: Final = functools.cache(Conditions)
"""Returns conditions: looking them up costs less than creating them."""

COUNTED: Final = (SESSION.c.last_seq, SESSION.c.updated_at, SESSION.c.last_turn_no)
"""The only columns that an append returns, so that damage in another column does not fail the append."""


def _expected(conditions: Conditions, has_numbers: bool = True) -> tuple[sa.ColumnElement[bool], ...]:
    of_guard = () if conditions.guard is None else conditions.guard.conditions
    all_in_log = tuple(each.is_(None) for each in HAS_ASIDE) * conditions.all_in_log
    return _IS_EXPECTED * has_numbers + of_guard + _IS_INTACT * conditions.intact + all_in_log


def counted(
    dialect: Dialect, now: sa.ColumnElement[datetime] = NOW, guard: GuardSql | None = None
) -> dict[sa.Column[Any], Any]:
    """Return the values of a session's row after an append, with those that the guard sets."""
    counters = {name: SESSION.c[name] + added for name, added in _ADDED.items()}
    times = {"updated_at": now, "expires_at": dialect.later_expiry(now, SESSION.c)}
    of_guard = {} if guard is None else guard.values(dialect, now)
    return {SESSION.c[name]: value for name, value in (counters | times | sessions.REVISED | of_guard).items()}


def _count(dialect: Dialect, conditions: Conditions, *, has_numbers: bool = True) -> sa.UpdateBase:
    # This update comes first, because it takes the row lock (on SQLite the write lock). Therefore two writers never get
    # the same seq, and seqs are in the order of the commits.
    values = counted(dialect, guard=conditions.guard)
    expected = _expected(conditions, has_numbers)
    return sa.update(SESSION).where(LIVE_SESSION, *expected).values(values).returning(*COUNTED)


def _count_or_create(dialect: Dialect, conditions: Conditions) -> sa.UpdateBase:
    insert: Any = sessions.insertion(dialect, _ADDED)
    upsert = insert.on_conflict_do_update(
        index_elements=[SESSION.c.key], set_=counted(dialect), where=sa.and_(LIVE, *_expected(conditions))
    )
    return upsert.returning(*COUNTED)  # type: ignore[no-any-return]


def _bound_messages() -> Any:
    """Return a table expression with one row per message; each column is bound as an array."""
    kinds: dict[str, Any] = {name: sa.Text() for name in MESSAGE_INPUT_FIELDS} | {
        "tokens": sa.BigInteger(),
        "created_at": TimeColumn(),
    }
    arrays: list[Any] = [
        sa.bindparam(name, type_=postgresql.ARRAY(kinds[name]), required=True) for name in MESSAGE_INPUT_FIELDS
    ]
    return (
        sa.func.unnest(*arrays)
        .table_valued(*MESSAGE_INPUT_FIELDS, with_ordinality="position")
        .render_derived(name="given")
    )


def _insert_messages(
    session: sa.FromClause,
    key: sa.ColumnElement[str],
    last_seq: sa.ColumnElement[int],
    now: sa.ColumnElement[datetime],
    turn_no: sa.ColumnElement[int] | None,
    *,
    one: bool,
    conditions: Conditions,
) -> sa.Insert:
    """Insert the bound messages; the last one gets `last_seq`. Without `one`, each column is bound as an array."""
    source = session
    if one:  # arrays with one value would cost 20% more
        row: dict[str, Any] = {name: column(MESSAGE.c[name]) for name in MESSAGE_INPUT_FIELDS} | {"seq": last_seq}
    else:
        bound = _bound_messages()
        source = session.join(bound, sa.true())
        row = {name: sa.cast(bound.c[name], MESSAGE.c[name].type) for name in MESSAGE_INPUT_FIELDS}
        row["seq"] = last_seq - number("added") + bound.c.position
    logged_at = sa.case((row["created_at"].is_not(None), now))
    row |= {"session_key": key, "created_at": sa.func.coalesce(row["created_at"], now), "logged_at": logged_at}
    if turn_no is not None:
        row["turn_no"] = turn_no
    if conditions.guard is not None:
        row["taken_by"] = column(MESSAGE.c.taken_by)
    return sa.insert(MESSAGE).from_select(list(row), sa.select(*row.values()).select_from(source))


def _insert_payloads(dialect: Dialect, session: sa.FromClause, *conditions: sa.ColumnElement[bool]) -> Any:
    """Insert the bound payloads, except those that are already stored."""
    arrays: list[Any] = [
        sa.bindparam(name, type_=postgresql.ARRAY(sa.Text()), required=True) for name in ("digests", "bodies")
    ]
    columns = [sa.column(name, PAYLOAD.c[name].type) for name in ("digest", "body")]
    bound = sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="given")
    rows = sa.select(KEY, *bound.c).select_from(session.join(bound, sa.true())).where(*conditions)
    return dialect.insert(PAYLOAD).from_select(["session_key", "digest", "body"], rows).on_conflict_do_nothing()


_ADDED_ROWS: Final = number("added")


def turn_row(
    turn_no: sa.ColumnElement[int],
    last_seq: sa.ColumnElement[int],
    key: sa.ColumnElement[str] = KEY,
    now: sa.ColumnElement[datetime] = NOW,
    *,
    added: sa.ColumnElement[int] = _ADDED_ROWS,
) -> dict[str, Any]:
    """Return the values of a new turn: the bound ones, and the bounds of the last `added` seqs up to `last_seq`."""
    names = ("id", "usage", "metadata", "kind", "replaced_upto", "copied_from")
    bound = {name: column(TURN.c[name], f"turn_{name}") for name in names}
    first_seq = last_seq - added + sa.literal_column("1", sa.BigInteger())
    seqs = {"first_seq": first_seq, "last_seq": last_seq}
    return {"session_key": key, "created_at": now, "turn_no": turn_no} | seqs | bound


# PostgreSQL: a single statement needs only one round trip


def _append(
    dialect: Dialect, conditions: Conditions, *, one: bool, turn: bool, creates: bool, payloads: bool
) -> sa.Executable:
    session = (_count_or_create(dialect, conditions) if creates else _count(dialect, conditions)).cte("session")
    last_seq, now, turn_no = session.c
    number_of_turn = turn_no if turn else None
    inserted = _insert_messages(session, KEY, last_seq, now, number_of_turn, one=one, conditions=conditions)
    inserts = [inserted.cte("messages")]
    if turn:
        row = turn_row(turn_no, last_seq)
        inserts.append(sa.insert(TURN).from_select(list(row), sa.select(*row.values())).cte("turn"))
    if payloads:
        inserts.append(_insert_payloads(dialect, session).cte("payloads"))
    return sa.select(*session.c).add_cte(*inserts)


@functools.cache
def append(*, one: bool, turn: bool, creates: bool, conditions: Conditions, payloads: bool) -> Statement:
    """Return the single statement that appends messages on PostgreSQL.

    Args:
        one: The statement takes the values of one message, not arrays of values.
        turn: It also inserts a turn.
        creates: It creates the session if the session is missing.
        conditions: Conditions that the session has to meet; with `creates`, at most `all_in_log`.
        payloads: It also inserts payloads.
    """
    options = {"one": one, "turn": turn, "creates": creates, "payloads": payloads}
    return Statement(lambda dialect: _append(dialect, conditions, **options))


# SQLite: several statements in a short transaction, because they need no round trips. They bind no NULL: for the driver
# it takes as long as ten texts.


@functools.cache
def count(conditions: Conditions, *, has_numbers: bool) -> Statement:
    """Return the update of the session's row, with the conditions of the append, and `after` and `expect` if set."""
    return Statement(functools.partial(_count, conditions=conditions, has_numbers=has_numbers))


@functools.lru_cache(256)
def insert_messages(*names: str) -> Statement:
    """Return the statement that inserts messages and sets, of the columns that may be NULL, only `names`."""
    row: dict[str, Any] = {name: column(MESSAGE.c[name]) for name in ("session_key", "seq", *names)}
    row["created_at"] = column(MESSAGE.c.created_at, "stored_at")
    return Statement(lambda _: sa.insert(MESSAGE).values(row))


insert_turn: Final = Statement(lambda _: sa.insert(TURN).values(turn_row(number("turn_no"), number("last_seq"))))


# Citus: all statements are sent together, so no statement can use the result of an earlier one. The first ones insert
# rows after the session's last_seq. The last one increases the session's counters if it finds such rows.

_NEW_MESSAGE: Final = sa.exists().where(of_session(MESSAGE), MESSAGE.c.seq > SESSION.c.last_seq)
_NEW_TURN: Final = sa.exists().where(of_session(TURN), TURN.c.turn_no == SESSION.c.last_turn_no + 1)


def _locked_session(conditions: Conditions) -> sa.FromClause:
    columns = (SESSION.c.key, SESSION.c.last_seq, SESSION.c.last_turn_no)
    chosen = sa.select(*columns).where(of_session(SESSION), live_at(NOW_TOGETHER), *_expected(conditions))
    return chosen.with_for_update(key_share=True).subquery("session")


def _messages_first(conditions: Conditions, *, one: bool, turn: bool) -> sa.Executable:
    session = _locked_session(conditions)
    turn_no = session.c.last_turn_no + 1 if turn else None
    last_seq = session.c.last_seq + number("seqs_added")
    return _insert_messages(session, session.c.key, last_seq, NOW_TOGETHER, turn_no, one=one, conditions=conditions)


def _then_turn(conditions: Conditions, *, after_messages: bool) -> sa.Executable:
    session = SESSION if after_messages else _locked_session(conditions)
    row = turn_row(session.c.last_turn_no + 1, session.c.last_seq + number("seqs_added"), session.c.key, NOW_TOGETHER)
    chosen = sa.select(*row.values()).select_from(session)
    return sa.insert(TURN).from_select(
        list(row), chosen.where(of_session(SESSION), _NEW_MESSAGE) if after_messages else chosen
    )


def _count_last(dialect: Dialect, conditions: Conditions, *, has_messages: bool) -> sa.Executable:
    written = _NEW_MESSAGE if has_messages else _NEW_TURN
    values = counted(dialect, NOW_TOGETHER, conditions.guard)
    return sa.update(SESSION).where(of_session(SESSION), written).values(values).returning(*COUNTED)


@functools.cache
def pipeline(messages: int, *, turn: bool, conditions: Conditions, payloads: bool) -> Sequence[Statement]:
    """Return the statements that together append on Citus; the last one returns the session's counters.

    Args:
        messages: The number of messages: 0, 1, or 2 for any larger number.
        turn: The statements also insert a turn.
        conditions: Conditions that the session has to meet.
        payloads: They also insert payloads.
    """
    statements: list[Statement] = []
    if messages:
        statements.append(Statement(lambda _: _messages_first(conditions, one=messages == 1, turn=turn)))
    if turn:
        statements.append(Statement(lambda _: _then_turn(conditions, after_messages=messages > 0)))
    if payloads:
        new = (of_session(SESSION), _NEW_MESSAGE)
        statements.append(Statement(lambda dialect: _insert_payloads(dialect, SESSION, *new)))
    return [*statements, Statement(lambda dialect: _count_last(dialect, conditions, has_messages=messages > 0))]
