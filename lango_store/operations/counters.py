"""What a session's row says of its messages, turns and summary, beside what they say; and setting it right."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from lango_store.errors import DamagedMessage, SessionNotFound
from lango_store.operations import removals, sessions
from lango_store.operations.binds import IS_COMPACTION, IS_RECORD, MESSAGE, SESSION, TURN, of_session


@dataclass(frozen=True)
class _Counter:
    """A counter of a session, what the rows say of it, when the two disagree, and how to say so."""

    name: str
    found: sa.ColumnElement[Any]
    disagree: Callable[[Any, Any], Any]
    words: str

    @property
    def said(self) -> sa.Column[Any]:
        return SESSION.c[self.name]

    def wrong(self, said: Any, there: Any) -> bool:
        return type(said) is not int or isinstance(there, str | bytes) or bool(self.disagree(said, there))


def _counters_and_rows() -> tuple[list[_Counter], sa.FromClause]:
    messages_there = _summed_up(
        MESSAGE,
        count=sa.func.count().filter(~IS_RECORD),
        records=sa.func.count().filter(IS_RECORD),
        tokens=sa.func.sum(MESSAGE.c.tokens).filter(~IS_RECORD),
        last_seq=sa.func.max(MESSAGE.c.seq),
    )
    turns_there = _summed_up(
        TURN, count=sa.func.count(), last_turn_no=sa.func.max(TURN.c.turn_no), last_seq=sa.func.max(TURN.c.last_seq)
    )
    message, turn = (_or_zero(there) for there in (messages_there, turns_there))
    counters = [
        _Counter("message_count", message["count"], operator.ne, "there are {}"),
        _Counter("record_count", message["records"], operator.ne, "there are {}"),
        _Counter("token_count", message["tokens"], operator.ne, "the messages have {}"),
        _Counter("turn_count", turn["count"], operator.ne, "there are {}"),
        _Counter("last_seq", message["last_seq"], operator.lt, "a message has {}"),
        _Counter("last_seq", turn["last_seq"], operator.lt, "a turn ends at {}"),
        _Counter("last_turn_no", turn["last_turn_no"], operator.lt, "a turn has {}"),
        _Counter("last_consolidated", message["count"], operator.gt, "above {}"),
    ]
    rows = SESSION
    for there in (messages_there, turns_there):
        rows = rows.outerjoin(there, of_session(there, SESSION.c.key))  # type: ignore[assignment]
    return counters, rows


def _summed_up(table: sa.Table, **columns: sa.ColumnElement[Any]) -> sa.Subquery:
    labelled = [column.label(name) for name, column in columns.items()]
    return sa.select(table.c.session_key, *labelled).group_by(table.c.session_key).subquery()


def _or_zero(there: sa.Subquery) -> dict[str, sa.ColumnElement[Any]]:
    return {column.name: sa.func.coalesce(column, 0) for column in there.c}


def wrong_counters(connection: sa.Connection) -> list[tuple[str, str]]:
    """Compare the sessions' counters with their messages and turns; gives keys and what is wrong."""
    counters, rows = _counters_and_rows()
    columns = [column for each in counters for column in (each.said, each.found)]
    wrong = sa.or_(*(each.disagree(each.said, each.found) for each in counters))
    found: list[tuple[str, str]] = []
    for key, *numbers in connection.execute(sa.select(SESSION.c.key, *columns).select_from(rows).where(wrong)):
        pairs = zip(counters, numbers[::2], numbers[1::2], strict=True)
        faults = [
            f"{each.name} is {said}, {each.words.format(there)}"
            for each, said, there in pairs
            if each.wrong(said, there)
        ]
        found.append((key, f"session {key!r}: {'; '.join(faults)}"))
    return found


def count_again(connection: sa.Connection, key: str) -> None:
    """Set the counters of a session to what its messages and turns say."""
    connection.execute(sa.select(SESSION.c.key).where(of_session(SESSION, key)).with_for_update())
    counters, rows = _counters_and_rows()
    query = sa.select(*(column for each in counters for column in (each.said, each.found))).select_from(rows)
    numbers = connection.execute(query.where(of_session(SESSION, key))).first()
    if numbers is None:
        raise SessionNotFound(key)
    mended: dict[str, int] = {}
    for each, said, there in zip(counters, numbers[::2], numbers[1::2], strict=True):
        if each.wrong(mended.get(each.name, said), there):
            if isinstance(there, str | bytes):
                raise DamagedMessage(key, 0, each.name, f"{there!r} is what the rows have")
            mended[each.name] = int(there)
    if mended:
        connection.execute(sa.update(SESSION).where(of_session(SESSION, key)).values(mended | sessions.REVISED))


def wrong_summaries(connection: sa.Connection) -> list[tuple[str, str]]:
    """Compare what the sessions say of their summary with their last compaction; gives keys and what is wrong."""
    latest = sa.select(sa.func.max(TURN.c.turn_no)).where(of_session(TURN, SESSION.c.key), IS_COMPACTION)
    last = sa.and_(of_session(TURN, SESSION.c.key), TURN.c.turn_no == latest.correlate(SESSION).scalar_subquery())
    upto = sa.func.coalesce(TURN.c.replaced_upto, 0)
    query = (
        sa.select(SESSION.c.key, SESSION.c.summary_turn, SESSION.c.summarized_upto, TURN.c.turn_no, upto)
        .select_from(SESSION.outerjoin(TURN, last))
        .where(
            sa.or_(SESSION.c.summary_turn.is_distinct_from(TURN.c.turn_no), SESSION.c.summarized_upto != upto),
        )
    )
    return [
        (key, f"session {key!r}: summary_turn is {said} up to {said_upto}, the last compaction is {turn} up to {there}")
        for key, said, said_upto, turn, there in connection.execute(query)
    ]


def sum_up_again(connection: sa.Connection, key: str) -> None:
    """Point a session at its last compaction, or at none."""
    connection.execute(sa.select(SESSION.c.key).where(of_session(SESSION, key)).with_for_update())
    connection.execute(
        sa.update(SESSION).where(of_session(SESSION, key)).values(removals.latest_summary(key) | sessions.REVISED)
    )
