"""Owed turns: the columns `owed_at`, `waiting` and `attempts` of a session's row, by which workers find them.

A session is owed a turn while `owed_at` is set: from the beginning of a turn to its end, and while a message or an
answer waits for a turn. Each statement that changes this computes the new values from the locked row alone, so that a
message that arrives while a turn ends is never overlooked. The time of the next message for later is not in the row:
it is read by another statement when the row is locked (`EndOfTurn`).
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import MESSAGE, NOW, SESSION, TURN, of_session, text
from lango_store._rooms.turns_in_progress.tables import INBOX
from lango_store._rows.columns import TimeColumn
from lango_store._rows.encoding import encode_time_text

IN_INBOX: Final = 1
"""Messages wait in the inbox."""
ANSWERED: Final = 2
"""A suspension was answered, and no turn has begun since."""
ANSWERED_BEFORE: Final = 4
"""A suspension was answered before the turn in progress began."""
TAKEN: Final = 8
"""The turn in `lease_turn`, which is not saved, has taken messages from the inbox."""
TAKEN_BEFORE: Final = 16
"""Another turn that is not saved has taken messages from the inbox."""
GIVEN_UP: Final = 32
"""Such another turn was given up."""
TO_TAKE: Final = 64
"""A worker has claimed the turn in `lease_turn`, which has never begun: it is to take the messages of the inbox."""
LATER: Final = 128
"""Messages were put into the inbox for a later time. If nothing else is owed, `owed_at` is the time of the first."""

_ALL: Final = 63

NEVER: Final = datetime.max.replace(tzinfo=UTC)
"""The `owed_at` of a turn that was given up."""
NEVER_STORED: Final[sa.ColumnElement[datetime]] = sa.literal_column(f"'{encode_time_text(NEVER)}'", TimeColumn())
"""`NEVER` as SQL."""

IS_ENDED: Final = sa.or_(SESSION.c.lease_token.is_(None), SESSION.c.lease_until <= NOW)
"""Matches sessions without a running turn."""

Values = dict[str, Any]


def _number(value: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(value), sa.BigInteger())


_NONE: Final = _number(0)
_WAITING: Final = sa.func.coalesce(SESSION.c.waiting, _NONE)


def has(mask: int) -> sa.ColumnElement[bool]:
    """Match sessions with at least one of these bits in `waiting`."""
    return _bits(mask) != _NONE


def _bits(mask: int) -> sa.ColumnElement[int]:
    return _WAITING.op("&")(_number(mask))


def _or(*bits: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    first, *others = bits
    for each in others:
        first = first.op("|")(each)
    return first


IS_LATER: Final = sa.and_(SESSION.c.lease_turn.is_(None), has(LATER), _bits(_ALL) == _NONE)
"""Matches sessions that are owed nothing but a turn for messages that were put for a later time, if any still wait."""
IS_FUTURE: Final = sa.and_(IS_LATER, SESSION.c.owed_at > NOW)
"""Matches sessions that are owed nothing but a turn at a later time."""

_first_later: Final = sa.select(sa.func.min(INBOX.c.due_at)).where(of_session(INBOX, SESSION.c.key))
_FIRST_LATER: Final = _first_later.correlate(SESSION).scalar_subquery()
_NEXT_LATER: Final = {
    "owed_at": _FIRST_LATER,
    "waiting": sa.case((_FIRST_LATER.is_not(None), _WAITING), else_=_NONE),
}
_owe_later: Final = Statement(sa.update(SESSION).where(of_session(SESSION), IS_LATER).values(_NEXT_LATER))


class EndOfTurn:
    """An update that ends a turn; if messages for later are then all that is owed, a turn is owed at their time.

    This needs a second statement: an update that waits for the row's lock would not see a message that is committed
    while it waits.
    """

    def __init__(self, update: Callable[[Dialect], sa.Update]) -> None:
        self._end: Final = Statement(lambda dialect: update(dialect).returning(has(LATER)))

    def run(self, connection: AnyConnection, bound: Mapping[str, Any]) -> list[Sequence[Any]]:
        """Execute the update in a transaction; the last column of its rows is whether messages for later wait."""
        rows = self._end.run(connection, bound)
        for row in rows:
            if row[-1]:
                _owe_later.run_many(connection, [bound])
        return rows


def _if(condition: sa.ColumnElement[bool], *columns: str) -> Values:
    """Return these columns unchanged if the condition holds, otherwise NULL."""
    return {name: sa.case((condition, SESSION.c[name])) for name in columns}


# The beginning of a turn

_IS_SAME: Final = SESSION.c.lease_turn == text("turn_id")
_SEEN: Final = sa.case((has(ANSWERED | ANSWERED_BEFORE), _number(ANSWERED_BEFORE)), else_=_NONE)
_OTHERS_TAKEN: Final = sa.case(
    (sa.or_(has(GIVEN_UP), SESSION.c.owed_at == NEVER_STORED), _number(TAKEN_BEFORE | GIVEN_UP)),
    else_=_number(TAKEN_BEFORE),
)
_TAKEN_SO_FAR: Final = sa.case(
    (_IS_SAME, _bits(TAKEN | TAKEN_BEFORE | GIVEN_UP)), (has(TAKEN | TAKEN_BEFORE), _OTHERS_TAKEN), else_=_NONE
)

BEGUN: Final[Values] = {"owed_at": NOW, "waiting": _or(_bits(IN_INBOX | LATER), _SEEN, _TAKEN_SO_FAR)}
"""The values when the turn with the bound `turn_id` begins."""

_IS_NEW: Final = sa.case((SESSION.c.lease_turn.is_(None), _number(TO_TAKE)), else_=_bits(TO_TAKE))
CLAIMED: Final[Values] = BEGUN | {"waiting": _or(BEGUN["waiting"], _IS_NEW)}
"""The values when a worker claims the turn with the bound `turn_id`."""

COUNTED: Final[Values] = _if(_IS_SAME, "attempts", "last_error")
"""The count of attempts when a turn begins that no worker has claimed: that of another turn does not continue."""

# The end of a turn


def _taker() -> sa.ColumnElement[str]:
    """Return the turn that took the first of the messages of the log that were taken by other turns that are not saved.

    Messages that a turn has appended name it too, but only those from the inbox always have `logged_at`. Only the owner
    of the lease takes messages, so no other writer adds a turn to these while this one ends.
    """
    is_stored = sa.exists().where(of_session(TURN), TURN.c.id == MESSAGE.c.taken_by)
    is_other = sa.and_(MESSAGE.c.taken_by != SESSION.c.lease_turn, MESSAGE.c.logged_at.is_not(None))
    unsaved = (is_other, MESSAGE.c.turn_no.is_(None), ~is_stored)
    taken = sa.select(MESSAGE.c.taken_by).where(of_session(MESSAGE), *unsaved)
    return taken.order_by(MESSAGE.c.seq).limit(_number(1)).correlate(SESSION).scalar_subquery()


_NEXT: Final = sa.case((has(TAKEN_BEFORE), _taker()))
_NEXT_BITS: Final = _or(_number(TAKEN | TAKEN_BEFORE), _bits(GIVEN_UP))
_NEXT_TAKEN: Final = sa.case((_NEXT.is_not(None), _NEXT_BITS), else_=_NONE)

SAVED: Final[Values] = {
    "lease_token": sa.null(),
    "lease_turn": _NEXT,
    "lease_until": sa.null(),
    "waiting": _or(_bits(IN_INBOX | ANSWERED | LATER), _NEXT_TAKEN),
    "attempts": sa.null(),
    "last_error": sa.null(),
    "owed_at": sa.case(
        (sa.and_(has(GIVEN_UP), _NEXT.is_not(None)), NEVER_STORED),
        (sa.or_(has(IN_INBOX | ANSWERED), _NEXT.is_not(None)), SESSION.c.owed_at),
    ),
}
"""The values of an `EndOfTurn` that saves the turn: the session may still be owed an earlier turn."""

_UNSEEN: Final = _bits(ANSWERED_BEFORE).op(">>")(_number(1))
_UNANSWERED: Final = _or(_bits(IN_INBOX | ANSWERED), _UNSEEN)
NOT_SAVED: Final[Values] = {
    "lease_token": sa.null(),
    "lease_until": sa.null(),
    "waiting": _or(_UNANSWERED, _bits(TAKEN | TAKEN_BEFORE | GIVEN_UP | TO_TAKE | LATER)),
}
"""The values when a turn ends that is not saved, but is tried again."""

_WERE_LATER: Final = sa.and_(_UNANSWERED == _NONE, sa.exists().where(of_session(INBOX, SESSION.c.key)))
UNCLAIMED: Final[Values] = NOT_SAVED | {
    "lease_turn": sa.null(),
    "waiting": _or(_UNANSWERED, sa.case((_WERE_LATER, _number(IN_INBOX)), else_=_NONE), _bits(LATER)),
}
"""The values when a turn that a worker has claimed, and which did not exist before, ends before it has begun."""

_INTERRUPTED: Final = sa.case((has(TAKEN), SESSION.c.lease_turn), (has(TAKEN_BEFORE), _taker()))
_STILL_TAKEN: Final = sa.case(
    (has(TAKEN), _bits(TAKEN | TAKEN_BEFORE | GIVEN_UP)),
    (_INTERRUPTED.is_not(None), _NEXT_BITS),
    else_=_NONE,
)

RELEASED: Final[Values] = (
    NOT_SAVED
    | {
        "lease_turn": _INTERRUPTED,
        "waiting": _or(_UNANSWERED, _STILL_TAKEN, _bits(LATER)),
        "owed_at": sa.case(
            (sa.and_(~has(TAKEN), has(GIVEN_UP), _INTERRUPTED.is_not(None)), NEVER_STORED),
            (_or(_UNANSWERED, _STILL_TAKEN) != _NONE, SESSION.c.owed_at),
        ),
    }
    | _if(has(_ALL), "attempts", "last_error")
)
"""The values of an `EndOfTurn` that releases the lease: another turn is owed only if there is something for it."""

UNASKED: Final[Values] = {"waiting": _bits(_ALL - ANSWERED - ANSWERED_BEFORE | TO_TAKE | LATER)}
"""The values when the log ends elsewhere, so that no other answer is asked for. An `EndOfTurn` has to follow."""

RETRIED: Final[Values] = {"owed_at": NOW, "waiting": _bits(_ALL - GIVEN_UP | TO_TAKE | LATER)} | {
    "attempts": sa.null(),
    "last_error": sa.null(),
}
"""The values when turns that were given up are to be tried again."""

# The inbox


def arrived(what: int, at: sa.ColumnElement[datetime] = NOW) -> Values:
    """Return the values when a message or an answer arrives, by default at the bound `now`."""
    owed_at = sa.case((sa.and_(IS_LATER, SESSION.c.owed_at > at), at), else_=sa.func.coalesce(SESSION.c.owed_at, at))
    return {"owed_at": owed_at, "waiting": _WAITING.op("|")(_number(what))}


_HAS_OTHERS: Final = sa.or_(has(_ALL - IN_INBOX), SESSION.c.lease_turn.is_not(None))
EMPTIED: Final[Values] = {
    "waiting": _bits(_ALL - IN_INBOX | TO_TAKE | LATER),
    "owed_at": sa.case((_HAS_OTHERS, SESSION.c.owed_at), (has(LATER), _FIRST_LATER)),
} | _if(_HAS_OTHERS, "attempts", "last_error")
"""The values when the inbox has no messages for the next turn any more, although no turn has taken them. The row has to
be locked."""

ALL_TAKEN: Final[Values] = {"waiting": _or(_bits(_ALL - IN_INBOX | LATER), _number(TAKEN))}
"""The values when a turn takes all messages of the inbox that are due."""
