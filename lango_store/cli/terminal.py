"""What the commands share: where a URL comes from, durations, tables, and how an error looks."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lango_store._engine.engine import create_engine, database_file
from lango_store._engine.url import URL_VARIABLES, shown, url_from_environment
from lango_store._operations.sessions import MAX_TTL
from lango_store.cli.text import say
from lango_store.errors import (
    DamagedMessage,
    DatabaseUnavailable,
    SchemaOutOfDate,
    SessionExists,
    SessionExpired,
    SessionNotFound,
)
from lango_store.store import Store

if TYPE_CHECKING:
    from rich.table import Table

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"The database; else ${', else $'.join(URL_VARIABLES)}.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Sessions of this agent id.", show_default=False)]
User = Annotated[str | None, typer.Option("--user", help="Sessions of this user id.", show_default=False)]
Prefix = Annotated[str | None, typer.Option("--prefix", help="Sessions whose key begins so.", show_default=False)]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def database(url: str | None, *, new: bool = False) -> str:
    """Return the URL that a command works on; BadParameter if there is none.

    A file that is not there is an error, and is not made, unless it may be `new`.
    """
    found = url or url_from_environment()
    if not found:
        raise typer.BadParameter(
            f"no database was given: give --url sqlite:///agent.db, or set {URL_VARIABLES[0]}", param_hint="--url"
        )
    try:
        engine = create_engine(found)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    file = database_file(engine.url)
    if file is not None and not new and not file.exists():
        raise DatabaseUnavailable(
            f"database {file} does not exist: check the path, or create it with `lango-store db upgrade`"
        )
    return found


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """Open the store a command works on."""
    with Store(database(url)) as store:
        yield store


def agreed(destroys: str, *, yes: bool) -> None:
    """Print what is about to go, and ask; without a terminal nobody can be asked, and only --yes agrees."""
    if yes:
        say(destroys)
    elif sys.stdin.isatty():
        say(f"{destroys} for good")
        typer.confirm("go on?", abort=True, err=True)
    else:
        raise typer.BadParameter(f"{destroys} for good: add --yes if that is meant", param_hint="--yes")


def announce(store: Store, doing: str) -> None:
    """Print on which host and database something destructive is about to happen, without the password."""
    say(f"{doing} {shown(store.engine.url)}")


def duration(text: str, option: str) -> timedelta:
    """Read a duration such as 30d, 12h, 90m, 45s or 2w; BadParameter, which names the option, for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if not found:
        raise typer.BadParameter(f"{text!r} is not a duration: write 45s, 90m, 12h, 30d or 2w", param_hint=option)
    try:
        span = timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        span = timedelta.max
    if span > MAX_TTL:
        raise typer.BadParameter(f"{text!r} is longer than any session lives, 100 years", param_hint=option)
    return span


def moment(text: str, option: str) -> datetime:
    """Read a time: ISO 8601, in UTC unless it says otherwise, or a duration ago."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC) - duration(text, option)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def as_json(value: Any, indent: int | None = None) -> str:
    """Write JSON for people, with text as it is."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def table(*columns: str, title: str | None = None, right: tuple[int, ...] = ()) -> Table:
    """Return an empty table; the columns at `right` are aligned there."""
    from rich.table import Table  # which few commands draw

    made = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        made.add_column(column, justify="right" if place in right else "left", overflow="fold")
    return made


def console() -> Console:
    """Return the console for answers."""
    return Console(highlight=False)


def say_error(error: Exception) -> None:
    """Print an error as one line on standard error."""
    say(f"error: {_in_commands(error)}")


def _in_commands(error: Exception) -> str:
    """Return what a person at a command line does next, where the error itself speaks to programs."""
    match error:
        case SessionExpired():
            return f"{error.fact}: `sessions touch` revives it, `sessions show --expired` shows it"
        case SessionNotFound():
            return f"{error.fact}: see the key, `sessions list` names those that are there"
        case SessionExists():
            return f"{error.fact}, and was left as it is: `sessions delete` makes room"
        case SchemaOutOfDate():
            return f"{error.fact}: {error.remedy}"
        case DamagedMessage():
            return f"{error.fact}; `sessions show` shows what can be read, `doctor` names all that is damaged"
    return str(error)
