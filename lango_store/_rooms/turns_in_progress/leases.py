"""Leases: one turn at a time may run on a session.

A random token in the session's row identifies the owner of the turn in progress. A write that needs the lease compares
the token, so the write is refused as soon as another owner has taken over, or the lease was released. `lease_until`
only decides when another owner may take over.
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple
from weakref import WeakValueDictionary

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, IfTimeBound, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import (
    IS_STORED_TURN,
    LIVE,
    NOW,
    SESSION,
    column,
    number,
    of_session,
    session_key,
    text,
    time,
)
from lango_store._operations.rows import session_value, stored_time, whole_number
from lango_store._operations.session import lists, sessions
from lango_store._operations.session.guards import GuardSql
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import Expected
from lango_store._rooms.turns_in_progress import owed
from lango_store._rooms.turns_in_progress.errors import LeaseLost, TurnInProgress
from lango_store._rooms.turns_in_progress.tables import DRAFT
from lango_store._rooms.turns_in_progress.values import OpenTurn
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message, MessageRole
from lango_store._values.reports import Page

SHORTEST_LEASE: Final = timedelta(milliseconds=1)

HELD: Final = SESSION.c.lease_until > NOW
"""The condition that the lease has not ended; NULL without a lease."""

_OPEN: Final = [SESSION.c.key, SESSION.c.lease_turn, as_stored(SESSION.c.lease_until), HELD, SESSION.c.lease_token]

_IS_OPEN: Final = sa.and_(LIVE, SESSION.c.lease_token.is_not(None))


def new_token() -> int:
    """Return a random number that identifies the owner of a lease or of a call."""
    return secrets.randbits(62)  # backups refuse larger numbers


@dataclass
class Pieces:
    """The pieces of the answer that a turn is streaming. The first `flushed` pieces are stored, since `flushed_at`."""

    texts: list[str] = field(default_factory=list)
    flushed: int = 0
    flushed_at: float = float("-inf")

    def forget(self) -> None:
        """Begin the next answer."""
        self.texts, self.flushed, self.flushed_at = [], 0, float("-inf")


class Lost(threading.Event):
    """Set when a turn is known to have lost its lease.

    Attributes:
        calls: Functions that are called with True if a write of the turn has found it out, which raises `LeaseLost`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[bool], object]] = []

    def note(self, *, by_write: bool = False) -> None:
        """Set the event, and call the functions."""
        self.set()
        for call in [*self.calls]:
            call(by_write)


def _end(dialect: Dialect, now: sa.ColumnElement[datetime] = NOW) -> dict[str, Any]:
    """Return the new end of a lease: the bound `lease_until` if `now` is bound, else server time plus the seconds."""
    seconds: sa.BindParameter[float] = sa.bindparam("lease_seconds", type_=sa.Double(), required=True)
    return {"lease_until": IfTimeBound(column(SESSION.c.lease_until), dialect.next_expiry(now, seconds))}


IS_OURS: Final = SESSION.c.lease_token == number("lease_token")
"""Matches the session if it has the bound lease."""


@dataclass(frozen=True)
class Lease:
    """The lease of a turn in progress: a random token in the session's row, and the seconds after which it ends.

    It is the guard of the turn's writes, which extend it. All writers that have the lease share the turn's `draft`.
    """

    sql: ClassVar = GuardSql((IS_OURS,), _end)

    token: int
    seconds: float
    turn_id: str
    draft: Pieces = field(default_factory=Pieces, compare=False)
    lost: Lost = field(default_factory=Lost, compare=False)

    def bound(self, dialect: Dialect, now: Moment) -> dict[str, Any]:
        """Return the values to bind, besides `now`, in a statement that needs the lease and extends it."""
        until = None if now is None else dialect.time(now + timedelta(seconds=self.seconds))
        return {"lease_token": self.token, "lease_seconds": self.seconds, "lease_until": until}

    def check(self, connection: AnyConnection, key: str) -> None:
        """Raise `LeaseLost` if the session no longer has the lease."""
        for token, last_seq in _token.run(connection, {"key": key}):
            if token != self.token:
                self.lost.note(by_write=True)
                raise LeaseLost(key, last_seq)

    def renew(self, connection: AnyConnection, now: Moment, key: str) -> None:
        """Extend the lease, and lock the session's row; raise `LeaseLost` if the session no longer has it."""
        if not _run(_extend, connection, now, key, self):
            sessions.raise_unmatched(connection, now, key, Expected(guard=self), tries_left=0)

    def needs_more(self, new: Sequence[Message]) -> bool:
        """Return True for an answer that has a draft: the answer ends the draft, which is deleted."""
        return bool(self.draft.texts) and any(each.role.canonical is MessageRole.ASSISTANT for each in new)

    def write_more(self, connection: AnyConnection, key: str) -> None:
        """Delete the draft of an answer."""
        delete_draft(connection, key, self.token)

    def note_more(self) -> None:
        """Begin the draft of the next answer."""
        self.draft.forget()


OF_PROCESS: Final = WeakValueDictionary[int, Lost]()
"""The events of the turns of this process, by the tokens of their leases."""


def note_lost(token: int | None) -> None:
    """Note that a lease was taken away, if a turn of this process had it."""
    if token is not None and (lost := OF_PROCESS.get(token)) is not None:
        lost.note()


_token: Final = Statement(lambda _: sa.select(SESSION.c.lease_token, SESSION.c.last_seq).where(of_session(SESSION)))

# Take and release

_TOKEN: Final = number("lease_token")
_ATTEMPTS: Final = sa.func.coalesce(SESSION.c.attempts, sa.literal_column("0", sa.BigInteger()))
_IS_FREE: Final = sa.or_(SESSION.c.lease_token.is_(None), IS_OURS, SESSION.c.lease_until <= NOW)


def _update(values: Callable[[Dialect], Mapping[str, Any]], *conditions: sa.ColumnElement[bool]) -> Statement:
    """Return a statement that, if the conditions hold, locks the session's row and changes its lease."""
    update = sa.update(SESSION).where(of_session(SESSION), *conditions).returning(SESSION.c.key)
    return Statement(lambda dialect: update.values(values(dialect)))


_take: Final = _update(
    lambda dialect: {"lease_token": _TOKEN, "lease_turn": text("turn_id")} | _end(dialect) | owed.BEGUN | owed.COUNTED,
    LIVE,
    _IS_FREE,
    ~IS_STORED_TURN,
)
_OURS: Final = sa.update(SESSION).where(of_session(SESSION), IS_OURS).returning(SESSION.c.key)
_release: Final = owed.EndOfTurn(lambda _: _OURS.values(owed.RELEASED))
_TURN: Final = text("turn_id")
_claim: Final = _update(
    lambda dialect: (
        {"lease_token": _TOKEN, "lease_turn": _TURN}
        | _end(dialect)
        | {"attempts": _ATTEMPTS + number("counted")}
        | owed.CLAIMED
    ),
    LIVE,
    SESSION.c.owed_at.is_not(None),
    owed.IS_ENDED,
    ~owed.IS_FUTURE,
    sa.func.coalesce(SESSION.c.lease_turn, _TURN) == _TURN,
)
_set_attempts: Final = _update(lambda _: {"attempts": column(SESSION.c.attempts)}, IS_OURS)
_POSTPONED: Final = {
    "owed_at": column(SESSION.c.owed_at),
    "attempts": column(SESSION.c.attempts),
    "last_error": sa.func.coalesce(column(SESSION.c.last_error), SESSION.c.last_error),
}
_postpone: Final = _update(lambda _: owed.NOT_SAVED | _POSTPONED, IS_OURS)
_unclaim: Final = _update(lambda _: owed.UNCLAIMED | _POSTPONED, IS_OURS)
_settle: Final = owed.EndOfTurn(lambda _: _OURS.values(owed.SAVED))
_extend: Final = _update(_end, LIVE, IS_OURS)
_seize: Final = _update(
    lambda dialect: {"lease_token": _TOKEN, "lease_turn": _TURN, "owed_at": NOW} | _end(dialect), LIVE
)


def _run(statement: Statement, connection: AnyConnection, now: Moment, key: str, lease: Lease, **bound: Any) -> bool:
    dialect = dialect_of(connection)
    bound |= lease.bound(dialect, now) | {"key": key, "now": dialect.time(now)}
    return bool(statement.run(connection, bound))


def take(connection: AnyConnection, now: Moment, key: str, turn_id: str, lease: Lease) -> bool:
    """Take the lease of a live session for a turn, and lock the session's row.

    Returns False if the session is not live, or if another owner has the lease and the lease has not ended. Also
    returns False if the turn is already stored: replaying it must not take the lease from another turn.
    """
    return _run(_take, connection, now, key, lease, turn_id=turn_id)


def claim(connection: AnyConnection, now: Moment, key: str, turn_id: str, lease: Lease, *, counts: bool) -> bool:
    """Take the lease of a live session for the turn that it is owed; return False if none is owed.

    With `counts`, count the attempt now, because its process may die and never report its end.
    """
    return _run(_claim, connection, now, key, lease, turn_id=turn_id, counted=int(counts))


def seize(connection: AnyConnection, now: Moment, key: str, lease: Lease) -> None:
    """Take the lease of a locked session for its turn, whoever has it. What is owed besides is due now."""
    if not _run(_seize, connection, now, key, lease, turn_id=lease.turn_id):
        raise sessions.not_permitted(key)


def set_attempts(connection: AnyConnection, key: str, token: int, attempts: int) -> None:
    """Change the number of attempts that count, if the session still has the lease."""
    _set_attempts.run(connection, {"key": key, "lease_token": token, "attempts": attempts})


def settle(connection: sa.Connection, _: datetime, key: str, token: int) -> None:
    """Release the lease of a turn that is already stored, as the end of the turn does."""
    _settle.run(connection, {"key": key, "lease_token": token})


class Retry(NamedTuple):
    """When a failed turn is tried again: the attempts that count, the pause, or None to give up, and the error.

    With `unclaims`, another turn follows instead, if there is still something for it.
    """

    attempts: int
    pause: timedelta | None = timedelta(0)
    error: str | None = None
    unclaims: bool = False


def postpone(connection: sa.Connection, now: datetime, key: str, token: int, retry: Retry) -> bool:
    """Release the lease of a turn that is to be tried again; return False if the session does not have it."""
    owed_at = dialect_of(connection).time(owed.NEVER if retry.pause is None else now + retry.pause)
    bound = {"owed_at": owed_at, "attempts": retry.attempts, "last_error": retry.error}
    statement = _unclaim if retry.unclaims else _postpone
    return bool(statement.run(connection, bound | {"key": key, "lease_token": token}))


def release(connection: AnyConnection, key: str, token: int) -> bool:
    """Release a lease; return False if the session does not have it."""
    return bool(_release.run(connection, {"key": key, "lease_token": token}))


_unask: Final = Statement(
    sa.update(SESSION)
    .where(of_session(SESSION), owed.has(owed.ANSWERED | owed.ANSWERED_BEFORE))
    .values(owed.UNASKED)
    .returning(SESSION.c.key)
)
_of_any: Final = sa.update(SESSION).where(of_session(SESSION)).returning(SESSION.c.key)
_release_unasked: Final = owed.EndOfTurn(lambda _: _of_any.values(owed.RELEASED))


def end_request(connection: sa.Connection, key: str) -> None:
    """End the request for another answer to a log that ends elsewhere now; the row has to be locked, and be free."""
    if _unask.run(connection, {"key": key}):
        _release_unasked.run(connection, {"key": key})


def release_any(connection: sa.Connection, now: datetime, key: str) -> OpenTurn | None:
    """Release the lease of a live session, whoever has it; return the turn that had it."""
    sessions.lock(connection, now, key)
    current = find(connection, now, key)
    if current is not None:
        release(connection, key, int(current.draft_id, 16))
    return current


# Read

_find: Final = Statement(lambda _: sa.select(*_OPEN).where(of_session(SESSION), _IS_OPEN))


@cache
def _page(names: tuple[str, ...], *, first: bool) -> Statement:
    query = sa.select(*_OPEN).where(_IS_OPEN).order_by(SESSION.c.lease_until, SESSION.c.key).limit(lists.LIMIT)
    after = sa.tuple_(SESSION.c.lease_until, SESSION.c.key) > sa.tuple_(time("cursor_time"), session_key("cursor_key"))
    of_page = () if first else (after,)
    return Statement(lambda dialect: query.where(*lists.conditions(dialect, names), *of_page))


def find(connection: AnyConnection, now: Moment, key: str) -> OpenTurn | None:
    """Return the turn in progress of a live session, even if its lease has ended; None if there is none."""
    rows = _find.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)})
    if not rows:
        sessions.raise_unmatched(connection, now, key)
        return None
    return _decoded(rows[0])


_blocking: Final = Statement(lambda _: sa.select(*_OPEN).where(of_session(SESSION), _IS_OPEN, HELD, ~IS_STORED_TURN))


def check_free(connection: AnyConnection, now: Moment, key: str, turn_id: str) -> None:
    """Raise `TurnInProgress` if the session is live and its lease has not ended, unless `turn_id` is stored."""
    for row in _blocking.run(connection, {"key": key, "now": dialect_of(connection).time(now), "turn_id": turn_id}):
        current = _decoded(row)
        raise TurnInProgress(key, current.id, current.until)


def page(connection: AnyConnection, now: Moment, chosen: Filter, limit: int, cursor: str | None) -> Page[OpenTurn]:
    """Return a page of the turns in progress of chosen sessions, in the order in which their leases end."""
    lists.check_limit(limit)
    dialect = dialect_of(connection)
    bound = chosen.values(dialect, now) | {"limit": limit + 1}
    if cursor is not None:
        _, moment, bound["cursor_key"] = lists.read_cursor(cursor, "turns.list_in_progress")
        bound["cursor_time"] = dialect.time(moment)
    items = [_decoded(row) for row in _page(chosen.names, first=cursor is None).run(connection, bound)]
    return lists.page_of(Page[OpenTurn], items, limit, lambda last: ("open", last.until, last.key))


def _decoded(row: Any) -> OpenTurn:
    key, turn_id, until, held, token = row
    until = stored_time(key, "lease_until", until)
    fields = {"key": key, "id": turn_id, "until": until, "held": bool(held), "draft_id": draft_id(key, token)}
    return session_value(OpenTurn, fields)


def draft_id(key: str, token: int) -> str:
    """Return the id of the draft that the holder of a lease writes."""
    return f"{whole_number(key, 'lease_token', token):016x}"


_delete_draft: Final = Statement(
    lambda _: sa.delete(DRAFT).where(of_session(DRAFT), DRAFT.c.token == number("token")).returning(DRAFT.c.n)
)


def delete_draft(connection: AnyConnection, key: str, token: int) -> bool:
    """Delete the draft that the holder of a lease has written; return False if there is none."""
    return bool(_delete_draft.run(connection, {"key": key, "token": token}))
