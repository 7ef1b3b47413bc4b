"""Creating, filling, rebuilding and dropping the search index, which is in no revision: a store works without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import sleep
from typing import Final

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._dialect.search import SIMPLE, IndexState
from lango_store._operations import revision
from lango_store._operations import search as operations
from lango_store._values.reports import OnProgress, Progress, SearchStatus
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.schema.running import LOCK_TIMEOUT, Database, Opened, connected, opened, reject_timeout
from lango_store.tables import SCHEMA_REVISION

_BATCH: Final = 2_000

_Transaction = Callable[[], AbstractContextManager[sa.Connection]]


def enable_search(
    database: Database,
    *,
    configuration: str | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> SearchStatus:
    """Create the search index, fill it while the store is in use, and return its status.

    If the index exists, only what waits in its queue is indexed; so a call that was killed is continued by another one.

    Args:
        database: A URL, an engine, or a connection, whose transaction then holds all of it.
        configuration: "simple", words as they are written; on SQLite "trigram", any three characters, for languages
            without spaces; on PostgreSQL each text search configuration of the database.
        lock_timeout: How many seconds to wait for a table on PostgreSQL.
        on_progress: Called after each batch.

    Raises:
        ValueError: The database has no such configuration, or the index has another one.
    """
    with opened(database) as target:
        transaction = _transaction(target, lock_timeout)
        with transaction() as connection:
            _create(connection, configuration)
        return _fill(target, transaction, on_progress)


def rebuild_search(
    database: Database,
    *,
    configuration: str | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> SearchStatus:
    """Drop the search index, however damaged it is, and enable it again, with another configuration if one is given."""
    with opened(database) as target:
        transaction = _transaction(target, lock_timeout)
        with transaction() as connection:
            index, state = dialect_of(connection).search_index, _state(connection)
            index.drop(connection)
            _create(connection, configuration or (SIMPLE if state is None else state.configuration))
        return _fill(target, transaction, on_progress)


def disable_search(database: Database, *, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Drop the search index, however damaged it is; return whether there was one."""
    with opened(database) as target, _transaction(target, lock_timeout)() as connection:
        index = dialect_of(connection).search_index
        existed = index.state(connection) is not None
        index.drop(connection)
        return existed


def search_status(database: Database) -> SearchStatus:
    """Return the status of the search index."""
    with connected(database) as connection:
        return operations.status(connection)


def _create(connection: sa.Connection, configuration: str | None) -> None:
    index, state = dialect_of(connection).search_index, _state(connection)
    if state is None:
        chosen = configuration or SIMPLE
        if chosen not in (names := index.configurations(connection)):
            raise ValueError(f"configuration={chosen!r}: this database has {', '.join(names)}")
        index.create(connection, chosen)
    elif configuration not in (None, state.configuration):
        raise ValueError(
            f"configuration={configuration!r}: the search index has {state.configuration!r}, "
            "`lango-store search rebuild` changes it"
        )
    elif state.complete and state.fault is not None:
        raise LangoStoreError(f"the search index cannot be used: {state.fault}")


def _state(connection: sa.Connection) -> IndexState | None:
    """Return the state of the index, or raise if this database cannot have one."""
    found = revision.found(connection)
    if found is None or found < SCHEMA_REVISION:
        raise SchemaOutOfDate(found, SCHEMA_REVISION, dialect_of(connection).schema(connection))
    if dialect_of(connection).is_distributed(connection):
        raise LangoStoreError(
            "these tables are distributed, and the search index follows writes by triggers, which Citus allows on no "
            "such table: search in a copy on one server, or run `lango-store db undistribute` first"
        )
    return dialect_of(connection).search_index.state(connection)


def _transaction(target: Opened, lock_timeout: float) -> _Transaction:
    """Return what opens a transaction on our tables, or a savepoint in the caller's transaction."""
    reject_timeout(lock_timeout)

    @contextmanager
    def transaction() -> Iterator[sa.Connection]:
        with target.connect() as connection:
            dialect = dialect_of(connection)
            if not target.callers:
                with dialect.batch(connection, lock_timeout), dialect.confined(connection):
                    yield connection
                return
            if not connection.in_transaction():
                connection.begin()
            dialect.join(connection)
            with connection.begin_nested(), dialect.confined(connection):
                yield connection

    return transaction


def _fill(target: Opened, transaction: _Transaction, on_progress: OnProgress | None) -> SearchStatus:
    index = dialect_of(target.database).search_index
    with transaction() as connection:
        # In a transaction of its own: while the triggers are created, writers wait.
        state = index.state(connection)
        if state is not None and not state.complete:
            index.queue_all(connection)
    with connected(target.database) as connection:
        total = index.queued(connection)
    rest = 0.0 if target.callers else dialect_of(target.database).batch_rest
    rows = 0
    while rows < total:
        with transaction() as connection:
            done = index.drain(connection, min(_BATCH, total - rows))
        if not done:
            break
        rows += done
        if on_progress is not None:
            on_progress(Progress(table="lango_search", rows=rows, total=total))
        sleep(rest)
    return search_status(target.database)
