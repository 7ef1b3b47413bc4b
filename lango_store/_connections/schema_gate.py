"""Check an engine's database settings and schema once, before the first call of a store."""

import logging
import threading
import weakref
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._dialect.driver_errors import translated_errors
from lango_store._engine.pool import DatabaseFile, renew_lock_in_children, watch_file
from lango_store._operations import revision
from lango_store.errors import DamagedDatabase, LangoStoreError, SchemaOutOfDate, StoreClosed, UnsupportedDatabase
from lango_store.tables import SCHEMA_REVISION, VERSION_TABLE

logger = logging.getLogger("lango_store")

_UNCHECKED: Final = object()
_PING_FIRST: Final = "call ping() at startup: a store with migrate=True does not migrate inside your transaction"


class SchemaGate:
    """Checks the settings and schema of each engine once; with `migrate`, upgrades the schema first."""

    def __init__(self, *, migrate: bool) -> None:
        self._migrate = migrate
        self._passed: weakref.WeakKeyDictionary[sa.Engine, DatabaseFile | None] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        renew_lock_in_children(self)
        self._closed = False

    def check_engine(self, engine: sa.Engine) -> DatabaseFile | None:
        """Check the schema on first use.

        Returns:
            The file of a SQLite database, or None for a database without a file. Callers check that the
            file was not replaced: a write, once it has SQLite's lock, because the file may be replaced
            while it waits for the lock.
        """
        file: Any = self._passed.get(engine, _UNCHECKED)
        if file is _UNCHECKED:
            with self._lock, translated_errors(engine):
                if engine not in self._passed:
                    self._reject_closed()
                    self._migrate_and_check(engine)
                file = self._passed.get(engine)
        return file  # type: ignore[no-any-return]

    def check_connection(self, connection: sa.Connection) -> None:
        """Check the schema, as `check_engine` does, on a caller's connection; never migrate."""
        file: Any = self._passed.get(connection.engine, _UNCHECKED)
        if file is _UNCHECKED:
            self._reject_closed()
            try:
                file = self._check(connection)
            except SchemaOutOfDate as error:
                if self._migrate:
                    raise SchemaOutOfDate(error.found, error.needed, error.schema, remedy=_PING_FIRST) from None
                raise
        if file is not None:
            file.check()

    def check_again(self, connection: sa.Connection) -> None:
        """Check the schema, the tables and the file even if they were checked before."""
        try:
            file = self._check(connection, tables=True)
        except LangoStoreError:
            self.reset(connection.engine)  # so that calls in other threads check it again, too
            raise
        if file is not None:
            file.check()

    def reset(self, engine: sa.Engine) -> None:
        """Forget the result, so that the next call checks the schema again."""
        self._passed.pop(engine, None)

    def close(self) -> None:
        """Refuse all later calls."""
        with self._lock:
            self._closed = True
            self._passed.clear()

    def _migrate_and_check(self, engine: sa.Engine) -> None:
        dialect = dialect_of(engine)
        if self._migrate:
            with engine.connect() as connection, dialect.snapshot(connection):
                self._reject_incompatible(connection)
            from lango_store import schema  # imported late: it imports Alembic, which is slow

            schema.upgrade(engine)
        with engine.connect() as connection, dialect.snapshot(connection):
            self._check(connection)

    def _reject_closed(self) -> None:
        if self._closed:
            raise StoreClosed("this store is closed: create a new one")

    def _check(self, connection: sa.Connection, *, tables: bool = False) -> DatabaseFile | None:
        self._reject_incompatible(connection)
        try:
            stored = revision.required(connection)
        except SchemaOutOfDate as error:
            if error.found is None:
                from lango_store.schema.unversioned import reject_unversioned  # imported late: it imports Alembic

                reject_unversioned(connection)
            raise
        if tables and (missing := revision.missing_tables(connection)):
            raise DamagedDatabase(
                f"{', '.join(missing)} missing, although {VERSION_TABLE} says that the schema is complete: restore "
                "a backup, or, in a new database, run `lango-store db stamp base` and `lango-store db upgrade`"
            )
        revision.reject_unknown_features(connection)
        if stored > SCHEMA_REVISION:
            logger.warning(
                "the schema is at revision %s, newer than %s, the revision of this release: upgrade the package",
                stored,
                SCHEMA_REVISION,
            )
        detect_dialect(connection)
        path = dialect_of(connection).file(connection)
        file = None if path is None else watch_file(connection.engine, path)
        with self._lock:
            self._reject_closed()
            self._passed[connection.engine] = file
        return file

    @staticmethod
    def _reject_incompatible(connection: sa.Connection) -> None:
        reject_translated(connection)
        if fault := dialect_of(connection).incompatibility(connection):
            raise UnsupportedDatabase(fault)


def reject_translated(connection: sa.Connection) -> None:
    """Raise `LangoStoreError` if the connection has a `schema_translate_map`."""
    if connection.get_execution_options().get("schema_translate_map"):
        raise UnsupportedDatabase(
            "schema_translate_map is not supported, because some statements would ignore it. "
            "On PostgreSQL, set the search path: "
            "create_engine(url, connect_args={'options': '-csearch_path=tenant'}). On SQLite, use a file per schema."
        )
