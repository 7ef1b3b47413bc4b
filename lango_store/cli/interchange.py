"""`lango-store import`, `export` and `copy`: backups, files of other systems, and copies of databases."""

import pkgutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
import typer

from lango_store import interchange
from lango_store._engine.engine import database_file
from lango_store.cli import streams
from lango_store.cli.options import (
    Agent,
    Archives,
    AuthorsOption,
    DescendantsOption,
    JsonOption,
    Prefix,
    Scopes,
    Since,
    Until,
    UrlOption,
    User,
    flag,
    open_store,
    option,
)
from lango_store.cli.output import one_line, print_json, progress, quantity, rows_by_table, say
from lango_store.errors import SchemaOutOfDate, quoted
from lango_store.interchange import Exported, FileReport
from lango_store.interchange.copying import CopyReport
from lango_store.interchange.copying import copy as copy_sessions
from lango_store.interchange.files import atomic_writer
from lango_store.interchange.nanobot import Names
from lango_store.interchange.salvage import salvage as salvage_file

_NAMES = ", ".join(interchange.FORMATS)
_WRITABLE = ", ".join(interchange.writable())
_IN_ONE_FILE = ", ".join(interchange.IN_ONE_FILE)


def import_(
    source: Annotated[Path, typer.Argument(help="File, or folder of files.")],
    url: UrlOption = None,
    format: Annotated[str | None, option("FORMAT", f"One of {_NAMES}. Default: detected for each file.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Report what would be imported. Write nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Import sessions from a file or a folder.

    Existing sessions are never changed. Exit code 1 if a file cannot be
    imported; nothing of such a file is written. If the command is
    interrupted, run it again.
    """
    format = None if format is None else _renamed(format)
    if format is not None and format not in interchange.FORMATS:
        raise typer.BadParameter(f"{quoted(format)} is not a format: give one of {_NAMES}", param_hint="--format")
    with open_store(url, "comparing with" if dry_run else "importing into") as store:
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


def _renamed(format: str) -> str:
    if format != "jsonl":
        return format
    say("notice: --format jsonl is now called --format backup")
    return "backup"


def _print_problems(report: FileReport) -> None:
    if report.error is not None:
        say(f"error: {report.error}")
    elif report.format is None:
        say(f"{report.path}: skipped, the format is unknown")
    for key in report.collided:
        print(one_line(f"{report.path}: {key} collides with an existing session, which was not changed"))
    for each in report.skipped:
        say(f"{report.path}, line {each.line}: {each.reason}")


def _summarize(reports: list[FileReport], *, dry_run: bool) -> str:
    files = sum(each.format is not None and each.error is None for each in reports)
    return (
        f"{'would import' if dry_run else 'imported'} {quantity(sum(each.sessions for each in reports), 'session')}, "
        f"{quantity(sum(each.messages for each in reports), 'message')} from {quantity(files, 'file')}; "
        f"{sum(len(each.already_there) for each in reports):,} already there, "
        f"{sum(len(each.collided) for each in reports):,} collided, "
        f"{quantity(sum(len(each.skipped) for each in reports), 'line')} skipped or changed, "
        f"{quantity(sum(each.error is not None for each in reports), 'file')} failed"
    )


def _function(name: str) -> Any:
    sys.path.insert(0, "")  # a module in the current folder, as with `python -m`
    try:
        function: Any = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{quoted(name)} cannot be imported ({error}): give module:function") from None
    if not callable(function):
        raise typer.BadParameter(f"{quoted(name)} is not a function")
    return function


def export(
    to: Annotated[
        str,
        option(
            "PATH",
            f"Folder to write to. With {_IN_ONE_FILE} also a file such as a.jsonl.gz, or a.json for the last two, or - "
            "for standard output.",
            "--to",
        ),
    ],
    format: Annotated[str, option("FORMAT", f"One of {_WRITABLE}.")] = "backup",
    keys: Annotated[list[str] | None, typer.Argument(help="Keys of the sessions to export.")] = None,
    url: UrlOption = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, option("NUMBER", "Only this many sessions, the last updated ones.", min=1)] = None,
    all_: Annotated[bool, flag("--all", "Export all sessions; with backup also shared values.")] = False,
    everything: Annotated[
        bool,
        flag("--everything", "With --user: export all rows that `erase` would erase to one file, .jsonl or .html."),
    ] = False,
    archive: Archives = None,
    scope: Scopes = None,
    authors: AuthorsOption = False,
    descendants: DescendantsOption = False,
    force: Annotated[bool, flag("--force", "Replace existing files that have different content.")] = False,
    redact: Annotated[
        Any,
        option(
            "MODULE:FUNCTION",
            "With openai: redact texts with this function, not with the built-in one.",
            parser=_function,
        ),
    ] = None,
    no_redact: Annotated[bool, flag("--no-redact", "With openai: write texts unchanged.")] = False,
    names: Annotated[
        Names,
        option(
            "NAMES",
            "With nanobot: nanobot for the file names that nanobot expects, in base64 for new sessions, or readable "
            "for names such as telegram_1.jsonl, which nanobot 0.2 and its Go port expect.",
        ),
    ] = "nanobot",
    json_: JsonOption = False,
) -> None:
    """Export sessions to files: those with the given keys, those that match all filters, or all.

    The format backup is one lossless file of JSON lines with all chosen
    sessions, including expired ones. The format openai is for
    fine-tuning: it writes one file with a line for each live session. It
    replaces e-mail addresses, telephone numbers, card numbers, IBANs, API
    keys and tokens that it recognizes by their form. The formats chatgpt
    and open-webui are one file with all versions of the messages of each
    live session. The other formats write one file for each live session.

    With --everything, the file has all rows that belong to the user: as
    a page that a person can read if its name ends with .html, otherwise as
    JSON lines that are not a backup.

    Exit code 1 if the export of a session fails. Without --force, an existing
    file with different content is an error and is not changed.
    """
    which: dict[str, Any] = {
        "agent_id": agent,
        "user_id": user,
        "key_prefix": prefix,
        "updated_since": since,
        "updated_before": until,
        "limit": limit,
    }
    which = {name: value for name, value in which.items() if value is not None}
    if sum((bool(keys), bool(which), all_)) != 1:
        raise typer.BadParameter("give keys, or --all, or filters such as --user and --since")
    if everything:
        if [*which] != ["user_id"] or to == "-":
            raise typer.BadParameter("give it with --user alone, and with a file for --to", param_hint="--everything")
        assert user is not None
        _export_user(url, user, Path(to), archive or (), scope or (), authors=authors, force=force)
        return
    if archive or scope or authors:
        raise typer.BadParameter("--archive, --scope and --authors need --everything")
    format = _renamed(format)
    if format not in interchange.writable():
        raise typer.BadParameter(f"{quoted(format)} cannot be written: give one of {_WRITABLE}", param_hint="--format")
    if (redact or no_redact) and (format != "openai" or (redact and no_redact)):
        raise typer.BadParameter("give one of --redact and --no-redact, with --format openai")
    if names != "nanobot" and format != "nanobot":
        raise typer.BadParameter("give it with --format nanobot", param_hint="--names")
    is_output = to == "-"
    if is_output and (format not in interchange.IN_ONE_FILE or json_):
        raise typer.BadParameter(
            f"only one of {_IN_ONE_FILE} without --json can go to standard output: give a folder",
            param_hint="--to",
        )
    if is_output and (sys.__stdout__ is None or not hasattr(sys.stdout, "buffer")):
        raise typer.BadParameter("standard output is closed, or takes no bytes: give a file", param_hint="--to")
    ending = streams.ending_with_reader() if is_output else nullcontext()
    with open_store(url) as store, progress("exporting", quiet=json_) as update, ending, streams.ending_at_signals():

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
            **which,
            everything=all_,
            descendants=descendants,
            replace=force,
            redact=None if no_redact else redact or interchange.redact_text,
            names=names,
            on_file=on_file,
        )
    failed, unchanged = sum(each.error is not None for each in done), sum(each.unchanged for each in done)
    exported = quantity(len(done) - failed - unchanged, "session")
    summary = (
        f"exported {exported} to {'standard output' if is_output else to}, {unchanged:,} unchanged, {failed:,} failed"
    )
    if records := sum(each.records for each in done):
        summary += f"; {quantity(records, 'record')} left out: only backup can hold records"
    if is_output:
        say(summary)
    elif not json_:
        print(one_line(summary))
    if failed:
        raise typer.Exit(1)


def _export_user(
    url: str | None, user: str, to: Path, archives: Sequence[str], scopes: Sequence[str], *, authors: bool, force: bool
) -> None:
    with open_store(url) as store, streams.ending_at_signals(), atomic_writer(to, replace=force) as file:
        format: Any = "html" if to.suffix == ".html" else "jsonl"
        counts = store.export_user(user, file, format=format, archives=archives, scopes=scopes, authors=authors)
    for database, tables in counts.items():
        print(f"exported from {database}: {rows_by_table(tables)}")


def copy(
    source_url: Annotated[
        str, option("URL", "Database to copy from. It is only read. With --salvage, a SQLite file.", "--from")
    ],
    target_url: Annotated[str, option("URL", "Database to copy to. Create its schema first, with db upgrade.", "--to")],
    dry_run: Annotated[
        bool, flag("--dry-run", "Compare the databases, and report what would be copied. Write nothing.")
    ] = False,
    salvage: Annotated[
        bool, flag("--salvage", "Copy the readable rows of a damaged SQLite file. The file is not changed.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Copy all sessions, including expired ones, and all shared values to another database.

    Exit code 1 if a session or shared value could not be copied, or already
    exists in the target with different content. Each of them is listed, and
    nothing that exists in the target is changed. If the command is killed, run
    it again: it continues where it stopped.
    """
    if salvage:
        _finish(_salvaged(source_url, target_url, dry_run=dry_run), json_=json_)
        return
    with open_store(source_url, option="--from") as source, open_store(target_url, option="--to") as target:
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
    with open_store(target_url, option="--to") as target:
        file = database_file(target.engine.url)
        if file is not None and Path(path).exists() and file.samefile(path):
            raise typer.BadParameter("this is the damaged file itself: give another database", param_hint="--to")
        target.ping()
        say(f"copying the readable rows of {path} to {target.engine.url}")
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
        say(f"differs, not changed: {key!r}")
    for scope, name in report.differing_values:
        say(f"differs, not changed: value {name!r} of scope {scope!r}")
    for failure in report.missing:
        say(f"missing: {quoted(failure.key)}: {failure.reason}")
    for failure in report.failed:
        say(f"failed: {failure.key!r}: {failure.reason}")
    values = f", {quantity(report.values, 'shared value')}" if report.values else ""
    print(
        f"{'would copy' if report.dry_run else 'copied'} {quantity(report.copied, 'session')}, "
        f"{quantity(report.messages, 'message')}{values}; {report.already_there:,} already there, "
        f"{len(report.differing) + len(report.differing_values):,} differ, {len(report.failed):,} failed; "
        f"{report.seconds:.1f} s"
    )
