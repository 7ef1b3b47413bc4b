"""The statements of an edit: which message it is of, what is written there, and how its session counts then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from lango_store.operations import sessions
from lango_store.operations.binds import (
    IS_COMPACTION,
    IS_RECORD,
    MESSAGE,
    NOW,
    RECORD,
    SESSION,
    TURN,
    column,
    number,
    of_session,
    text,
)
from lango_store.operations.rows import MESSAGE_COLUMNS, MESSAGE_FIELDS, MESSAGE_GIVEN

GIVEN: Final = {name: column(MESSAGE.c[name], f"new_{name}") for name in MESSAGE_GIVEN}
"""What a caller gives for the columns of a message."""

CHOSEN: Final = ("seq", "turn_no", "tokens", "is_record", "emptied", "ends")
"""What `Chosen` holds."""

TOLD: Final = (*MESSAGE_FIELDS, "is_record", "emptied", "ends")
"""What `choose` reads."""


# Which message


def _of_session_row(name: str) -> sa.ScalarSelect[Any]:
    return sa.select(SESSION.c[name]).where(of_session(SESSION)).correlate(None).scalar_subquery()


def _last_seq(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    shown = (of_session(MESSAGE), MESSAGE.c.seq > _of_session_row("summarized_upto"), ~IS_RECORD, *conditions)
    last = sa.select(MESSAGE.c.seq).where(*shown).order_by(MESSAGE.c.seq.desc()).limit(sa.literal_column("1"))
    return last.correlate(None).scalar_subquery()


def _last_of_window() -> sa.ColumnElement[int]:
    # What came in while a summary was being written stands after it, and has a lower seq. No turn has the number 0.
    summary_turn = sa.func.coalesce(_of_session_row("summary_turn"), sa.literal_column("0"))
    later = MESSAGE.c.turn_no.is_distinct_from(summary_turn)
    return sa.func.coalesce(_last_seq(later), _last_seq())


def _last_of_log() -> sa.ColumnElement[int]:
    return sa.select(sa.func.max(MESSAGE.c.seq)).where(of_session(MESSAGE)).correlate(None).scalar_subquery()


_PLACES: Final[dict[str, Callable[[], sa.ColumnElement[bool]]]] = {
    "seq": lambda: MESSAGE.c.seq == number("seq"),
    "id": lambda: MESSAGE.c.id == text("id"),
    "last": lambda: MESSAGE.c.seq == _last_of_window(),
    "last of the log": lambda: MESSAGE.c.seq == _last_of_log(),
}


@dataclass(frozen=True)
class Chosen:
    """What the statements of an edit must know of its message.

    `is_record` is 1 for a record, else 0. `emptied` is its turn if that began with it and nothing of it came later,
    `ends` its turn if that began before it and nothing of it came later.
    """

    seq: Any
    turn_no: Any
    tokens: Any
    is_record: Any
    emptied: Any
    ends: Any


def _more_of_turn(seq: Any) -> sa.ColumnElement[bool]:
    """Whether a turn has something after a seq: a pop passes by records."""
    other = MESSAGE.alias("other")
    within = (other.c.seq > seq, other.c.seq <= TURN.c.last_seq, other.c.turn_no == TURN.c.turn_no)
    return sa.exists().where(of_session(other, TURN.c.session_key), *within).correlate(TURN, MESSAGE)


def _one_if_record(role: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.case((role == RECORD, sa.literal_column("1")), else_=sa.literal_column("0"))


def choose(place: str) -> sa.Select[Any]:
    """Read the message that stands at a place, and what the other statements must know of it."""
    ended = (of_session(TURN), TURN.c.turn_no == MESSAGE.c.turn_no, ~_more_of_turn(MESSAGE.c.seq))
    its = sa.select(TURN.c.turn_no).where(*ended).correlate(MESSAGE)
    told = (
        _one_if_record(MESSAGE.c.role).label("is_record"),
        its.where(TURN.c.first_seq >= MESSAGE.c.seq).scalar_subquery().label("emptied"),
        its.where(TURN.c.first_seq < MESSAGE.c.seq, TURN.c.last_seq >= MESSAGE.c.seq).scalar_subquery().label("ends"),
    )
    return sa.select(*MESSAGE_COLUMNS, *told).where(of_session(MESSAGE), _PLACES[place]())


# What an edit writes

Write = Callable[[Chosen], Any]


def delete_message(chosen: Chosen) -> Any:
    """Delete the message."""
    return sa.delete(MESSAGE).where(of_session(MESSAGE), MESSAGE.c.seq == chosen.seq).returning(MESSAGE.c.seq)


def delete_turn(chosen: Chosen) -> Any:
    """Delete its turn if that has nothing left."""
    return sa.delete(TURN).where(of_session(TURN), TURN.c.turn_no == chosen.emptied).returning(TURN.c.turn_no)


def shorten_turn(chosen: Chosen) -> Any:
    """Let its turn end before it, unless something of the turn comes later."""
    shortened = sa.update(TURN).where(of_session(TURN), TURN.c.turn_no == chosen.ends)
    return shortened.values(last_seq=chosen.seq - 1).returning(TURN.c.turn_no)


def change_message(values: Mapping[str, Any]) -> Write:
    """Give columns of the message other values."""

    def write(chosen: Chosen) -> Any:
        its = (of_session(MESSAGE), MESSAGE.c.seq == chosen.seq)
        return sa.update(MESSAGE).where(*its).values(values).returning(MESSAGE.c.seq)

    return write


def count(chosen: Chosen, added: sa.ColumnElement[int], **also: Any) -> Any:
    """Count the session's tokens, with those `added` in the place of the message's, and use one seq up."""
    counted = sa.case((chosen.is_record == 0, sa.func.coalesce(chosen.tokens, 0)), else_=0)
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "token_count": SESSION.c.token_count + added - counted,
        "updated_at": NOW,
    }
    changed = (
        sa.update(SESSION).where(of_session(SESSION), chosen.seq.is_not(None)).values(values | sessions.REVISED | also)
    )
    return changed.returning(SESSION.c.last_seq)


def _said_before(chosen: Chosen) -> sa.ColumnElement[int]:
    """How many messages of the session come before this one or this record."""
    later = sa.select(sa.func.count()).where(of_session(MESSAGE), MESSAGE.c.seq > chosen.seq, ~IS_RECORD)
    said: sa.ColumnElement[int] = SESSION.c.message_count - later.scalar_subquery() - (1 - chosen.is_record)
    return said


def _consolidated(chosen: Chosen, change: Any) -> sa.ColumnElement[int]:
    """How many messages are consolidated if there is one more here or one less: they end where they did."""
    consolidated = SESSION.c.last_consolidated
    unchanged = sa.or_(change == 0, consolidated == 0)
    return sa.case(
        (unchanged, consolidated),
        (_said_before(chosen) < consolidated, consolidated + change),
        else_=consolidated,
    )


def count_without(chosen: Chosen) -> Any:
    """Count the session without the message."""
    return count(
        chosen,
        sa.literal_column("0"),
        message_count=SESSION.c.message_count - (1 - chosen.is_record),
        record_count=SESSION.c.record_count - chosen.is_record,
        last_consolidated=_consolidated(chosen, chosen.is_record - 1),
    )


def count_instead(chosen: Chosen) -> Any:
    """Count a message in the place of another, where each may be a record."""
    is_record = _one_if_record(GIVEN["role"])
    added = sa.case((GIVEN["role"] == RECORD, 0), else_=sa.func.coalesce(GIVEN["tokens"], 0))
    change = chosen.is_record - is_record
    return count(
        chosen,
        added,
        message_count=SESSION.c.message_count + change,
        record_count=SESSION.c.record_count - change,
        last_consolidated=_consolidated(chosen, change),
    )


def count_without_turn(chosen: Chosen) -> Any:
    """Count the session without the message, and without its turn and summary if these went with it."""
    left = (of_session(TURN), IS_COMPACTION, TURN.c.turn_no != chosen.emptied)
    last = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(*left).order_by(TURN.c.turn_no.desc())
    last = last.limit(sa.literal_column("1"))
    summary_turn = sa.select(last.subquery().c.turn_no).scalar_subquery()
    upto = sa.func.coalesce(sa.select(last.subquery().c.replaced_upto).scalar_subquery(), 0)
    gone = SESSION.c.summary_turn == chosen.emptied
    return count_without(chosen).values(
        turn_count=SESSION.c.turn_count - sa.case((chosen.emptied.is_not(None), 1), else_=0),
        summary_turn=sa.case((gone, summary_turn), else_=SESSION.c.summary_turn),
        summarized_upto=sa.case((gone, upto), else_=SESSION.c.summarized_upto),
    )
