"""`lango-store sessions`: what is in a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lango_store._engine.url import shown
from lango_store._operations.lists import Order
from lango_store._values.document import document
from lango_store._values.model import UNSET, Message, SessionInfo
from lango_store.backup.files import writing
from lango_store.cli.drawing import drawn, head_of
from lango_store.cli.listing import Column, Listing
from lango_store.cli.pager import through_pager
from lango_store.cli.terminal import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    YesOption,
    agreed,
    console,
    duration,
    moment,
    opened,
    say_error,
)
from lango_store.cli.text import say
from lango_store.errors import DamagedMessage, InvalidCursor, LangoStoreError, SessionNotFound
from lango_store.store import Store

app = typer.Typer(help="List, show, revive and delete sessions.", no_args_is_help=True)

LAST = 50
"""So many messages are shown on a terminal, unless more are asked for."""


@app.command("list")
def list_(
    url: UrlOption = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    since: Annotated[str | None, typer.Option(help="Updated since then: 2026-11-21, or 12h ago.")] = None,
    title: Annotated[
        str | None, typer.Option(help="Sessions whose title holds this; A to Z count as a to z.", show_default=False)
    ] = None,
    created_since: Annotated[
        str | None, typer.Option(help="Made since then: 2026-11-21, or 12h ago.", show_default=False)
    ] = None,
    created_before: Annotated[
        str | None, typer.Option(help="Made before then: 2026-11-21, or 12h ago.", show_default=False)
    ] = None,
    order: Annotated[Order, typer.Option(help="Which come first: the last updated, or the last created.")] = "updated",
    expired: Annotated[bool, typer.Option("--expired", help="Expired sessions that are not purged yet.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="Go on where a list ended, which said how.", show_default=False)
    ] = None,
    json_: JsonOption = False,
) -> None:
    """List sessions, the last updated or created first.

    In a pipe: a line a session, no header; between tabs its key, title, agent, user, messages, tokens, when it was
    updated, and when it expires. Control characters are escaped with a backslash.
    """

    def pages(store: Store) -> Iterator[list[SessionInfo]]:
        nonlocal cursor
        left = limit
        while left:
            page = store.list_sessions(
                agent_id=agent,
                user_id=user,
                key_prefix=prefix,
                title=title,
                updated_since=None if since is None else moment(since, "--since"),
                created_since=None if created_since is None else moment(created_since, "--created-since"),
                created_before=None if created_before is None else moment(created_before, "--created-before"),
                expired=expired,
                order=order,
                limit=min(500, left),
                cursor=cursor,
            )
            yield page.items
            left -= len(page.items)
            cursor = page.next
            if cursor is None:
                return

    try:
        with opened(url) as store:
            if json_:
                for page in pages(store):
                    print("".join(f"{info.model_dump_json()}\n" for info in page), end="")
            else:
                LISTING.print(pages(store))
    except InvalidCursor as error:
        raise typer.BadParameter(
            f"{cursor!r} is not a cursor: copy the one that a list ended with", param_hint="--cursor"
        ) from error
    if cursor is not None:
        say(f"… and more: --cursor {cursor}")


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


LISTING: Final = Listing[SessionInfo](
    [
        Column("key", lambda info: info.key),
        Column("title", lambda info: info.title or "", least=12),
        Column("agent", lambda info: info.agent_id or "", least=8),
        Column("user", lambda info: info.user_id or "", least=8),
        Column("messages", lambda info: str(info.message_count), lambda info: f"{info.message_count:,}", right=True),
        Column("tokens", lambda info: str(info.token_count), lambda info: f"{info.token_count:,}", right=True),
        Column("updated", lambda info: info.updated_at.isoformat(), lambda info: _minute(info.updated_at)),
        Column(
            "expires",
            lambda info: info.expires_at.isoformat() if info.expires_at else "never",
            lambda info: _minute(info.expires_at) if info.expires_at else "never",
        ),
    ],
    importance=("updated", "messages", "title", "expires", "agent", "user", "tokens"),
)
"""How sessions are listed."""


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="The session's key.")],
    url: UrlOption = None,
    last: Annotated[
        int | None, typer.Option(min=1, help=f"Only the last messages; on a terminal {LAST}.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All messages, on a terminal too.")] = False,
    expired: Annotated[bool, typer.Option("--expired", help="Also a session past its TTL, which stays so.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Do not fold long contents.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML document for people into this file.", show_default=False)
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Show a session and its messages: roles, authors, tool calls with their outputs."""
    terminal = sys.stdout.isatty()
    if last is None and terminal and not (json_ or all_ or html):
        last = LAST
    damaged = False

    def messages(store: Store) -> Iterator[Message | DamagedMessage]:
        nonlocal damaged
        after = 0
        while True:
            part = {"last": last} if last else {"after": after, "limit": 500}
            page = store.conversation(key).all_messages(**part, expired=expired, damaged="return")
            for each in page:
                damaged = damaged or isinstance(each, DamagedMessage)
                yield each
            if last or len(page) < 500 or page[-1].seq <= after:
                return
            after = page[-1].seq

    def panels(store: Store, info: SessionInfo) -> Iterator[str]:
        out = console()
        first = info.message_count + info.record_count - last if last else 0
        for part in chain([head_of(info, earlier=max(first, 0))], (drawn(each, full=full) for each in messages(store))):
            with out.capture() as captured:
                out.print(part)
            yield captured.get()

    with opened(url) as store:
        info = store.info(key, expired=expired)
        if html is not None:
            turns = [] if expired else store.conversation(key).turns()
            with writing(html, replace=True) as file:
                for piece in document(info, messages(store), turns):
                    file.write(piece.encode())
            console().print(f"written: {html}")
        elif json_:
            print(info.model_dump_json())
            for each in messages(store):
                print(_json(each))
        else:
            through_pager(panels(store, info))
    if damaged:
        raise typer.Exit(1)


def _json(each: Message | DamagedMessage) -> str:
    if isinstance(each, DamagedMessage):
        return json.dumps({"seq": each.seq, "damaged": each.field, "reason": str(each)})
    return each.model_dump_json()


@app.command()
def delete(
    keys: Annotated[list[str] | None, typer.Argument(help="The sessions' keys.")] = None,
    url: UrlOption = None,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    yes: YesOption = False,
) -> None:
    """Delete sessions by key, or all of a user, an agent or a key prefix, expired ones too."""
    chosen: dict[str, Any] = {"user_id": user, "agent_id": agent, "key_prefix": prefix}
    if bool(keys) == any(chosen.values()):
        raise typer.BadParameter("give keys, or one of --user, --agent and --prefix")
    with opened(url) as store:
        going = _summed(_found(store, keys) if keys else store.iter_sessions(**chosen, expired=None))
        agreed(f"deleting {going} on {shown(store.engine.url)}", yes=yes)
        if not keys:
            print(f"deleted {store.delete_where(**chosen)} sessions")
            return
        missing = [key for key in keys if not store.delete(key)]
    print(f"deleted {len(keys) - len(missing)} sessions")
    for key in missing:
        say_error(LangoStoreError(f"no session {key!r}"))
    if missing:
        raise typer.Exit(1)


def _found(store: Store, keys: Sequence[str]) -> Iterator[SessionInfo]:
    for key in dict.fromkeys(keys):
        with suppress(SessionNotFound):  # is reported when it cannot be deleted
            yield store.info(key, expired=True)


def _summed(infos: Iterable[SessionInfo]) -> str:
    sessions = messages = 0
    try:
        for info in infos:
            sessions, messages = sessions + 1, messages + info.message_count
    except DamagedMessage:  # what is damaged can be deleted all the same
        return f"{sessions:,} sessions, {messages:,} messages and more that cannot be read"
    return f"{sessions:,} sessions, {messages:,} messages"


@app.command()
def touch(
    key: Annotated[str, typer.Argument(help="The session's key.")],
    url: UrlOption = None,
    ttl: Annotated[str | None, typer.Option(help="A new TTL such as 30d, or never.")] = None,
    json_: JsonOption = False,
) -> None:
    """Move a session's expiry, its TTL from now; revives an expired session."""
    new = UNSET if ttl is None else None if ttl == "never" else duration(ttl, "--ttl")
    with opened(url) as store:
        info = store.touch(key, ttl=new)
    if json_:
        print(info.model_dump_json())
    else:
        print("never expires" if info.expires_at is None else f"expires {info.expires_at.isoformat()}")
