"""`lango-store sessions`: list, show, delete, revive and restore sessions."""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Capture
from rich.text import Text

from lango_store._operations.session.levels import below
from lango_store._operations.session.lists import Order
from lango_store._rooms.alternatives.values import describe_versions
from lango_store._rooms.documents.document import render_section
from lango_store._rooms.documents.page import PAGE_END, start_page
from lango_store._rooms.tool_calls.values import describe_answers
from lango_store._values.model import UNSET, Message, SessionInfo
from lango_store.cli import streams
from lango_store.cli.options import (
    Agent,
    CsvOption,
    CursorOption,
    DescendantsOption,
    JsonOption,
    Key,
    Prefix,
    Since,
    Until,
    UrlOption,
    User,
    YesOption,
    confirm,
    duration,
    example,
    flag,
    open_store,
    option,
    point,
    time_option,
    valid_cursor,
)
from lango_store.cli.output import (
    Columns,
    Item,
    captured,
    console,
    one_line,
    page,
    print_csv,
    print_error,
    print_json,
    print_table,
    quantity,
    say,
)
from lango_store.cli.rendering import describe_turn_state, render_message, render_session
from lango_store.errors import DamagedMessage, LangoStoreError, quoted
from lango_store.interchange.files import atomic_writer
from lango_store.store import Store

app = typer.Typer(
    help="List, show, revive, restore and delete sessions.",
    epilog=example("sessions list --url sqlite:///agent.db"),
    no_args_is_help=True,
)

LAST = 50
"""The number of messages that `sessions show` prints on a terminal by default."""

COLUMNS: Final[Columns[SessionInfo]] = {
    "key": lambda info: info.key,
    "title": lambda info: info.title,
    "agent": lambda info: info.agent_id,
    "user": lambda info: info.user_id,
    "messages": lambda info: info.message_count,
    "message tokens": lambda info: info.token_count,
    "turns": lambda info: info.turn_count,
    "updated (UTC)": lambda info: info.updated_at,
    "expires (UTC)": lambda info: info.expires_at or "never",
}
WIDE: Final = ("agent", "user", "message tokens", "turns", "expires (UTC)")
"""The columns that only a wide terminal shows."""


def _family(store: Store, parent: SessionInfo, *, expired: bool | None) -> list[SessionInfo]:
    """Return a session and its descendants, each session before its own descendants."""
    descendants = store.iter_sessions(key_prefix=below(parent.key), expired=expired)
    return sorted([parent, *descendants], key=lambda info: info.key.split("/"))


@app.command("list", epilog=example("sessions list --url sqlite:///agent.db --user ann"))
def list_(
    url: UrlOption = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    since: Since = None,
    until: Until = None,
    title: Annotated[
        str | None, option("TEXT", "Only sessions whose title contains this text, ignoring the case of A to Z.")
    ] = None,
    created_since: Annotated[
        Any, time_option("Only sessions created at or after this time: 2026-11-21, or 12h ago.")
    ] = None,
    created_before: Annotated[
        Any, time_option("Only sessions created before this time: 2026-11-21, or 12h ago.")
    ] = None,
    order: Annotated[
        Order,
        option("updated|created", "List the most recently updated, or the most recently created, sessions first."),
    ] = "updated",
    held: Annotated[bool, flag("--held", "Only sessions with a hold.")] = False,
    expired: Annotated[
        bool, flag("--expired", "List expired sessions that are not purged yet, instead of live ones.")
    ] = False,
    limit: Annotated[
        int, option("NUMBER", "Maximum number of sessions. Descendants listed by --tree do not count.", min=1)
    ] = 50,
    tree: Annotated[
        bool, flag("--tree", "List sessions whose key has no /, each followed by its descendants.")
    ] = False,
    cursor: CursorOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List live sessions, the most recently updated first.

    In a pipe, each session is one line of tab-separated fields without a
    header: key, title, agent, user, number of messages, number of message
    tokens, number of turns, time of the last update, and time of expiry.
    Control characters are escaped with a backslash.
    """

    def pages(store: Store) -> Iterator[list[SessionInfo]]:
        nonlocal cursor
        remaining = limit
        while remaining:
            page = store.list_sessions(
                agent_id=agent,
                user_id=user,
                key_prefix=prefix,
                title=title,
                updated_since=since,
                updated_before=until,
                created_since=created_since,
                created_before=created_before,
                held=held,
                expired=expired,
                order=order,
                top_level=tree,
                limit=min(500, remaining),
                cursor=cursor,
            )
            yield (
                [each for info in page.items for each in _family(store, info, expired=expired)] if tree else page.items
            )
            remaining -= len(page.items)
            cursor = page.next
            if cursor is None:
                return

    with open_store(url) as store, valid_cursor(cursor):
        if json_:
            for info in (info for page in pages(store) for info in page):
                print_json(info)
        elif csv_:
            print_csv({**COLUMNS, "hold": lambda info: info.hold}, pages(store))
        else:
            is_indented = tree and sys.stdout.isatty()
            key = {"key": lambda info: "  " * info.key.count("/") + info.key} if is_indented else {}
            reason: Columns[SessionInfo] = {"hold": lambda info: info.hold} if held else {}
            print_table({**COLUMNS, **key, **reason}, pages(store), wide=WIDE)
    if cursor is not None:
        say(f"… and more: --cursor {cursor}")


@app.command(epilog=example("sessions show telegram:42 --last 10 --url sqlite:///agent.db"))
def show(
    key: Key,
    url: UrlOption = None,
    last: Annotated[
        int | None,
        option(
            "NUMBER",
            f"Show only this many of the last messages and records. Default: {LAST} on a terminal, otherwise all.",
            min=1,
        ),
    ] = None,
    all_: Annotated[bool, flag("--all", "Show all messages on a terminal too.")] = False,
    expired: Annotated[
        bool, flag("--expired", "Show the session even if its TTL has passed. This does not revive it.")
    ] = False,
    descendants: DescendantsOption = False,
    as_of: Annotated[
        Any, option("SEQ|TIME", "Show the window that the session had at this seq or time.", parser=point)
    ] = None,
    full: Annotated[bool, flag("--full", "Do not shorten long contents.")] = False,
    no_pager: Annotated[bool, flag("--no-pager", "Never open a pager.")] = False,
    html: Annotated[
        Path | None, option("FILE", "Write an HTML document to this file, which is replaced if it exists.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Show a session with its messages, tool calls and total usage.

    The header includes the turn in progress, the drafts and the inbox.
    With --expired or --as-of, it has neither these nor the usage.

    With --descendants, the descendants follow. Their usage is not included
    in the usage of the session.

    Exit code 1 if a part of the session is damaged. The rest is shown.
    """
    if last is None and sys.stdout.isatty() and not (json_ or all_ or html):
        last = LAST
    is_damaged = False
    text: Capture | None = None

    def messages(store: Store, key: str) -> Iterator[Message | DamagedMessage]:
        nonlocal is_damaged
        if earlier is not None:
            yield from earlier.messages[-last:] if last else earlier.messages
            return
        read = partial(store.conversation(key).all_messages, expired=expired, damaged="return")
        after, part = 0, read(last=last, limit=None if last else 500)
        while part:
            for each in part:
                is_damaged = is_damaged or isinstance(each, DamagedMessage)
                yield each
            is_end = last is not None or part[-1].seq <= after  # the seq of a damaged message may be wrong
            after = part[-1].seq
            part = [] if is_end else read(after=after, limit=500)

    def readable(read: Callable[[], Item]) -> Item | None:
        nonlocal is_damaged
        try:
            return read()
        except DamagedMessage as error:
            is_damaged = True
            print_error(error)
            return None

    with open_store(url) as store:
        if as_of is not None and descendants:
            raise typer.BadParameter("--as-of shows one session: leave out --descendants")
        earlier = None if as_of is None else store.get(key, expired=expired, records=True, as_of=as_of)
        info = store.conversation(key).info(expired=expired)
        if earlier is not None:
            info = SessionInfo.model_validate(earlier.model_dump(exclude={"messages"}))
        infos = _family(store, info, expired=None if expired else False) if descendants else [info]
        if html is not None:
            with streams.ending_at_signals(), atomic_writer(html, replace=True) as file:
                file.write(start_page(info.title or key).encode())
                for info in infos:
                    conversation, has_more = store.conversation(info.key), not expired and earlier is None
                    turns = conversation.turns.list() if has_more else []
                    asked = readable(conversation.suspensions.list) if has_more else None
                    others = readable(conversation.alternatives) if has_more else None
                    for piece in render_section(info, messages(store, info.key), turns, asked or [], others or []):
                        file.write(piece.encode())
                file.write(PAGE_END.encode())
            print(f"written: {html}")
        elif json_:
            for info in infos:
                print_json(info)
                for each in messages(store, info.key):
                    if isinstance(each, DamagedMessage):
                        print(json.dumps({"seq": each.seq, "damaged": each.field, "reason": str(each)}))
                    else:
                        print_json(each)
        else:
            out = console()
            with captured(out, no_pager=no_pager) as text:
                for info in infos:
                    usage: dict[str, Any] = {}
                    state: list[str] = []
                    answers: dict[int | None, list[str]] = {}
                    if not expired and earlier is None:  # these reads raise SessionExpired
                        conversation = store.conversation(info.key)
                        usage = readable(conversation.total_usage) or {}
                        turn = readable(conversation.turns.in_progress)
                        drafts, inbox = readable(conversation.drafts.list), readable(conversation.inbox.list)
                        answers = describe_answers(readable(conversation.suspensions.list) or [])
                        for seq, line in describe_versions(readable(conversation.alternatives) or []).items():
                            answers.setdefault(seq, []).insert(0, line)
                        state = describe_turn_state(turn, drafts or [], inbox or []) + answers.get(None, [])
                    number = info.message_count + info.record_count if earlier is None else len(earlier.messages)
                    omitted = max(number - last, 0) if last else 0
                    out.print(render_session(info, usage, state, omitted=omitted))
                    for each in messages(store, info.key):
                        out.print(render_message(each, full=full))
                        for line in answers.get(each.seq, ()):
                            out.print(Text(one_line(line), style="dim"))
    if text is not None:
        page(out, text.get())
    if is_damaged:
        raise typer.Exit(1)


@app.command(epilog=example("sessions delete --user ann --url sqlite:///agent.db"))
def delete(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys of the sessions to delete.")] = None,
    url: UrlOption = None,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    descendants: DescendantsOption = False,
    yes: YesOption = False,
) -> None:
    """Delete sessions by key, or all sessions of a user, an agent or a key prefix.

    With several filters, a session must match all of them. Expired
    sessions are deleted too. Exit code 1 if a key does not exist.
    """
    filters: dict[str, Any] = {"user_id": user, "agent_id": agent, "key_prefix": prefix}
    if bool(keys) == any(filters.values()):
        raise typer.BadParameter("give keys, or one of --user, --agent and --prefix")
    with open_store(url) as store:
        count = len(set(keys)) if keys else store.count(**filters, expired=None)
        others = " with all descendants" if descendants else ""
        confirm(f"deleting {quantity(count, 'session')}{others} on {store.engine.url}", yes=yes)
        if not keys:
            print(f"deleted {quantity(store.delete_where(**filters, descendants=descendants), 'session')}")
            return
        missing = [key for key in keys if not store.delete(key, descendants=descendants)]
    print(f"deleted {quantity(len(keys) - len(missing), 'session')}{others}")
    for key in missing:
        print_error(LangoStoreError(f"no session {quoted(key)}"))
    if missing:
        raise typer.Exit(1)


def _ttl(text: str) -> timedelta | str:
    return text if text == "never" else duration(text)


@app.command(epilog=example("sessions touch telegram:42 --ttl 30d --url sqlite:///agent.db"))
def touch(
    key: Key,
    url: UrlOption = None,
    ttl: Annotated[
        Any, option("DURATION", "New TTL, such as 30d, or never. Default: the current TTL of the session.", parser=_ttl)
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Restart the TTL of a session from now.

    An expired session that is not purged yet becomes live again.
    """
    with open_store(url) as store:
        info = store.touch(key, ttl=UNSET if ttl is None else None if ttl == "never" else ttl)
    if json_:
        print_json(info)
    else:
        print("never expires" if info.expires_at is None else f"expires {info.expires_at.isoformat()}")
