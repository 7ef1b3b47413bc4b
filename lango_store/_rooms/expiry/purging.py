"""Purge the sessions of a policy batch by batch, each in its own transaction."""

import operator
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._operations.binds import SESSION, of_session, of_sessions
from lango_store._operations.log import messages
from lango_store._operations.pace import Pace
from lango_store._rooms.expiry import archiving, batches
from lango_store._rooms.expiry.batches import ArchiveBatch, PurgeBatch, PurgedBatch, PurgePolicy
from lango_store._rooms.expiry.values import ExpiryReport
from lango_store.errors import HOLD, SessionHeld, quoted

_SHOWN: Final = 10
_MAX_HELD: Final = 10_000  # the key of each protected session is a parameter of the next batch


def purge(
    context: Context,
    policy: PurgePolicy,
    now: datetime | None,
    batch_size: int,
    limit: int | None = None,
    archive: str | Path | None = None,
    on_batch: Callable[[ExpiryReport], None] | None = None,
    dry_run: bool = False,
    in_batch: ArchiveBatch | None = None,
    on_note: Callable[[Any], None] | None = None,
    *,
    existing: bool = False,
) -> ExpiryReport:
    """Purge the sessions of a policy in batches, and return a report; with `dry_run`, only report.

    Without an archive, another room can pass `in_batch`. `on_note` is called with the value of each of its blocks when
    the batch is committed. With `existing`, only sessions that exist at the beginning are purged, so that the purge
    ends although others create sessions.
    """
    if type(batch_size) is not int or not 1 <= batch_size <= batches.MAX_BATCH:
        raise ValueError(f"batch_size={quoted(batch_size)} is not between 1 and {batches.MAX_BATCH}")
    messages.check_count("limit", limit)
    started = perf_counter()
    if now is None:
        now = context.on_primary().read_together(lambda connection, _, which: context.now(connection), policy.which)
    reasons = policy.reasons(now)
    conditions = [context.on_primary().read_together(batches.last_created, policy.which)] if existing else []
    report = ExpiryReport(at=now, dry_run=dry_run)
    on_hold = context.on_primary().read_together(batches.on_hold, policy.which, reasons)
    if dry_run:
        report.sessions, report.messages, report.oldest, held = context.on_primary().read_together(
            batches.preview, policy.which, reasons, limit, _SHOWN, policy.only, descendants=policy.descendants
        )
        on_hold |= held
        reasons = []
    with ExitStack() as stack:
        archive_batch = in_batch
        if archive is not None and not dry_run:
            cold = stack.enter_context(archiving.opened(context, archive, create=True))
            archive_batch = partial(archiving.keep, cold)
        pace = Pace(dialect_of(context.engine))
        while reasons and (limit is None or limit > 0):
            max_sessions = batch_size if limit is None else min(batch_size, limit)
            before = len(report.held)
            with pace.batch():
                batch = PurgeBatch(reasons[0], policy.which, conditions, max_sessions, pace.rows, policy.only)
                purged = _purge_batch(context, policy, batch, archive_batch, report.held)
            if on_note is not None:
                for note in purged.notes:
                    on_note(note)
            on_hold |= dict(purged.on_hold)
            if not purged.sessions and len(report.held) == before:
                reasons.pop(0)
                continue
            limit = None if limit is None else limit - purged.counted
            report.sessions += purged.sessions
            report.messages += purged.messages
            report.batches += 1
            report.seconds = perf_counter() - started
            if on_batch is not None:
                on_batch(report.model_copy(deep=True))
    report.held |= {key: f"{HOLD}{hold}" for key, hold in on_hold.items()}
    report.seconds = perf_counter() - started
    return report


def _purge_batch(
    context: Context, policy: PurgePolicy, batch: PurgeBatch, archive_batch: ArchiveBatch | None, held: dict[str, str]
) -> PurgedBatch:
    """Purge a batch; if a foreign key prevents it, purge each session alone, and add the protected ones to `held`."""
    if len(held) > _MAX_HELD:
        constraint = next(iter(held.values()))
        raise SessionHeld(None, constraint, number=len(held))
    options = {"waits": policy.everything, "descendants": policy.descendants}
    rest = batch._replace(conditions=[*batch.conditions, ~of_sessions(SESSION, list(held))]) if held else batch
    try:
        return context.transact(batches.purge, rest, archive_batch, **options)
    except SessionHeld:
        keys = context.on_primary().read_together(batches.keys, rest)
    total = PurgedBatch(0, 0, 0)
    for key in keys:
        alone = batch._replace(conditions=[*batch.conditions, of_session(SESSION, key)], max_sessions=1)
        try:
            purged = context.transact(batches.purge, alone, archive_batch, **options)
        except SessionHeld as error:
            held[key] = error.constraint
        else:
            total = PurgedBatch(*map(operator.add, total, purged))
    return total
