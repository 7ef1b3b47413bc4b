"""`lango-store expire`, `stats`, `doctor`: what keeps a store tidy, and what an operator wants to see of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from lango_store._values.reports import ExpiryReport
from lango_store.cli.sessions import LISTING
from lango_store.cli.terminal import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    announce,
    console,
    duration,
    moment,
    opened,
    table,
)
from lango_store.cli.text import printable, say
from lango_store.store import Store

INTERRUPTED = 130


def expire(
    url: UrlOption = None,
    older_than: Annotated[
        str | None, typer.Option(help="Also sessions idle for that long: 30d, 12h.", show_default=False)
    ] = None,
    created_before: Annotated[
        str | None, typer.Option(help="Also sessions made before: 2026-01-01, or 90d ago.", show_default=False)
    ] = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Sessions in one transaction.")] = 500,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many sessions.", show_default=False)] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Keep what goes in this SQLite file.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and purge nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Purge sessions past their TTL, in batches; Ctrl-C ends it after the batch under way.

    Exit code 1 if rows of another table hold some of them.
    """
    policy: dict[str, Any] = {
        "older_than": None if older_than is None else duration(older_than, "--older-than"),
        "created_before": None if created_before is None else moment(created_before, "--created-before"),
        "agent_id": agent,
        "user_id": user,
        "key_prefix": prefix,
    }
    with opened(url) as store:
        announce(store, "looking at" if dry_run else "purging on")
        if dry_run:
            report = store.expire(**policy, batch_size=batch_size, limit=limit, dry_run=True)
            if report.oldest and not json_:
                LISTING.print([report.oldest])
        else:
            try:
                with _watched(store, policy, limit, quiet=json_) as on_batch:
                    report = store.expire(
                        **policy, batch_size=batch_size, limit=limit, archive=archive, on_batch=on_batch
                    )
            except _Interrupted as stop:  # out here the bar has ended, written anew over the terminal's ^C
                _print(stop.report, json_=json_, cut=True)
                raise typer.Exit(INTERRUPTED) from None
    _print(report, json_=json_)
    for key, constraint in report.held.items():
        say(f"{key} stays: {constraint} holds it")
    if report.held:
        raise typer.Exit(1)


def _print(report: ExpiryReport, *, json_: bool, cut: bool = False) -> None:
    if json_:
        print(report.model_dump_json())
        return
    freed = "" if report.bytes_freed is None else f", {report.bytes_freed:,} bytes free again"
    did = "would purge" if report.dry_run else "interrupted; purged" if cut else "purged"
    batches = "" if report.dry_run else f" in {report.batches} batches"
    print(f"{did} {report.sessions:,} sessions, {report.messages:,} messages{freed}{batches}, {report.seconds:.1f} s")


class _Interrupted(Exception):
    def __init__(self, report: ExpiryReport) -> None:
        self.report = report


@contextmanager
def _watched(store: Store, policy: dict[str, Any], limit: int | None, *, quiet: bool) -> Iterator[Any]:
    """Show progress, a bar on a terminal and lines in a log; let Ctrl-C wait for the batch under way."""
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    bar = None
    if not quiet and sys.stderr.isatty():
        total = store.expire(**policy, dry_run=True).sessions
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True))
        task = bar.add_task("purging", total=total if limit is None else min(total, limit))
        bar.start()

    def on_batch(report: ExpiryReport) -> None:
        if bar is not None:
            bar.update(task, completed=report.sessions)
        elif not quiet:
            say(f"batch {report.batches}: {report.sessions:,} sessions, {report.messages:,} messages so far")
        if asked:
            raise _Interrupted(report)

    try:
        yield on_batch
    finally:
        if bar is not None:
            bar.stop()
        signal.signal(signal.SIGINT, before)


def stats(url: UrlOption = None, json_: JsonOption = False) -> None:
    """Sum the store up: sessions, messages, tokens, bytes, by agent and by role, and how many expire when."""
    with opened(url) as store:
        found = store.stats()
    if json_:
        print(found.model_dump_json())
        return
    out = console()
    out.print(
        f"{found.sessions:,} sessions ({found.expired:,} expired), {found.messages:,} messages, "
        f"{found.tokens:,} tokens, {_size(found.bytes)} on disk"
    )
    agents = table("agent", "sessions", "messages", "tokens", "", title="By agent (exact)", right=(1, 2, 3))
    most = max((each.messages for each in found.agents), default=0)
    for each in found.agents[:20]:
        counts = (f"{each.sessions:,}", f"{each.messages:,}", f"{each.tokens:,}")
        agents.add_row(Text(printable(each.agent_id) if each.agent_id else "–"), *counts, _bar(each.messages, most))
    out.print(agents)
    out.print(
        _bars("By role", "messages", found.roles, "estimated from a sample" if found.roles_estimated else "exact")
    )
    out.print(_bars("When they expire", "sessions", found.expiring, "exact"))


def _bars(title: str, what: str, numbers: dict[str, int], how: str) -> Any:
    made = table("", what, "", title=f"{title} ({how})", right=(1,))
    most = max(numbers.values(), default=0)
    for name, number in numbers.items():
        made.add_row(name, f"{number:,}", _bar(number, most))
    return made


def _bar(number: int, most: int, width: int = 30) -> Text:
    eighths = round(number / most * width * 8) if most else 0
    bar = "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
    return Text(bar if printable(bar) == bar else "#" * (eighths // 8), style="cyan")


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1000
    raise AssertionError


def doctor(
    url: UrlOption = None,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended without guessing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Look for what is wrong, each finding with its remedy; exit code 1 if something is left."""
    with opened(url) as store:
        if repair:
            announce(store, "repairing")
        found = store.examine(repair=repair)
    if json_:
        for finding in found:
            print(finding.model_dump_json())
    else:
        for finding in found:
            state = "repaired" if finding.repaired else finding.remedy
            console().print(Text(printable(f"{finding.name}: {finding.detail}\n  {state}")), soft_wrap=True)
        if not found:
            print("nothing is wrong")
    if any(not finding.repaired for finding in found if finding.name != "settings"):
        raise typer.Exit(1)
