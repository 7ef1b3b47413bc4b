"""`lango-store turns`: list, stop and release turns in progress, and retry turns that were given up."""

from typing import Annotated, Final

import typer

from lango_store._rooms.turns_in_progress.values import OpenTurn
from lango_store.cli import root
from lango_store.cli.options import (
    Agent,
    CsvOption,
    JsonOption,
    Key,
    Prefix,
    UrlOption,
    User,
    YesOption,
    confirm,
    example,
    open_store,
    option,
    runs_command,
)
from lango_store.cli.output import Columns, all_pages, print_items, printable, say
from lango_store.errors import quoted

app = typer.Typer(invoke_without_command=True, epilog=example("turns --user ann --url sqlite:///agent.db"))
root.app.add_typer(app, name="turns")

COLUMNS: Final[Columns[OpenTurn]] = {
    "key": lambda turn: turn.key,
    "turn": lambda turn: turn.id,
    "lease ends (UTC)": lambda turn: turn.until,
    "state": lambda turn: "running" if turn.held else "ended",
}
_NO_TURN: Final = "no turn is open"


@app.callback()
def turns(
    context: typer.Context,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    url: UrlOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List the turns in progress of live sessions, stop them or release them.

    The lease of a turn ends if the turn writes nothing for some time, by
    default 2 minutes, for example because its process died. Then another
    turn of the session can take over. Turns whose leases end first come
    first.

    In a pipe, each turn is one line of tab-separated fields without a
    header: session key, turn id, time at which the lease ends, and state of
    the lease, `running` or `ended`. Control characters are escaped with a
    backslash.
    """
    if runs_command(context, user, agent, prefix, url, csv_, json_):
        return
    with open_store(url) as store:
        pages = all_pages(store.turns.list_in_progress, user_id=user, agent_id=agent, key_prefix=prefix)
        print_items(COLUMNS, pages, as_json=json_, as_csv=csv_, none=_NO_TURN)


@app.command(epilog=example("turns retry telegram:42 --url sqlite:///agent.db"))
def retry(key: Key, url: UrlOption = None) -> None:
    """Make the turn that a session is owed due now, with all attempts.

    A worker runs it next, also if the turn was given up. Exit code 1 if the
    session is owed no turn.
    """
    with open_store(url) as store:
        if not store.conversation(key).turns.retry():
            say(f"session {quoted(key)} is owed no turn")
            raise typer.Exit(1)
    print(printable(f"the turn of session {quoted(key)} is due"))


@app.command(epilog=example("turns release telegram:42 --url sqlite:///agent.db"))
def release(key: Key, url: UrlOption = None, yes: YesOption = False) -> None:
    """Release the lease of a session's turn in progress.

    Another turn can begin at once. If the process of the turn still runs,
    its next write in the turn fails with `LeaseLost`.
    """
    with open_store(url) as store:
        conversation = store.conversation(key)
        turn = conversation.turns.in_progress()
        if turn is not None:
            state = "running" if turn.held else "ended"
            lease = f"the lease of turn {quoted(turn.id)} ({state}, until {turn.until:%Y-%m-%d %H:%M:%S} UTC)"
            confirm(f"releasing {lease} of session {quoted(key)} on {store.engine.url}", yes=yes)
            turn = conversation.turns.release()
    print(_NO_TURN if turn is None else printable(f"released the lease of turn {quoted(turn.id)}"))


@app.command(epilog=example("turns stop telegram:42 --by ann --url sqlite:///agent.db"))
def stop(
    key: Key,
    by: Annotated[str | None, option("TEXT", "Who stops the turn, such as a user id.")] = None,
    reason: Annotated[str | None, option("TEXT", "Why.")] = None,
    url: UrlOption = None,
    yes: YesOption = False,
) -> None:
    """End a session's turn as interrupted, with its streamed text.

    The turn is saved, and no worker tries it again, even if it has failed
    or was given up. If its process still runs, its next write in the turn
    fails with `LeaseLost`. Messages that wait in the inbox stay owed.
    """
    with open_store(url) as store:
        confirm(f"stopping the turn of session {quoted(key)} on {store.engine.url}", yes=yes)
        turn = store.conversation(key).turns.stop(by=by, reason=reason)
    print(_NO_TURN if turn is None else printable(f"stopped turn {quoted(turn.id)}"))
