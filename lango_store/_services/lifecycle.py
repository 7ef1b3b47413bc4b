"""Sessions as a whole: created, deleted, and purged in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, TypeVar

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._operations import appends, expiry, messages, references, sessions
from lango_store._operations.batches import Batch
from lango_store._operations.binds import SESSION, of_session
from lango_store._operations.expiry import Policy
from lango_store._operations.sessions import Expected, New
from lango_store._values.reports import ExpiryReport
from lango_store._values.session import Session
from lango_store.errors import SessionExists, SessionExpired, SessionHeld, SessionNotFound

_TRIES: Final = 3
_SHOWN: Final = 10

R = TypeVar("R")
Find = Callable[[AnyConnection, Moment, str], R]


# Create


def create(context: Context, new: New, first: Batch, *, own_key: bool) -> Session:
    """Create a session with its first messages; `SessionExists` if its key is taken.

    With a key of our own, which is unique, a second try returns what the first one created.
    """

    def run() -> Session:
        try:
            with context.transaction() if first.rows else context.single_write() as connection:
                now = context.moment(connection)
                if (session := _insert(connection, now, new, first)) is None:
                    raise sessions.exists_error(connection, now, new.key)
                return session
        except SessionExists:
            if not own_key:
                raise
        with context.single_read() as connection:
            return messages.load(connection, context.moment(connection), new.key)

    return context.trying(run)


def find_or_create(context: Context, new: New, first: Batch, find: Find[R], *, renew: bool) -> Session | R:
    """Find a live session, or create it with its first messages; with `renew` in the place of an expired one."""

    def run() -> Session | R:
        try:
            with context.single_read() as connection:
                return find(connection, context.moment(connection), new.key)
        except SessionExpired:
            if not renew:
                raise
        except SessionNotFound:
            pass
        with context.transaction() as connection:
            now = context.now(connection)
            if renew:
                sessions.delete_expired(connection, now, new.key)
            return _insert(connection, now, new, first) or find(connection, now, new.key)

    return context.trying(run)


def _insert(connection: AnyConnection, now: Moment, new: New, first: Batch) -> Session | None:
    """Create a session with its first messages; None if its key is taken. With messages, needs a transaction."""
    info = sessions.insert(connection, now, new)
    if info is None or not first.rows:
        return None if info is None else Session(**dict(info))
    append = appends.append_new_ids if first.repeats else appends.append
    append(connection, now, new.key, first)  # type: ignore[arg-type]
    return messages.load(connection, now, new.key)


# Delete


def delete(context: Context, key: str, expected: Expected) -> bool:
    """Delete a session and all that belongs to it; `SessionHeld` names what keeps it."""
    # A foreign key that refuses ends the caller's transaction on PostgreSQL, unless there is a savepoint.
    get_connection = context.transaction if context.in_callers_transaction else context.single_write

    def run() -> bool:
        with get_connection() as connection:
            return sessions.delete(connection, key, expected)

    try:
        return context.trying(run, if_lost=False)
    except SessionHeld as error:
        held, _ = _find_held(context, [of_session(SESSION, key)])
        raise SessionHeld(key, held.get(key, error.constraint)) from error


def purge(
    context: Context,
    policy: Policy,
    now: datetime | None,
    batch_size: int,
    limit: int | None = None,
    archive: str | Path | None = None,
    on_batch: Callable[[ExpiryReport], None] | None = None,
    dry_run: bool = False,
) -> ExpiryReport:
    """Purge what a policy names, a batch a transaction, and report what was done."""
    if not 1 <= batch_size <= expiry.MAX_BATCH:
        raise ValueError(f"batch_size={batch_size} is not between 1 and {expiry.MAX_BATCH}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit} is negative: give the most sessions to purge")
    started = perf_counter()
    if now is None:
        now = context.on_primary().read_together(lambda connection, _: context.now(connection))
    reasons, narrowed = policy.reasons(now), policy.narrowed()
    due = [sa.or_(*(reason.condition for reason in reasons)), *narrowed]
    held, not_held = _find_held(context, due)
    report = ExpiryReport(dry_run=dry_run, held=held)
    if dry_run:
        preview = context.on_primary().read_together(expiry.preview, reasons, [*narrowed, *not_held], limit, _SHOWN)
        report.sessions, report.messages, report.oldest = preview
        reasons = []
    with ExitStack() as stack:
        keep = None
        if archive is not None and not dry_run:
            from lango_store.archive import Archive  # sqlite-utils, which only archives need

            keep = partial(stack.enter_context(Archive(archive, create=True)).keep, now=now)
        refused = 0
        while reasons and (limit is None or report.sessions < limit):
            most = batch_size if limit is None else min(batch_size, limit - report.sessions)
            began = perf_counter()
            try:
                done = context.transact(
                    expiry.purge, reasons[0], [*narrowed, *not_held], most, keep, waits=policy.everything
                )
            except SessionHeld:  # by a row that was inserted while the batch was deleted
                refused += 1
                if refused == _TRIES:
                    raise
                held, not_held = _find_held(context, due)
                report.held |= held
                continue
            refused = 0
            if not done.sessions:
                reasons.pop(0)
                continue
            sleep((perf_counter() - began) * dialect_of(context.engine).purge_pause)
            report.sessions += done.sessions
            report.messages += done.messages
            report.batches += 1
            report.seconds = perf_counter() - started
            if on_batch is not None:
                on_batch(report.model_copy())
    report.seconds = perf_counter() - started
    return report


def _find_held(
    context: Context, due: Sequence[sa.ColumnElement[bool]]
) -> tuple[dict[str, str], list[sa.ColumnElement[bool]]]:
    """Return which of the sessions rows of other tables hold now, and the conditions of those that none holds."""

    def find(connection: sa.Connection, _: Moment) -> tuple[dict[str, str], list[sa.ColumnElement[bool]]]:
        holders = references.holders(connection)
        return references.held(connection, holders, due), [~holder.condition for holder in holders]

    return context.on_primary().read_together(find)
