"""Run revisions: in one transaction that no other migration shares, without Alembic's global context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._operations import revision
from lango_store.schema.opening import Database, connected, opened
from lango_store.schema.options import OPTIONS, script_directory

Steps = Callable[[ScriptDirectory, Any], Iterable[Any]]
"""Returns Alembic's steps, given the revisions of this release and those the database is at."""

LOCK_TIMEOUT: Final = 5.0
"""Seconds to wait for a table in use on PostgreSQL."""

_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.001, 2_147_483  # 0 would be without end, and PostgreSQL counts milliseconds


def migrate(steps: Steps, database: Database, lock_timeout: float) -> str | None:
    """Run steps on a database, and return its revision afterwards."""
    with opened(database) as target:
        with target.connect() as connection:
            run_steps(connection, options_of(steps), lock_timeout, callers=target.callers)
        with connected(target.database) as connection:
            return revision.found(connection)


def run_steps(
    connection: sa.Connection, options: dict[str, Any], lock_timeout: float, *, callers: bool = False
) -> None:
    """Run revisions in one transaction: the caller's, or one that is committed at the end."""
    with alone(connection, lock_timeout, callers=callers):
        revision.found(connection)  # which refuses a schema from before the baseline
        run_revisions(MigrationContext.configure(connection=connection, opts=options))


@contextmanager
def alone(connection: sa.Connection, lock_timeout: float, *, callers: bool) -> Iterator[None]:
    """Begin a transaction on our tables, or join the caller's, and keep other migrations out until it ends."""
    reject_timeout(lock_timeout)
    if callers:
        if not connection.in_transaction():
            connection.begin()
        dialect_of(connection).join(connection)
        detect_dialect(connection)
        transaction = dialect_of(connection).joined_migration
    else:
        with dialect_of(connection).snapshot(connection):
            detect_dialect(connection)
        transaction = dialect_of(connection).migration
    with transaction(connection, lock_timeout), dialect_of(connection).confined(connection):
        yield


def options_of(steps: Steps, **options: Any) -> dict[str, Any]:
    """Return the options of a migration context that runs these steps."""
    scripts = script_directory()
    return {**OPTIONS, **options, "script": scripts, "fn": lambda at, _: steps(scripts, at)}


def run_revisions(context: MigrationContext) -> None:
    """Run revisions without `alembic.context` and `alembic.op`: those are global, and a host may be using them.

    The modules of the revisions were loaded for this run only, so each gets an `op` of its own.
    """
    assert context.script is not None
    for script in context.script.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    with context.begin_transaction():
        context.run_migrations()


def reject_timeout(lock_timeout: float) -> None:
    """Raise ValueError for a number of seconds that no database can wait."""
    if not _SHORTEST_TIMEOUT <= lock_timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"lock_timeout={lock_timeout}: give seconds, from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:,}")
