"""`lango-store search`: messages by their words, and the index that finds them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from lango_store import schema
from lango_store._engine.url import shown
from lango_store._values.model import MessageRole
from lango_store._values.reports import SearchHit, SearchStatus
from lango_store.cli.db import LockTimeout
from lango_store.cli.progress import migrating
from lango_store.cli.terminal import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    YesOption,
    agreed,
    console,
    database,
    moment,
    opened,
)
from lango_store.cli.text import as_field, on_one_line, printable, say


class _WordsOrCommand(TyperGroup):
    """Take anything but a command for words to search for."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["for", *args]  # before an option of it, or words that look like one, are taken for the group's
        return super().parse_args(context, args)


app = typer.Typer(
    cls=_WordsOrCommand,
    no_args_is_help=True,
    help='Find messages by their words, `search "oslo weather" --user ann`, and keep the index that finds them.',
)

Configuration = Annotated[
    str | None,
    typer.Option(
        help="What words are: simple; on SQLite trigram; on PostgreSQL any text search configuration.",
        show_default=False,
    ),
]


@app.command("for")
def for_(
    words: Annotated[
        list[str], typer.Argument(help='All of them are wanted; "a phrase" in quotes of its own, -word, prefix*.')
    ],
    url: UrlOption = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    role: Annotated[MessageRole | None, typer.Option(help="Messages of this role.", show_default=False)] = None,
    since: Annotated[
        str | None, typer.Option(help="Written since then: 2026-11-21, or 30d ago.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Written before then: 2026-11-21, or 30d ago.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(help="Go on where a search ended, which said how.", show_default=False)
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Find messages by their words, the best first. `search WORDS` is the same, unless the first is a command here.

    In a pipe: a line a message, no header; between tabs its session's key, its seq, role, time and title, and what was
    found. Control characters are escaped with a backslash.
    """
    with opened(url) as store:
        page = store.search(
            " ".join(words),
            agent_id=agent,
            user_id=user,
            key_prefix=prefix,
            role=role,
            since=None if since is None else moment(since, "--since"),
            until=None if until is None else moment(until, "--until"),
            limit=limit,
            cursor=cursor,
        )
    for hit in page.items:
        if json_:
            print(hit.model_dump_json())
        elif sys.stdout.isatty():
            console().print(_shown(hit), soft_wrap=True)
        else:
            fields = (hit.key, str(hit.seq), hit.role, hit.created_at.isoformat(), hit.title or "", hit.snippet)
            print("\t".join(map(as_field, fields)))
    if page.next is not None:
        say(f"… and more: --cursor {page.next}")
    if page.waiting:
        say(f"{page.waiting:,} changes are not indexed yet: `lango-store search enable` indexes them")


def _shown(hit: SearchHit) -> Text:
    who = f"{hit.role} {hit.author}" if hit.author else hit.role
    about = f"{hit.seq}  {hit.created_at:%Y-%m-%d %H:%M}  {who}  {hit.title or ''}".rstrip()
    shown = Text.assemble((on_one_line(hit.key), "bold"), f" {on_one_line(about)}\n  ")
    before = 0
    for at, end in hit.places:
        shown.append(on_one_line(hit.snippet[before:at]))
        shown.append(on_one_line(hit.snippet[at:end]), "bold yellow")
        before = end
    return shown.append(on_one_line(hit.snippet[before:]))


@app.command()
def enable(
    configuration: Configuration = None, url: UrlOption = None, lock_timeout: LockTimeout = schema.LOCK_TIMEOUT
) -> None:
    """Create the search index and fill it, while the store is in use. Killed, it goes on when it is run again."""
    with migrating() as on_progress:
        made = schema.enable_search(
            database(url), configuration=configuration, lock_timeout=lock_timeout, on_progress=on_progress
        )
    print(_state(made))


@app.command()
def disable(url: UrlOption = None, yes: YesOption = False, lock_timeout: LockTimeout = schema.LOCK_TIMEOUT) -> None:
    """Drop the search index. Messages stay as they are."""
    with opened(url) as store:
        agreed(f"dropping the search index of {shown(store.engine.url)}", yes=yes)
        dropped = schema.disable_search(store.engine, lock_timeout=lock_timeout)
    print("the search index is dropped" if dropped else "there was no search index")


@app.command()
def rebuild(
    configuration: Configuration = None, url: UrlOption = None, lock_timeout: LockTimeout = schema.LOCK_TIMEOUT
) -> None:
    """Rebuild the search index, while the store is in use: a damaged one, or with another configuration."""
    with migrating() as on_progress:
        made = schema.rebuild_search(
            database(url), configuration=configuration, lock_timeout=lock_timeout, on_progress=on_progress
        )
    print(_state(made))


@app.command()
def status(url: UrlOption = None, json_: JsonOption = False) -> None:
    """Print how the search index is; exit code 1 if messages cannot be searched."""
    found = schema.search_status(database(url))
    print(found.model_dump_json() if json_ else _state(found))
    if found.state != "ready":
        raise typer.Exit(1)


def _state(found: SearchStatus) -> str:
    if found.state == "disabled":
        return "there is no search index: `lango-store search enable` makes it"
    if found.state != "ready":
        return printable(f"the search index cannot be used: {found.reason}")
    waiting = f", {found.waiting:,} wait" if found.waiting else ""
    return f"{found.indexed:,} messages are indexed ({found.configuration}, {found.bytes / 1e6:,.1f} MB){waiting}"
