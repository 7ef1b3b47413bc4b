"""`lango-store expire`, `stats` and `doctor`: maintenance of a store."""

import signal
import sys
from typing import Annotated, Any

import typer
from rich import filesize

from lango_store._values.reports import ExpiryReport, Finding, Stats
from lango_store._values.usage import describe
from lango_store.cli.metrics import print_metrics, tokens_and_cost
from lango_store.cli.options import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    duration,
    flag,
    open_store,
    option,
    time_option,
)
from lango_store.cli.output import console, print_bars, print_json, print_table, printable, progress, quantity, say
from lango_store.cli.sessions import COLUMNS, WIDE
from lango_store.errors import DamagedDatabase
from lango_store.store import Store

INTERRUPTED = 130


def expire(
    url: UrlOption = None,
    older_than: Annotated[
        Any, option("DURATION", "Also purge sessions not updated for this long: 30d, 12h.", parser=duration)
    ] = None,
    created_before: Annotated[
        Any, time_option("Also purge sessions created before this time, even if in use: 2026-01-01, or '90d ago'.")
    ] = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    batch_size: Annotated[
        int, option("NUMBER", "Maximum number of sessions per transaction.", min=1, max=10_000)
    ] = 500,
    limit: Annotated[int | None, option("NUMBER", "Maximum number of sessions to purge. Default: all.", min=0)] = None,
    archive: Annotated[
        str | None,
        option(
            "FILE|URL", "Copy sessions to this database before they are purged. A SQLite file is created if necessary."
        ),
    ] = None,
    descendants: Annotated[
        bool, flag("--descendants", "Also purge all descendants of each purged session, even if they are not due.")
    ] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Report what would be purged. Purge nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Permanently delete sessions whose TTL has passed, in batches.

    Also deletes removed messages that are no longer kept for an undo. The
    command does not ask for confirmation: use --dry-run first. Ctrl-C
    stops it after the current batch.

    Exit code 1 if some sessions are kept because rows of another table
    reference them. The command names these sessions on standard error, or
    with --json in "held".
    """
    policy: dict[str, Any] = {
        "older_than": older_than,
        "created_before": created_before,
        "agent_id": agent,
        "user_id": user,
        "key_prefix": prefix,
        "limit": limit,
        "descendants": descendants,
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
            done = f"{quantity(state.sessions, 'session')}, {quantity(state.messages, 'message')}"
            say(f"batch {state.batches}: {done} so far")
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
        say(f"{key} is not purged: {constraint} references the session")
    if report.held:
        raise typer.Exit(1)


def _print(report: ExpiryReport, *, json_: bool, action: str) -> None:
    if json_:
        print_json(report)
        return
    batches = "" if report.dry_run else f" in {quantity(report.batches, 'batch')}"
    sessions, messages = quantity(report.sessions, "session"), quantity(report.messages, "message")
    print(f"{action} {sessions}, {messages}{batches}, {report.seconds:.1f} s")


def stats(
    url: UrlOption = None,
    json_: JsonOption = False,
    prometheus: Annotated[
        bool, flag("--prometheus", "Print metrics for the textfile collector of Prometheus.")
    ] = False,
) -> None:
    """Print totals, the agents with the most messages, and when sessions expire.

    "Message tokens" is the sum of the messages' token counts. "Usage of
    turns" is the usage that model providers reported, which `lango-store
    usage` prints by groups.
    """
    if json_ and prometheus:
        raise typer.BadParameter("give one of --json and --prometheus")
    with open_store(url) as store, progress("reading all sessions", quiet=json_ or prometheus):
        totals = store.stats()
        used = [] if json_ else store.usage()
    if json_:
        print_json(totals)
        return
    if prometheus:
        print_metrics(totals, used)
        return
    turns = f"{quantity(totals.turns, 'turn')}, " if totals.turns else ""
    records = f"{quantity(totals.records, 'record')}, " if totals.records else ""
    tokens = f"{quantity(totals.tokens, 'message token')}, " if totals.tokens else ""
    console().print(
        f"{quantity(totals.sessions, 'session')} ({totals.expired:,} expired), {turns}"
        f"{quantity(totals.messages, 'message')}, {records}{tokens}{filesize.decimal(totals.bytes)} on disk",
        soft_wrap=not sys.stdout.isatty(),
    )
    if totals.payload_bytes:
        stored, saved = filesize.decimal(totals.payload_bytes), filesize.decimal(totals.saved_bytes)
        console().print(f"{stored} of payloads, {saved} saved by storing each once per session")
    for finding in _waiting(totals):
        console().print(f"{finding.detail}: {finding.remedy}")
    for row in used:
        console().print(f"usage of turns: {', '.join(describe(tokens_and_cost(row)))}")
    if not totals.sessions:
        return
    agents = [(each.agent_id or "–", each.sessions, each.tokens, each.messages) for each in totals.agents[:20]]
    print_bars("By agent", ("agent", "sessions", "message tokens", "messages"), agents)
    print_bars("By time to expiry", ("expires", "sessions"), totals.expiring.items())


def _waiting(totals: Stats) -> list[Finding]:
    """Return the work that waits, with what to do about it."""
    since = "" if totals.owed_since is None else f"{totals.owed_since:%Y-%m-%d %H:%M:%S} UTC"
    waiting = {
        f"{quantity(totals.owed_turns, 'turn')} owed, the first due at {since}": (
            totals.owed_turns,
            "`lango-store owed` lists them; start workers, or more of them",
        ),
        f"{quantity(totals.given_up_turns, 'turn')} given up": (
            totals.given_up_turns,
            "`lango-store owed` prints the errors; remove the cause, and run `lango-store turns retry`",
        ),
        f"{quantity(totals.unknown_calls, 'unknown tool call')}": (
            totals.unknown_calls,
            "`lango-store calls` lists them; find out which have run, and run `lango-store calls resolve`",
        ),
        f"{quantity(totals.unanswered_suspensions, 'suspension')} without an answer": (
            totals.unanswered_suspensions,
            "`lango-store suspensions` lists them; answer them with `lango-store suspensions answer`",
        ),
    }
    return [
        Finding(name="waiting", subject="", detail=detail, remedy=remedy)
        for detail, (number, remedy) in waiting.items()
        if number
    ]


def _waiting_in(store: Store) -> list[Finding]:
    try:
        return _waiting(store.stats())
    except DamagedDatabase as error:
        return [Finding(name="check failed", subject="", detail=str(error), remedy="fix the findings above first")]


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
            findings += _waiting_in(store)
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
