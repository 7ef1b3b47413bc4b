"""How migrations run on PostgreSQL, and where Citus has distributed the tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from lango_store._dialect.distribution import Distribution
from lango_store._dialect.migrations import Migrations
from lango_store._dialect.postgresql_driver import read_committed, set_config, unbounded, unprepared
from lango_store.errors import DatabaseBusy

_LOCK: Final = 0x6C616E676F  # "lango"
_PATIENCE: Final = 60.0
_LOCKING_PATIENCE: Final = 0.2


class PostgreSQLMigrations(Migrations):
    """Many writers go on while a revision runs: what makes them wait is short, and given up soon."""

    batch_rest = 0.0  # only rows are locked, and whoever waits is next

    @contextmanager
    def alone(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        with self.batch(connection, lock_timeout):
            self._wait_for_lock(connection)
            yield

    @contextmanager
    def batch(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        with read_committed(connection), unbounded(connection), unprepared(connection):
            # A migration that waits for a table makes every append queue behind it.
            self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
            set_config(connection, "statement_timeout", 0)  # the host chose it for the store's own calls
            yield

    @contextmanager
    def within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        self._wait_for_lock(connection)
        before = connection.exec_driver_sql("SHOW lock_timeout").scalar()
        with connection.begin_nested():
            self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
            yield
            self._set_lock_timeout(connection, before)

    @staticmethod
    def _wait_for_lock(connection: sa.Connection) -> None:
        # Until the transaction ends: before that, no other connection sees what it changed. The lock is polled because
        # a statement that waits for it would hold a snapshot.
        Distribution().reject_worker(connection)
        deadline = time.monotonic() + _PATIENCE
        with unprepared(connection):  # a prepared statement keeps its snapshot until the next one
            while not connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar():
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
