"""The command line. It parses options, calls the functions of the package and prints what they return."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from lango_store.cli import db, demo, interchange, maintenance, search, serve, sessions
from lango_store.cli.output import print_error
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidFile, LangoStoreError, NotPermitted

FAILED, REFUSED, UNREACHABLE = 1, 2, 3
"""Exit codes: the answer is no; a person has to change the command or its rights; a retry may succeed."""

app = typer.Typer(
    name="lango-store",
    help="Manage a store of sessions and messages: its schema and its content.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(maintenance.expire)
app.command()(maintenance.stats)
app.command()(maintenance.doctor)
app.command("import")(interchange.import_)
app.command()(interchange.export)
app.command()(interchange.copy)
app.command()(serve.serve)
app.command()(demo.demo)
app.add_typer(sessions.app, name="sessions")
app.add_typer(search.app, name="search")
app.add_typer(maintenance.archive_app, name="archive")
app.add_typer(db.app, name="db")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lango-store {version('lango-store')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors become one line on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except (LangoStoreError, ValueError) as error:
        print_error(error)
        sys.exit(_exit_code(error))


def _exit_code(error: Exception) -> int:
    match error:
        case NotPermitted():
            return REFUSED
        case DatabaseUnavailable() | DatabaseBusy():
            return UNREACHABLE
        case ValueError() if not isinstance(error, InvalidFile):  # the store refuses a value of an option
            return REFUSED
        case _:
            return FAILED
