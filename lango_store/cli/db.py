"""`lango-store db`: migrate and check the schema with the functions of `lango_store.schema`."""

import json
from collections.abc import Callable
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
    open_store,
)
from lango_store.cli.output import migration_progress

app = typer.Typer(help="Migrate the schema, and see whether it is the one this release needs.", no_args_is_help=True)

Target = Annotated[str, typer.Argument(help="The revision to go to.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and run nothing.")]


@app.command()
def upgrade(revision: Target = "head", url: UrlOption = None, lock_timeout: LockTimeout = LOCK_TIMEOUT) -> None:
    """Bring the schema up to a revision. Several at once are safe: one works, the others wait up to a minute.

    It is one transaction: if it is killed, nothing has changed; run it again.
    """
    print(_state(schema.upgrade(database(url, new=True), revision, lock_timeout=lock_timeout)))


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help='The revision to go back to; "base" drops the tables.')],
    url: UrlOption = None,
    lock_timeout: LockTimeout = LOCK_TIMEOUT,
    yes: YesOption = False,
) -> None:
    """Downgrade the schema to a revision, and drop what later revisions added."""
    with open_store(url) as store:
        loss = f"all {store.count(expired=None):,} sessions" if revision == "base" else "what later revisions added"
        confirm(f"downgrading {store.engine.url} to {revision} drops {loss}", yes=yes)
        print(_state(schema.downgrade(store.engine, revision, lock_timeout=lock_timeout)))


@app.command()
def stamp(
    revision: Annotated[str, typer.Argument(help="The revision the schema is at.")],
    url: UrlOption = None,
) -> None:
    """Record that the schema is at a revision, without running anything."""
    print(_state(schema.stamp(database(url, new=True), revision)))


@app.command()
def current(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Print the revision the database is at, and the one this release needs."""
    state, text = _current(database(url))
    print(json.dumps(state) if as_json else text)


@app.command()
def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Print the revision, the features in use, and on PostgreSQL the releases of this package that are connected.

    A pooler, or an application_name in the URL, may hide the release of a connection.
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


@app.command()
def check(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Print whether the schema is the one this release needs; exit code 1 if it is not."""
    differences = schema.check(database(url))
    if as_json:
        print(json.dumps({"ok": not differences, "differences": differences}))
    else:
        for difference in differences or ["the schema is the one this release needs"]:
            print(difference)
    if differences:
        raise typer.Exit(1)


@app.command()
def sql(
    revision: Target = "head",
    url: UrlOption = None,
    start: Annotated[str | None, typer.Option("--from", help="Where to start; else the database is asked.")] = None,
) -> None:
    """Print the SQL that an upgrade would run."""
    print(schema.sql(database(url, new=start is not None), revision, start=start), end="")


@app.command()
def distribute(url: UrlOption = None, dry_run: DryRun = False, lock_timeout: LockTimeout = LOCK_TIMEOUT) -> None:
    """Spread the tables over the nodes of a Citus cluster, by the session's key. Writers wait until it is done.

    If it is killed, nothing was changed. It may be run again.
    """
    _move(schema.distribute, "distributed by the session's key", url, dry_run, lock_timeout)


@app.command()
def undistribute(url: UrlOption = None, dry_run: DryRun = False, lock_timeout: LockTimeout = LOCK_TIMEOUT) -> None:
    """Bring the tables back from the nodes of a Citus cluster to its coordinator. Writers wait until it is done."""
    _move(schema.undistribute, "not distributed", url, dry_run, lock_timeout)


def _move(move: Callable[..., list[str]], state: str, url: str | None, dry_run: bool, lock_timeout: float) -> None:
    with migration_progress("moving") as on_progress:
        statements = move(database(url), dry_run=dry_run, lock_timeout=lock_timeout, on_progress=on_progress)
    if not statements:
        print(f"nothing to do: the tables are {state} already")
    elif dry_run:
        print("\n".join(f"{statement};" for statement in ("BEGIN", *statements, "COMMIT")))
    else:
        print(f"the tables are {state} now")


def _current(url: str) -> tuple[dict[str, str | None], str]:
    """Return where the schema is at, as data and as a line."""
    found, needed, namespace = schema.current(url), schema.head(), schema.namespace(url)
    where = "" if namespace is None else f" in schema {namespace!r}"
    state = {"revision": found, "needed": needed, "schema": namespace}
    return state, f"{_state(found)}{where}, this release needs {needed}"


def _state(revision: str | None) -> str:
    return "no lango_store tables" if revision is None else f"at revision {revision}"
