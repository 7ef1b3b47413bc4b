"""`lango-store copy`: all sessions from one database into another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from lango_store._engine.url import shown
from lango_store.backup.copying import CopyReport
from lango_store.backup.copying import copy as copy_sessions
from lango_store.cli.progress import progress
from lango_store.cli.terminal import (
    JsonOption,
    opened,
)
from lango_store.cli.text import say
from lango_store.errors import SchemaOutOfDate
from lango_store.store import Store


def copy(
    source_url: Annotated[str, typer.Option("--from", help="The database to copy from; it is only read.")],
    target_url: Annotated[str, typer.Option("--to", help="The database to copy to; its schema must be there.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, and say what would be copied.")] = False,
    json_: JsonOption = False,
) -> None:
    """Copy all sessions, expired ones too, and compare what is there; exit code 1 if something differs.

    Killed in the middle, it goes on where it was when it is run again. A session that the target has with other
    content is reported and left alone.
    """
    with opened(source_url) as source, opened(target_url) as target:
        for store in (source, target):
            _ready(store)
        say(f"copying from {shown(source.engine.url)} to {shown(target.engine.url)}")
        with _watched(source, quiet=json_) as on_batch:
            report = copy_sessions(source, target, dry_run=dry_run, on_batch=on_batch)
    if json_:
        print(report.model_dump_json())
    else:
        _print(report)
    if not report.complete:
        raise typer.Exit(1)


def _ready(store: Store) -> None:
    try:
        store.ping()
    except SchemaOutOfDate:
        say(f"at {shown(store.engine.url)}:")  # which of the two it is
        raise


def _print(report: CopyReport) -> None:
    for key in report.differing:
        say(f"differs, left alone: {key!r}")
    for scope, name in report.differing_values:
        say(f"differs, left alone: value {name!r} of scope {scope!r}")
    for failure in report.failed:
        say(f"failed: {failure.key!r}: {failure.reason}")
    did = "would copy" if report.dry_run else "copied"
    values = f", {report.values:,} shared values" if report.values else ""
    differing = len(report.differing) + len(report.differing_values)
    print(
        f"{did} {report.copied:,} sessions, {report.messages:,} messages{values}; "
        f"{report.already_there:,} were there already, {differing:,} differ, "
        f"{len(report.failed):,} failed; {report.seconds:.1f} s"
    )


@contextmanager
def _watched(source: Store, *, quiet: bool) -> Iterator[Callable[[CopyReport], None] | None]:
    """Show a bar on a terminal, and nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with progress("copying", source.count(expired=None)) as (bar, task):
        yield lambda report: bar.update(task, completed=report.sessions)
