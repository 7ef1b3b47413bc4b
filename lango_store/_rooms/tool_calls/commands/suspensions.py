"""`lango-store suspensions`: list the suspensions that wait for an answer, and answer them."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lango_store._rooms.tool_calls.commands.calls import json_file
from lango_store._rooms.tool_calls.values import Suspension
from lango_store.cli import root
from lango_store.cli.options import (
    Agent,
    CsvOption,
    JsonOption,
    Prefix,
    UrlOption,
    User,
    example,
    open_store,
    option,
    runs_command,
    time_option,
)
from lango_store.cli.output import Columns, all_pages, print_items, printable
from lango_store.errors import quoted

app = typer.Typer(invoke_without_command=True, epilog=example("suspensions --user ann --url sqlite:///agent.db"))
root.app.add_typer(app, name="suspensions")

COLUMNS: Final[Columns[Suspension]] = {
    "key": lambda suspension: suspension.key,
    "calls": lambda suspension: ", ".join(f"{seq}/{position}" for seq, position in suspension.calls),
    "reason": lambda suspension: suspension.reason,
    "created (UTC)": lambda suspension: suspension.created_at,
    "due (UTC)": lambda suspension: suspension.due_at,
}


@app.callback()
def suspensions(
    context: typer.Context,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    due_before: Annotated[Any, time_option("Only suspensions that expire before this time.")] = None,
    url: UrlOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List the unanswered suspensions of live sessions, oldest first.

    Expired suspensions are listed too. They can no longer be answered.

    In a pipe, each suspension is one line of tab-separated fields without
    a header: session key, calls (each as the seq of its message, "/" and
    its position), reason, time of the suspension, and the time until which
    it can be answered. Control characters are escaped with a backslash.
    """
    if runs_command(context, user, agent, prefix, due_before, url, csv_, json_):
        return
    with open_store(url) as store:
        which = {"user_id": user, "agent_id": agent, "key_prefix": prefix}
        pages = all_pages(store.suspensions.list, due_before=due_before, **which)
        print_items(COLUMNS, pages, as_json=json_, as_csv=csv_, none="no suspension waits for an answer")


@app.command(epilog=example("suspensions answer TOKEN --json yes.json --url sqlite:///a.db"))
def answer(
    token: Annotated[str, typer.Argument(help="Token of the suspension.")],
    json_: Annotated[Path, option("FILE", "The answer, a file with JSON.", "--json")],
    by: Annotated[str | None, option("TEXT", "Who answers, such as a user id.")] = None,
    why: Annotated[str | None, option("TEXT", "Why.")] = None,
    url: UrlOption = None,
) -> None:
    """Answer a suspension.

    Only the first answer is stored: exit code 1 if there is one already.
    The program that suspended its work finds the answer in the session.
    """
    with open_store(url) as store:
        suspension = store.suspensions.answer(token, json_file(json_, "--json"), by=by, why=why)
    print(printable(f"answered a suspension of session {quoted(suspension.key)}"))
