"""`lango-store doctor`: check a store, and repair it."""

from collections.abc import Callable
from typing import Annotated

import typer

from lango_store._rooms.examination.values import Finding
from lango_store._rooms.stats.commands import waiting
from lango_store._rooms.stats.values import Stats
from lango_store.cli.options import JsonOption, UrlOption, example, flag, open_store
from lango_store.cli.output import print_json, printable, progress
from lango_store.cli.root import app
from lango_store.errors import DamagedDatabase


def _waiting(sum_up: Callable[[], Stats]) -> list[Finding]:
    try:
        work = waiting(sum_up())
    except DamagedDatabase as error:
        return [Finding(name="check failed", subject="", detail=str(error), remedy="fix the findings above first")]
    return [Finding(name="waiting", subject="", detail=detail, remedy=remedy) for detail, remedy in work]


@app.command(epilog=example("doctor --url sqlite:///agent.db"))
def doctor(
    url: UrlOption = None,
    repair: Annotated[bool, flag("--repair", "Repair each problem that has only one correct repair.")] = False,
    delete_unreadable: Annotated[
        bool, flag("--delete-unreadable", "With --repair: also delete rows that cannot be read. Make a backup before.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Check the store, and print each problem with its remedy.

    Exit code 1 if a problem remains. Warnings about settings of the
    database, and work that waits (owed turns, unknown tool calls, and
    suspensions without an answer), do not change the exit code.
    """
    announcement = "repairing" if repair and not json_ else None
    with open_store(url, announcement) as store, progress("checking", quiet=json_) as update:
        findings = store.maintenance.examine(
            repair=repair,
            delete_unreadable=delete_unreadable,
            on_check=lambda name: update(description=f"checking: {name}"),
        )
        if not any(finding.name == "schema" for finding in findings):
            findings += _waiting(store.stats)
    for finding in findings:
        if json_:
            print_json(finding)
        else:
            state = "repaired" if finding.repaired else finding.remedy
            print(printable(f"{finding.name}: {finding.detail}\n  {state}"))
    if not (findings or json_):
        print("no problems found")
    if any(not finding.repaired for finding in findings if finding.name not in ("settings", "waiting")):
        raise typer.Exit(1)
