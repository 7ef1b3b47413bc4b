"""`lango-store db`: the functions of `lango_store.schema` as commands: migrations and checks."""

import json
from typing import Annotated

import typer

from lango_store import schema
from lango_store.cli.options import (
    LOCK_TIMEOUT,
    JsonOption,
    LockTimeout,
    UrlOption,
    YesOption,
    confirm,
    database,
    example,
    open_store,
    option,
)
from lango_store.cli.output import quantity

app = typer.Typer(
    help="Migrate and check the database schema.",
    epilog=example("db upgrade --url sqlite:///agent.db"),
    no_args_is_help=True,
)

Target = Annotated[str, typer.Argument(help="Target migration revision.")]


@app.command(epilog=example("db upgrade --url sqlite:///agent.db"))
def upgrade(revision: Target = "head", url: UrlOption = None, lock_timeout: LockTimeout = LOCK_TIMEOUT) -> None:
    """Upgrade the schema to a migration revision, by default the latest.

    The upgrade is one transaction: if the command fails or is killed,
    nothing has changed, and you can run it again. Exit code 3 if another
    transaction locks a table, or another upgrade runs, for too long. While
    the command waits for a table on PostgreSQL, all appends to that table
    wait too.
    """
    print(_state(schema.upgrade(database(url, new=True), revision, lock_timeout=lock_timeout)))


@app.command(epilog=example("db downgrade base --url sqlite:///agent.db"))
def downgrade(
    revision: Annotated[str, typer.Argument(help='Target migration revision; "base" drops all tables.')],
    url: UrlOption = None,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    yes: YesOption = False,
) -> None:
    """Downgrade the schema to a migration revision.

    This deletes the tables and columns that newer revisions added. A
    downgrade to 0104 or earlier, except base, is refused while large
    strings are stored outside of their messages: run `lango-store payloads
    move --back` first.
    """
    with open_store(url) as store:
        loss = (
            f"all {quantity(store.count(expired=None), 'session')}"
            if revision == "base"
            else "the tables and columns that newer revisions added"
        )
        confirm(f"downgrading {store.engine.url} to {revision} and dropping {loss}", yes=yes)
        print(_state(schema.downgrade(store.engine, revision, lock_timeout=lock_timeout)))


@app.command(epilog=example("db stamp head --url sqlite:///agent.db"))
def stamp(
    revision: Annotated[str, typer.Argument(help="Migration revision to record.")], url: UrlOption = None
) -> None:
    """Record a migration revision in the database without running any migration."""
    print(_state(schema.stamp(database(url, new=True), revision)))


@app.command(epilog=example("db current --url sqlite:///agent.db"))
def current(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Print the migration revision of the database and the revision that this release needs."""
    state, text = _current(database(url))
    print(json.dumps(state) if as_json else text)


@app.command(epilog=example("db status --url postgresql://localhost/agents"))
def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Print the migration revision, the optional features and the connected releases.

    Connected releases are the releases of this package that are connected
    to the database. They are known on PostgreSQL only. A connection
    pooler, or an application_name in the URL, can hide them.
    """
    state, text = _current(database(url))
    features, releases = schema.features(database(url)), schema.releases(database(url))
    if as_json:
        print(json.dumps(state | {"features": features, "releases": releases}))
        return
    print(text)
    for feature in features:
        print(f"feature {feature}")
    for release, connections in releases.items():
        print(f"release {release}: {connections} connected")


@app.command(epilog=example("db check --url sqlite:///agent.db"))
def check(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Compare the schema with the one that this release needs.

    Exit code 1 if they differ.
    """
    differences = schema.check(database(url))
    if as_json:
        print(json.dumps({"ok": not differences, "differences": differences}))
    else:
        for difference in differences or ["the schema matches this release"]:
            print(difference)
    if differences:
        raise typer.Exit(1)


@app.command(epilog=example("db sql --url postgresql://localhost/agents"))
def sql(
    revision: Target = "head",
    url: UrlOption = None,
    start: Annotated[
        str | None,
        option("REVISION", "Revision to start from. Default: the current revision of the database.", "--from"),
    ] = None,
) -> None:
    """Print the SQL statements of an upgrade without running them."""
    print(schema.sql(database(url, new=start is not None), revision, start=start), end="")


def _current(url: str) -> tuple[dict[str, str | None], str]:
    """Return the state of the schema, as data and as a line of text."""
    current, needed, namespace = schema.current(url), schema.head(), schema.namespace(url)
    location = "" if namespace is None else f" in schema {namespace!r}"
    state = {"revision": current, "needed": needed, "schema": namespace}
    return state, f"{_state(current)}{location}, this release needs {needed}"


def _state(revision: str | None) -> str:
    return "no revision" if revision is None else f"at revision {revision}"
