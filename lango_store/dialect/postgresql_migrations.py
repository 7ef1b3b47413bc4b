"""How migrations run on PostgreSQL, and where Citus has distributed the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect.base import ensure_transaction
from lango_store.dialect.distribution import Distribution
from lango_store.dialect.migrations import Migrations
from lango_store.dialect.postgresql_driver import autocommit, read_committed, set_config, unbounded, unprepared
from lango_store.errors import DatabaseBusy, LangoStoreError

_LOCK: Final = 0x6C616E676F  # "lango"
_PATIENCE: Final = 60.0
_LOCKING_PATIENCE: Final = 0.2
_SETTINGS: Final = ("search_path", "lock_timeout", "statement_timeout")


class PostgreSQLMigrations(Migrations):
    """Many writers go on while a revision runs: what makes them wait is short, and given up soon."""

    batch_rest = 0.0  # only rows are locked, and whoever waits is next
    concurrent_indexes = True

    @contextmanager
    def alone(self, connection: sa.Connection) -> Iterator[None]:
        # On a connection of its own, whose transaction stays open around those of the revisions: the lock goes with it,
        # whatever happens, behind a pooler too. In READ COMMITTED it has no snapshot between statements, which
        # CREATE INDEX CONCURRENTLY would wait for; so would it for a statement that waits: ask and ask again, in
        # transactions of their own, as a pooler might have no connection left for who has the lock.
        engine = sa.create_engine(connection.engine.url, creator=connection.engine.pool._creator, poolclass=sa.NullPool)
        deadline = time.monotonic() + _PATIENCE
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as keeper, unprepared(connection):
            Distribution().refuse_worker(keeper)
            while not self._has_lock(keeper):
                keeper.rollback()
                self._pause(deadline)
            keeper.exec_driver_sql(
                "SELECT set_config(name, '0', true) FROM pg_settings "
                "WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
            )
            try:
                yield
            finally:
                keeper.invalidate()  # closed, which ends its transaction; it may have been lost, which is not an error

    @contextmanager
    def revision(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        with read_committed(connection), unbounded(connection):
            # A migration that waits for a table makes every append queue behind it.
            self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
            set_config(connection, "statement_timeout", 0)  # which is chosen for a store's own calls
            yield

    @contextmanager
    def batch(self, connection: sa.Connection, lock_timeout: float, seconds: float | None = None) -> Iterator[None]:
        with self.revision(connection, lock_timeout):
            if seconds is not None:
                set_config(connection, "statement_timeout", int(seconds * 1000))
            yield

    def was_cut(self, error: BaseException | None) -> bool:
        return getattr(error, "sqlstate", None) == "57014"

    @contextmanager
    def outside_transaction(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # What is set for a transaction is not set here: it is set for the connection, and put back.
        driver: Any = connection.connection.dbapi_connection
        self._refuse_pooler(connection, driver)
        with autocommit(driver), ensure_transaction(connection), unbounded(connection):
            before = {name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in _SETTINGS}
            set_config(connection, "lock_timeout", int(lock_timeout * 1000), local=False)
            set_config(connection, "statement_timeout", 0, local=False)
            connection.exec_driver_sql("SELECT set_config('search_path', quote_ident(current_schema()), false)")
            try:
                yield
            finally:
                for name, value in before.items() if not driver.closed else ():
                    set_config(connection, name, value, local=False)

    @staticmethod
    def _refuse_pooler(connection: sa.Connection, driver: Any) -> None:
        # Its clients get numbers of its own for the process that serves them.
        with ensure_transaction(connection):
            serving = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        if serving != driver.pgconn.backend_pid:
            raise LangoStoreError(
                "this revision makes an index while rows are written, with settings that a pooler between here and the "
                "server would leave to other clients: run `lango-store db upgrade` with the server's own URL; what was "
                "done stays done"
            )

    @contextmanager
    def within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        Distribution().refuse_worker(connection)
        # The lock has to last until the caller commits: before that, nobody else sees the tables.
        deadline = time.monotonic() + _PATIENCE
        while not self._has_lock(connection):
            self._pause(deadline)
        before = connection.exec_driver_sql("SHOW lock_timeout").scalar()
        with connection.begin_nested():
            self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
            yield
            self._set_lock_timeout(connection, before)

    @staticmethod
    def _has_lock(connection: sa.Connection) -> bool:
        with unprepared(connection):  # a prepared statement keeps its snapshot until the next one
            return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar())

    @staticmethod
    def _pause(deadline: float) -> None:
        if time.monotonic() > deadline:
            raise DatabaseBusy("another migration of lango_store runs in this database: wait for it")
        time.sleep(0.05)

    def lock_tables(self, connection: sa.Connection, statement: str, lock_timeout: float) -> None:
        # Each time for less than the server takes to look for deadlocks: who has read one of the tables, and now writes
        # to another one that is locked already, would wait for us as we for them.
        deadline = time.monotonic() + lock_timeout
        while True:
            patience = min(_LOCKING_PATIENCE, max(deadline - time.monotonic(), 0.001))
            try:
                with connection.begin_nested():
                    self._set_lock_timeout(connection, f"{patience * 1000:.0f}ms")
                    connection.exec_driver_sql(statement)
                    self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
                return
            except sa.exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != "55P03" or time.monotonic() > deadline:
                    raise

    def unfinished_indexes(self, connection: sa.Connection, table: str) -> list[str]:
        query = (
            "SELECT i.relname::text FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "
            "JOIN pg_class t ON t.oid = x.indrelid JOIN pg_namespace s ON s.oid = t.relnamespace "
            "WHERE t.relname = :table AND s.nspname = current_schema() AND NOT x.indisvalid"
        )
        return list(connection.execute(sa.text(query), {"table": table}).scalars())

    def _set_lock_timeout(self, connection: sa.Connection, timeout: object) -> None:
        """Let the statements of this transaction wait so long for a lock."""
        set_config(connection, "lock_timeout", timeout)


class CitusMigrations(PostgreSQLMigrations):
    """Locks have to be taken, and waited for, on each server."""

    def _set_lock_timeout(self, connection: sa.Connection, timeout: object) -> None:
        # Who writes by way of a worker holds locks there only, and the workers are told of a SET LOCAL, if so asked.
        set_config(connection, "citus.propagate_set_commands", "local")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{timeout}'")

    def lock_tables(self, connection: sa.Connection, statement: str, lock_timeout: float) -> None:
        connection.exec_driver_sql(statement)  # once: a worker that says no has ended the transaction
