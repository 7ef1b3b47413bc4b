"""Distribute the tables over the nodes of a Citus cluster, or bring them back: an optional migration.

Each is distributed by the first column of its primary key, so that a session, its turns, its messages and its values
are rows of one node.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._dialect.citus import distributed_tables, is_tenant
from lango_store._dialect.postgresql import PostgreSQL
from lango_store._operations import revision
from lango_store._values.reports import OnProgress, Progress
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.schema.running import LOCK_TIMEOUT, Database, connected, migration
from lango_store.tables import FEATURE_TABLE, SCHEMA_REVISION, VERSION_TABLE, Base

_REFERENCE_TABLES: Final = (VERSION_TABLE, FEATURE_TABLE)
"""Tables that each node has whole: each is asked for the revision, and a worker has no local tables."""

_COLUMNS: Final = {
    table.name: next(iter(table.primary_key.columns)).name
    for table in Base.metadata.sorted_tables
    if table.name not in _REFERENCE_TABLES
}
"""The distribution column of each other table; all of them are colocated with the first."""

_IS_OURS: Final = (
    "c.relname = ANY(:ours) AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
)


class _Step(NamedTuple):
    """A statement, and the table whose rows it moves, None if it moves none."""

    sql: str
    table: str | None = None


def distribute(
    database: Database,
    *,
    dry_run: bool = False,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Spread the tables over the nodes of a Citus cluster by the session's key, and return the statements that did it.

    All statements are one transaction, and reads and writes wait until it ends. [] if there is nothing to do. With
    `dry_run` nothing is run. LangoStoreError names the obstacles.
    """
    return _run(database, _steps, dry_run, lock_timeout, on_progress)


def undistribute(
    database: Database,
    *,
    dry_run: bool = False,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> list[str]:
    """Bring the tables back to the coordinator, with their foreign keys; return the statements that did it.

    Arguments are those of `distribute`.
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
            # All of them at once, and the strongest: what grows later meets those who have read and then write.
            lock = f"LOCK TABLE {', '.join(f'{schema}.{table}' for table in _COLUMNS)} IN ACCESS EXCLUSIVE MODE"
            if not dry_run:
                connection.exec_driver_sql(lock)
                for step in steps:
                    with _shown(connection, step.table, on_progress):
                        connection.exec_driver_sql(step.sql)
                detect_dialect(connection)
            return [lock, *(step.sql for step in steps)]


def _steps(connection: sa.Connection, schema: str) -> Iterator[_Step]:
    """Yield the remaining steps until the tables are distributed."""
    nodes = "SELECT true FROM pg_dist_node WHERE isactive AND shouldhaveshards AND noderole = 'primary' LIMIT 1"
    if not connection.exec_driver_sql(nodes).scalar():
        raise LangoStoreError(
            "no node of this cluster takes rows: SELECT citus_add_node('worker', 5432), then run this again"
        )
    done = distributed_tables(connection)
    missing = [table for table in _COLUMNS if table not in done]
    first = next(iter(_COLUMNS))
    for table in missing:
        beside = "none" if table == first else f"{schema}.{first}"
        call = f"create_distributed_table({_literal(f'{schema}.{table}')}, '{_COLUMNS[table]}', colocate_with => "
        yield _Step(f"SELECT {call}{_literal(beside)})", table)
    for table in reversed(missing):  # Citus copies the rows, and leaves hidden ones on the coordinator
        yield _Step(f"SELECT truncate_local_data_after_distributing_table({_literal(f'{schema}.{table}')})")
    for table in _REFERENCE_TABLES:
        if table not in done:
            yield _Step(f"SELECT create_reference_table({_literal(f'{schema}.{table}')})")


def _steps_back(connection: sa.Connection, schema: str) -> Iterator[_Step]:
    """Yield the remaining steps until no table is distributed."""
    done = distributed_tables(connection)
    for table in Base.metadata.sorted_tables:
        parents = {key.referred_table.name for key in table.foreign_key_constraints}
        if table.name in done & _COLUMNS.keys() and not parents & done:  # the others come with their parents
            call = f"undistribute_table({_literal(f'{schema}.{table.name}')}, cascade_via_foreign_keys => true)"
            yield _Step(f"SELECT {call}", table.name)
    for name in _REFERENCE_TABLES:
        if name in done:
            yield _Step(f"SELECT undistribute_table({_literal(f'{schema}.{name}')})")


def _postgresql(connection: sa.Connection) -> PostgreSQL:
    dialect = dialect_of(connection)
    if isinstance(dialect, PostgreSQL):
        return dialect
    raise LangoStoreError("a store in a file cannot be distributed: copy it to PostgreSQL, `lango-store copy`")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
    found = revision.required(connection)
    if found != SCHEMA_REVISION:
        namespace = dialect_of(connection).schema(connection)
        raise SchemaOutOfDate(found, SCHEMA_REVISION, namespace, remedy="upgrade the package")


def _reject_obstacles(connection: sa.Connection, dialect: PostgreSQL) -> None:
    """Raise LangoStoreError if something is in the way of distributing the tables, or of bringing them back."""
    if not dialect.has_citus(connection):
        raise LangoStoreError(
            "Citus is not in this database: on each server CREATE EXTENSION citus, then here "
            "SELECT citus_set_coordinator_host('this server') and SELECT citus_add_node('worker', 5432)"
        )
    query = f"SELECT c.relname::text FROM pg_class c WHERE {_IS_OURS} AND NOT pg_has_role(c.relowner, 'USAGE')"
    others = connection.execute(sa.text(query), {"ours": list(_COLUMNS)}).scalars().all()
    if others:
        raise LangoStoreError(
            f"the role of this URL does not own {', '.join(sorted(others))}: give the URL of the role that does"
        )
    if is_tenant(connection):
        raise LangoStoreError(
            "this schema is distributed as a whole, and its tables live on one node: they are not distributed by "
            "session as well; `SELECT citus_schema_undistribute(…)` undoes that"
        )
    if dialect.search_index.exists(connection):
        raise LangoStoreError(
            "the search index does not work on a cluster: run `lango-store search disable`, then this again"
        )
    if found := list(_obstacles(connection)):
        raise LangoStoreError("; ".join(found))


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
