"""Maintenance that reaches beyond one transaction: redact and restore with an archive, and examine the store."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._operations import edits, examination, messages, payloads, revision, sessions, transfer
from lango_store._operations.pace import Pace
from lango_store._rows.encoding import checked_key
from lango_store._values.model import Message
from lango_store._values.reports import Finding
from lango_store._values.session import Session
from lango_store.errors import LangoStoreError, MessageNotFound, SchemaOutOfDate, SessionExpired, SessionNotFound


def redact(context: Context, key: str, seq_or_id: int | str, reason: str | None, archive: str | Path | None) -> Message:
    """Redact a message in the store and, if given, in an archive.

    If only the archive contains the message, redact it there.
    """
    if archive is None:
        return context.transact(edits.redact, key, seq_or_id, reason)
    from lango_store.archive import Archive  # imported late: few programs use archives

    def redact_stored(connection: sa.Connection, now: datetime) -> tuple[Message, int]:
        message = edits.redact(connection, now, key, seq_or_id, reason)
        return message, transfer.incarnations(connection, [key])[key]

    with Archive(archive) as opened:
        try:
            message, incarnation = context.transact(redact_stored)
        except (SessionNotFound, MessageNotFound) as error:
            if isinstance(error, SessionExpired):  # an expired session still contains the message
                raise
            if (archived := opened.redact(key, seq_or_id, reason=reason)) is None:
                raise
            return archived
        # A redacted message keeps its seq, so after an interruption here the caller can repeat the whole call.
        opened.redact(key, message.seq, reason=reason, incarnation=incarnation)
        return message


def restore(context: Context, archive: str | Path, key: str, ttl: timedelta | None, *, children: bool) -> Session:
    """Restore a session from an archive; with `children`, also restore its descendants."""
    from lango_store.archive import Archive  # imported late: few programs use archives

    with Archive(archive) as opened:

        def restore_archived(connection: sa.Connection, now: datetime) -> Session:
            opened.restore(connection, checked_key(key), now=now, ttl=sessions.seconds(ttl), children=children)
            return messages.load(connection, now, key)

        return context.transact(restore_archived)


def move_payloads(context: Context, least: int | None, on_batch: Callable[[int], None] | None) -> int:
    """Move large strings of stored messages to payloads or, if `least` is None, back to the rows; commit in batches."""
    after, moved = ("", 0), 0
    pace = Pace(dialect_of(context.engine))
    while chosen := context.read_together(payloads.choose, after, pace.rows, least):
        with pace.batch():
            moved += context.transact(payloads.move_rows, chosen, least)
        after = chosen[-1]
        if on_batch is not None:
            on_batch(moved)
    return moved


def examine(context: Context, *, repair: bool, on_check: Callable[[str], None] | None) -> list[Finding]:
    """Check the store; with `repair`, fix the findings that can be fixed without guessing."""
    from lango_store import schema  # imported late: it imports Alembic, which is slow

    try:
        with context.snapshot() as connection:
            missing = revision.missing_tables(connection)
    except SchemaOutOfDate as error:
        return [Finding(name="schema", subject="", detail=str(error), remedy=error.remedy)]
    if missing:
        detail = f"{', '.join(missing)} missing, though the schema is at its revision"
        return [Finding(name="schema", subject="", detail=detail, remedy="restore a backup")]
    findings: list[Finding] = []
    for name in examination.CHECKS:
        if on_check is not None:
            on_check(name)
        try:
            with context.snapshot() as connection:
                findings += examination.check(connection, name)
        except LangoStoreError as error:
            remedy = "fix the findings above first"
            findings.append(Finding(name="check failed", subject="", detail=str(error), remedy=remedy))
    indexes = {finding.subject for finding in findings if finding.name == "missing index"}
    try:
        with context.snapshot() as connection:
            differences = schema.check(connection)
    except LangoStoreError as error:
        differences = [str(error)]
    for difference in differences:
        if not any(index in difference for index in indexes):
            remedy = "compare with what `lango-store db sql --from base` prints"
            findings.append(Finding(name="schema", subject="", detail=difference, remedy=remedy))
    for finding in findings if repair else ():
        try:
            with context.transaction() as connection:
                finding.repaired = examination.repair(connection, finding)
        except LangoStoreError as error:
            finding.remedy = f"could not be repaired: {error}"
    return findings
