"""Owed turns: list them, claim them for a worker, and try again those that were given up."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Dialect, Moment, dialect_of
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import LIVE, NOW, SESSION, of_session, session_key, time
from lango_store._operations.rows import session_value, stored_time
from lango_store._operations.session import lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import MAX_DURATION
from lango_store._rooms.turns_in_progress import leases, owed
from lango_store._rooms.turns_in_progress.leases import Retry
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn
from lango_store._rooms.turns_in_progress.values import OwedTurn
from lango_store._rows.columns import as_stored
from lango_store._rows.encoding import checked_key
from lango_store._values.reports import Page


def _query(dialect: Dialect, names: tuple[str, ...], *columns: Any) -> sa.Select[Any]:
    """Select owed sessions without a running turn, by the index on `owed_at`: the filters must not use another one."""
    conditions = lists.conditions(dialect, names, indexed=False)
    query = sa.select(*columns).where(SESSION.c.owed_at.is_not(None), owed.IS_ENDED, *conditions)
    return query.order_by(SESSION.c.owed_at, SESSION.c.key).limit(lists.LIMIT)


# Claim

_LONGEST_PAUSE: Final[sa.ColumnElement[Any]] = sa.literal_column(str(MAX_DURATION.total_seconds()), sa.Double())
_ZERO: Final = sa.literal_column("0", sa.BigInteger())
_IS_FIRST_ATTEMPT: Final = sa.and_(sa.func.coalesce(SESSION.c.attempts, _ZERO) == _ZERO, SESSION.c.last_error.is_(None))


def _is_due(dialect: Dialect) -> sa.ColumnElement[bool]:
    """Match owed turns that are due now; a time that a wrong clock wrote delays them by at most the longest pause."""
    latest = dialect.next_expiry(NOW, _LONGEST_PAUSE)
    is_due = sa.or_(SESSION.c.owed_at <= NOW, _IS_FIRST_ATTEMPT, SESSION.c.owed_at > latest)
    return sa.and_(SESSION.c.owed_at < owed.NEVER_STORED, is_due, ~owed.IS_FUTURE)


_HAS_DIED: Final = SESSION.c.lease_token.is_not(None)
"""Matches owed sessions whose last attempt never ended: only a process that died, or was frozen, leaves its token."""


@cache
def _due(names: tuple[str, ...], *, locks: bool, without_deaths: bool) -> Statement:
    def build(dialect: Dialect) -> sa.Select[Any]:
        columns = SESSION.c.key, SESSION.c.lease_turn, SESSION.c.attempts, SESSION.c.waiting, _HAS_DIED
        query = _query(dialect, names, *columns).where(_is_due(dialect), *[~_HAS_DIED] * without_deaths)
        return query.with_for_update(skip_locked=True) if locks else query

    return Statement(build)


class Running(NamedTuple):
    """The state of a worker when it claims turns.

    Attributes:
        turns: The turns that it is running.
        was_alone: Whether the last turn ran alone: now it is the turn of the others.
        refused: The keys of sessions whose claim has failed, and which are not tried now.
    """

    turns: Collection[RunningTurn] = ()
    was_alone: bool = False
    refused: Collection[str] = ()


def _read_due(
    connection: AnyConnection,
    now: Moment,
    chosen: Filter,
    limit: int,
    refused: Collection[str],
    *,
    locks: bool = False,
    without_deaths: bool = False,
) -> list[Any]:
    dialect = dialect_of(connection)
    statement = _due(chosen.names, locks=locks and dialect.locks_many, without_deaths=without_deaths)
    rows = statement.run(connection, chosen.values(dialect, now) | {"limit": limit + len(refused)})
    return [row for row in rows if row[0] not in refused][:limit]


def is_any_due(connection: AnyConnection, now: Moment, chosen: Filter, running: Running) -> bool:
    """Return True if a worker could claim a turn now. A turn that has to run alone waits until no other is running."""
    rows = _read_due(connection, now, chosen, 1, running.refused)
    return any(not (has_died and running.turns) for *_, has_died in rows)


def claim(
    connection: sa.Connection,
    now: datetime,
    chosen: Filter,
    limit: int,
    max_attempts: int,
    open_turn: Callable[[str, str | None], RunningTurn],
    running: Running,
) -> tuple[list[RunningTurn], bool]:
    """Take the leases of owed turns, the longest due first.

    If a process dies, it is unknown which of its turns was the cause. So each of them runs alone next time: the worker
    claims it only if nothing else is running. Only the attempts of a turn that runs alone are counted here, before
    they end; otherwise all turns of a process that one of them kills would be given up together.

    A turn that has already been tried `max_attempts` times is given up instead. Sessions that another worker is
    claiming are skipped, so the list can be empty although more turns are due.

    Returns:
        The turns, and whether there is one that has to run alone.
    """
    claimed: list[RunningTurn] = []
    rows: list[Any] = []
    if running.was_alone:
        rows = _read_due(connection, now, chosen, limit, running.refused, locks=True, without_deaths=True)
    rows = rows or _read_due(connection, now, chosen, limit, running.refused, locks=True)
    is_alone = not running.turns and len(rows) == 1
    for key, turn_id, attempts, waiting, has_died in rows:
        if has_died and (running.turns or claimed):
            break
        turn = open_turn(key, turn_id)
        turn.attempt = (attempts or 0) + 1
        bits = waiting or 0
        turn._was_claimed = turn_id is None or bool(bits & owed.TO_TAKE)  # another process has claimed it and died
        is_of_inbox = turn._was_claimed or bits & owed.TAKEN
        turn._needs_messages = bool(is_of_inbox) and not bits & (owed.ANSWERED | owed.ANSWERED_BEFORE)
        if not leases.claim(connection, now, key, turn.id, turn.lease, counts=is_alone or has_died):
            continue
        if turn.attempt > max_attempts:
            leases.postpone(connection, now, key, turn.lease.token, Retry(max_attempts, None))
            continue
        claimed.append(turn)
        if has_died:
            return claimed, True
    if claimed and len(running.turns) == 1:  # it was counted as the only one, and now has company
        for turn in running.turns:
            leases.set_attempts(connection, turn.key, turn.lease.token, turn.attempt - 1)
    return claimed, False


# List and try again

_COLUMNS: Final = {
    "key": SESSION.c.key,
    "turn_id": SESSION.c.lease_turn,
    "due_at": as_stored(SESSION.c.owed_at),
    "attempts": sa.func.coalesce(SESSION.c.attempts, _ZERO),
    "error": SESSION.c.last_error,
    "waiting": SESSION.c.waiting,
}


@cache
def _page(names: tuple[str, ...], *, first: bool, future: bool) -> Statement:
    after = sa.tuple_(SESSION.c.owed_at, SESSION.c.key) > sa.tuple_(time("cursor_time"), session_key("cursor_key"))
    conditions = [after] * (not first) + [~owed.IS_FUTURE] * (not future)
    return Statement(lambda dialect: _query(dialect, names, *_COLUMNS.values()).where(*conditions))


def page(
    connection: AnyConnection, now: Moment, chosen: Filter, limit: int, cursor: str | None, *, future: bool = False
) -> Page[OwedTurn]:
    """Return a page of the owed turns of live sessions that no worker is running, the longest due first."""
    lists.check_limit(limit)
    dialect = dialect_of(connection)
    bound = chosen.values(dialect, now) | {"limit": limit + 1}
    if cursor is not None:
        _, moment, bound["cursor_key"] = lists.read_cursor(cursor, "owed")
        bound["cursor_time"] = dialect.time(moment)
    rows = _page(chosen.names, first=cursor is None, future=future).run(connection, bound)
    items = [_decoded(dict(zip(_COLUMNS, row, strict=True))) for row in rows]
    return lists.page_of(Page[OwedTurn], items, limit, lambda last: ("owed", last.due_at or owed.NEVER, last.key))


def _decoded(value: Mapping[str, Any]) -> OwedTurn:
    due_at, waiting = stored_time(value["key"], "owed_at", value["due_at"]), value["waiting"] or 0
    reason = "interrupted" if value["turn_id"] is not None else "answer" if waiting & owed.ANSWERED else "inbox"
    is_given_up = due_at == owed.NEVER
    fields = {"due_at": None if is_given_up else due_at, "given_up": is_given_up, "reason": reason}
    return session_value(OwedTurn, {name: each for name, each in value.items() if name != "waiting"} | fields)


_retry: Final = Statement(
    sa.update(SESSION)
    .where(of_session(SESSION), LIVE, SESSION.c.owed_at.is_not(None), owed.IS_ENDED, ~owed.IS_FUTURE)
    .values(owed.RETRIED)
    .returning(SESSION.c.key)
)


def retry(connection: AnyConnection, now: Moment, key: str) -> bool:
    """Make the owed turn of a live session due now, with all attempts; return False if none is owed."""
    if _retry.run(connection, {"key": checked_key(key), "now": dialect_of(connection).time(now)}):
        return True
    sessions.row_of(connection, now, key)
    return False
