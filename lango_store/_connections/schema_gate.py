"""The checks before a store's first call: the database's settings, and its schema."""

import logging
import threading
import weakref
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import detect_dialect, dialect_of
from lango_store._dialect.driver_errors import translated_errors
from lango_store._engine.pool import DatabaseFile, renew_lock_in_children, watch_file
from lango_store._operations import revision
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.tables import SCHEMA_REVISION, VERSION_TABLE

logger = logging.getLogger("lango_store")

_UNCHECKED: Final = object()
_PING_FIRST: Final = "call ping() at the start, as a store with migrate=True does not migrate in your transaction"


class SchemaGate:
    """Checks the schema of each engine once, and upgrades it if allowed."""

    def __init__(self, *, migrate: bool) -> None:
        self._migrate = migrate
        self._passed: weakref.WeakKeyDictionary[sa.Engine, DatabaseFile | None] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        renew_lock_in_children(self)
        self._closed = False

    def check_engine(self, engine: sa.Engine) -> DatabaseFile | None:
        """Check the schema, the first time, and the database's file; return that file.

        A write checks the file once more when it has SQLite's lock, for which it may have waited.
        """
        file: Any = self._passed.get(engine, _UNCHECKED)
        if file is _UNCHECKED:
            with self._lock, translated_errors(engine):
                if engine not in self._passed:
                    self._reject_closed()
                    self._migrate_and_check(engine)
                file = self._passed.get(engine)
        elif file is not None:
            file.check()
        return file  # type: ignore[no-any-return]

    def check_connection(self, connection: sa.Connection) -> None:
        """Check the schema of a caller's connection, the first time, and the database's file."""
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
        """Check the schema, the tables and the database's file, checked before or not."""
        try:
            file = self._check(connection, tables=True)
        except LangoStoreError:
            self.reset(connection.engine)  # other threads' calls check it as well
            raise
        if file is not None:
            file.check()

    def reset(self, engine: sa.Engine) -> None:
        """Check the schema again the next time."""
        self._passed.pop(engine, None)

    def close(self) -> None:
        """Refuse all connections from now on."""
        with self._lock:
            self._closed = True
            self._passed.clear()

    def _migrate_and_check(self, engine: sa.Engine) -> None:
        dialect = dialect_of(engine)
        if self._migrate:
            with engine.connect() as connection, dialect.snapshot(connection):
                self._reject_incompatible(connection)
            from lango_store import schema  # Alembic: only a store that migrates should wait for its import

            schema.upgrade(engine)
        with engine.connect() as connection, dialect.snapshot(connection):
            self._check(connection)

    def _reject_closed(self) -> None:
        if self._closed:
            raise LangoStoreError("this store is closed: make a new one")

    def _check(self, connection: sa.Connection, *, tables: bool = False) -> DatabaseFile | None:
        self._reject_incompatible(connection)
        found = revision.required(connection)
        if tables and (missing := revision.missing_tables(connection)):
            raise LangoStoreError(
                f"{', '.join(missing)} missing, although {VERSION_TABLE} says that the schema is complete: restore "
                "a backup, or, in a new database, run `lango-store db stamp base` and `lango-store db upgrade`"
            )
        revision.reject_unknown_features(connection)
        if found > SCHEMA_REVISION:
            logger.warning(
                "the database is at revision %s, newer than %s, which this release was made for: upgrade the package",
                found,
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
            raise LangoStoreError(fault)


def reject_translated(connection: sa.Connection) -> None:
    """Raise `LangoStoreError` if a connection names other schemas than its statements."""
    if connection.get_execution_options().get("schema_translate_map"):
        raise LangoStoreError(
            "schema_translate_map is not supported, as not every statement would follow it: "
            "name the schema in the search path, on PostgreSQL "
            "create_engine(url, connect_args={'options': '-csearch_path=tenant'}), and give SQLite a file for each"
        )
