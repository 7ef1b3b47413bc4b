"""`lango-store import` and `export`: files of other systems, in and out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lango_store import interchange
from lango_store.cli.terminal import (
    JsonOption,
    UrlOption,
    announce,
    opened,
    say_error,
)
from lango_store.cli.text import printable, say
from lango_store.errors import LangoStoreError
from lango_store.interchange import Exported, FileReport

_NAMES = ", ".join(interchange.FORMATS)


def import_(
    source: Annotated[Path, typer.Argument(exists=True, help="A file, or a folder of files.")],
    url: UrlOption = None,
    format: Annotated[
        str | None, typer.Option(help=f"One of {_NAMES}; else it is recognised.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would come in, and write nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Import sessions, each file in one transaction; exit code 1 if a file could not be imported.

    Sessions that are there already stay as they are, and so do the files: it may be run again.
    """
    with opened(url) as store:
        total = len(interchange.files_of(source, format=format))
        announce(store, "looking at" if dry_run else "importing into")
        with _told("importing", total, _json if json_ else _print, quiet=json_) as on_file:
            reports = interchange.import_path(store, source, format=format, dry_run=dry_run, on_file=on_file)
    if not json_:
        print(_summed_up(reports, dry_run=dry_run))
    if any(report.error for report in reports):
        raise typer.Exit(1)


def _json(report: FileReport | Exported) -> None:
    print(report.model_dump_json())


def _print(report: FileReport | Exported) -> None:
    if report.error is not None:
        say_error(LangoStoreError(report.error))
        return
    if isinstance(report, Exported):
        print(printable(f"{report.key}: {report.path}"))
        return
    if report.format is None:
        say(f"{report.path}: no format recognises it, left out")
        return
    told = [f"{report.sessions:,} sessions, {report.messages:,} messages"] if report.keys else []
    told += [f"{key} is there already" for key in report.already_there[:1]]
    if (more := len(report.already_there) - 1) > 0:
        told[-1] = f"{report.already_there[0]} and {more:,} more are there already"
    told += [f"{key} collides with another session, which stays as it is" for key in report.collided]
    print(printable(f"{report.path}: {'; '.join(told) or 'no session'}"))
    for each in report.skipped:
        say(f"{report.path}, line {each.line}: {each.reason}")


def _summed_up(reports: list[FileReport], *, dry_run: bool) -> str:
    def number(what: Callable[[FileReport], Any]) -> str:
        return f"{sum(what(report) for report in reports):,}"

    return (
        f"{'would import' if dry_run else 'imported'} {number(lambda r: r.sessions)} sessions, "
        f"{number(lambda r: r.messages)} messages from {number(lambda r: bool(r.keys))} files; "
        f"{number(lambda r: len(r.already_there))} already there, {number(lambda r: len(r.collided))} collided, "
        f"{number(lambda r: len(r.skipped))} lines skipped or mended, {number(lambda r: bool(r.error))} files failed"
    )


def export(
    to: Annotated[Path, typer.Option("--to", file_okay=False, help="The folder, made if it is not there.")],
    format: Annotated[str, typer.Option(help=f"One of {', '.join(interchange.writable())}.")],
    keys: Annotated[list[str] | None, typer.Argument(help="The sessions' keys.")] = None,
    url: UrlOption = None,
    user: Annotated[
        str | None, typer.Option("--user", help="All sessions of this user id.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    json_: JsonOption = False,
) -> None:
    """Write sessions to files; a file that is there with other content stays, and makes exit code 1.

    Expired sessions are left out, except with `--format jsonl`: that is for backups, one file of all of them.
    """
    if sum((bool(keys), user is not None, all_)) != 1:
        raise typer.BadParameter("give keys, or --user, or --all")
    with opened(url) as store, _told("exporting", None, _json if json_ else _print, quiet=json_) as on_file:
        done = interchange.export(store, to, format, keys=keys or (), user_id=user, everything=all_, on_file=on_file)
    if any(each.error for each in done):
        raise typer.Exit(1)


@contextmanager
def _told(
    doing: str, total: int | None, tell: Callable[[FileReport | Exported], None], *, quiet: bool
) -> Iterator[Callable[[FileReport | Exported], None]]:
    """Tell of each file as it is done; on a terminal show a bar, and tell of all of them after it."""
    if quiet or not sys.stderr.isatty():
        yield tell
        return
    done: list[FileReport | Exported] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(doing, total=total)

            def advance(report: FileReport | Exported) -> None:
                done.append(report)
                bar.advance(task)

            yield advance
    finally:
        for report in done:
            tell(report)
