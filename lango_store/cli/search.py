"""`lango-store search`: find messages by their words, and maintain the search index."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from lango_store import schema
from lango_store._values.model import MessageRole
from lango_store._values.reports import SearchHit, SearchStatus
from lango_store.cli.options import (
    Agent,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    YesOption,
    confirm,
    database,
    open_store,
    time,
)
from lango_store.cli.output import (
    NOTHING_FOUND,
    console,
    escaped,
    migration_progress,
    one_line,
    print_json,
    printable,
    say,
)


class _WordsOrCommand(TyperGroup):
    """A group whose default command is `for`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["for", *args]  # before an option of it, or words that look like one, are taken for the group's
        return super().parse_args(context, args)


app = typer.Typer(
    cls=_WordsOrCommand,
    no_args_is_help=True,
    help='Find messages by their words, `search "oslo weather" --user ann`, and keep the index that finds them.',
)


@app.command("for")
def for_(
    words: Annotated[
        list[str], typer.Argument(help='A message has to contain all of them; "a phrase" in quotes, -word, prefix*.')
    ],
    url: UrlOption = None,
    agent: Agent = None,
    user: User = None,
    prefix: Prefix = None,
    role: Annotated[MessageRole | None, typer.Option(help="Messages of this role.")] = None,
    since: Annotated[Any, typer.Option(parser=time, help="Written since then: 2026-11-21, or 30d ago.")] = None,
    until: Annotated[Any, typer.Option(parser=time, help="Written before then: 2026-11-21, or 30d ago.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many of the best.")] = 0,
    json_: JsonOption = False,
) -> None:
    """Find messages by their words, the best first; exit code 1 if there is none.

    `search WORDS` is the same, unless the first word is a command here.

    In a pipe: a line a message, no header; between tabs its session's key, its seq, role, time and title, and what was
    found. Control characters are escaped with a backslash.
    """
    with open_store(url) as store:
        page = store.search(
            " ".join(words),
            agent_id=agent,
            user_id=user,
            key_prefix=prefix,
            role=role,
            since=since,
            until=until,
            limit=limit,
            offset=offset,
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
        say(f"… and more: --offset {page.next}")
    if page.newest is not None:
        say(f"too many messages match: only the newest {page.newest:,} were searched; give more words or a filter")
    if page.waiting:
        say(f"{page.waiting:,} changes are not indexed yet: `lango-store search enable` indexes them")
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


@app.command()
def enable(url: UrlOption = None) -> None:
    """Create the search index and fill it, while the store is in use. If it is killed, run it again: it continues."""
    _build(schema.enable_search, url)


@app.command()
def rebuild(url: UrlOption = None) -> None:
    """Rebuild the search index, damaged or not, while the store is in use."""
    _build(schema.rebuild_search, url)


def _build(build: Callable[..., SearchStatus], url: str | None) -> None:
    with migration_progress("indexing") as on_progress:
        status = build(database(url), on_progress=on_progress)
    print(_describe(status))


@app.command()
def disable(url: UrlOption = None, yes: YesOption = False) -> None:
    """Drop the search index. No message is changed."""
    with open_store(url) as store:
        confirm(f"dropping the search index of {store.engine.url}", yes=yes)
        dropped = schema.disable_search(store.engine)
    print("the search index is dropped" if dropped else "there was no search index")


@app.command()
def status(url: UrlOption = None, json_: JsonOption = False) -> None:
    """Print how the search index is; exit code 1 if messages cannot be searched."""
    state = schema.search_status(database(url))
    if json_:
        print_json(state)
    else:
        print(_describe(state))
    if state.state != "ready":
        raise typer.Exit(1)


def _describe(status: SearchStatus) -> str:
    if status.state == "disabled":
        return "there is no search index: `lango-store search enable` makes it"
    if status.state != "ready":
        return printable(f"the search index cannot be used: {status.reason}")
    waiting = f", {status.waiting:,} wait" if status.waiting else ""
    return f"{status.indexed:,} messages are indexed{waiting}"
