"""Owed turns: the columns `owed_at`, `waiting` and `attempts` of a session's row, by which workers find them.

A session is owed a turn while `owed_at` is set: from the beginning of a turn to its end, and while a message or an
answer waits for a turn. Each statement that changes this computes the new values from the locked row alone, so that a
message that arrives while a turn ends is never overlooked.
"""

from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations.binds import NOW, SESSION

IN_INBOX: Final = 1
"""Messages wait in the inbox."""
ANSWERED: Final = 2
"""A suspension was answered, and no turn has begun since."""
ANSWERED_BEFORE: Final = 4
"""A suspension was answered before the open turn began."""
TAKEN: Final = 8
"""A turn that is not saved has taken messages from the inbox."""

NEVER: Final = datetime.max.replace(tzinfo=UTC)
"""The `owed_at` of a turn that was given up."""

Values = dict[str, Any]


def _number(value: int) -> sa.ColumnElement[int]:
    return sa.literal_column(str(value), sa.BigInteger())


_WAITING: Final = sa.func.coalesce(SESSION.c.waiting, _number(0))


def _bits(mask: int) -> sa.ColumnElement[int]:
    return _WAITING.op("&")(_number(mask))


def _if(bits: sa.ColumnElement[int], value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.case((bits != _number(0), value))


_BEFORE: Final = sa.case((_bits(ANSWERED | ANSWERED_BEFORE) != _number(0), _number(ANSWERED_BEFORE)), else_=_number(0))

BEGUN: Final[Values] = {"owed_at": NOW, "waiting": _bits(IN_INBOX | TAKEN).op("|")(_BEFORE)}
"""The values when a turn begins."""

SAVED: Final[Values] = {
    "owed_at": _if(_bits(IN_INBOX | ANSWERED), SESSION.c.owed_at),
    "waiting": _bits(IN_INBOX | ANSWERED),
    "attempts": sa.null(),
    "last_error": sa.null(),
}
"""The values when a turn is saved."""

_UNSEEN: Final = _bits(ANSWERED_BEFORE).op(">>")(_number(1))
_REMAINING: Final = _bits(IN_INBOX | ANSWERED | TAKEN).op("|")(_UNSEEN)
NOT_SAVED: Final[Values] = {"lease_token": sa.null(), "lease_until": sa.null(), "waiting": _REMAINING}
"""The values when a turn ends that is not saved, but is tried again."""

RELEASED: Final[Values] = NOT_SAVED | {
    "owed_at": _if(_REMAINING, SESSION.c.owed_at),
    "lease_turn": _if(_bits(TAKEN), SESSION.c.lease_turn),
}
"""The values when a lease is released: another turn is owed only if there is something for it."""


def arrived(what: int) -> Values:
    """Return the values when a message or an answer arrives; `now` must be bound."""
    return {"owed_at": sa.func.coalesce(SESSION.c.owed_at, NOW), "waiting": _WAITING.op("|")(_number(what))}


EMPTIED: Final[Values] = {
    "owed_at": sa.case(
        (sa.or_(_bits(~IN_INBOX & 15) != _number(0), SESSION.c.lease_turn.is_not(None)), SESSION.c.owed_at)
    ),
    "waiting": _bits(~IN_INBOX & 15),
}
"""The values when the last message of the inbox is dropped."""

ALL_TAKEN: Final[Values] = {"waiting": _bits(~IN_INBOX & 15).op("|")(_number(TAKEN))}
"""The values when a turn takes all messages of the inbox."""
