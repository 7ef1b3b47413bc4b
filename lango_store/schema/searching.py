"""The search index, made, filled, made anew and dropped: like a migration, but a store can do without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter, sleep
from typing import Final

import sqlalchemy as sa

from lango_store.dialect import dialect_of
from lango_store.dialect.search import SIMPLE
from lango_store.errors import LangoStoreError, SchemaOutOfDate
from lango_store.operations import revision
from lango_store.operations import search as operations
from lango_store.reports import OnProgress, Progress, SearchStatus
from lango_store.schema.opening import Database, Opened, connected, opened
from lango_store.schema.running import LOCK_TIMEOUT, refuse_timeout
from lango_store.tables import SCHEMA_REVISION

_SECONDS: Final = 0.1
_FIRST, _LARGEST = 200, 5_000

_Lend = Callable[[], AbstractContextManager[sa.Connection]]


def enable_search(
    database: Database,
    *,
    configuration: str | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> SearchStatus:
    """Make the search index, fill it while the store is in use, and return how it is.

    `configuration` is "simple", words as they are written; "trigram", any three characters, for languages without
    spaces, on PostgreSQL with the extension pg_trgm; or there each text search configuration that the database has.
    ValueError for others, and for another one than a store has already. Killed, it goes on where it was when it is
    called again.
    """
    with opened(database) as target:
        lend = _lender(target, lock_timeout)
        with lend() as connection:
            _make(connection, configuration)
        return _fill(target, lend, on_progress)


def disable_search(database: Database, *, lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Drop the search index, however damaged it is; return whether there was one."""
    with opened(database) as target, _lender(target, lock_timeout)() as connection:
        index = dialect_of(connection).search_index
        found = index.state(connection)
        if not dialect_of(connection).is_distributed(connection):  # which have none, and no trigger may be named
            index.drop(connection)
        return found is not None


def rebuild_search(
    database: Database,
    *,
    configuration: str | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    on_progress: OnProgress | None = None,
) -> SearchStatus:
    """Make the search index anew, with another configuration if one is given, and return how it is."""
    with opened(database) as target:
        lend = _lender(target, lock_timeout)
        with lend() as connection:
            _refuse_distributed(connection)
            index = dialect_of(connection).search_index
            found = index.state(connection)
            chosen = configuration or (SIMPLE if found is None else found.configuration)
            index.drop(connection)
            _make(connection, chosen)
        return _fill(target, lend, on_progress)


def search_status(database: Database) -> SearchStatus:
    """Return how the search index is."""
    with connected(database) as connection:
        return operations.status(connection)


def drop_search_without_tables(database: Database) -> None:
    """Drop what a downgrade has left of the search index when it dropped the messages."""
    with opened(database) as target, _lender(target, LOCK_TIMEOUT)() as connection:
        if revision.found(connection) is None:
            dialect_of(connection).search_index.drop(connection)


def _make(connection: sa.Connection, configuration: str | None) -> None:
    found = revision.found(connection)
    if found is None or found < SCHEMA_REVISION:
        raise SchemaOutOfDate(found, SCHEMA_REVISION, dialect_of(connection).schema(connection))
    _refuse_distributed(connection)
    index = dialect_of(connection).search_index
    state = index.state(connection)
    if state is None:
        index.refuse_configuration(connection, configuration or SIMPLE)
        index.create(connection, configuration or SIMPLE)
    elif configuration not in (None, state.configuration):
        raise ValueError(
            f"configuration={configuration!r}: the search index has {state.configuration!r}, "
            "`lango-store search rebuild` changes it"
        )
    elif state.state == "detached":
        raise LangoStoreError(f"the search index is detached, {state.reason}: {operations.REBUILD}")


def _refuse_distributed(connection: sa.Connection) -> None:
    if dialect_of(connection).is_distributed(connection):
        raise LangoStoreError(
            "these tables are distributed, and the search index follows writes by triggers, which Citus allows on no "
            "such table: search in a copy on one server, or run `lango-store db undistribute` first"
        )


def _lender(target: Opened, lock_timeout: float) -> _Lend:
    refuse_timeout(lock_timeout)

    @contextmanager
    def lend() -> Iterator[sa.Connection]:
        with target.connect() as connection:
            dialect = dialect_of(connection)
            if target.callers:
                if not connection.in_transaction():
                    connection.begin()
                dialect.join(connection)
                with connection.begin_nested(), dialect.confined(connection):
                    yield connection
            else:
                with dialect.migrations.batch(connection, lock_timeout), dialect.confined(connection):
                    yield connection

    return lend


def _fill(target: Opened, lend: _Lend, on_progress: OnProgress | None) -> SearchStatus:
    with connected(target.database) as connection:
        total = dialect_of(connection).search_index.waiting(connection)
    rest = 0.0 if target.callers else dialect_of(target.database).migrations.batch_rest
    rows, size = 0, _FIRST
    while True:  # to the last that was there when it began, and those few that came in behind
        began = perf_counter()
        with lend() as connection:
            done = dialect_of(connection).search_index.fill(connection, size)
        if not done:
            break
        took = perf_counter() - began
        rows += done
        if on_progress is not None:
            on_progress(Progress(table="lango_search", rows=min(rows, total), total=total))
        size = min(max(1, int(size * min(max(_SECONDS / took, 0.5), 2.0))), _LARGEST)
        sleep(rest)
    return search_status(target.database)
