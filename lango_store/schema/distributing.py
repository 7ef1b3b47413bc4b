"""The tables spread over the nodes of a cluster, and brought back: like a migration, but a store can do without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from lango_store._dialect import Distribution, Step, detect_dialect, dialect_of
from lango_store._operations import revision
from lango_store._values.reports import OnProgress, Progress
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.schema.opening import Database, Opened, opened
from lango_store.schema.running import LOCK_TIMEOUT, alone
from lango_store.tables import SCHEMA_REVISION


def distribute(
    database: Database,
    *,
    dry_run: bool = False,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Spread the tables over the nodes of a Citus cluster by the session's key, and return the statements that did it.

    All in one transaction: reads and writes wait until it is over, and nobody sees half of it. [] if there is nothing
    to do. With `dry_run` nothing is run. LangoStoreError says what stands in the way.
    """

    def steps(connection: sa.Connection, distribution: Distribution) -> list[Step]:
        if dialect_of(connection).search_index.exists(connection):
            raise LangoStoreError(
                "the search index does not work on a cluster: run `lango-store search disable`, then this again"
            )
        return distribution.steps(connection)

    return _run(database, steps, dry_run, lock_timeout, on_progress)


def undistribute(
    database: Database,
    *,
    dry_run: bool = False,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Bring the tables back to the coordinator, with their foreign keys; return the statements that did it.

    As `distribute` in all else. Values that a session has left behind are no longer allowed there: LangoStoreError
    names the command that deletes them.
    """
    return _run(
        database,
        lambda connection, distribution: distribution.steps_back(connection),
        dry_run,
        lock_timeout,
        on_progress,
    )


def _run(
    database: Database,
    steps_of: Callable[[sa.Connection, Distribution], list[Step]],
    dry_run: bool,
    lock_timeout: float,
    on_progress: OnProgress | None,
) -> list[str]:
    with opened(database) as target, target.connect() as connection:
        distribution = dialect_of(connection).distribution
        if distribution is None:
            raise LangoStoreError("a store in a file cannot be distributed: copy it to PostgreSQL, `lango-store copy`")
        with _looking(target, connection) if dry_run else alone(connection, lock_timeout, callers=target.callers):
            distribution.reject_worker(connection)
            _reject_revision(connection)
            steps = steps_of(connection, distribution)
            for step in () if dry_run else steps:
                if step.locks:
                    dialect_of(connection).migrations.lock_tables(connection, step.sql, lock_timeout)
                    continue
                with _shown(connection, step.table, on_progress):
                    connection.exec_driver_sql(step.sql)
            detect_dialect(connection)
        return [step.sql for step in steps]


@contextmanager
def _looking(target: Opened, connection: sa.Connection) -> Iterator[None]:
    dialect = dialect_of(connection)
    if target.callers:
        with dialect.confined(connection):
            yield
    else:
        with dialect.snapshot(connection), dialect.confined(connection):
            yield


@contextmanager
def _shown(connection: sa.Connection, table: str | None, on_progress: OnProgress | None) -> Iterator[None]:
    if table is None or on_progress is None:
        yield
        return
    total = connection.execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar_one()
    on_progress(Progress(table=table, rows=0, total=total))
    yield
    on_progress(Progress(table=table, rows=total, total=total))


def _reject_revision(connection: sa.Connection) -> None:
    found = revision.found(connection)
    if found != SCHEMA_REVISION:
        newer = found is not None and found > SCHEMA_REVISION
        remedy = "upgrade the package" if newer else None
        raise SchemaOutOfDate(found, SCHEMA_REVISION, dialect_of(connection).schema(connection), remedy=remedy)
