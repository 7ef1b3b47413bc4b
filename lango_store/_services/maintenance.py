"""What keeps a store tidy: purges in batches, sessions back from an archive, and the doctor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, TypeVar

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._operations import edits, examination, expiry, messages, references, session_changes, sessions
from lango_store._operations.binds import SESSION, of_session
from lango_store._operations.expiry import Policy
from lango_store._operations.sessions import ANYTHING, Expected
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message
from lango_store._values.reports import ExpiryReport, Finding
from lango_store._values.session import Session
from lango_store.errors import (
    LangoStoreError,
    MessageNotFound,
    SchemaOutOfDate,
    SessionExpired,
    SessionHeld,
    SessionNotFound,
)

_TRIES: Final = 3

R = TypeVar("R")
Connection = TypeVar("Connection")


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
    """Purge what a policy names, a batch a transaction, and tell what was done."""
    if not 1 <= batch_size <= expiry.MAX_BATCH:
        raise ValueError(f"batch_size={batch_size} is not between 1 and {expiry.MAX_BATCH}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit} is negative: give the most sessions to purge")
    started = perf_counter()
    report = ExpiryReport(dry_run=dry_run)
    if now is None:
        now = _tried(context, context.single_read, context.now)
    reasons, narrowed = policy.reasons(now), policy.narrowed()
    due = [sa.or_(*(reason.condition for reason in reasons)), *narrowed]
    not_held = _not_held(context, due, report)
    if dry_run:
        preview = partial(expiry.preview, reasons=reasons, narrowed=narrowed + not_held, limit=limit, shown=10)
        counted = _tried(context, context.snapshot, preview)
        report.sessions, report.messages, report.oldest = counted
        report.seconds = perf_counter() - started
        return report
    with ExitStack() as stack:
        keep = None
        if archive is not None:
            from lango_store.archive import Archive  # sqlite-utils, which only archives need

            keep = partial(stack.enter_context(Archive(archive, create=True)).keep, now=now)
        refused = 0
        for reason in reasons:
            while limit is None or report.sessions < limit:
                most = batch_size if limit is None else min(batch_size, limit - report.sessions)
                began = perf_counter()
                batch = partial(
                    expiry.purge,
                    reason=reason,
                    narrowed=narrowed + not_held,
                    most=most,
                    keep=keep,
                    patient=policy.everything,
                )
                try:
                    gone = _tried(context, context.transaction, batch)
                except SessionHeld:  # by a row that came while the batch was deleted
                    refused += 1
                    if refused == _TRIES:
                        raise
                    not_held = _not_held(context, due, report)
                    continue
                refused = 0
                if not gone.sessions:
                    break
                sleep((perf_counter() - began) * dialect_of(context.engine).purge_pause)
                report.sessions += gone.sessions
                report.messages += gone.messages
                if gone.bytes_freed is not None:
                    report.bytes_freed = (report.bytes_freed or 0) + gone.bytes_freed
                report.batches += 1
                report.seconds = perf_counter() - started
                if on_batch is not None:
                    on_batch(report.model_copy())
    report.seconds = perf_counter() - started
    return report


def _tried(
    context: Context,
    get_connection: Callable[[], AbstractContextManager[Connection]],
    work: Callable[[Connection], R],
) -> R:
    """Lend a connection for some work, and another one if it failed for a passing reason."""

    def call() -> R:
        with get_connection() as connection:
            return work(connection)

    return context.trying(call)


def _not_held(
    context: Context, due: Sequence[sa.ColumnElement[bool]], report: ExpiryReport
) -> list[sa.ColumnElement[bool]]:
    """Report which sessions are held now, and return what has to hold of the others."""

    def find_held(connection: sa.Connection) -> tuple[list[references.Holder], dict[str, str]]:
        in_the_way = references.holders(connection)
        return in_the_way, references.held(connection, in_the_way, due)

    in_the_way, held = _tried(context, context.snapshot, find_held)
    report.held |= held
    return [~holder.condition for holder in in_the_way]


def delete(context: Context, key: str, expected: Expected = ANYTHING) -> bool:
    """Delete a session and all that belongs to it; `SessionHeld` names what keeps it."""
    # A foreign key that refuses ends the caller's transaction on PostgreSQL, unless there is a savepoint.
    get_connection = context.transaction if context.in_callers_transaction else context.single_write
    try:
        with get_connection() as connection:
            return session_changes.delete(connection, key, expected)
    except SessionHeld as error:
        with context.snapshot() as connection:
            found = references.held(connection, references.holders(connection), [of_session(SESSION, key)])
        raise SessionHeld(key, found.get(key, error.constraint)) from error


def delete_all(context: Context, policy: Policy, batch_size: int) -> int:
    """Delete what a policy names, and return how many sessions; `SessionHeld` when all others are gone."""
    report = purge(context, policy, None, batch_size)
    if report.held:
        raise SessionHeld(*next(iter(report.held.items())))
    return report.sessions


def redact(context: Context, key: str, seq_or_id: int | str, reason: str | None, archive: str | Path | None) -> Message:
    """Redact a message of a session in the store, and in an archive if one is given, or in that alone."""
    with ExitStack() as stack:
        opened = None
        if archive is not None:
            from lango_store.archive import Archive  # sqlite-utils, which only archives need

            opened = stack.enter_context(Archive(archive))
        try:
            with context.transaction() as connection:
                now = context.now(connection)
                message = edits.redact(connection, now, key, seq_or_id, reason)
                if opened is not None:
                    created_at = sa.select(SESSION.c.created_at).where(of_session(SESSION, key))
                    made = connection.execute(created_at).scalar_one()
        except (SessionNotFound, MessageNotFound) as error:
            if opened is None or isinstance(error, SessionExpired):  # which has the message still
                raise
            if (archived := opened.redact(key, seq_or_id, reason=reason)) is None:
                raise
            return archived
        if opened is not None:  # interrupted before this, it can be done again: the message is still in its place
            opened.redact(key, message.seq, reason=reason, stored=message, session_created_at=made)
        return message


def restore(context: Context, archive: str | Path, key: str, ttl: timedelta | None) -> Session:
    """Restore a session from an archive."""
    from lango_store.archive import Archive  # sqlite-utils, which only archives need

    with Archive(archive) as opened, context.transaction() as connection:
        now = context.now(connection)
        opened.restore(connection, checked_key(key), now=now, ttl=sessions.seconds(ttl))
        return messages.load(connection, now, key)


def examine(context: Context, *, repair: bool) -> list[Finding]:
    """Check the store, and repair what can be repaired without guessing if asked to."""
    from lango_store import schema  # Alembic: only an examination or a migration should wait for its import

    try:
        with context.snapshot() as connection:
            missing = examination.missing_tables(connection)
    except SchemaOutOfDate as error:
        return [Finding(name="schema", subject="", detail=str(error), remedy=error.remedy)]
    if missing:
        detail = f"{', '.join(missing)} missing, though the schema is at its revision"
        return [Finding(name="schema", subject="", detail=detail, remedy="restore a backup")]
    found: list[Finding] = []
    for name in examination.CHECKS:
        try:
            with context.snapshot() as connection:
                found += examination.check(connection, name)
        except LangoStoreError as error:
            remedy = "fix the findings above first"
            found.append(Finding(name="check failed", subject="", detail=str(error), remedy=remedy))
    indexes = {finding.subject for finding in found if finding.name == "missing index"}
    try:
        with context.snapshot() as connection:
            differences = schema.check(connection)
    except LangoStoreError as error:
        differences = [str(error)]
    for difference in differences:
        if not any(index in difference for index in indexes):
            remedy = "compare with what `lango-store db sql --from base` prints"
            found.append(Finding(name="schema", subject="", detail=difference, remedy=remedy))
    for finding in found if repair else ():
        try:
            with context.transaction() as connection:
                finding.repaired = examination.repair(connection, finding)
        except LangoStoreError as error:
            finding.remedy = f"could not be repaired: {error}"
    return found
