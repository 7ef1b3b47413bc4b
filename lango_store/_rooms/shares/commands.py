"""`lango-store shares`: list links to sessions, add and remove them."""

from typing import Annotated, Any, Final

import typer

from lango_store._rooms.shares.values import Share
from lango_store.cli import root
from lango_store.cli.options import (
    Agent,
    CsvOption,
    JsonOption,
    Key,
    Prefix,
    UrlOption,
    User,
    example,
    flag,
    open_store,
    option,
    runs_command,
    time_option,
)
from lango_store.cli.output import Columns, all_pages, print_items, print_json, printable, quantity
from lango_store.errors import quoted

app = typer.Typer(invoke_without_command=True, epilog=example("shares --user ann --url sqlite:///agent.db"))
root.app.add_typer(app, name="shares")

COLUMNS: Final[Columns[Share]] = {
    "key": lambda share: share.key,
    "id": lambda share: share.id,
    "up to": lambda share: share.upto,
    "tools": lambda share: "yes" if share.tools else "no",
    "by": lambda share: share.shared_by,
    "created (UTC)": lambda share: share.created_at,
    "until (UTC)": lambda share: share.until,
}


@app.callback()
def shares(
    context: typer.Context,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    url: UrlOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List the links to sessions, oldest first.

    Links whose time has passed are listed too. No list has the tokens.

    In a pipe, each link is one line of tab-separated fields without a
    header: session key, id, seq of the last message that is shown, whether
    tool calls are shown, who has shared it, its time, and the time until
    which it works. Control characters are escaped with a backslash.
    """
    if runs_command(context, user, agent, prefix, url, csv_, json_):
        return
    with open_store(url) as store:
        pages = all_pages(store.shares.list, user_id=user, agent_id=agent, key_prefix=prefix)
        print_items(COLUMNS, pages, as_json=json_, as_csv=csv_, none="no session is shared")


@app.command(epilog=example("shares add chat-42 --until 2027-01-31 --url sqlite:///agent.db"))
def add(
    key: Key,
    upto: Annotated[int | None, option("SEQ", "Show messages up to this seq. Default: the last message.")] = None,
    tools: Annotated[bool, flag("--tools", "Also show tool calls, their results and the model's thinking.")] = False,
    until: Annotated[Any, time_option("Time from which the link no longer works.")] = None,
    by: Annotated[str | None, option("TEXT", "Who shares it, such as a user id.")] = None,
    url: UrlOption = None,
    json_: JsonOption = False,
) -> None:
    """Create a link to a session, and print its path.

    The path is that of `lango-store serve`, which needs no secret token for
    it. It is printed only once: the database has a digest of its token.
    """
    with open_store(url) as store:
        share = store.conversation(key).share(upto=upto, tools=tools, until=until, by=by)
    if json_:
        print_json(share)
    else:
        print(f"/s/{share.token}")


@app.command(epilog=example("shares remove support-42 --url sqlite:///agent.db"))
def remove(
    key: Key,
    id: Annotated[str | None, typer.Argument(help="Id of the link. Default: all links of the session.")] = None,
    url: UrlOption = None,
) -> None:
    """Remove the links to a session, or one of them.

    Exit code 1 if there is none.
    """
    with open_store(url) as store:
        count = store.conversation(key).unshare(id)
    print(printable(f"removed {quantity(count, 'link')} of session {quoted(key)}"))
    if not count:
        raise typer.Exit(1)
