"""What migrations ask of a database: who runs alone, what a revision's transaction is, which locks it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import sqlalchemy as sa


class Migrations:
    """How revisions, and what else changes tables, run on a database."""

    batch_rest: float
    """Seconds that a migration rests after a batch, so that waiting writers come in before the next one."""

    concurrent_indexes: bool
    """Whether an index can be made while rows are written, outside of a transaction."""

    def alone(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Keep other migrations out for a block of several transactions, where the database can."""
        raise NotImplementedError

    @contextmanager
    def revision(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        """Run a revision in a transaction of its own."""
        raise NotImplementedError
        yield

    @contextmanager
    def batch(self, connection: sa.Connection, lock_timeout: float, seconds: float | None = None) -> Iterator[None]:
        """Change some rows for a revision, in a transaction of their own; a statement of so many seconds is cut."""
        raise NotImplementedError
        yield

    def was_cut(self, error: BaseException | None) -> bool:
        """Whether a driver's error says that a statement ran for too long."""
        raise NotImplementedError

    @contextmanager
    def outside_transaction(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        """Let each statement commit by itself, where the database has statements that need it."""
        raise NotImplementedError
        yield

    @contextmanager
    def within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        """Run a migration in the caller's transaction, alone until that ends; what fails leaves nothing behind."""
        raise NotImplementedError
        yield

    def lock_tables(self, connection: sa.Connection, statement: str, lock_timeout: float) -> None:
        """Run a statement that locks several tables within a transaction, and wait so many seconds for all of them."""
        raise NotImplementedError

    def unfinished_indexes(self, connection: sa.Connection, table: str) -> list[str]:
        """List the indexes of a table that were being made when their maker went away, and that serve no query."""
        raise NotImplementedError
