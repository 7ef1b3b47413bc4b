"""The command line: it parses options, calls functions of the package and prints their results."""

import gc
import re
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated

import typer

from lango_store import _rooms
from lango_store._rooms.composition import ROOMS
from lango_store.cli import (
    adopt,
    db,
    demo,
    interchange,
    serve,
    sessions,
    streams,
)
from lango_store.cli.options import example
from lango_store.cli.output import print_error
from lango_store.cli.root import app as app
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidFile, LangoStoreError, NotPermitted

FAILED, REFUSED, UNREACHABLE = 1, 2, 3
"""Exit codes. `FAILED`: nothing was found, a check failed, some sessions were kept, or the command failed. `REFUSED`:
wrong usage, a missing database file or missing permissions. `UNREACHABLE`: the database is busy or unavailable."""

_URL_WITH_PASSWORD = re.compile(r"postgres\w*(\+\w+)?://(.*:.*@|.*pass\w*=)", re.IGNORECASE | re.DOTALL)

app.command("import", epilog=example("import backup/lango_store.jsonl --url sqlite:///agent.db"))(interchange.import_)
app.command(epilog=example("export --all --to backup --url sqlite:///agent.db"))(interchange.export)
app.command(epilog=example("copy --from sqlite:///agent.db --to postgresql://db/agents"))(interchange.copy)
app.command(epilog=example("adopt sqlite:///conversations.db --to sqlite:///agent.db"))(adopt.adopt)
app.command(epilog=example("serve --url sqlite:///agent.db"))(serve.serve)
app.command(epilog=example("demo --kill"))(demo.demo)
app.add_typer(sessions.app, name="sessions")
app.add_typer(db.app, name="db")
for _room in ROOMS:
    _commands = f"{_rooms.__name__}.{_room}.commands"
    if find_spec(_commands):
        import_module(_commands)  # adds its commands to `app`, or to a group


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lango-store {version('lango-store')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. An error is printed as one line on standard error and sets the exit code."""
    gc.freeze()  # so that the garbage collector visits the imported modules neither again and again nor at the end
    streams.prepare()
    try:
        _reject_argument_with_password(sys.argv)
        try:
            app()
        finally:
            sys.stdout.flush()  # an error at the end of the process would not change the exit code
    except (LangoStoreError, ValueError) as error:
        print_error(error)
        sys.exit(_exit_code(error))


def _reject_argument_with_password(words: list[str]) -> None:
    """Refuse a database URL with a password where no URL is expected: an error would print it."""
    options = {"--url", "--archive"}
    if words[1:2] == ["adopt"]:
        options |= {*words} - {"--from"}
    if words[1:2] == ["copy"] and "--salvage" not in words:
        options |= {"--from", "--to"}
    for before, word in pairwise(words):
        if before not in options and word.partition("=")[0] not in options and _URL_WITH_PASSWORD.search(word):
            raise ValueError(
                "an argument is a database URL with a password: only --url and --archive take one, --from and --to of "
                "copy, and the first argument and --to of adopt"
            )


def _exit_code(error: Exception) -> int:
    match error:
        case NotPermitted():
            return REFUSED
        case DatabaseUnavailable() | DatabaseBusy():
            return UNREACHABLE
        case ValueError() if not isinstance(error, InvalidFile):  # the store rejects the value of an option
            return REFUSED
        case _:
            return FAILED
