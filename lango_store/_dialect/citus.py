"""The dialects for Citus, as differences from PostgreSQL: distributed tables, and tables of one tenant's schema."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store._dialect.base import AppendMethod, TransientReason
from lango_store._dialect.postgresql import BEGIN, PostgreSQL, end, primary_message, set_config
from lango_store._rows.columns import TimeColumn
from lango_store.errors import DatabaseUnavailable, LangoStoreError
from lango_store.tables import VERSION_TABLE, Base

_OF_ONE_SERVER: Final = re.compile("not allowed in CASE or COALESCE|cannot be called with column references")
_LOST_COMMIT: Final = re.compile("could not commit transaction for shard|failure on connection marked as essential")


class Citus(PostgreSQL):
    """Tables distributed by session key. A transaction that writes on several servers needs a two-phase commit."""

    modifying_cte = False  # Citus would run its parts one by one, with a two-phase commit
    append_method = AppendMethod.PIPELINE
    takes_arrays = False  # Citus writes the rows of an INSERT ... SELECT to temporary files on the coordinator
    locks_many = False  # "could not run distributed query with FOR UPDATE/SHARE commands"

    def needs_new_dialect(self, error: BaseException) -> bool:
        # Another thread may have begun a statement before the dialect was detected.
        return super().needs_new_dialect(error) and bool(_OF_ONE_SERVER.search(str(error)))

    def translate_error(self, error: BaseException) -> LangoStoreError:
        if _is_lost_commit(error):
            return DatabaseUnavailable(
                f"PostgreSQL: {primary_message(error)}; check that all nodes run, and what is stored"
            )
        return super().translate_error(error)

    def transient_reason(self, error: BaseException) -> TransientReason | None:
        return TransientReason.LOST if _is_lost_commit(error) else super().transient_reason(error)

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        return _later(now, sa.cast(ttl, sa.Double).op("*")(sa.literal_column("interval '1 second'")))

    def later_expiry(self, now: sa.ColumnElement[datetime], session: Any) -> sa.ColumnElement[datetime]:
        # Citus allows no stable functions in a CASE. The factor is 1, or NULL for a session that never expires.
        factor = sa.cast(sa.cast(session.expires_at == session.expires_at, sa.Integer), sa.Double)
        next_expiry = self.next_expiry(now, session.ttl_seconds * factor)
        return sa.func.greatest(session.expires_at, next_expiry, type_=TimeColumn())

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        # On the coordinator a distributed table is empty, and citus_total_relation_size() accepts no other tables.
        def size(name: str) -> sa.ColumnElement[int]:
            table = sa.cast(name, postgresql.REGCLASS)
            distributed = sa.exists().where(
                sa.table("pg_dist_partition", sa.column("logicalrelid")).c.logicalrelid == table
            )
            return sa.case(
                (distributed, sa.func.citus_total_relation_size(table)), else_=sa.func.pg_total_relation_size(table)
            )

        return sum(connection.execute(sa.select(*map(size, tables))).one())

    def _set_lock_timeout(self, connection: sa.Connection, timeout: object) -> None:
        # A write through a worker holds its locks on that worker only; this setting sends SET LOCAL to the workers.
        set_config(connection, "citus.propagate_set_commands", "local")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{timeout}'")

    def undistributed_tables(self, connection: sa.Connection) -> list[str]:
        distributed = distributed_tables(connection)
        return sorted({*Base.metadata.tables, VERSION_TABLE} - distributed) if distributed else []

    @contextmanager
    def append_savepoint(self, connection: sa.Connection) -> Iterator[None]:
        with connection.begin_nested():  # an append is several statements, and the caller may catch our error
            yield


class OfTenant(Citus):
    """The Citus dialect for a schema per tenant.

    Citus keeps all tables of such a schema on one server, so every statement can run there as a whole.
    """

    # Citus rewrites an INSERT … SELECT that contains a stable function into invalid SQL: "WHERE ( IS NOT NULL)".
    asks_time = True
    modifying_cte = True
    append_method = AppendMethod.STATEMENT
    locks_many = True

    def undistributed_tables(self, connection: sa.Connection) -> list[str]:
        return []


@contextmanager
def pipelined(driver: Any) -> Iterator[None]:
    """Send the statements of a block and a COMMIT in one pipeline, then wait for all answers."""
    first: BaseException | None = None
    try:
        with driver.pipeline():
            try:
                driver.execute(BEGIN)
                yield
                driver.execute("COMMIT")
            except BaseException as error:  # raised after the pipeline, which would log the errors that this one causes
                first = error
    except Exception as error:
        raise first or _interruption(driver, error) or error from None
    finally:
        end(driver)
    if first is not None:
        raise first


def is_tenant(connection: sa.Connection) -> bool:
    """Return True if Citus keeps the whole schema on one node."""
    query = "SELECT true FROM pg_dist_schema JOIN pg_namespace n ON n.oid = schemaid WHERE nspname = current_schema()"
    return bool(connection.exec_driver_sql(query).scalar())


def distributed_tables(connection: sa.Connection) -> set[str]:
    """Return our distributed tables, without those that Citus knows but keeps on the coordinator only."""
    query = (
        "SELECT c.relname::text FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid "
        "WHERE c.relname = ANY(:ours) AND (p.repmodel, p.colocationid) <> ('s', 0) "
        "AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
    )
    return set(connection.execute(sa.text(query), {"ours": [*Base.metadata.tables, VERSION_TABLE]}).scalars())


def _is_lost_commit(error: BaseException) -> bool:
    # If a node is lost before it answers a COMMIT, Citus raises an internal error without a specific SQLSTATE.
    return getattr(error, "sqlstate", None) == "XX000" and bool(_LOST_COMMIT.search(str(error)))


def _interruption(driver: Any, error: BaseException | None) -> BaseException | None:
    """Return the error that interrupted the pipeline and caused `error`; None if there is none."""
    # While the pipeline is active, look for the first error that is not the driver's. Otherwise look for an
    # interruption such as KeyboardInterrupt.
    is_active = not driver.closed and driver.pgconn.pipeline_status
    while isinstance(error, Exception) and (not is_active or hasattr(error, "sqlstate")):
        error = error.__context__
    return error


def _later(now: sa.ColumnElement[datetime], interval: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
    # Citus refuses columns in expressions that depend on the connection's time zone. In UTC the sum is immutable.
    utc = sa.literal_column("'UTC'", sa.Text())
    later = sa.func.timezone(utc, now, type_=sa.DateTime()).op("+")(interval)
    return sa.func.timezone(utc, later, type_=TimeColumn())
