"""How migrations run on a database: who keeps others out, and which locks are waited for."""

from __future__ import annotations

from contextlib import AbstractContextManager

import sqlalchemy as sa


class Migrations:
    """How revisions, and whatever else changes tables, run on a database."""

    batch_rest: float
    """Seconds to rest between batches of work, so that waiting writers get their turn."""

    def alone(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in a transaction that other migrations wait for, and commit it."""
        raise NotImplementedError

    def within(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in the caller's transaction, which other migrations wait for; an error undoes them alone."""
        raise NotImplementedError

    def batch(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run one batch of work in a transaction of its own."""
        raise NotImplementedError

    def lock_tables(self, connection: sa.Connection, statement: str, lock_timeout: float) -> None:
        """Run a statement that locks several tables within a transaction, waiting `lock_timeout` for all of them."""
        raise NotImplementedError
