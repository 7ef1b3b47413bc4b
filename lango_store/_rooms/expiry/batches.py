"""A purge works in batches; each batch locks sessions that are due, archives them if requested and deletes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE_SESSION, NOW, SESSION, of_session, of_sessions, session_key
from lango_store._operations.paging import chunks
from lango_store._operations.rows import SESSION_COLUMNS, session_info
from lango_store._operations.session import levels
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import MAX_TTL, NOT_ON_HOLD, REVISED, check_duration, raise_unmatched
from lango_store._rows.encoding import aware, checked_key
from lango_store._values.model import SessionInfo
from lango_store.tables import expired_at

MAX_BATCH: Final = 10_000
_ON_HOLD: Final = sa.select(SESSION.c.key, SESSION.c.hold).where(~NOT_ON_HOLD)
_ROWS: Final = SESSION.c.message_count + SESSION.c.record_count + SESSION.c.turn_count + 1

ArchiveBatch = Callable[[sa.Connection, Sequence[str]], AbstractContextManager[Any]]
"""Copies the sessions of a batch to an archive. Leaving its block commits the copy; an error in the block undoes it.

Another room can pass a function with another purpose. The value of its block is noted in the `PurgedBatch`.
"""


class PurgedBatch(NamedTuple):
    """The numbers of sessions and messages that were deleted, and of sessions count towards the limit of the purge.

    `notes` has the values of the blocks of `ArchiveBatch`, and `on_hold` the descendants that have a hold.
    """

    sessions: int
    messages: int
    counted: int
    notes: tuple[Any, ...] = ()
    on_hold: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Reason:
    """A condition under which sessions are due, and the columns by which they are ordered; the first has an index."""

    condition: sa.ColumnElement[bool]
    order: tuple[sa.Column[Any], ...]


class PurgeBatch(NamedTuple):
    """The first sessions that are due for one reason, match a filter and meet all conditions, up to two limits."""

    reason: Reason
    which: Filter
    conditions: Sequence[sa.ColumnElement[bool]]
    max_sessions: int
    max_rows: int
    only: Sequence[sa.ColumnElement[bool]] = ()
    """The conditions that descendants must meet too."""

    def of_user(self, user_id: str) -> Self:
        """Return a batch of a user's sessions only."""
        return self._replace(which=self.which.of_user(user_id))


@dataclass(frozen=True)
class PurgePolicy:
    """The sessions to purge: expired ones and, if set, those idle for `older_than` or created before `created_before`.

    `which` restricts the purge. With `everything`, all sessions that match it are purged. With `descendants`, the
    descendants of each purged session are purged with it. Expired sessions are purged `grace` after their expiry. All
    purged sessions, descendants included, meet the conditions `only`.
    """

    which: Filter
    older_than: timedelta | None = None
    created_before: datetime | None = None
    everything: bool = False
    descendants: bool = False
    grace: timedelta = timedelta(0)
    only: Sequence[sa.ColumnElement[bool]] = ()

    def reasons(self, now: datetime) -> list[Reason]:
        """Return one reason per condition, so that each query can use an index."""
        if self.everything:
            return [Reason(sa.and_(sa.true(), *self.only), (SESSION.c.key,))]
        expiry = now - check_duration("grace", self.grace, most=MAX_TTL)
        reasons = [Reason(expired_at(expiry), (SESSION.c.expires_bucket, SESSION.c.expires_at))]
        if self.older_than is not None:
            check_duration("older_than", self.older_than, most=MAX_TTL)
            idle = [each <= now - self.older_than for each in (SESSION.c.updated_bucket, SESSION.c.updated_at)]
            reasons.append(Reason(sa.and_(*idle), (SESSION.c.updated_bucket, SESSION.c.updated_at)))
        if self.created_before is not None:
            reasons.append(
                Reason(SESSION.c.created_at < aware(self.created_before, "created_before"), (SESSION.c.created_at,))
            )
        return [replace(each, condition=sa.and_(each.condition, *self.only)) for each in reasons]


def purge(
    connection: sa.Connection,
    _: datetime,
    batch: PurgeBatch,
    archive_batch: ArchiveBatch | None,
    *,
    waits: bool,
    descendants: bool,
) -> PurgedBatch:
    """Delete one batch of sessions with everything that belongs to them.

    A batch has at most `max_sessions` sessions with about `max_rows` rows in total. Sessions are locked when they are
    chosen. If an append commits first, the session is no longer due, and is not purged. If the purge commits first,
    the append does not find the session. Due sessions that another transaction has locked are skipped. With `waits`,
    the purge waits for them instead. With `descendants`, all descendants are deleted too. The purge always waits for
    the locks of descendants. Descendants do not count towards the limits.
    """
    due = _due(connection, batch).with_for_update(skip_locked=not waits)
    if dialect_of(connection).locks_many:
        keys = _chosen(connection, due, batch)
    else:
        keys = _locked(connection, due, _chosen(connection, _due(connection, batch), batch))
    counted, held = len(keys), list[Any]()
    if descendants:
        counted = _first_families(keys, None)[1]
        held = levels.families(connection, _ON_HOLD.where(*batch.which.of_owner, *batch.only), keys)
        keys = _locked_families(connection, keys, batch)
    counts: list[int] = []
    with archive_batch(connection, keys) if keys and archive_batch is not None else nullcontext() as note:
        for part in chunks(keys, MAX_BATCH):
            deleted = sa.delete(SESSION).where(of_sessions(SESSION, part))
            counts += connection.execute(deleted.returning(SESSION.c.message_count)).scalars()
    return PurgedBatch(len(counts), sum(counts), counted, () if note is None else (note,), (*held,))


def hold(connection: sa.Connection, _: datetime, batch: PurgeBatch, fields: Mapping[str, str]) -> list[str]:
    """Put the first sessions of a batch on hold, live or expired, and return their keys."""
    chosen = connection.execute(_due(connection, batch).limit(batch.max_sessions)).scalars().all()
    held = sa.update(SESSION).where(of_sessions(SESSION, chosen), NOT_ON_HOLD).values({**fields, **REVISED})
    return [*connection.execute(held.returning(SESSION.c.key)).scalars()]


def keys(connection: sa.Connection, _: Moment, batch: PurgeBatch) -> list[str]:
    """Return the keys of the sessions that a batch would contain, without locking them."""
    return _chosen(connection, _due(connection, batch), batch)


def last_created(connection: sa.Connection, _: Moment, which: Filter) -> sa.ColumnElement[bool]:
    """Return a condition that holds for the sessions that exist and match a filter, and not for later ones."""
    last = connection.execute(
        which.apply(sa.select(sa.func.max(SESSION.c.created_at)), dialect_of(connection))
    ).scalar()
    return sa.false() if last is None else SESSION.c.created_at <= last


def _due(connection: sa.Connection, batch: PurgeBatch) -> sa.Select[Any]:
    query = sa.select(SESSION.c.key).where(batch.reason.condition, NOT_ON_HOLD, *batch.conditions)
    return batch.which.apply(query, dialect_of(connection))


def _chosen(connection: sa.Connection, due: sa.Select[Any], batch: PurgeBatch) -> list[str]:
    """Return the keys of the first due sessions: at least one if any is due, then more until a limit is reached."""
    keys: list[str] = []
    max_rows = batch.max_rows
    for key, size in connection.execute(due.add_columns(_ROWS).order_by(*batch.reason.order).limit(batch.max_sessions)):
        max_rows -= size
        if keys and max_rows < 0:
            break
        keys.append(key)
    return keys


def _locked(connection: sa.Connection, due: sa.Select[Any], keys: Sequence[str]) -> list[str]:
    """Lock sessions one by one, and return those that are still due."""
    one = due.where(of_session(SESSION, session_key("key")))
    locked = (connection.execute(one, {"key": each}).scalar() for each in keys)
    return [key for key in locked if key is not None]


def _locked_families(connection: sa.Connection, keys: Sequence[str], batch: PurgeBatch) -> list[str]:
    """Lock sessions with all their descendants, and return the keys of those that still exist."""
    query = sa.select(SESSION.c.key).where(NOT_ON_HOLD, *batch.which.of_owner, *batch.only)
    if dialect_of(connection).locks_many:
        return [key for (key,) in levels.families(connection, query.with_for_update(), keys)]
    return _locked(connection, query.with_for_update(), [key for (key,) in levels.families(connection, query, keys)])


def on_hold(connection: sa.Connection, now: Moment, which: Filter, reasons: Sequence[Reason]) -> dict[str, str]:
    """Return the first due sessions that have a hold, each with the hold."""
    due = (
        _ON_HOLD.where(sa.or_(sa.false(), *(reason.condition for reason in reasons)))
        .order_by(SESSION.c.key)
        .limit(MAX_BATCH)
    )
    return dict([*connection.execute(which.apply(due, dialect_of(connection)))])


def preview(
    connection: sa.Connection,
    now: Moment,
    which: Filter,
    reasons: Sequence[Reason],
    limit: int | None,
    shown: int,
    only: Sequence[sa.ColumnElement[bool]],
    *,
    descendants: bool,
) -> tuple[int, int, list[SessionInfo], dict[str, str]]:
    """Return the numbers of sessions and messages to purge, the first `shown` due sessions, and held descendants."""
    held: list[Any] = []
    number = sa.case(*((reason.condition, position) for position, reason in enumerate(reasons)))
    order = sa.case(*((reason.condition, reason.order[-1]) for reason in reasons))
    due = sa.or_(*(reason.condition for reason in reasons))
    query = sa.select(*SESSION_COLUMNS).where(due, NOT_ON_HOLD).order_by(number, order).limit(limit)
    chosen = which.apply(query, dialect_of(connection))
    if descendants:
        due_keys = connection.execute(chosen.with_only_columns(SESSION.c.key).limit(None)).scalars()
        first_keys, _ = _first_families(due_keys, limit)
        query = sa.select(SESSION.c.key, SESSION.c.message_count).where(NOT_ON_HOLD, *which.of_owner, *only)
        counted = levels.families(connection, query, first_keys)
        held = levels.families(connection, _ON_HOLD.where(*which.of_owner, *only), first_keys)
        sessions, messages = len(counted), sum(row.message_count for row in counted)
    else:
        counts = chosen.with_only_columns(SESSION.c.message_count).subquery()
        totals = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(counts.c.message_count), 0))
        sessions, messages = connection.execute(totals).one()
    first = connection.execute(chosen.limit(shown if limit is None else min(shown, limit)))
    return sessions, int(messages), [session_info(row) for row in first], dict(held)


_hide = Statement(
    lambda _: (
        sa.update(SESSION).where(LIVE_SESSION).values({SESSION.c.expires_at: NOW} | REVISED).returning(*SESSION_COLUMNS)
    )
)


def hide(connection: AnyConnection, now: Moment, key: str) -> SessionInfo:
    """End the TTL of a live session now, and return the session."""
    rows = _hide.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)})
    if not rows:
        raise_unmatched(connection, now, key, tries_left=0)
    return session_info(rows[0])


def _first_families(keys: Iterable[str], limit: int | None) -> tuple[list[str], int]:
    """Return the first keys that form at most `limit` families, and the number of these families.

    A family is a session with its descendants among the keys: a descendant of an earlier key joins its family.
    """
    taken: dict[str, None] = {}
    count = 0
    for key in keys:
        levels = key.split("/")
        if not any("/".join(levels[:depth]) in taken for depth in range(1, len(levels))):
            if count == limit:
                break
            count += 1
        taken[key] = None
    return list(taken), count
