"""The command line: a voice, not a brain. It prints what the functions of the package return."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from lango_store.cli.commands import Commands
from lango_store.cli.terminal import say_error
from lango_store.cli.text import let_streams_escape
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError

NO, UNREACHABLE = 1, 3
"""Exit codes: the answer is no, the database is not there; 2 is wrong usage, which the options' checks find."""

app = typer.Typer(
    cls=Commands,
    name="lango-store",
    help="Keep a store of sessions and messages: its schema, and what is in it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lango-store {version('lango-store')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    let_streams_escape()
    try:
        app()
    except (DatabaseUnavailable, DatabaseBusy) as error:
        say_error(error)
        sys.exit(UNREACHABLE)
    except (LangoStoreError, ValueError) as error:  # options were checked: it is a value that the store has or refuses
        say_error(error)
        sys.exit(NO)
