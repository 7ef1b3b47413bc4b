"""`lango-store db`: the functions of `lango_store.schema`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer

from lango_store import schema
from lango_store._engine.url import shown
from lango_store.cli.progress import migrating
from lango_store.cli.terminal import JsonOption, UrlOption, YesOption, agreed, database, opened

app = typer.Typer(help="Migrate the schema, and see whether it is the one this release needs.", no_args_is_help=True)

LockTimeout = Annotated[
    float,
    typer.Option("--lock-timeout", min=0.001, max=2_147_483, help="Seconds to wait for a table in use (PostgreSQL)."),
]


@app.command()
def upgrade(
    revision: Annotated[str, typer.Argument(help="The revision to go to.")] = "head",
    url: UrlOption = None,
    lock_timeout: LockTimeout = schema.LOCK_TIMEOUT,
) -> None:
    """Bring the schema up to a revision. Several at once are safe: one works, the others wait.

    Killed in the middle, it goes on where it was when it is run again.
    """
    reached = schema.upgrade(database(url, new=True), revision, lock_timeout=lock_timeout)
    print(_at(reached))


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help='The revision to go back to; "base" drops the tables.')],
    url: UrlOption = None,
    lock_timeout: LockTimeout = schema.LOCK_TIMEOUT,
    yes: YesOption = False,
) -> None:
    """Take the schema back to a revision, and drop what later ones brought."""
    with opened(url) as store:
        undone, rows = schema.undone(store.engine, revision), schema.rows(store.engine)
        there = ", ".join(f"{table} with {number:,} rows" for table, number in rows.items()) or "no table of ours"
        agreed(
            f"downgrading {shown(store.engine.url)} undoes {', '.join(undone) or 'nothing'} "
            f"and drops what they brought; there is {there}",
            yes=yes,
        )
        reached = schema.downgrade(store.engine, revision, lock_timeout=lock_timeout)
        print(_at(reached))


@app.command()
def stamp(
    revision: Annotated[str, typer.Argument(help="The revision the schema is at.")],
    url: UrlOption = None,
) -> None:
    """Write down that the schema is at a revision, without running anything."""
    print(_at(schema.stamp(database(url, new=True), revision)))


@app.command()
def current(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Print the revision the database is at, and the one this release needs."""
    found, needed, namespace = schema.current(database(url)), schema.head(), schema.namespace(database(url))
    if as_json:
        print(json.dumps({"revision": found, "needed": needed, "schema": namespace}))
    else:
        where = "" if namespace is None else f" in schema {namespace!r}"
        print(f"{_at(found)}{where}, this release needs {needed}")


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
    revision: Annotated[str, typer.Argument(help="The revision to go to.")] = "head",
    url: UrlOption = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Where to start; else the database is asked.", show_default=False)
    ] = None,
) -> None:
    """Print the SQL that an upgrade would run."""
    print(schema.sql(database(url, new=start is not None), revision, start=start), end="")


DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the SQL, and run nothing.")]


@app.command()
def distribute(url: UrlOption = None, dry_run: DryRun = False, lock_timeout: LockTimeout = schema.LOCK_TIMEOUT) -> None:
    """Spread the tables over the nodes of a Citus cluster, by the session's key. The store waits meanwhile.

    Killed in the middle, it has done nothing; done already, there is nothing to do.
    """
    _move("distributed by the session's key", schema.distribute, url, dry_run, lock_timeout)


@app.command()
def undistribute(
    url: UrlOption = None, dry_run: DryRun = False, lock_timeout: LockTimeout = schema.LOCK_TIMEOUT
) -> None:
    """Bring the tables back from the nodes of a Citus cluster to its coordinator. The store waits meanwhile."""
    _move("not distributed", schema.undistribute, url, dry_run, lock_timeout)


def _move(state: str, move: Callable[..., list[str]], url: str | None, dry_run: bool, lock_timeout: float) -> None:
    with migrating("moving") as on_progress:
        done = move(database(url), dry_run=dry_run, lock_timeout=lock_timeout, on_progress=on_progress)
    if not done:
        print(f"nothing to do: the tables are {state} already")
    elif dry_run:
        print("\n".join(f"{statement};" for statement in ("BEGIN", *done, "COMMIT")))
    else:
        print(f"the tables are {state} now")


def _at(revision: str | None) -> str:
    return "no lango_store tables" if revision is None else f"at revision {revision}"
