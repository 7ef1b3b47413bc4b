"""`lango-store copy`: copy all sessions from one database into another."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lango_store._engine.url import shown
from lango_store.backup.copying import CopyReport
from lango_store.backup.copying import copy as copy_sessions
from lango_store.cli.options import JsonOption, open_store
from lango_store.cli.output import print_json, progress, say
from lango_store.errors import SchemaOutOfDate


def copy(
    source_url: Annotated[str, typer.Option("--from", help="The database to copy from; it is only read.")],
    target_url: Annotated[str, typer.Option("--to", help="The database to copy to; its schema must be there.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, and say what would be copied.")] = False,
    json_: JsonOption = False,
) -> None:
    """Copy all sessions, expired ones too; exit code 1 if the target has some of them with other content.

    If it is killed, run it again: it continues where it stopped. A session that the target has with other content is
    reported and not changed.
    """
    with open_store(source_url) as source, open_store(target_url) as target:
        for store in (source, target):
            try:
                store.ping()
            except SchemaOutOfDate:
                say(f"at {shown(store.engine.url)}:")  # the error does not name the database
                raise
        say(f"copying from {shown(source.engine.url)} to {shown(target.engine.url)}")
        with progress("copying", source.count(expired=None) if sys.stderr.isatty() else None, quiet=json_) as update:
            report = copy_sessions(
                source, target, dry_run=dry_run, on_batch=lambda report: update(completed=report.sessions)
            )
    if json_:
        print_json(report)
    else:
        _print(report)
    if not report.complete:
        raise typer.Exit(1)


def _print(report: CopyReport) -> None:
    for key in report.differing:
        say(f"differs, left alone: {key!r}")
    for scope, name in report.differing_values:
        say(f"differs, left alone: value {name!r} of scope {scope!r}")
    for failure in report.failed:
        say(f"failed: {failure.key!r}: {failure.reason}")
    values = f", {report.values:,} shared values" if report.values else ""
    print(
        f"{'would copy' if report.dry_run else 'copied'} {report.copied:,} sessions, {report.messages:,} messages"
        f"{values}; {report.already_there:,} were there already, "
        f"{len(report.differing) + len(report.differing_values):,} differ, {len(report.failed):,} failed; "
        f"{report.seconds:.1f} s"
    )
