"""Creating, filling, rebuilding and dropping the search index, which is in no revision: a store works without it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._operations import revision, search
from lango_store._operations.pace import Pace
from lango_store._values.reports import OnProgress, Progress, SearchStatus
from lango_store.errors import LangoStoreError
from lango_store.schema.running import LOCK_TIMEOUT, Database, connected, join, reading


def enable_search(database: Database, *, on_progress: OnProgress | None = None) -> SearchStatus:
    """Create the search index, fill it while the store is in use, and return its status.

    If the index is usable, only the changes in its queue are indexed, so another call continues one that was killed.

    Args:
        database: A URL, an engine, or a connection, whose transaction then holds all of it.
        on_progress: Called after each batch.
    """
    return _build(database, on_progress, anew=False)


def rebuild_search(database: Database, *, on_progress: OnProgress | None = None) -> SearchStatus:
    """Drop the search index, however damaged it is, and enable it again."""
    return _build(database, on_progress, anew=True)


def disable_search(database: Database) -> bool:
    """Drop the search index, however damaged it is; return whether there was one."""
    with connected(database) as connection, _transaction(connection, callers=connection is database):
        index = dialect_of(connection).search_index
        existed = index.exists(connection)
        index.drop(connection)
        return existed


def search_status(database: Database) -> SearchStatus:
    """Return the status of the search index."""
    with reading(database) as connection:
        return search.status(connection)


def _build(database: Database, on_progress: OnProgress | None, *, anew: bool) -> SearchStatus:
    with connected(database) as connection:
        callers = connection is database
        transaction = partial(_transaction, connection, callers=callers)
        index = dialect_of(connection).search_index
        with transaction():
            _check_possible(connection)
            creates = anew or index.fault(connection) is not None
            if creates:
                index.drop(connection)
                index.create_queue(connection)
        with transaction():  # a second one: writers wait from the creation of the triggers until its commit
            if creates:
                index.create_entries(connection)
                index.fill_queue(connection)
            total = index.queued(connection)

        def report(rows: int) -> None:
            if on_progress is not None:
                on_progress(Progress(table="lango_search", rows=rows, total=total))

        search.drain(transaction, total, Pace(dialect_of(connection), rests=not callers), report)
        with transaction():
            return search.status(connection)


def _check_possible(connection: sa.Connection) -> None:
    """Raise if this database cannot have an index."""
    revision.required(connection)
    if dialect_of(connection).is_distributed(connection):
        raise LangoStoreError(
            "these tables are distributed, and the search index follows writes by triggers, which Citus allows on no "
            "such table: search in a copy on one server, or run `lango-store db undistribute` first"
        )


@contextmanager
def _transaction(connection: sa.Connection, *, callers: bool) -> Iterator[sa.Connection]:
    """Begin a transaction on our tables, or a savepoint in the caller's transaction."""
    dialect = dialect_of(connection)
    if callers:
        join(connection)
    transaction = connection.begin_nested() if callers else dialect.batch(connection, LOCK_TIMEOUT)
    with transaction, dialect.confined(connection):
        yield connection
