"""How migrations run on SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event

from lango_store._dialect.migrations import Migrations
from lango_store._dialect.sqlite_driver import immediate
from lango_store.errors import LangoStoreError
from lango_store.tables import Base

_OURS: Final = tuple(table.name for table in Base.metadata.sorted_tables)
_CHILDREN: Final = tuple(table.name for table in Base.metadata.sorted_tables if table.foreign_keys)


class SQLiteMigrations(Migrations):
    """One writer at a time: what a revision changes lands in one transaction, and is checked before its end."""

    batch_rest = 0.11  # a waiting writer asks for the file again after 0.1 s at the latest

    @contextmanager
    def alone(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # Batch mode drops the old table: with foreign keys on, its messages would go with it. The pragma counts only
        # outside of a transaction.
        driver: Any = connection.connection.dbapi_connection
        (before,) = driver.execute("PRAGMA foreign_keys").fetchone()
        driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with immediate(connection):
                tables, changes = self._root_pages(connection), driver.total_changes
                yield
                # The check reads every message. A revision that adds a column or an index leaves our tables where they
                # are, and changes one row, its own in the version table.
                if self._root_pages(connection) != tables or driver.total_changes > changes + 1:
                    self._reject_orphans(connection)
        finally:
            driver.execute(f"PRAGMA foreign_keys = {before}")

    def batch(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        return immediate(connection)

    @contextmanager
    def within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # Inside a transaction foreign keys cannot be switched off: a revision that makes a table anew is refused then.
        def guard(_: object, __: object, statement: str, *___: object) -> None:
            if re.match(r'\s*DROP TABLE "?lango_session\b', statement) and self._children_have_rows(connection):
                raise LangoStoreError(
                    "this revision makes lango_session anew, which with foreign keys on would delete its messages: "
                    "run `PRAGMA foreign_keys = OFF` before the transaction begins, or give the engine"
                )

        guarded = bool(connection.exec_driver_sql("PRAGMA foreign_keys").scalar())
        if guarded:
            event.listen(connection, "before_cursor_execute", guard)
        try:
            with connection.begin_nested():
                yield
                self._reject_orphans(connection)
        finally:
            if guarded:
                event.remove(connection, "before_cursor_execute", guard)

    @staticmethod
    def _children_have_rows(connection: sa.Connection) -> bool:
        there = [table for table in _CHILDREN if sa.inspect(connection).has_table(table)]
        return any(connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() for table in there)

    @staticmethod
    def _root_pages(connection: sa.Connection) -> dict[str, int]:
        tables = connection.exec_driver_sql("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'")
        return {name: page for name, page in tables if name in _OURS}

    @staticmethod
    def _reject_orphans(connection: sa.Connection) -> None:
        for table in _OURS:  # a host's tables are the host's affair
            if sa.inspect(connection).has_table(table):
                orphans = connection.exec_driver_sql(f"PRAGMA foreign_key_check({table})").all()
                if orphans:
                    raise LangoStoreError(f"the migration would leave rows without their session: {orphans[:3]}")
