"""`lango-store db distribute` and `undistribute`: move the tables to the nodes of a cluster, or back."""

from collections.abc import Callable
from typing import Annotated

from lango_store import schema
from lango_store.cli.db import app as db
from lango_store.cli.options import LOCK_TIMEOUT, LockTimeout, UrlOption, database, example, flag
from lango_store.cli.output import migration_progress

DryRun = Annotated[bool, flag("--dry-run", "Print the SQL statements without running them.")]


@db.command(epilog=example("db distribute --dry-run --url postgresql://localhost/agents"))
def distribute(url: UrlOption = None, dry_run: DryRun = False, lock_timeout: LockTimeout = LOCK_TIMEOUT) -> None:
    """Distribute the tables across the nodes of a Citus cluster.

    The rows of a session are stored on one node. Readers and writers wait
    until the command has finished. If the command is killed, nothing has
    changed, and you can run it again.
    """
    _move(schema.distribute, "distributed by session key", url, dry_run, lock_timeout)


@db.command(epilog=example("db undistribute --dry-run --url postgresql://localhost/agents"))
def undistribute(url: UrlOption = None, dry_run: DryRun = False, lock_timeout: LockTimeout = LOCK_TIMEOUT) -> None:
    """Move the tables from the nodes of a Citus cluster back to the coordinator.

    Readers and writers wait until the command has finished.
    """
    _move(schema.undistribute, "on the coordinator", url, dry_run, lock_timeout)


def _move(move: Callable[..., list[str]], state: str, url: str | None, dry_run: bool, lock_timeout: float) -> None:
    with migration_progress("moving") as on_progress:
        statements = move(database(url), dry_run=dry_run, lock_timeout=lock_timeout, on_progress=on_progress)
    if not statements:
        print(f"nothing to do: the tables are already {state}")
    elif dry_run:
        print("\n".join(f"{statement};" for statement in ("BEGIN", *statements, "COMMIT")))
    else:
        print(f"the tables are now {state}")
