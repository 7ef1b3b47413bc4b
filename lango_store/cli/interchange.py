"""`lango-store import`, `export` and `copy`: files of other systems, backups, and whole databases."""

import sys
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer

from lango_store import interchange
from lango_store._engine.engine import database_file
from lango_store.cli.options import JsonOption, UrlOption, User, open_store
from lango_store.cli.output import one_line, print_json, progress, say
from lango_store.errors import SchemaOutOfDate, quoted
from lango_store.interchange import Exported, FileReport
from lango_store.interchange.copying import CopyReport
from lango_store.interchange.copying import copy as copy_sessions
from lango_store.interchange.salvage import salvage as salvage_file

_NAMES = ", ".join(interchange.FORMATS)
_WRITABLE = ", ".join(interchange.writable())


def import_(
    source: Annotated[Path, typer.Argument(help="A file, or a folder of files.")],
    url: UrlOption = None,
    format: Annotated[str | None, typer.Option(help=f"One of {_NAMES}; else it is recognised.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report, and write nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Import sessions; exit code 1 if a file could not be imported, of which nothing is written.

    Existing sessions and the files are not changed: run it again if it was interrupted.
    """
    if format is not None and format not in interchange.FORMATS:
        raise typer.BadParameter(f"{quoted(format)} is not a format: give one of {_NAMES}", param_hint="--format")
    with open_store(url, "looking at" if dry_run else "importing into") as store:
        total = len(interchange.files_of(source, format=format))
        with progress("importing", total, quiet=json_) as update:

            def on_file(report: FileReport) -> None:
                update(advance=1)
                if json_:
                    print_json(report)
                else:
                    _print_problems(report)

            reports = interchange.import_path(store, source, format=format, dry_run=dry_run, on_file=on_file)
    if not json_:
        print(_summarize(reports, dry_run=dry_run))
    if any(report.error for report in reports):
        raise typer.Exit(1)


def _print_problems(report: FileReport) -> None:
    if report.error is not None:
        say(f"error: {report.error}")
    elif report.format is None:
        say(f"{report.path}: no format recognises it, left out")
    for key in report.collided:
        print(one_line(f"{report.path}: {key} collides with another session, which stays as it is"))
    for each in report.skipped:
        say(f"{report.path}, line {each.line}: {each.reason}")


def _summarize(reports: list[FileReport], *, dry_run: bool) -> str:
    read = sum(each.format is not None and each.error is None for each in reports)
    return (
        f"{'would import' if dry_run else 'imported'} {sum(each.sessions for each in reports):,} sessions, "
        f"{sum(each.messages for each in reports):,} messages from {read:,} files; "
        f"{sum(len(each.already_there) for each in reports):,} already there, "
        f"{sum(len(each.collided) for each in reports):,} collided, "
        f"{sum(len(each.skipped) for each in reports):,} lines skipped or changed, "
        f"{sum(each.error is not None for each in reports):,} files failed"
    )


def export(
    to: Annotated[
        str, typer.Option("--to", help="A folder; or, as jsonl, a file such as today.jsonl.gz, or - for the output.")
    ],
    format: Annotated[str, typer.Option(help=f"One of {_WRITABLE}.")] = "jsonl",
    keys: Annotated[list[str] | None, typer.Argument(help="The sessions' keys.")] = None,
    url: UrlOption = None,
    user: User = None,
    all_: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist with other content.")] = False,
    json_: JsonOption = False,
) -> None:
    """Write sessions to files; exit code 1 if a file exists with other content, which is not changed.

    Expired sessions are left out, except as jsonl: that is for backups, one file of all of them.
    """
    if sum((bool(keys), user is not None, all_)) != 1:
        raise typer.BadParameter("give keys, or --user, or --all")
    if format not in interchange.writable():
        raise typer.BadParameter(f"{quoted(format)} cannot be written: give one of {_WRITABLE}", param_hint="--format")
    is_output = to == "-"
    if is_output and (format != "jsonl" or json_):
        raise typer.BadParameter(
            "only --format jsonl without --json can go to standard output: give a folder", param_hint="--to"
        )
    with open_store(url) as store, progress("exporting", quiet=json_) as update:

        def on_file(report: Exported) -> None:
            update(advance=1)
            if json_:
                print_json(report)
            elif report.error is not None:
                say(f"error: {report.error}")

        done = interchange.export(
            store,
            sys.stdout.buffer if is_output else Path(to),
            format,
            keys=keys or (),
            user_id=user,
            everything=all_,
            replace=force,
            on_file=on_file,
        )
    failed, unchanged = sum(each.error is not None for each in done), sum(each.unchanged for each in done)
    summary = (
        f"exported {len(done) - failed - unchanged:,} sessions to {'standard output' if is_output else to}, "
        f"{unchanged:,} unchanged, {failed:,} failed"
    )
    if records := sum(each.records for each in done):
        summary += f"; {records:,} records were left out, as {format} has none: jsonl keeps them"
    if is_output:
        say(summary)
    elif not json_:
        print(one_line(summary))
    if failed:
        raise typer.Exit(1)


def copy(
    source_url: Annotated[
        str, typer.Option("--from", help="The database to copy from; it is only read. With --salvage, a SQLite file.")
    ],
    target_url: Annotated[str, typer.Option("--to", help="The database to copy to; its schema must be there.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, and say what would be copied.")] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Copy the readable rows of a damaged SQLite file, which is not opened.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Copy all sessions, expired ones too; exit code 1 if some are missing, or in the target with other content.

    If it is killed, run it again: it continues where it stopped. A session that the target has with other content is
    reported and not changed.
    """
    if salvage:
        _finish(_salvaged(source_url, target_url, dry_run=dry_run), json_=json_)
        return
    with open_store(source_url) as source, open_store(target_url) as target:
        for store in (source, target):
            try:
                store.ping()
            except SchemaOutOfDate:
                say(f"at {store.engine.url}:")  # the error does not name the database
                raise
        say(f"copying from {source.engine.url} to {target.engine.url}")
        with progress("copying", source.count(expired=None) if sys.stderr.isatty() else None, quiet=json_) as update:
            report = copy_sessions(
                source, target, dry_run=dry_run, on_batch=lambda report: update(completed=report.sessions)
            )
    _finish(report, json_=json_)


def _salvaged(source: str, target_url: str, *, dry_run: bool) -> CopyReport:
    path = (sa.make_url(source).database or "") if source.startswith("sqlite") and "://" in source else source
    with open_store(target_url) as target:
        file = database_file(target.engine.url)
        if file is not None and Path(path).exists() and file.samefile(path):
            raise typer.BadParameter("names the damaged file itself: give another database", param_hint="--to")
        target.ping()
        say(f"copying what can be read of {path} to {target.engine.url}")
        return salvage_file(Path(path), target, dry_run=dry_run)


def _finish(report: CopyReport, *, json_: bool) -> None:
    if json_:
        print_json(report)
    else:
        _print_copied(report)
    if not report.complete:
        raise typer.Exit(1)


def _print_copied(report: CopyReport) -> None:
    for key in report.differing:
        say(f"differs, left alone: {key!r}")
    for scope, name in report.differing_values:
        say(f"differs, left alone: value {name!r} of scope {scope!r}")
    for failure in report.missing:
        say(f"missing: {quoted(failure.key)}: {failure.reason}")
    for failure in report.failed:
        say(f"failed: {failure.key!r}: {failure.reason}")
    values = f", {report.values:,} shared values" if report.values else ""
    print(
        f"{'would copy' if report.dry_run else 'copied'} {report.copied:,} sessions, {report.messages:,} messages"
        f"{values}; {report.already_there:,} were there already, "
        f"{len(report.differing) + len(report.differing_values):,} differ, {len(report.failed):,} failed; "
        f"{report.seconds:.1f} s"
    )
