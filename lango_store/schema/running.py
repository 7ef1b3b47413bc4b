"""How revisions run: one migration at a time, on our tables alone, without Alembic's global context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.script import ScriptDirectory

from lango_store.dialect import detect_dialect, dialect_of
from lango_store.errors import DatabaseBusy
from lango_store.operations import revision
from lango_store.schema.migration import Migration, Overtaken
from lango_store.schema.online import Online, OnProgress
from lango_store.schema.opening import Database, connected, opened
from lango_store.schema.options import OPTIONS, script_directory

Steps = Callable[[ScriptDirectory, Any], Iterable[Any]]
"""What a run does: from the revisions there are, and those the database is at, to Alembic's steps."""

_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 0.001, 2_147_483  # 0 would be without end, and PostgreSQL counts milliseconds


def migrate(steps: Steps, database: Database, lock_timeout: float, on_progress: OnProgress | None = None) -> str | None:
    """Run steps on a database, alone, and return the revision it is at then."""
    with opened(database) as target:
        run = run_within if target.callers else run_alone
        with target.connect() as connection:
            run(connection, options_of(steps), lock_timeout, on_progress)
        with connected(target.database) as connection:
            return revision.found(connection)


def run_alone(
    connection: sa.Connection, options: dict[str, Any], lock_timeout: float, on_progress: OnProgress | None = None
) -> None:
    """Run revisions in transactions of their own, `lock_timeout` seconds for a table, while other migrations wait."""
    refuse_timeout(lock_timeout)
    with alone(connection):
        # A migration that was overtaken looks again, at most once for each revision that others can have run.
        for _ in range(1 + len(list(options["script"].walk_revisions()))):
            context = Migration(connection, options, lock_timeout=lock_timeout)
            try:
                return run_revisions(context, on_progress)
            except Overtaken:
                continue
    raise DatabaseBusy("other migrations of lango_store keep changing the schema: wait for them, then run it again")


def run_within(
    connection: sa.Connection, options: dict[str, Any], lock_timeout: float, on_progress: OnProgress | None = None
) -> None:
    """Run revisions in the caller's transaction, alone until that ends."""
    refuse_timeout(lock_timeout)
    with joined(connection, lock_timeout):
        context = Migration(connection, options, lock_timeout=lock_timeout, callers=True)
        run_revisions(context, on_progress)


@contextmanager
def alone(connection: sa.Connection) -> Iterator[None]:
    """Keep other migrations out for a block, which begins its own transactions."""
    with dialect_of(connection).snapshot(connection):
        detect_dialect(connection)
    with dialect_of(connection).migrations.alone(connection):
        yield


@contextmanager
def joined(connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
    """Join the caller's transaction, or begin it, and work on our tables alone while other migrations wait for it."""
    if not connection.in_transaction():
        connection.begin()
    dialect_of(connection).join(connection)
    detect_dialect(connection)
    dialect = dialect_of(connection)
    with dialect.migrations.within(connection, lock_timeout), dialect.confined(connection):
        yield


def options_of(steps: Steps, **options: Any) -> dict[str, Any]:
    """Return the options of a migration context that runs these steps."""
    scripts = script_directory()
    return {**OPTIONS, **options, "script": scripts, "fn": lambda at, _: steps(scripts, at)}


def run_revisions(context: Migration, on_progress: OnProgress | None = None) -> None:
    """Run revisions without `alembic.context` and `alembic.op`: there is one of each, and it may be a host's just now.

    The modules of the revisions were loaded for this run only, so that its `op` can stand in them.
    """
    assert context.script is not None
    context.opts["online"] = Online(context, on_progress)
    for script in context.script.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    with context.begin_transaction():
        context.run_migrations()


def refuse_timeout(lock_timeout: float) -> None:
    """Raise ValueError for seconds that no database can wait."""
    if not _SHORTEST_TIMEOUT <= lock_timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"lock_timeout={lock_timeout}: give seconds, from {_SHORTEST_TIMEOUT} to {_LONGEST_TIMEOUT:,}")
