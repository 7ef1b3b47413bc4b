"""The statements of an edit: which message it changes, what it writes there, and how its session counts then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect.statement import Statement
from lango_store._operations import sessions
from lango_store._operations.binds import (
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
from lango_store._operations.rows import MESSAGE_COLUMNS, MESSAGE_FIELDS, MESSAGE_GIVEN

_GIVEN: Final = {name: column(MESSAGE.c[name], f"new_{name}") for name in MESSAGE_GIVEN}
"""What a caller gives for the columns of a message."""

CHOSEN: Final = (*MESSAGE_FIELDS, "is_record", "emptied", "ends")
"""What `choose` reads of a message.

`is_record` is 1 for a record, else 0. `emptied` is its turn if that began with it and nothing of it came later, `ends`
its turn if that began before it and nothing of it came later.
"""

_SEQ, _TOKENS, _IS_RECORD, _EMPTIED, _ENDS = (
    number(f"chosen_{name}") for name in ("seq", "tokens", "is_record", "emptied", "ends")
)
"""What the other statements need to know of it."""


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


def _more_of_turn() -> sa.ColumnElement[bool]:
    """Whether a turn has something after a message: a pop passes by records."""
    other = MESSAGE.alias("other")
    within = (other.c.seq > MESSAGE.c.seq, other.c.seq <= TURN.c.last_seq, other.c.turn_no == TURN.c.turn_no)
    return sa.exists().where(of_session(other, TURN.c.session_key), *within).correlate(TURN, MESSAGE)


def _one_if_record(role: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    return sa.case((role == RECORD, sa.literal_column("1")), else_=sa.literal_column("0"))


def _choose(condition: sa.ColumnElement[bool]) -> Statement:
    ended = (of_session(TURN), TURN.c.turn_no == MESSAGE.c.turn_no, ~_more_of_turn())
    its = sa.select(TURN.c.turn_no).where(*ended).correlate(MESSAGE)
    computed = (
        _one_if_record(MESSAGE.c.role),
        its.where(TURN.c.first_seq >= MESSAGE.c.seq).scalar_subquery(),
        its.where(TURN.c.first_seq < MESSAGE.c.seq, TURN.c.last_seq >= MESSAGE.c.seq).scalar_subquery(),
    )
    chosen = sa.select(*MESSAGE_COLUMNS, *computed).where(of_session(MESSAGE), condition)
    return Statement(lambda _: chosen)


choose: Final = {
    "seq": _choose(MESSAGE.c.seq == number("seq")),
    "id": _choose(MESSAGE.c.id == text("id")),
    "last of the window": _choose(MESSAGE.c.seq == _last_of_window()),
    "last of the log": _choose(MESSAGE.c.seq == _last_of_log()),
}
"""Read a message by its seq, by its id or as the last one, with what the other statements need to know."""


# What an edit writes

_ITS_ROW: Final = (of_session(MESSAGE), MESSAGE.c.seq == _SEQ)

delete_message: Final = Statement(lambda _: sa.delete(MESSAGE).where(*_ITS_ROW).returning(MESSAGE.c.seq))


def _change(values: Mapping[str, Any]) -> Statement:
    return Statement(lambda _: sa.update(MESSAGE).where(*_ITS_ROW).values(values).returning(MESSAGE.c.seq))


replace_message: Final = _change(
    _GIVEN | {name: sa.func.coalesce(_GIVEN[name], MESSAGE.c[name]) for name in ("id", "created_at")}
)

REDACTED: Final = tuple(
    name
    for name in MESSAGE_GIVEN
    if name not in ("id", "role", "author", "name", "tool_call_id", "tokens", "created_at")
)
"""The columns that are taken from a message that is redacted."""

redact_message: Final = _change(
    {name: _GIVEN[name] for name in REDACTED} | {"tokens": sa.case((MESSAGE.c.tokens.is_not(None), 0))}
)

delete_turn: Final = Statement(lambda _: sa.delete(TURN).where(of_session(TURN), TURN.c.turn_no == _EMPTIED))
shorten_turn: Final = Statement(
    lambda _: sa.update(TURN).where(of_session(TURN), TURN.c.turn_no == _ENDS).values(last_seq=_SEQ - 1)
)


# How its session counts then

_NOTHING: Final[sa.ColumnElement[int]] = sa.literal_column("0")


def _count(added: sa.ColumnElement[int], **also: Any) -> Statement:
    """Count the session's tokens, with those `added` in the place of the message's, and use one seq up."""
    counted = sa.case((_IS_RECORD == 0, sa.func.coalesce(_TOKENS, 0)), else_=0)
    values = {
        "last_seq": SESSION.c.last_seq + 1,
        "token_count": SESSION.c.token_count + added - counted,
        "updated_at": NOW,
    }
    changed = sa.update(SESSION).where(of_session(SESSION)).values(values | sessions.REVISED | also)
    return Statement(lambda _: changed.returning(SESSION.c.last_seq))


def _said_before() -> sa.ColumnElement[int]:
    """How many messages of the session come before this one or this record."""
    later = sa.select(sa.func.count()).where(of_session(MESSAGE), MESSAGE.c.seq > _SEQ, ~IS_RECORD)
    said: sa.ColumnElement[int] = SESSION.c.message_count - later.scalar_subquery() - (1 - _IS_RECORD)
    return said


def _consolidated(change: Any) -> sa.ColumnElement[int]:
    """How many messages are consolidated if there is one more here or one less: they end where they did."""
    consolidated = SESSION.c.last_consolidated
    unchanged = sa.or_(change == 0, consolidated == 0)
    return sa.case(
        (unchanged, consolidated),
        (_said_before() < consolidated, consolidated + change),
        else_=consolidated,
    )


def _without_message() -> dict[str, Any]:
    return {
        "message_count": SESSION.c.message_count - (1 - _IS_RECORD),
        "record_count": SESSION.c.record_count - _IS_RECORD,
        "last_consolidated": _consolidated(_IS_RECORD - 1),
    }


def _without_turn() -> dict[str, Any]:
    compactions = (of_session(TURN), IS_COMPACTION)
    last = sa.select(TURN.c.turn_no, TURN.c.replaced_upto).where(*compactions).order_by(TURN.c.turn_no.desc())
    last = last.limit(sa.literal_column("1"))
    summary_turn = sa.select(last.subquery().c.turn_no).scalar_subquery()
    upto = sa.func.coalesce(sa.select(last.subquery().c.replaced_upto).scalar_subquery(), 0)
    gone = SESSION.c.summary_turn == _EMPTIED
    return {
        "turn_count": SESSION.c.turn_count - sa.case((_EMPTIED.is_not(None), 1), else_=0),
        "summary_turn": sa.case((gone, summary_turn), else_=SESSION.c.summary_turn),
        "summarized_upto": sa.case((gone, upto), else_=SESSION.c.summarized_upto),
    }


def _with_message_instead() -> Statement:
    is_record = _one_if_record(_GIVEN["role"])
    added = sa.case((_GIVEN["role"] == RECORD, 0), else_=sa.func.coalesce(_GIVEN["tokens"], 0))
    change = _IS_RECORD - is_record
    return _count(
        added,
        message_count=SESSION.c.message_count + change,
        record_count=SESSION.c.record_count - change,
        last_consolidated=_consolidated(change),
    )


count_without: Final = _count(_NOTHING, **_without_message())
count_without_turn: Final = _count(_NOTHING, **_without_message(), **_without_turn())
count_instead: Final = _with_message_instead()
count_redacted: Final = _count(_NOTHING)
