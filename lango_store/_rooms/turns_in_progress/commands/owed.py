"""`lango-store owed`: list the turns that sessions are owed and that no process is running."""

from typing import Annotated, Final

import typer

from lango_store._rooms.turns_in_progress.values import OwedTurn
from lango_store.cli.options import Agent, CsvOption, JsonOption, Prefix, UrlOption, User, example, open_store
from lango_store.cli.output import Columns, all_pages, print_items
from lango_store.cli.root import app

COLUMNS: Final[Columns[OwedTurn]] = {
    "key": lambda turn: turn.key,
    "reason": lambda turn: turn.reason,
    "turn": lambda turn: turn.turn_id,
    "due (UTC)": lambda turn: turn.due_at,
    "attempts": lambda turn: turn.attempts,
    "error": lambda turn: turn.error,
    "state": lambda turn: "given up" if turn.given_up else "owed",
}


@app.command(epilog=example("owed --url sqlite:///agent.db"))
def owed(
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    future: Annotated[bool, typer.Option("--future", help="Also turns that are owed at a later time.")] = False,
    url: UrlOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List the turns that live sessions are owed, the longest due first.

    A session is owed a turn if messages wait in its inbox, if a suspension
    was answered, or if a turn was interrupted. Running turns are not listed.
    Turns that were given up come last; `turns retry` makes them due again.

    In a pipe, each turn is one line of tab-separated fields without a
    header: session key, reason (`inbox`, `answer` or `interrupted`), turn
    id, time from which it is due, attempts, class of the last error, and
    state (`owed` or `given up`). Control characters are escaped with a
    backslash.
    """
    with open_store(url) as store:
        pages = all_pages(store.owed, future=future, user_id=user, agent_id=agent, key_prefix=prefix)
        print_items(COLUMNS, pages, as_json=json_, as_csv=csv_, none="no turn is owed")
