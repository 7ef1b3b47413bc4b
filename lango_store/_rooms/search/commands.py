"""`lango-store search`: find messages by their words, and maintain the search index."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from lango_store import schema
from lango_store._rooms.search.values import SearchHit, SearchStatus
from lango_store._values.model import MessageRole
from lango_store.cli import root
from lango_store.cli.options import (
    Agent,
    CursorOption,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    YesOption,
    confirm,
    database,
    example,
    open_store,
    option,
    time_option,
    valid_cursor,
)
from lango_store.cli.output import (
    NOTHING_FOUND,
    console,
    escaped,
    migration_progress,
    one_line,
    print_json,
    printable,
    quantity,
    say,
)


class _WordsOrCommand(TyperGroup):
    """A group whose default command is `for`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["for", *args]  # otherwise click would parse the options of `for` as options of the group
        return super().parse_args(context, args)


app = typer.Typer(
    cls=_WordsOrCommand,
    no_args_is_help=True,
    help="Search messages with `search WORDS`, and maintain the search index.",
    epilog=example('search "oslo weather" --user ann --url sqlite:///agent.db'),
)
root.app.add_typer(app, name="search")


@app.command("for", epilog=example('search for "oslo weather" --url sqlite:///agent.db'))
def for_(
    words: Annotated[
        list[str],
        typer.Argument(
            help='Words that a message must all contain. Also "a phrase", -word to exclude a word, and prefix*.'
        ),
    ],
    url: UrlOption = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    role: Annotated[
        MessageRole | None, option("ROLE", "Only messages with this role: system, developer, user, assistant or tool.")
    ] = None,
    model: Annotated[str | None, option("NAME", "Only messages that this model made.")] = None,
    since: Annotated[Any, time_option("Only messages created at or after this time: 2026-11-21, or 30d ago.")] = None,
    until: Annotated[Any, time_option("Only messages created before this time: 2026-11-21, or 30d ago.")] = None,
    limit: Annotated[int, option("NUMBER", "Maximum number of messages to print.", min=1, max=1_000)] = 20,
    cursor: CursorOption = None,
    json_: JsonOption = False,
) -> None:
    """Search the messages of live sessions, and print the best matches first.

    Requires a search index: see `search enable`. Exit code 1 if no message
    matches.

    `search WORDS` is short for `search for WORDS`. Use the long form if the
    first word is the name of a command, such as `status`.

    In a pipe, each message is one line of tab-separated fields without a
    header: session key, seq, role, time, session title, and the matching
    text. Control characters are escaped with a backslash.
    """
    with open_store(url) as store, valid_cursor(cursor):
        page = store.search(
            " ".join(words),
            agent_id=agent,
            user_id=user,
            key_prefix=prefix,
            role=role,
            model=model,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )
    out = console()
    for hit in page.items:
        if json_:
            print_json(hit)
        elif sys.stdout.isatty():
            out.print(_render(hit), soft_wrap=True)
        else:
            fields = (hit.key, str(hit.seq), hit.role, hit.created_at.isoformat(), hit.title or "", hit.snippet)
            print("\t".join(map(escaped, fields)))
    if page.next is not None:
        say(f"… and more: --cursor {page.next}")
    if page.newest is not None:
        say(f"too many matches: only the newest {page.newest:,} messages were searched; add words or a filter")
    if page.waiting:
        say(f"{quantity(page.waiting, 'change')} not indexed yet: run `lango-store search enable`")
    if not page.items:
        say(NOTHING_FOUND)
        raise typer.Exit(1)


def _render(hit: SearchHit) -> Text:
    author = f" {hit.author}" if hit.author else ""
    facts = f"{hit.seq}  {hit.created_at:%Y-%m-%d %H:%M} UTC  {hit.role}{author}  {hit.title or ''}".rstrip()
    text = Text.assemble((one_line(hit.key), "bold"), f" {one_line(facts)}\n  ")
    end = 0
    for start, stop in hit.places:
        text.append(one_line(hit.snippet[end:start])).append(one_line(hit.snippet[start:stop]), "bold yellow")
        end = stop
    return text.append(one_line(hit.snippet[end:]))


@app.command(epilog=example("search enable --url sqlite:///agent.db"))
def enable(url: UrlOption = None) -> None:
    """Create and fill the search index.

    The store can be in use. If the command is killed, run it again: it
    continues where it stopped.
    """
    _build(schema.enable_search, url)


@app.command(epilog=example("search rebuild --url sqlite:///agent.db"))
def rebuild(url: UrlOption = None) -> None:
    """Rebuild the search index, after damage or to remove deleted words.

    On PostgreSQL, the words of deleted and redacted messages stay in the
    files of the index until it is rebuilt. The store can be in use.
    """
    _build(schema.rebuild_search, url)


def _build(build: Callable[..., SearchStatus], url: str | None) -> None:
    with migration_progress("indexing") as on_progress:
        status = build(database(url), on_progress=on_progress)
    print(_describe(status))


@app.command(epilog=example("search disable --url sqlite:///agent.db"))
def disable(url: UrlOption = None, yes: YesOption = False) -> None:
    """Drop the search index. Messages are not changed."""
    with open_store(url) as store:
        confirm(f"dropping the search index of {store.engine.url}", yes=yes)
        dropped = schema.disable_search(store.engine)
    print("the search index is dropped" if dropped else "there was no search index")


@app.command(epilog=example("search status --url sqlite:///agent.db"))
def status(url: UrlOption = None, json_: JsonOption = False) -> None:
    """Print the state of the search index.

    Exit code 1 if messages cannot be searched.
    """
    state = schema.search_status(database(url))
    if json_:
        print_json(state)
    else:
        print(_describe(state))
    if state.state != "ready":
        raise typer.Exit(1)


def _describe(status: SearchStatus) -> str:
    if status.state == "disabled":
        return "there is no search index: create one with `lango-store search enable`"
    if status.state != "ready":
        return printable(f"the search index cannot be used: {status.reason}")
    waiting = f", {quantity(status.waiting, 'change')} not indexed yet" if status.waiting else ""
    return f"{quantity(status.indexed, 'message')} indexed{waiting}"
