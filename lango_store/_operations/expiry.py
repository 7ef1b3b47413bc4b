"""Which sessions go, and their going: chosen, kept if somebody asks, and deleted, a batch a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Dialect, dialect_of
from lango_store._operations.binds import SESSION, of_session, of_sessions, session_key
from lango_store._operations.lists import aware, end_of_prefix
from lango_store._operations.rows import SESSION_COLUMNS, decode_session, session_value
from lango_store._operations.sessions import MAX_TTL
from lango_store._rows.encoding import encode_text
from lango_store._values.model import SessionInfo
from lango_store.tables import expired_at

MAX_BATCH: Final = 10_000

Keep = Callable[[sa.Connection, Sequence[str]], None]
"""Called with the keys of a batch before it is deleted; returns when they are safe elsewhere."""


@dataclass(frozen=True)
class Purged:
    """What one batch came to; `bytes_freed` is None where the database does not tell."""

    sessions: int
    messages: int
    bytes_freed: int | None


@dataclass(frozen=True)
class Reason:
    """A condition to go, and the order in which its sessions go: an index's, past what was deleted before."""

    condition: sa.ColumnElement[bool]
    order: sa.Column[Any]


@dataclass(frozen=True)
class Policy:
    """Which sessions go: those past their TTL, and, where given, those idle or kept for too long.

    `agent_id`, `user_id` and `key_prefix` narrow all of that down. With `everything`, all that is narrowed down to.
    """

    older_than: timedelta | None = None
    created_before: datetime | None = None
    agent_id: str | None = None
    user_id: str | None = None
    key_prefix: str | None = None
    everything: bool = False

    def reasons(self, now: datetime) -> list[Reason]:
        """Return the reasons to go, each by itself, so that an index can serve it."""
        if self.everything:
            return [Reason(sa.true(), SESSION.c.key)]
        reasons = [Reason(expired_at(now), SESSION.c.expires_at)]
        if self.older_than is not None:
            if not timedelta(0) <= self.older_than <= MAX_TTL:
                raise ValueError(f"older_than={self.older_than} is not between 0 and 100 years: give another timedelta")
            reasons.append(Reason(SESSION.c.updated_at <= now - self.older_than, SESSION.c.updated_at))
        if self.created_before is not None:
            reasons.append(Reason(SESSION.c.created_at < aware(self.created_before), SESSION.c.created_at))
        return reasons

    def narrowed(self) -> list[sa.ColumnElement[bool]]:
        """Return what has to hold of a session in any case."""
        conditions: list[sa.ColumnElement[bool]] = []
        if self.agent_id is not None:
            conditions.append(SESSION.c.agent_id == encode_text(self.agent_id, "agent_id"))
        if self.user_id is not None:
            conditions.append(SESSION.c.user_id == encode_text(self.user_id, "user_id"))
        if self.key_prefix is not None:
            prefix = encode_text(self.key_prefix, "key_prefix") or ""
            conditions += [SESSION.c.key >= prefix, SESSION.c.key < end_of_prefix(prefix)]
        return conditions


def purge(
    connection: sa.Connection,
    reason: Reason,
    narrowed: Sequence[sa.ColumnElement[bool]],
    most: int,
    keep: Keep | None,
    *,
    patient: bool,
) -> Purged:
    """Delete at most so many sessions that go for one reason, and all that belongs to them.

    They are locked when they are chosen: an append that came first is seen and its session stays, one that comes later
    finds none. Sessions that somebody else has locked are left alone, unless `patient` waits for them.
    """
    dialect = dialect_of(connection)
    free = dialect.free_bytes(connection)
    due = sa.select(SESSION.c.key).where(reason.condition, *narrowed)
    chosen = due.order_by(reason.order).limit(most)
    locking = chosen.with_for_update(skip_locked=not patient)
    if keep is None and dialect.locks_many:
        goes = dialect.key_in(
            SESSION.c.key, sa.select(locking.cte("chosen").c.key)
        )  # by a CTE, so that it is chosen once
    else:
        keys = connection.execute(locking if dialect.locks_many else chosen).scalars().all()
        if not dialect.locks_many:
            keys = _locked(connection, due.with_for_update(skip_locked=not patient), keys)
        if keys and keep is not None:
            keep(connection, keys)
        goes = of_sessions(SESSION, keys)
    sessions, messages = _delete(connection, dialect, goes)
    after = dialect.free_bytes(connection)
    freed = None if free is None or after is None else after - free
    return Purged(sessions, messages, freed)


def _delete(connection: sa.Connection, dialect: Dialect, goes: sa.ColumnElement[bool]) -> tuple[int, int]:
    """Delete sessions and all that belongs to them; return how many, and how many messages they had."""
    if dialect.modifying_cte:  # no key travels
        gone = sa.delete(SESSION).where(goes).returning(SESSION.c.key, SESSION.c.message_count).cte("gone")
        counted = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(gone.c.message_count), 0))
        sessions, messages = connection.execute(counted).one()
        return sessions, int(messages)
    counts = connection.execute(sa.delete(SESSION).where(goes).returning(SESSION.c.message_count)).scalars().all()
    return len(counts), sum(counts)


def _locked(connection: sa.Connection, due: sa.Select[Any], keys: Sequence[str]) -> Sequence[str]:
    """Lock sessions one by one, and return those that are still due."""
    one = due.where(of_session(SESSION, session_key("key")))
    found = (connection.execute(one, {"key": each}).scalar() for each in keys)
    return [key for key in found if key is not None]


def preview(
    connection: sa.Connection,
    reasons: Sequence[Reason],
    narrowed: Sequence[sa.ColumnElement[bool]],
    limit: int | None,
    shown: int,
) -> tuple[int, int, list[SessionInfo]]:
    """Return what would be purged, in the order in which it would go: sessions, messages, and the first of them."""
    turn = sa.case(*((reason.condition, place) for place, reason in enumerate(reasons)))
    within = sa.case(*((reason.condition, reason.order) for reason in reasons))
    conditions = (sa.or_(*(reason.condition for reason in reasons)), *narrowed)
    chosen = sa.select(SESSION.c.message_count).where(*conditions).order_by(turn, within).limit(limit).subquery()
    totals = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(chosen.c.message_count), 0))
    sessions, messages = connection.execute(totals).one()
    first = sa.select(*SESSION_COLUMNS).where(*conditions)
    listed = first.order_by(turn, within).limit(shown if limit is None else min(shown, limit))
    return (
        sessions,
        int(messages),
        [session_value(SessionInfo, decode_session(row)) for row in connection.execute(listed)],
    )
