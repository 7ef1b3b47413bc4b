"""Owed turns: the columns `owed_at`, `waiting` and `attempts` of a session's row, by which workers find them.

A session is owed a turn while `owed_at` is set: from the beginning of a turn to its end, and while a message or an
answer waits for a turn. Each statement that changes this computes the new values from the locked row alone, so that a
message that arrives while a turn ends is never overlooked.
"""

from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations.binds import MESSAGE, NOW, SESSION, TURN, of_session, text
from lango_store._rooms.turns_in_progress.tables import INBOX
from lango_store._rows.columns import TimeColumn
from lango_store._rows.encoding import encode_time_text

IN_INBOX: Final = 1
"""Messages wait in the inbox."""
ANSWERED: Final = 2
"""A suspension was answered, and no turn has begun since."""
ANSWERED_BEFORE: Final = 4
"""A suspension was answered before the open turn began."""
TAKEN: Final = 8
"""The turn in `lease_turn`, which is not saved, has taken messages from the inbox."""
TAKEN_BEFORE: Final = 16
"""Another turn that is not saved has taken messages from the inbox."""
GIVEN_UP: Final = 32
"""Such another turn was given up."""
TO_TAKE: Final = 64
"""A worker has claimed the turn in `lease_turn`, which has not yet taken the messages that wait in the inbox."""
LATER: Final = 128
"""Messages were put into the inbox for a later time. It stays set; if nothing else is owed, `owed_at` is their time."""

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


_IS_LATER: Final = sa.and_(SESSION.c.lease_turn.is_(None), has(LATER), _bits(_ALL) == _NONE)
IS_FUTURE: Final = sa.and_(_IS_LATER, SESSION.c.owed_at > NOW)
"""Matches sessions that are owed nothing but a turn at a later time."""

_first_later: Final = sa.select(sa.func.min(INBOX.c.due_at)).where(of_session(INBOX, SESSION.c.key))
_LATER_AT: Final = sa.case((has(LATER), _first_later.correlate(SESSION).scalar_subquery()))


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

_TO_BE_TAKEN: Final = _bits(IN_INBOX).op("<<")(_number(6)), _bits(LATER).op(">>")(_number(1))
CLAIMED: Final[Values] = BEGUN | {"waiting": _or(BEGUN["waiting"], *_TO_BE_TAKEN)}
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
        else_=_LATER_AT,
    ),
}
"""The values when a turn is saved: the session may still be owed an earlier turn."""

_UNSEEN: Final = _bits(ANSWERED_BEFORE).op(">>")(_number(1))
_UNANSWERED: Final = _or(_bits(IN_INBOX | ANSWERED), _UNSEEN)
NOT_SAVED: Final[Values] = {
    "lease_token": sa.null(),
    "lease_until": sa.null(),
    "waiting": _or(_UNANSWERED, _bits(TAKEN | TAKEN_BEFORE | GIVEN_UP | TO_TAKE | LATER)),
}
"""The values when a turn ends that is not saved, but is tried again."""

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
            else_=_LATER_AT,
        ),
    }
    | _if(has(_ALL), "attempts", "last_error")
)
"""The values when a lease is released: another turn is owed only if there is something for it."""

RETRIED: Final[Values] = {"owed_at": NOW, "waiting": _bits(_ALL - GIVEN_UP | TO_TAKE | LATER), "attempts": sa.null()}
"""The values when turns that were given up are to be tried again."""

# The inbox


def arrived(what: int, at: sa.ColumnElement[datetime] = NOW) -> Values:
    """Return the values when a message or an answer arrives, by default at the bound `now`."""
    owed_at = sa.case((sa.and_(_IS_LATER, SESSION.c.owed_at > at), at), else_=sa.func.coalesce(SESSION.c.owed_at, at))
    return {"owed_at": owed_at, "waiting": _WAITING.op("|")(_number(what))}


_HAS_OTHERS: Final = sa.or_(has(_ALL - IN_INBOX), SESSION.c.lease_turn.is_not(None))
EMPTIED: Final[Values] = {
    "waiting": _bits(_ALL - IN_INBOX | LATER),
    "owed_at": sa.case((_HAS_OTHERS, SESSION.c.owed_at), else_=_LATER_AT),
} | _if(_HAS_OTHERS, "attempts", "last_error")
"""The values when the inbox has no messages for the next turn any more, although no turn has taken them."""

ALL_TAKEN: Final[Values] = {"waiting": _or(_bits(_ALL - IN_INBOX | LATER), _number(TAKEN))}
"""The values when a turn takes all messages of the inbox that are due."""
