"""`lango-store calls`: list the tool calls that are unknown or wait, and record their outcomes."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lango_store._rooms.tool_calls.values import BegunCall, Suspension
from lango_store._values.model import UNSET
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
)
from lango_store.cli.output import Columns, all_pages, print_items
from lango_store.interchange.fidelity import read_json

app = typer.Typer(invoke_without_command=True, epilog=example("calls --user ann --url sqlite:///agent.db"))
root.app.add_typer(app, name="calls")

COLUMNS: Final[Columns[BegunCall]] = {
    "key": lambda call: call.key,
    "seq": lambda call: call.seq,
    "position": lambda call: call.position,
    "tool": lambda call: call.name,
    "effect key": lambda call: call.effect_key,
    "begun (UTC)": lambda call: call.begun_at,
}

WAITING: Final[Columns[Suspension]] = {
    "key": lambda wait: wait.key,
    "seq": lambda wait: wait.calls[0][0],
    "position": lambda wait: wait.calls[0][1],
    "waits for": lambda wait: json.dumps(wait.handle, ensure_ascii=False),
    "until (UTC)": lambda wait: wait.due_at,
}


@app.callback()
def calls(
    context: typer.Context,
    user: User = None,
    agent: Agent = None,
    prefix: Prefix = None,
    waiting: Annotated[bool, flag("--waiting", "List the calls that wait for a result from outside.")] = False,
    url: UrlOption = None,
    csv_: CsvOption = False,
    json_: JsonOption = False,
) -> None:
    """List the unknown tool calls of live sessions, and resolve them.

    A call is unknown if its time limit has passed and it has no result, for
    example because its process died. Its tool may have run.

    With --waiting, list the calls that wait for a result from outside
    instead, with their handles and the times until which they wait.

    In a pipe, each call is one line of tab-separated fields without a
    header: session key, seq of the message that asks for the call,
    position of the call in it, name of the tool, effect key, and time at
    which the call was begun. Control characters are escaped with a backslash.
    """
    if runs_command(context, user, agent, prefix, waiting, url, csv_, json_):
        return
    with open_store(url) as store:
        unknown: Any = COLUMNS, store.calls.list_unknown, "is unknown"
        columns, read, state = (WAITING, store.calls.waiting, "waits") if waiting else unknown
        pages = all_pages(read, user_id=user, agent_id=agent, key_prefix=prefix)
        print_items(columns, pages, as_json=json_, as_csv=csv_, none=f"no call {state}")


@app.command(epilog=example("calls resolve telegram:42 17 0 --retry --url sqlite:///agent.db"))
def resolve(
    key: Key,
    seq: Annotated[int, typer.Argument(help="Seq of the message that asks for the call.")],
    position: Annotated[int, typer.Argument(help="Position of the call in the message, from 0.")],
    output: Annotated[Path | None, option("FILE", "The tool has run: a file with its output as JSON.")] = None,
    failed: Annotated[str | None, option("TEXT", "The tool has failed: the error text for the model.")] = None,
    retry: Annotated[bool, flag("--retry", "The tool has not run: the call may begin again.")] = False,
    url: UrlOption = None,
) -> None:
    """Record the outcome of an unknown tool call.

    Give exactly one of --output, --failed and --retry. An output or a
    failure is appended to the session as the result of the call.
    """
    if (output is not None) + (failed is not None) + retry != 1:
        raise typer.BadParameter("give exactly one of --output, --failed and --retry")
    value = UNSET if output is None else json_file(output, "--output")
    with open_store(url) as store:
        result = store.conversation(key).calls.resolve(seq, position, output=value, failed=failed, retry=retry)
    print("the call may begin again" if result is None else f"stored the result as message {result.seq}")


def json_file(path: Path, option: str) -> Any:
    """Return the JSON of a file that an option names."""
    try:
        return read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint=option) from None
