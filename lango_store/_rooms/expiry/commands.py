"""`lango-store expire` and `sessions restore`: purge sessions, and restore them from an archive."""

import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from lango_store._rooms.expiry.values import ExpiryReport
from lango_store.cli.options import (
    Agent,
    DescendantsOption,
    JsonOption,
    Key,
    Prefix,
    UrlOption,
    User,
    duration,
    example,
    flag,
    open_store,
    option,
    time_option,
)
from lango_store.cli.output import one_line, print_json, print_table, progress, quantity, say
from lango_store.cli.root import app
from lango_store.cli.sessions import COLUMNS, WIDE
from lango_store.cli.sessions import app as sessions
from lango_store.errors import HOLD, SessionOnHold

INTERRUPTED = 130


@app.command(epilog=example("expire --archive cold.db --url sqlite:///agent.db"))
def expire(
    url: UrlOption = None,
    policy: Annotated[
        Path | None, option("FILE", "Apply the rules of this TOML file, instead of the options below.", "--policy")
    ] = None,
    grace: Annotated[
        Any, option("DURATION", "Purge sessions only when they have been expired for this long.", parser=duration)
    ] = None,
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
    stops it after the current batch. With --policy, the first rule that
    matches a session decides about it.

    Exit code 1 if some sessions are kept because rows of another table
    reference them. The command names these sessions on standard error, or
    with --json in "held".
    """
    which: dict[str, Any] = {
        "older_than": older_than,
        "created_before": created_before,
        "agent_id": agent,
        "user_id": user,
        "key_prefix": prefix,
        "limit": limit,
        "descendants": descendants,
        "archive": archive,
        "grace": grace,
    }
    if policy is not None and any(which.values()):
        raise typer.BadParameter("--policy takes only --url, --batch-size, --dry-run and --json")
    which["grace"] = grace or timedelta(0)
    announcement = None if json_ else "looking at" if dry_run else "purging on"
    has_bar = sys.stderr.isatty() and not json_
    signals: list[int] = []
    report = ExpiryReport()
    reports = []

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

        def purge(**options: Any) -> list[ExpiryReport]:
            if policy is not None:
                return store.maintenance.apply_policy(policy, batch_size=batch_size, **options)
            return [store.expire(**which, batch_size=batch_size, **options)]

        if dry_run:
            reports = purge(dry_run=True)
        else:
            total = purge(dry_run=True)[0].sessions if has_bar and policy is None else None
            handler = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
            try:
                with progress("purging", total, quiet=json_) as update:
                    reports = purge(on_batch=on_batch)
            except KeyboardInterrupt:
                _print(report, json_=json_, action="interrupted; purged")
                raise typer.Exit(INTERRUPTED) from None
            finally:
                signal.signal(signal.SIGINT, handler)
    for report in reports:
        if report.oldest and not json_:
            print_table(COLUMNS, [report.oldest], wide=WIDE)
        _print(report, json_=json_, action="would purge" if dry_run else "purged")
        for key, constraint in report.held.items() if not json_ else ():
            reason = constraint if constraint.startswith(HOLD) else f"{constraint} references the session"
            say(f"{key} is not purged: {reason}")
    if any(report.held for report in reports):
        raise typer.Exit(1)


def _print(report: ExpiryReport, *, json_: bool, action: str) -> None:
    if json_:
        print_json(report)
        return
    rule = "" if report.rule is None else f"{report.rule}: "
    if report.put_on_hold:
        print(f"{rule}{'would put' if report.dry_run else 'put'} {quantity(report.put_on_hold, 'session')} on hold")
        return
    batches = "" if report.dry_run else f" in {quantity(report.batches, 'batch')}"
    sessions, messages = quantity(report.sessions, "session"), quantity(report.messages, "message")
    print(f"{rule}{action} {sessions}, {messages}{batches}, {report.seconds:.1f} s")


@sessions.command(epilog=example("sessions restore telegram:42 --archive cold.db --ttl 30d"))
def restore(
    key: Key,
    archive: Annotated[str, option("FILE|URL", "Archive that `expire --archive` wrote.")],
    url: UrlOption = None,
    ttl: Annotated[
        Any, option("DURATION", "TTL of the restored session, such as 30d. Default: never expires.", parser=duration)
    ] = None,
    descendants: DescendantsOption = False,
) -> None:
    """Restore a session from an archive, which keeps its copy."""
    with open_store(url, "restoring on") as store:
        session = store.restore(key, archive, ttl=ttl, descendants=descendants)
    print(f"restored {quantity(session.message_count, 'message')}")


@sessions.command(epilog=example("sessions hide telegram:42 --url sqlite:///agent.db"))
def hide(
    keys: Annotated[list[str], typer.Argument(help="Keys of live sessions.")],
    url: UrlOption = None,
) -> None:
    """Hide sessions: they expire now, and a purge deletes them later.

    Until then, `sessions touch` revives them: `expire --grace 30d` deletes
    sessions 30 days after their expiry.
    """
    with open_store(url) as store:
        for key in keys:
            store.hide(key)
            print(f"hidden: {one_line(key)}")


@sessions.command(epilog=example('sessions hold telegram:42 "case 17" --url sqlite:///agent.db'))
def hold(key: Key, reason: Annotated[str, typer.Argument(help="Reason of the hold.")], url: UrlOption = None) -> None:
    """Protect a session, live or expired, from every deletion until it is released."""
    with open_store(url) as store:
        current = store.conversation(key).info(expired=True)
        if current.hold not in (None, reason):
            raise SessionOnHold(key, current.hold)
        store.conversation(key).update(hold=reason)
    print(f"on hold: {one_line(reason)}")


@sessions.command(epilog=example("sessions release telegram:42 --url sqlite:///agent.db"))
def release(key: Key, url: UrlOption = None) -> None:
    """Release the hold of a session, live or expired."""
    with open_store(url) as store:
        current = store.conversation(key).info(expired=True)
        store.conversation(key).update(hold=None)
    print("had no hold" if current.hold is None else f"released: {one_line(current.hold)}")
