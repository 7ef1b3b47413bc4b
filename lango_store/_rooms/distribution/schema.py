"""Distribute the tables over the nodes of a Citus cluster, or move them back: an optional migration.

Each table is distributed by the first column of its primary key. So a session, its turns, its messages and its values
are rows on the same node.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._dialect.citus import distributed_tables, is_tenant
from lango_store._dialect.postgresql import PostgreSQL
from lango_store._operations import revision
from lango_store._operations.derived_data import DERIVED
from lango_store._values.reports import OnProgress, Progress
from lango_store.errors import MigrationRefused, SchemaOutOfDate
from lango_store.schema.running import LOCK_TIMEOUT, Database, connected, migration
from lango_store.tables import FEATURE_TABLE, SCHEMA_REVISION, VERSION_TABLE, Base

_REFERENCE_TABLES: Final = (VERSION_TABLE, FEATURE_TABLE)
"""Tables that are copied to every node, because every node must answer which revision the schema has."""

_COLUMNS: Final = {
    table.name: next(iter(table.primary_key.columns)).name
    for table in Base.metadata.sorted_tables
    if table.name not in _REFERENCE_TABLES
}
"""The distribution column of each other table. All of them are colocated with the first table."""

_IS_OURS: Final = (
    "c.relname = ANY(:ours) AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
)


class _Step(NamedTuple):
    """A statement, and the table whose rows it moves, or None."""

    sql: str
    table: str | None = None


def distribute(
    database: Database,
    *,
    dry_run: bool = False,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Distribute the tables over the nodes of a Citus cluster, by session key.

    All statements run in one transaction. Reads and writes of all processes wait until it ends.

    Args:
        database: A URL of the coordinator, an engine, or a connection whose transaction the call joins.
        dry_run: Only return the statements, without running them. Default: False.
        lock_timeout: The number of seconds to wait for a table that is in use, 0.001 to 2,147,483. Default: 5.
        on_progress: A function that is called before and after the rows of each table are moved. Default: None.

    Returns:
        The SQL statements, in order. Empty if the tables are already distributed.

    Raises:
        LangoStoreError: The tables cannot be distributed, for example because Citus is not installed, or because a
            trigger or the search index exists; nothing was changed. The text lists the obstacles.
        SchemaOutOfDate: The schema is not exactly the one of this release; nothing was changed.
        DatabaseBusy: A table was in use, or another migration was running, for too long; nothing was changed.
    """
    return _run(database, _steps, dry_run, lock_timeout, on_progress)


def undistribute(
    database: Database,
    *,
    dry_run: bool = False,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Move distributed tables back to the coordinator of a Citus cluster.

    All statements run in one transaction. Reads and writes of all processes wait until it ends.

    Args:
        database: A URL of the coordinator, an engine, or a connection whose transaction the call joins.
        dry_run: Only return the statements, without running them. Default: False.
        lock_timeout: The number of seconds to wait for a table that is in use, 0.001 to 2,147,483. Default: 5.
        on_progress: A function that is called before and after the rows of each table are moved. Default: None.

    Returns:
        The SQL statements, in order. Empty if no table is distributed.

    Raises:
        LangoStoreError: The tables cannot be moved; nothing was changed. The text lists the obstacles.
        SchemaOutOfDate: The schema is not exactly the one of this release; nothing was changed.
        DatabaseBusy: A table was in use, or another migration was running, for too long; nothing was changed.
    """
    return _run(database, _steps_back, dry_run, lock_timeout, on_progress)


def _run(
    database: Database,
    steps_of: Callable[[sa.Connection, str], Iterator[_Step]],
    dry_run: bool,
    lock_timeout: float,
    on_progress: OnProgress | None,
) -> list[str]:
    with connected(database) as connection:
        _postgresql(connection)
        with migration(connection, lock_timeout, callers=connection is database):
            dialect = _postgresql(connection)
            dialect.reject_worker(connection)
            _reject_revision(connection)
            _reject_obstacles(connection, dialect)
            schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
            steps = list(steps_of(connection, schema))
            if not steps:
                return []
            # The strongest lock on all tables at once: locks that are raised later can deadlock with transactions that
            # have read and then write.
            lock = f"LOCK TABLE {', '.join(f'{schema}.{table}' for table in _COLUMNS)} IN ACCESS EXCLUSIVE MODE"
            if not dry_run:
                connection.exec_driver_sql(lock)
                for step in steps:
                    with _reported(connection, step.table, on_progress):
                        connection.exec_driver_sql(step.sql)
                detect_dialect(connection)
            return [lock, *(step.sql for step in steps)]


def _steps(connection: sa.Connection, schema: str) -> Iterator[_Step]:
    """Yield the steps that are still needed to distribute the tables."""
    nodes = "SELECT true FROM pg_dist_node WHERE isactive AND shouldhaveshards AND noderole = 'primary' LIMIT 1"
    if not connection.exec_driver_sql(nodes).scalar():
        raise MigrationRefused(
            "no node of this cluster takes rows: SELECT citus_add_node('worker', 5432), then run this again"
        )
    distributed = distributed_tables(connection)
    missing = [table for table in _COLUMNS if table not in distributed]
    first = next(iter(_COLUMNS))
    for table in missing:
        colocated_with = "none" if table == first else f"{schema}.{first}"
        call = f"create_distributed_table({_literal(f'{schema}.{table}')}, '{_COLUMNS[table]}', colocate_with => "
        yield _Step(f"SELECT {call}{_literal(colocated_with)})", table)
    for table in reversed(missing):  # Citus copies the rows, and leaves the old ones hidden on the coordinator
        yield _Step(f"SELECT truncate_local_data_after_distributing_table({_literal(f'{schema}.{table}')})")
    for table in _REFERENCE_TABLES:
        if table not in distributed:
            yield _Step(f"SELECT create_reference_table({_literal(f'{schema}.{table}')})")


def _steps_back(connection: sa.Connection, schema: str) -> Iterator[_Step]:
    """Yield the steps that are still needed to move all tables back."""
    distributed = distributed_tables(connection)
    for table in Base.metadata.sorted_tables:
        parents = {key.referred_table.name for key in table.foreign_key_constraints}
        if table.name in distributed & _COLUMNS.keys() and not parents & distributed:  # others follow their parents
            call = f"undistribute_table({_literal(f'{schema}.{table.name}')}, cascade_via_foreign_keys => true)"
            yield _Step(f"SELECT {call}", table.name)
    for name in _REFERENCE_TABLES:
        if name in distributed:
            yield _Step(f"SELECT undistribute_table({_literal(f'{schema}.{name}')})")


def _postgresql(connection: sa.Connection) -> PostgreSQL:
    dialect = dialect_of(connection)
    if isinstance(dialect, PostgreSQL):
        return dialect
    raise MigrationRefused("a store in a file cannot be distributed: copy it to PostgreSQL, `lango-store copy`")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def _reported(connection: sa.Connection, table: str | None, on_progress: OnProgress | None) -> Iterator[None]:
    if table is None or on_progress is None:
        yield
        return
    total = connection.execute(sa.select(sa.func.count()).select_from(sa.table(table))).scalar_one()
    on_progress(Progress(table=table, rows=0, total=total))
    yield
    on_progress(Progress(table=table, rows=total, total=total))


def _reject_revision(connection: sa.Connection) -> None:
    current = revision.required(connection)
    if current != SCHEMA_REVISION:
        namespace = dialect_of(connection).schema(connection)
        raise SchemaOutOfDate(current, SCHEMA_REVISION, namespace, remedy="upgrade the package")


def _reject_obstacles(connection: sa.Connection, dialect: PostgreSQL) -> None:
    """Raise LangoStoreError if the tables cannot be distributed or moved back."""
    if not dialect.has_citus(connection):
        raise MigrationRefused(
            "Citus is not in this database: on each server CREATE EXTENSION citus, then here "
            "SELECT citus_set_coordinator_host('this server') and SELECT citus_add_node('worker', 5432)"
        )
    query = f"SELECT c.relname::text FROM pg_class c WHERE {_IS_OURS} AND NOT pg_has_role(c.relowner, 'USAGE')"
    others = connection.execute(sa.text(query), {"ours": list(_COLUMNS)}).scalars().all()
    if others:
        raise MigrationRefused(
            f"the role of this URL does not own {', '.join(sorted(others))}: give the URL of the role that does"
        )
    if is_tenant(connection):
        raise MigrationRefused(
            "this schema is distributed as a whole, and its tables live on one node: they are not distributed by "
            "session as well; `SELECT citus_schema_undistribute(…)` undoes that"
        )
    for derived in DERIVED:
        if (obstacle := derived.obstacle(connection)) is not None:
            raise MigrationRefused(obstacle)
    if obstacles := list(_obstacles(connection)):
        raise MigrationRefused("; ".join(obstacles))


def _obstacles(connection: sa.Connection) -> Iterator[str]:
    def pairs(query: str) -> Any:
        return connection.execute(sa.text(f"{query} ORDER BY 1, 2"), {"ours": list(_COLUMNS)})

    on_ours = f"JOIN pg_class c ON c.oid = {{}} WHERE {_IS_OURS}"
    for table, name in pairs(
        f"SELECT c.relname, t.tgname FROM pg_trigger t {on_ours.format('t.tgrelid')} AND NOT t.tgisinternal"
    ):
        yield f"trigger {name} on {table} would not be run on a cluster: DROP TRIGGER {name} ON {table}"
    for table, name in pairs(f"SELECT c.relname, r.rulename FROM pg_rewrite r {on_ours.format('r.ev_class')}"):
        yield f"rule {name} on {table} is not followed on a cluster, and can crash it: DROP RULE {name} ON {table}"
    for table, name in pairs(
        f"SELECT c.relname, p.polname FROM pg_policy p {on_ours.format('p.polrelid')} "
        "AND concat(p.polqual::text, p.polwithcheck::text) LIKE '%{SUBLINK%'"
    ):
        yield f"policy {name} on {table} holds a query, which a cluster refuses: write it without, or drop it"
    foreign = (
        "SELECT k.conrelid::regclass::text, k.conname FROM pg_constraint k WHERE k.contype = 'f' AND "
        f"(SELECT count(*) FROM pg_class c WHERE c.oid IN (k.conrelid, k.confrelid) AND {_IS_OURS}) = 1"
    )
    for table, name in pairs(foreign):
        drop = f"ALTER TABLE {table} DROP CONSTRAINT {name}"
        yield f"foreign key {name} of {table} is between our tables and others: {drop}"
