"""How revisions run: one migration at a time, on our tables alone, without Alembic's global context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from lango_store.dialect import dialect_of
from lango_store.operations import revision
from lango_store.schema.opening import Database, connected, opened
from lango_store.schema.options import OPTIONS, script_directory

Steps = Callable[[ScriptDirectory, Any], Iterable[Any]]
"""What a run does: from the revisions there are, and those the database is at, to Alembic's steps."""

LOCK_TIMEOUT: Final = 5.0
"""Seconds that a migration waits for a table on PostgreSQL."""

_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.001, 2_147_483  # 0 would be without end, and PostgreSQL counts milliseconds


def migrate(steps: Steps, database: Database, lock_timeout: float) -> str | None:
    """Run steps on a database, alone, and return the revision it is at then."""
    with opened(database) as target:
        with target.connect() as connection, alone(connection, lock_timeout, callers=target.callers):
            run_revisions(MigrationContext.configure(connection, opts=options_of(steps)))
        with connected(target.database) as connection:
            return revision.found(connection)


@contextmanager
def alone(connection: sa.Connection, lock_timeout: float, *, callers: bool = False) -> Iterator[None]:
    """Keep other migrations out for a block, and the statements in our schema; `lock_timeout` seconds for a table."""
    if not _SHORTEST_TIMEOUT <= lock_timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"lock_timeout={lock_timeout}: give seconds, from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:,}")
    database = dialect_of(connection)
    if callers:
        if not connection.in_transaction():
            connection.begin()
        database.join(connection)
    alone = database.migration_within if callers else database.migration
    with alone(connection, lock_timeout), database.confined(connection):
        revision.found(connection)  # which refuses what no revision leads on from
        yield


def options_of(steps: Steps, **options: Any) -> dict[str, Any]:
    """Return the options of a migration context that runs these steps."""
    scripts = script_directory()
    return {**OPTIONS, **options, "script": scripts, "fn": lambda at, _: steps(scripts, at)}


def run_revisions(context: MigrationContext) -> None:
    """Run revisions without `alembic.context` and `alembic.op`: there is one of each, and it may be a host's just now.

    The modules of the revisions were loaded for this run only, so that its `op` can stand in them.
    """
    assert context.script is not None
    for script in context.script.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    with context.begin_transaction():
        context.run_migrations()
