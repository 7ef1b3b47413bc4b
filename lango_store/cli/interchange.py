"""`lango-store import` and `export`: read and write files of other systems, and backups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lango_store import interchange
from lango_store.cli.options import JsonOption, UrlOption, open_store
from lango_store.cli.output import one_line, print_json, progress, say
from lango_store.interchange import Exported, FileReport

_NAMES = ", ".join(interchange.FORMATS)

VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Report every session or file.")]


def import_(
    source: Annotated[Path, typer.Argument(help="A file, or a folder of files.")],
    url: UrlOption = None,
    format: Annotated[str | None, typer.Option(help=f"One of {_NAMES}; else it is recognised.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report, and write nothing.")] = False,
    longest_line: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Refuse files with longer lines.")
    ] = interchange.LONGEST_LINE,
    verbose: VerboseOption = False,
    json_: JsonOption = False,
) -> None:
    """Import sessions, each file in one transaction; exit code 1 if a file could not be imported.

    Existing sessions and the files are not changed: it may be run again.
    """
    if format is not None and format not in interchange.FORMATS:
        raise typer.BadParameter(f"{format!r} is not a format: give one of {_NAMES}", param_hint="--format")
    with open_store(url, "looking at" if dry_run else "importing into") as store:
        total = len(interchange.files_of(source, format=format))
        with progress("importing", total, quiet=json_) as update:

            def on_file(report: FileReport) -> None:
                update(advance=1)
                _report(report, json_=json_, verbose=verbose)

            reports = interchange.import_path(
                store, source, format=format, dry_run=dry_run, longest_line=longest_line, on_file=on_file
            )
    if not json_:
        print(_summarize(reports, dry_run=dry_run))
    if any(report.error for report in reports):
        raise typer.Exit(1)


def _report(report: FileReport | Exported, *, json_: bool, verbose: bool) -> None:
    """Print an error or what was left out; with `verbose` also what was imported or exported."""
    if json_:
        print_json(report)
    elif report.error is not None:
        say(f"error: {report.error}")
    elif isinstance(report, FileReport):
        _report_import(report, verbose=verbose)
    elif verbose:
        omitted = f", {report.records:,} records left out" if report.records else ""
        line = report.key if report.path is None else f"{report.key}: {report.path}{omitted}"
        (say if report.path is None else print)(one_line(line))


def _report_import(report: FileReport, *, verbose: bool) -> None:
    if report.format is None:
        say(f"{report.path}: no format recognises it, left out")
        return
    parts = []
    if verbose:
        if report.keys:
            parts.append(f"{report.sessions:,} sessions, {report.messages:,} messages")
        if len(report.already_there) == 1:
            parts.append(f"{report.already_there[0]} is there already")
        elif report.already_there:
            parts.append(f"{report.already_there[0]} and {len(report.already_there) - 1:,} more are there already")
    parts += [f"{key} collides with another session, which stays as it is" for key in report.collided]
    if parts or verbose:
        print(one_line(f"{report.path}: {'; '.join(parts) or 'no session'}"))
    for each in report.skipped:
        say(f"{report.path}, line {each.line}: {each.reason}")


def _summarize(reports: list[FileReport], *, dry_run: bool) -> str:
    return (
        f"{'would import' if dry_run else 'imported'} {sum(each.sessions for each in reports):,} sessions, "
        f"{sum(each.messages for each in reports):,} messages from {sum(bool(each.keys) for each in reports):,} files; "
        f"{sum(len(each.already_there) for each in reports):,} already there, "
        f"{sum(len(each.collided) for each in reports):,} collided, "
        f"{sum(len(each.skipped) for each in reports):,} lines skipped or mended, "
        f"{sum(each.error is not None for each in reports):,} files failed"
    )


def export(
    to: Annotated[
        str, typer.Option("--to", help="A folder; or, as jsonl, a file such as today.jsonl.gz, or - for the output.")
    ],
    format: Annotated[str, typer.Option(help=f"One of {', '.join(interchange.writable())}.")] = "jsonl",
    keys: Annotated[list[str] | None, typer.Argument(help="The sessions' keys.")] = None,
    url: UrlOption = None,
    user: Annotated[str | None, typer.Option(help="All sessions of this user id.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All sessions.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist with other content.")] = False,
    verbose: VerboseOption = False,
    json_: JsonOption = False,
) -> None:
    """Write sessions to files; exit code 1 if a file exists with other content, which is not changed.

    Expired sessions are left out, except as jsonl: that is for backups, one file of all of them.
    """
    if sum((bool(keys), user is not None, all_)) != 1:
        raise typer.BadParameter("give keys, or --user, or --all")
    if format not in interchange.writable():
        known = ", ".join(interchange.writable())
        raise typer.BadParameter(f"{format!r} cannot be written: give one of {known}", param_hint="--format")
    output = to == "-"
    if output and (format != "jsonl" or json_):
        raise typer.BadParameter(
            "only --format jsonl without --json can go to standard output: give a folder", param_hint="--to"
        )
    with open_store(url) as store, progress("exporting", quiet=json_) as update:

        def on_file(report: Exported) -> None:
            update(advance=1)
            _report(report, json_=json_, verbose=verbose)

        done = interchange.export(
            store,
            sys.stdout.buffer if output else Path(to),
            format,
            keys=keys or (),
            user_id=user,
            everything=all_,
            replace=force,
            on_file=on_file,
        )
    failed = sum(each.error is not None for each in done)
    summary = f"exported {len(done) - failed:,} sessions to {'standard output' if output else to}, {failed:,} failed"
    if records := sum(each.records for each in done):
        summary += f"; {records:,} records were left out, as {format} has none: jsonl keeps them"
    if output:
        say(summary)
    elif not json_:
        print(one_line(summary))
    if failed:
        raise typer.Exit(1)
