"""Options shared by several commands, and functions that parse them, open the store and ask for confirmation."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from lango_store import schema
from lango_store._engine.engine import create_engine, database_file
from lango_store._engine.url import URL_VARIABLES, url_from_environment
from lango_store._rooms.expiry.policies import parse_duration
from lango_store.cli.example_outputs import OUTPUTS
from lango_store.cli.output import say
from lango_store.errors import InvalidCursor, quoted
from lango_store.store import Store


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """Return an option with a value, by default named like its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(*names_and_help: str) -> Any:
    """Return an option without a value: its names, and then its help."""
    *names, help = names_and_help
    return typer.Option(*names, help=help)


Key = Annotated[str, typer.Argument(help="Session key.")]
UrlOption = Annotated[str | None, option("URL", f"Database URL. Default: ${', then $'.join(URL_VARIABLES)}.", "--url")]
JsonOption = Annotated[bool, flag("--json", "Print JSON instead of text.")]
CsvOption = Annotated[
    bool, flag("--csv", "Print CSV with a header. A text that a spreadsheet would take for a formula begins with '.")
]
YesOption = Annotated[bool, flag("--yes", "-y", "Do not ask for confirmation. Required without a terminal.")]
DescendantsOption = Annotated[bool, flag("--descendants", "Include all descendants of each session.")]
Agent = Annotated[str | None, option("ID", "Only sessions with this agent id.", "--agent")]
User = Annotated[str | None, option("ID", "Only sessions with this user id.", "--user")]
Prefix = Annotated[str | None, option("TEXT", "Only sessions whose key starts with this prefix.", "--prefix")]
Archives = Annotated[
    list[str] | None,
    option("FILE|URL", "Archive with sessions of the user. Give it once for each archive.", "--archive"),
]
Scopes = Annotated[
    list[str] | None, option("SCOPE", "Scope with shared values of the user, such as user:ann.", "--scope")
]
AuthorsOption = Annotated[bool, flag("--authors", "Include messages of the user in sessions of others.")]
CursorOption = Annotated[
    str | None, option("CURSOR", "Continue a list at the cursor that it printed at its end.", "--cursor")
]
_MAX_WAIT = "Maximum time to wait for a table lock, on PostgreSQL."
LockTimeout = Annotated[float, option("SECONDS", _MAX_WAIT, "--lock-timeout", min=0.001, max=2_147_483)]
LOCK_TIMEOUT = schema.LOCK_TIMEOUT


def example(command: str) -> str:
    """Return the example at the end of a command's help, with its output if that is known."""
    output = next((output for start, output in OUTPUTS.items() if command.startswith(f"{start} ")), "")
    return f"Example:\n\nlango-store {command}\n{output}".rstrip()


def duration(text: str) -> timedelta:
    """Parse a duration such as 30d, 12h, 90m, 45s or 2w."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def time(text: str, zone: tzinfo = UTC, *, option: str | None = None) -> datetime:
    """Parse an ISO 8601 time, in `zone` unless it has an offset; today or yesterday; or an age such as 7d."""
    if text in ("today", "yesterday"):
        text = f"{datetime.now(zone).date() - timedelta(days=text == 'yesterday')}"
    with suppress(ValueError):
        value = datetime.fromisoformat(text)
        return value if value.tzinfo is not None else value.replace(tzinfo=zone)
    with suppress(typer.BadParameter):
        return datetime.now(UTC) - duration(text.strip().removesuffix("ago"))
    raise typer.BadParameter(
        f"{text!r} is not a time: write a date such as 2026-11-21 or 2026-11-21T08:30, today, yesterday, or an "
        "age such as 7d or '12h ago'",
        param_hint=option,
    )


def zone(name: str) -> ZoneInfo:
    """Parse the name of a time zone."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise typer.BadParameter(
            f"{quoted(name)} is not a time zone of this machine: write a name such as Europe/Berlin, and install the "
            "package tzdata if it has none"
        ) from None


def time_option(help: str) -> Any:
    """Return an option for a time."""
    return option("TIME", help, parser=time)


_TIME = "2026-11-21, yesterday, or 7d for the last 7 days"
Since = Annotated[Any, time_option(f"Only sessions updated at or after this time: {_TIME}.")]
Until = Annotated[Any, time_option("Only sessions updated before this time.")]


def database(url: str | None, *, new: bool = False, option: str = "--url") -> str:
    """Return the database URL from the option or the environment. A SQLite file must exist, unless `new` is True."""
    url = url or url_from_environment()
    if not url:
        raise typer.BadParameter(
            f"no database is configured: add --url sqlite:///agent.db, or set {URL_VARIABLES[0]}", param_hint="--url"
        )
    try:
        engine = create_engine(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    file = database_file(engine.url)
    if file is not None and not new and not file.exists():
        create = ", or create it with `lango-store db upgrade`" if option in ("--url", "--to") else ""
        raise typer.BadParameter(f"database {file} does not exist: check the path{create}", param_hint=option)
    return url


def runs_command(context: typer.Context, *options: object) -> bool:
    """Return True if a subcommand follows; refuse options before its name."""
    if context.invoked_subcommand is not None and any(options):
        raise typer.BadParameter(f"write options after `{context.invoked_subcommand}`")
    return context.invoked_subcommand is not None


@contextmanager
def open_store(url: str | None, announcement: str | None = None, *, option: str = "--url") -> Iterator[Store]:
    """Open the store. If there is an announcement, print it with the database URL (without the password)."""
    with Store(database(url, option=option)) as store:
        if announcement is not None:
            say(f"{announcement} {store.engine.url}")
        yield store


@contextmanager
def valid_cursor(cursor: str | None) -> Iterator[None]:
    """Refuse the option `--cursor` if a list in the block refuses the cursor."""
    try:
        yield
    except InvalidCursor as error:
        raise typer.BadParameter(
            f"{quoted(cursor)} is not a cursor: copy the cursor from the end of a list", param_hint="--cursor"
        ) from error


def confirm(action: str, *, yes: bool) -> None:
    """Print a destructive action. Without `--yes`, ask for confirmation on a terminal, and refuse elsewhere."""
    warning = f"{action} cannot be undone"
    if yes:
        say(action)
    elif sys.stdin.isatty():
        say(warning)
        typer.confirm("Continue?", abort=True, err=True)
    else:
        raise ValueError(f"{warning}: add --yes to confirm")


def point(text: str) -> int | datetime:
    """Parse a seq or a time."""
    return int(text) if text.isdecimal() else time(text)
