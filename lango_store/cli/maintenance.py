"""`lango-store expire`, `archive`, `stats` and `doctor`: maintenance of a store."""

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import filesize
from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from lango_store._values.reports import ExpiryReport
from lango_store.archive import Archive
from lango_store.cli.options import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    YesOption,
    confirm,
    duration,
    open_store,
    time,
)
from lango_store.cli.output import NOTHING_FOUND, Columns, console, print_json, print_table, printable, progress, say
from lango_store.cli.sessions import COLUMNS, WIDE

INTERRUPTED = 130
_ROOM_FOR_BARS: Final = 80
"""The columns of a terminal that also shows bars."""


def expire(
    url: UrlOption = None,
    older_than: Annotated[
        Any, typer.Option(parser=duration, help="Also sessions idle for that long: 30d, 12h.")
    ] = None,
    created_before: Annotated[
        Any, typer.Option(parser=time, help="Also sessions made before: 2026-01-01, or 90d ago.")
    ] = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Most sessions in a transaction.")] = 500,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many sessions.")] = None,
    archive: Annotated[Path | None, typer.Option(help="Store what is purged in this SQLite file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be purged, and purge nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Purge sessions past their TTL, in batches; Ctrl-C stops it after the current batch.

    Exit code 1 if rows of another table reference some of them.
    """
    policy: dict[str, Any] = {
        "older_than": older_than,
        "created_before": created_before,
        "agent_id": agent,
        "user_id": user,
        "key_prefix": prefix,
        "limit": limit,
    }
    announcement = None if json_ else "looking at" if dry_run else "purging on"
    has_bar = sys.stderr.isatty() and not json_
    signals: list[int] = []
    report = ExpiryReport()

    def on_batch(state: ExpiryReport) -> None:
        nonlocal report
        report = state
        update(completed=state.sessions)
        if not (has_bar or json_):
            say(f"batch {state.batches}: {state.sessions:,} sessions, {state.messages:,} messages so far")
        if signals:
            raise KeyboardInterrupt

    with open_store(url, announcement) as store:
        if dry_run:
            report = store.expire(**policy, batch_size=batch_size, dry_run=True)
            if report.oldest and not json_:
                print_table(COLUMNS, [report.oldest], wide=WIDE)
        else:
            total = store.expire(**policy, dry_run=True).sessions if has_bar else None
            handler = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
            try:
                with progress("purging", total, quiet=json_) as update:
                    report = store.expire(**policy, batch_size=batch_size, archive=archive, on_batch=on_batch)
            except KeyboardInterrupt:
                _print(report, json_=json_, action="interrupted; purged")
                raise typer.Exit(INTERRUPTED) from None
            finally:
                signal.signal(signal.SIGINT, handler)
    _print(report, json_=json_, action="would purge" if dry_run else "purged")
    for key, constraint in report.held.items() if not json_ else ():
        say(f"{key} stays: {constraint} references it")
    if report.held:
        raise typer.Exit(1)


def _print(report: ExpiryReport, *, json_: bool, action: str) -> None:
    if json_:
        print_json(report)
        return
    batches = "" if report.dry_run else f" in {report.batches} batches"
    print(f"{action} {report.sessions:,} sessions, {report.messages:,} messages{batches}, {report.seconds:.1f} s")


def stats(url: UrlOption = None, json_: JsonOption = False) -> None:
    """Print totals: sessions, turns, messages, bytes; the largest agents; and how many sessions expire when.

    Tokens are those of messages. `sessions show` sums the usage of a session's turns, docs/howto/queries.md of many.
    """
    with open_store(url) as store, progress("reading all sessions", quiet=json_):
        found = store.stats()
    if json_:
        print_json(found)
        return
    turns = f"{found.turns:,} turns, " if found.turns else ""
    records = f"{found.records:,} records, " if found.records else ""
    tokens = f"{found.tokens:,} message tokens, " if found.tokens else ""
    console().print(
        f"{found.sessions:,} sessions ({found.expired:,} expired), {turns}{found.messages:,} messages, {records}"
        f"{tokens}{filesize.decimal(found.bytes)} on disk",
        soft_wrap=not sys.stdout.isatty(),
    )
    if not found.sessions:
        return
    agents = [(each.agent_id or "–", each.sessions, each.tokens, each.messages) for each in found.agents[:20]]
    _print_bars("By agent", ("agent", "sessions", "message tokens", "messages"), agents)
    _print_bars("When they expire", ("expires", "sessions"), found.expiring.items())


def _print_bars(title: str, columns: Sequence[str], rows: Iterable[tuple[str | int, ...]]) -> None:
    rows = list(rows)
    most = max(int(row[-1]) for row in rows)
    out = console()
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for place, column in enumerate(columns):
        whole = [*column.split(), *(f"{row[place]:,}" for row in rows if place)]
        table.add_column(column, min_width=max(map(len, whole)), justify="right" if place else "left")
    for name, *numbers in rows:
        bar = [Bar(most, 0, float(numbers[-1]), width=30)] if out.width >= _ROOM_FOR_BARS else []
        table.add_row(Text(printable(str(name)), overflow="fold"), *(f"{number:,}" for number in numbers), *bar)
    out.print()
    out.print(table)


def doctor(
    url: UrlOption = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what needs no guess.")] = False,
    json_: JsonOption = False,
) -> None:
    """Examine the store and print each problem with its remedy; exit code 1 if a problem remains."""
    announcement = "repairing" if repair and not json_ else None
    with open_store(url, announcement) as store, progress("checking", quiet=json_) as update:
        findings = store.examine(repair=repair, on_check=lambda name: update(description=f"checking: {name}"))
    for finding in findings:
        if json_:
            print_json(finding)
        else:
            state = "repaired" if finding.repaired else finding.remedy
            print(printable(f"{finding.name}: {finding.detail}\n  {state}"))
    if not (findings or json_):
        print("nothing is wrong")
    if any(not finding.repaired for finding in findings if finding.name != "settings"):
        raise typer.Exit(1)


archive_app = typer.Typer(help="Search, restore and forget what expire --archive stored.", no_args_is_help=True)

_FOUND: Final[Columns[dict[str, Any]]] = {
    "key": lambda found: found["key"],
    "seq": lambda found: found["seq"],
    "role": lambda found: found["role"],
    "time (UTC)": lambda found: datetime.fromisoformat(found["created_at"]),
    "text": lambda found: found["text"],
}

File = Annotated[Path, typer.Argument(help="The archive's file.")]
Key = Annotated[str, typer.Argument(help="The session's key.")]


@archive_app.command()
def search(
    text: Annotated[str, typer.Argument(help="Words that a message holds, all of them.")],
    file: File,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 20,
    json_: JsonOption = False,
) -> None:
    """Find archived messages, the best first; exit code 1 if there is none."""
    if not text.split():
        raise typer.BadParameter("give a word or more", param_hint="TEXT")
    with Archive(file) as archive:
        found = archive.search(text, limit=limit)
    if json_:
        for each in found:
            print(json.dumps(each))
    else:
        print_table(_FOUND, [found])
    if not found:
        say(NOTHING_FOUND)
        raise typer.Exit(1)


@archive_app.command()
def restore(
    key: Key,
    file: File,
    url: UrlOption = None,
    ttl: Annotated[Any, typer.Option(parser=duration, help="A TTL such as 30d; else it never expires.")] = None,
) -> None:
    """Bring an archived session back into the store."""
    with open_store(url, "restoring on") as store:
        session = store.restore(file, key, ttl=ttl)
    print(f"restored {session.message_count} messages")


@archive_app.command()
def forget(file: File, user: User = None, agent: Agent = None, prefix: Prefix = None, yes: YesOption = False) -> None:
    """Delete archived sessions of a user, an agent or a key prefix, so that the file keeps no trace."""
    filters = {"user_id": user, "agent_id": agent, "key_prefix": prefix}
    if not any(filters.values()):
        raise typer.BadParameter("give --user, --agent or --prefix")
    with Archive(file) as archive:
        sessions, messages = archive.count(**filters)
        confirm(f"forgetting {sessions:,} sessions, {messages:,} messages in {file}", yes=yes)
        print(f"forgot {archive.forget(**filters)} sessions")
