"""Leases: one turn at a time may run on a session.

The owner of a turn in progress is a random token in the session's row. A write that needs the lease compares the token,
so it is refused as soon as another process has taken over. `lease_until` only decides when another process may do so.
"""

from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations import sessions
from lango_store._operations.append_statements import lease_end
from lango_store._operations.binds import LIVE, LIVE_SESSION, NOW, SESSION, TURN, number, of_session, text
from lango_store._operations.rows import session_value, stored_time, whole_number
from lango_store._operations.sessions import Lease
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.model import OpenTurn
from lango_store.errors import TurnInProgress

_LISTED: Final = 1_000

_HELD: Final = SESSION.c.lease_until > NOW
_OPEN: Final = [SESSION.c.key, SESSION.c.lease_turn, as_stored(SESSION.c.lease_until), _HELD, SESSION.c.lease_token]

_IS_OPEN: Final = sa.and_(LIVE, SESSION.c.lease_token.is_not(None))
_IS_STORED: Final = sa.exists().where(of_session(TURN), TURN.c.id == text("turn_id"))

# Take and release


def _take(dialect: Dialect) -> sa.Executable:
    token = number("lease_token")
    is_free = sa.or_(SESSION.c.lease_token.is_(None), SESSION.c.lease_token == token, SESSION.c.lease_until <= NOW)
    taken = {"lease_token": token, "lease_turn": text("turn_id"), "lease_until": lease_end(dialect)}
    return sa.update(SESSION).where(LIVE_SESSION, is_free, ~_IS_STORED).values(taken).returning(SESSION.c.key)


_taken: Final = Statement(_take)


def take(connection: sa.Connection, now: datetime, key: str, turn_id: str, lease: Lease) -> bool:
    """Take the lease of a live session for a turn, and lock the session's row.

    Returns False if another turn has the lease. Also returns False if the turn is stored: its replay must not take the
    lease of a turn that is late.
    """
    bound = lease.bound(connection, now) | {"key": checked_key(key), "turn_id": turn_id}
    return bool(_taken.run(connection, bound))


_FREE: Final = {"lease_token": sa.null(), "lease_turn": sa.null(), "lease_until": sa.null()}
_release: Final = Statement(
    lambda _: (
        sa.update(SESSION)
        .where(of_session(SESSION), SESSION.c.lease_token == number("lease_token"))
        .values(_FREE)
        .returning(SESSION.c.key)
    )
)


def release(connection: AnyConnection, _: Moment, key: str, token: int) -> bool:
    """Release a lease; False if the session does not have it."""
    return bool(_release.run(connection, {"key": key, "lease_token": token}))


def release_any(connection: sa.Connection, now: datetime, key: str) -> OpenTurn | None:
    """Release the lease of a live session, whoever has it; return the turn that had it."""
    sessions.lock(connection, now, key)
    current = find(connection, now, key)
    if current is not None:
        connection.execute(sa.update(SESSION).where(of_session(SESSION, key)).values(_FREE))
    return current


_extend: Final = Statement(
    lambda dialect: (
        sa.update(SESSION)
        .where(LIVE_SESSION, SESSION.c.lease_token == number("lease_token"))
        .values(lease_until=lease_end(dialect))
        .returning(SESSION.c.key)
    )
)


def extend(connection: AnyConnection, now: Moment, key: str, lease: Lease) -> None:
    """Extend a lease, and lock the session's row; raise `LeaseLost` if another process has taken over."""
    if not _extend.run(connection, lease.bound(connection, now) | {"key": key}):
        sessions.raise_unmatched(connection, now, key)
        sessions.check_lease(connection, key, lease)
        raise sessions.not_permitted(key)


# Read

_find: Final = Statement(lambda _: sa.select(*_OPEN).where(of_session(SESSION), _IS_OPEN))
_all: Final = Statement(lambda _: sa.select(*_OPEN).where(_IS_OPEN).order_by(SESSION.c.lease_until).limit(_LISTED))


def find(connection: AnyConnection, now: Moment, key: str) -> OpenTurn | None:
    """Return the turn in progress of a live session, or None."""
    rows = _find.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)})
    if not rows:
        sessions.raise_unmatched(connection, now, key)
        return None
    return _decoded(rows[0])


_blocking: Final = Statement(lambda _: sa.select(*_OPEN).where(of_session(SESSION), _IS_OPEN, _HELD, ~_IS_STORED))


def check_free(connection: AnyConnection, now: Moment, key: str, turn_id: str) -> None:
    """Raise `TurnInProgress` if the turn is not stored and another turn has the lease of a live session."""
    for row in _blocking.run(connection, {"key": key, "now": dialect_of(connection).time(now), "turn_id": turn_id}):
        current = _decoded(row)
        raise TurnInProgress(key, current.id, current.until)


def read(connection: AnyConnection, now: Moment) -> list[OpenTurn]:
    """Return the turns in progress of all live sessions, those whose lease ended first before others; at most 1,000."""
    return [_decoded(row) for row in _all.run(connection, {"now": dialect_of(connection).time(now)})]


def _decoded(row: Any) -> OpenTurn:
    key, turn_id, until, held, token = row
    until = stored_time(key, "lease_until", until)
    fields = {"key": key, "id": turn_id, "until": until, "held": bool(held), "draft_id": draft_id(key, token)}
    return session_value(OpenTurn, fields)


def draft_id(key: str, token: int) -> str:
    """Return the id of the draft that the holder of a lease writes."""
    return f"{whole_number(key, 'lease_token', token):016x}"
