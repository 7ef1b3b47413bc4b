"""Alembic's context for our revisions: each in a transaction of its own, which it may leave for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext

from lango_store.dialect import dialect_of
from lango_store.errors import LangoStoreError
from lango_store.operations import revision

LOCK_TIMEOUT: Final = 5.0
"""Seconds that a migration waits for a table on PostgreSQL."""


class Overtaken(Exception):
    """Another migration has moved the schema on since this one looked where it is."""


class Migration(MigrationContext):
    """Runs revisions, each in a transaction of its own; in the caller's transaction if the connection is the caller's.

    Each transaction looks first whether the schema is where this migration left it, and raises `Overtaken` if not: the
    row of the version decides who has done what, whether or not a lock keeps other migrations out.
    """

    def __init__(
        self,
        connection: sa.Connection | sa.Dialect,
        options: dict[str, Any],
        *,
        lock_timeout: float = LOCK_TIMEOUT,
        callers: bool = False,
    ) -> None:
        """Take a connection, or for SQL that is only written (`as_sql`) a dialect of SQLAlchemy's."""
        opts = dict(options)
        if isinstance(connection, sa.Connection):
            super().__init__(connection.dialect, connection, opts)
            self._database = dialect_of(connection)
        else:
            super().__init__(connection, None, opts)
        self._lock_timeout = lock_timeout
        self.owns_transactions = not callers and not self.as_sql
        self._heads: tuple[str, ...] = ()
        self._open = ExitStack()

    # Alembic's steps

    def get_current_heads(self) -> tuple[str, ...]:
        """Return the revisions that the schema is at; `SchemaOutOfDate` for those that no revision leads on from."""
        if self.as_sql:
            return super().get_current_heads()
        with self._short_transaction() if self.owns_transactions else nullcontext():
            revision.found(self._lent)
            self._heads = super().get_current_heads()
        return self._heads

    def _ensure_version_table(self, purge: bool = False) -> None:
        with self._short_transaction() if self.owns_transactions else nullcontext():
            super()._ensure_version_table(purge)

    @contextmanager
    def begin_transaction(self, _per_migration: bool = False) -> Iterator[None]:
        """Begin the transaction of a revision; there is none around all of them."""
        if not self.owns_transactions:
            with super().begin_transaction(_per_migration):
                yield
        elif not _per_migration:
            yield
        else:
            with ExitStack() as self._open:
                self._enter()
                yield
                self._heads = super().get_current_heads()

    @contextmanager
    def autocommit_block(self) -> Iterator[None]:
        """Commit what the revision has done, let each statement in the block commit by itself, and begin again."""
        if self.as_sql:
            with super().autocommit_block():
                yield
            return
        if not self.owns_transactions:
            raise LangoStoreError(
                "a revision leaves the transaction, which on this connection is yours: run `lango-store db upgrade` "
                "(or schema.upgrade with a URL or an engine) before"
            )
        with self.left(), self._database.migrations.outside_transaction(self._lent, self._lock_timeout):
            yield

    # What a revision may do while the store is in use

    @contextmanager
    def left(self) -> Iterator[None]:
        """Commit what the revision has done for a block, and begin again after it; in a caller's transaction, stay."""
        if not self.owns_transactions:
            yield
            return
        self._open.close()
        yield
        self._enter()

    @contextmanager
    def batch(self, seconds: float | None) -> Iterator[sa.Connection]:
        """Lend the connection for some rows, which are committed at the end of the block; longer statements are cut."""
        if not self.owns_transactions:
            yield self._lent
            return
        with self._short_transaction(seconds):
            self._refuse_overtaken()
            yield self._lent

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Lend the connection for reading, which makes no writer wait."""
        if not self.owns_transactions:
            yield self._lent
            return
        with self._database.snapshot(self._lent), self._database.confined(self._lent):
            yield self._lent

    # Transactions

    @property
    def _lent(self) -> sa.Connection:
        assert self.connection is not None
        return self.connection

    def _enter(self) -> None:
        self._open.enter_context(self._database.migrations.revision(self._lent, self._lock_timeout))
        self._open.enter_context(self._database.confined(self._lent))
        self._refuse_overtaken()

    @contextmanager
    def _short_transaction(self, seconds: float | None = None) -> Iterator[None]:
        batch = self._database.migrations.batch(self._lent, self._lock_timeout, seconds)
        with batch, self._database.confined(self._lent):
            yield

    def _refuse_overtaken(self) -> None:
        if super().get_current_heads() != self._heads:
            raise Overtaken
