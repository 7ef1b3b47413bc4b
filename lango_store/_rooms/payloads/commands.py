"""`lango-store payloads`: move large strings of stored messages."""

from typing import Annotated

import typer

from lango_store._values.model import UNSET
from lango_store.cli import root
from lango_store.cli.options import UrlOption, example, flag, open_store, option
from lango_store.cli.output import progress, quantity

app = typer.Typer(
    no_args_is_help=True,
    help="Move large strings of stored messages.",
    epilog=example("payloads move --url sqlite:///agent.db"),
)
root.app.add_typer(app, name="payloads")

DEFAULT = "Default: 4,096 for data URIs, records, tool calls and extra; 65,536 for all others."


@app.callback()
def _payloads() -> None:
    pass


@app.command(epilog=example("payloads move --url sqlite:///agent.db"))
def move(
    threshold: Annotated[int | None, option("N", f"Move strings of at least N characters. {DEFAULT}", min=1)] = None,
    back: Annotated[bool, flag("--back", "Move all strings back into their messages.")] = False,
    url: UrlOption = None,
) -> None:
    """Move large strings of stored messages to a separate table.

    The table has each string once per session. Appends store large strings
    there by default, so run this command once, for the messages that an
    earlier release stored. Other processes can append at the same time. If
    the command is interrupted, run it again.
    """
    with open_store(url) as store, progress("moving") as update:

        def show(number: int) -> None:
            update(description=f"{quantity(number, 'message')} changed")

        changed = store.maintenance.move_payloads(threshold=None if back else threshold or UNSET, on_batch=show)
    print(f"changed {quantity(changed, 'message')}")
