"""What has to be right before a store's first call: the database's settings, and its schema."""

from __future__ import annotations

import logging
import threading
import weakref

import sqlalchemy as sa

from lango_store.dialect import detect_dialect, dialect_of
from lango_store.driver_errors import translated_errors
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.operations import revision
from lango_store.pool import DatabaseFile
from lango_store.tables import SCHEMA_REVISION

logger = logging.getLogger("lango_store")


class SchemaGate:
    """Looks at the schema of each engine once, and brings it up to date if it may."""

    def __init__(self, *, migrate: bool) -> None:
        self._migrate = migrate
        self._passed: weakref.WeakKeyDictionary[sa.Engine, DatabaseFile | None] = weakref.WeakKeyDictionary()
        self._looking = threading.Lock()

    def check_engine(self, engine: sa.Engine) -> DatabaseFile | None:
        """Check the schema, the first time; return the database's file, if it is one."""
        try:
            return self._passed[engine]
        except KeyError:
            pass
        with self._looking:
            if engine not in self._passed:
                with translated_errors(engine):
                    self._migrate_and_check(engine)
            return self._passed[engine]

    def check_connection(self, connection: sa.Connection) -> DatabaseFile | None:
        """Check the schema of a caller's connection, the first time."""
        engine = connection.engine
        if engine not in self._passed:
            self._check(connection)
        return self._passed[engine]

    def reset(self, engine: sa.Engine) -> None:
        """Check again the next time."""
        self._passed.pop(engine, None)

    def _migrate_and_check(self, engine: sa.Engine) -> None:
        dialect = dialect_of(engine)
        if self._migrate:
            with engine.connect() as connection, dialect.snapshot(connection):
                self._refuse_incompatible(connection)
            from lango_store import schema  # Alembic: only a store that migrates should wait for its import

            schema.upgrade(engine)
        with engine.connect() as connection, dialect.snapshot(connection):
            self._check(connection)

    def _check(self, connection: sa.Connection) -> None:
        self._refuse_incompatible(connection)
        found = revision.found(connection)
        if found is None or found < SCHEMA_REVISION:
            raise SchemaOutOfDate(found, SCHEMA_REVISION, dialect_of(connection).schema(connection))
        if found > SCHEMA_REVISION:
            logger.warning(
                "the database is at revision %s, newer than %s, which this release was made for: upgrade the package",
                found,
                SCHEMA_REVISION,
            )
        detect_dialect(connection)
        path = dialect_of(connection).file(connection)
        self._passed[connection.engine] = None if path is None else DatabaseFile(path)

    @staticmethod
    def _refuse_incompatible(connection: sa.Connection) -> None:
        if fault := dialect_of(connection).incompatibility(connection):
            raise LangoStoreError(fault)
