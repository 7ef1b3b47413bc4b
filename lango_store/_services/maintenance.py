"""Maintenance that reaches beyond one transaction: move payloads, and examine the store."""

from collections.abc import Callable

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._operations import revision
from lango_store._operations.log import payloads
from lango_store._operations.maintenance import examination
from lango_store._operations.pace import Pace
from lango_store._rows.payloads import Threshold
from lango_store._values.reports import Finding
from lango_store.errors import LangoStoreError, SchemaOutOfDate


def move_payloads(context: Context, threshold: Threshold | None, on_batch: Callable[[int], None] | None) -> int:
    """Move large strings of stored messages to payloads or, with the threshold None, back to the rows, in batches."""
    after, moved = ("", 0), 0
    pace = Pace(dialect_of(context.engine))
    while chosen := context.read_together(payloads.choose, after, pace.rows, threshold):
        with pace.batch():
            moved += context.transact(payloads.move_rows, chosen, threshold)
        after = chosen[-1]
        if on_batch is not None:
            on_batch(moved)
    return moved


def examine(
    context: Context, *, repair: bool, delete_unreadable: bool, on_check: Callable[[str], None] | None
) -> list[Finding]:
    """Check the store; with `repair`, fix the findings that can be fixed without guessing."""
    if delete_unreadable and not repair:
        raise ValueError("delete_unreadable=True needs repair=True: without it, nothing is changed")
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
                finding.repaired = examination.repair(connection, finding, delete_unreadable=delete_unreadable)
        except LangoStoreError as error:
            finding.remedy = f"could not be repaired: {error}"
    return findings
