"""The command line: it parses options, calls functions of the package and prints their results."""

import re
import sys
from importlib.metadata import version
from itertools import pairwise
from typing import Annotated

import typer

from lango_store._rooms.distribution import commands as distribution
from lango_store._rooms.examination import commands as examination
from lango_store._rooms.expiry import commands as expiry
from lango_store._rooms.payloads import commands as payloads
from lango_store._rooms.prompts import commands as prompts
from lango_store._rooms.search import commands as search
from lango_store._rooms.stats import commands as stats
from lango_store._rooms.tail import commands as tail
from lango_store._rooms.tool_calls.commands import calls, suspensions
from lango_store._rooms.turns_in_progress.commands import owed, turns
from lango_store._rooms.usage import commands as usage
from lango_store._rooms.versions import commands as versions
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
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidFile, LangoStoreError, NotPermitted

FAILED, REFUSED, UNREACHABLE = 1, 2, 3
"""Exit codes. `FAILED`: nothing was found, a check failed, some sessions were kept, or the command failed. `REFUSED`:
wrong usage, a missing database file or missing permissions. `UNREACHABLE`: the database is busy or unavailable."""

_URL_WITH_PASSWORD = re.compile(r"postgres\w*(\+\w+)?://(.*:.*@|.*pass\w*=)", re.IGNORECASE | re.DOTALL)

app = typer.Typer(
    name="lango-store",
    help="Manage a store of agent sessions and its database schema.",
    epilog=example("sessions list --url sqlite:///agent.db"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=example("expire --archive cold.db --url sqlite:///agent.db"))(expiry.expire)
app.command(epilog=example("stats --url sqlite:///agent.db"))(stats.stats)
app.command(epilog=example("usage --by user,day --since 30d --url sqlite:///agent.db"))(usage.usage)
app.command(epilog=example("doctor --url sqlite:///agent.db"))(examination.doctor)
app.command("import", epilog=example("import backup/lango_store.jsonl --url sqlite:///agent.db"))(interchange.import_)
app.command(epilog=example("export --all --to backup --url sqlite:///agent.db"))(interchange.export)
app.command(epilog=example("copy --from sqlite:///agent.db --to postgresql://db/agents"))(interchange.copy)
app.command(epilog=example("adopt sqlite:///conversations.db --to sqlite:///agent.db"))(adopt.adopt)
app.command(epilog=example("serve --url sqlite:///agent.db"))(serve.serve)
app.command(epilog=example("tail telegram:42 -f --url sqlite:///agent.db"))(tail.tail)
app.command(epilog=example("owed --url sqlite:///agent.db"))(owed.owed)
app.command(epilog=example("demo --kill"))(demo.demo)
sessions.app.command(epilog=example("sessions restore telegram:42 --archive cold.db --ttl 30d"))(expiry.restore)
sessions.app.command(epilog=example("sessions prompt telegram:42 --reuse --url sqlite:///agent.db"))(prompts.prompt)
sessions.app.command(epilog=example("sessions check --model claude-opus-5-5 --url sqlite:///agent.db"))(prompts.check)
sessions.app.command(epilog=example("sessions changes telegram:42 --url sqlite:///agent.db"))(versions.changes)
sessions.app.command(epilog=example("sessions undo telegram:42 --url sqlite:///agent.db"))(versions.undo)
db.app.command(epilog=example("db distribute --dry-run --url postgresql://localhost/agents"))(distribution.distribute)
db.app.command(epilog=example("db undistribute --dry-run --url postgresql://localhost/agents"))(
    distribution.undistribute
)
app.add_typer(sessions.app, name="sessions")
app.add_typer(turns.app, name="turns")
app.add_typer(calls.app, name="calls")
app.add_typer(suspensions.app, name="suspensions")
app.add_typer(search.app, name="search")
app.add_typer(payloads.app, name="payloads")
app.add_typer(db.app, name="db")


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
