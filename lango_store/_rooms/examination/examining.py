"""Run all checks, each in its own snapshot, and repair each finding in its own transaction."""

from collections.abc import Callable, Sequence

from lango_store._connections.context import Context
from lango_store._operations import revision
from lango_store._parts.checks import Check
from lango_store._rooms.examination import checks
from lango_store._rooms.examination.values import Finding
from lango_store.errors import LangoStoreError, SchemaOutOfDate


def examine(
    context: Context,
    wanted: Sequence[Check],
    *,
    repair: bool,
    delete_unreadable: bool,
    on_check: Callable[[str], None] | None,
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
    for check in wanted:
        if on_check is not None:
            on_check(check.name)
        try:
            with context.snapshot() as connection:
                findings += checks.find(connection, check)
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
    by_name = {check.name: check for check in wanted}
    for finding in [each for each in findings if each.name in by_name] if repair else ():
        try:
            with context.transaction() as connection:
                check = by_name[finding.name]
                finding.repaired = checks.repair(connection, check, finding, delete_unreadable=delete_unreadable)
        except LangoStoreError as error:
            finding.remedy = f"could not be repaired: {error}"
    return findings
