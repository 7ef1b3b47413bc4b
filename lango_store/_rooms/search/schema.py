"""Create, fill, rebuild and drop the search index.

The index is optional, so it is not part of a migration revision.
"""

from functools import partial

import sqlalchemy as sa

from lango_store._dialect import dialect_of
from lango_store._operations import revision
from lango_store._operations.pace import Pace
from lango_store._rooms.search import state
from lango_store._rooms.search.indexes import index_of
from lango_store._rooms.search.values import SearchStatus
from lango_store._values.reports import OnProgress, Progress
from lango_store.errors import MigrationRefused, SchemaOutOfDate, UnsupportedDatabase
from lango_store.schema.running import Database, connected, reading, table_transaction


def enable_search(database: Database, *, on_progress: OnProgress | None = None) -> SearchStatus:
    """Create the search index and fill it.

    The store can be used while the index is filled. If a call was interrupted, repeat it: the new call continues. If
    the index exists and is usable, only changes that are not indexed yet are indexed.

    Texts in Chinese, Japanese, Thai, Lao, Khmer and Burmese, which are written without spaces, are indexed as pairs of
    neighboring characters: a word of such characters is found anywhere in a sentence, and so is a Latin word between
    them. A single character is found if another one follows it, or if it is alone. Tone marks and other combining marks
    are ignored. On PostgreSQL, a phrase or a word of three or more of these characters is found only in the first
    16,000 words and pairs of a message, and only at the first 255 places of each pair. An index that an earlier release
    filled has no pairs and no thinking: call `rebuild_search` once.

    Args:
        database: A URL, an engine, or a connection. With a connection, the call joins your transaction.
        on_progress: A function that is called after each batch. Default: None.

    Returns:
        The status of the index.

    Raises:
        SchemaOutOfDate: The database has no tables of lango_store, or older ones.
        LangoStoreError: The tables are distributed over a Citus cluster, or SQLite was built without FTS5.
    """
    return _build(database, on_progress, recreate=False)


def rebuild_search(database: Database, *, on_progress: OnProgress | None = None) -> SearchStatus:
    """Drop the search index, even if it is damaged, and create and fill it again.

    On PostgreSQL, this also removes the words of deleted and redacted messages from the files of the index.

    Args:
        database: A URL, an engine, or a connection. With a connection, the call joins your transaction.
        on_progress: A function that is called after each batch. Default: None.

    Returns:
        The status of the index.

    Raises:
        SchemaOutOfDate: The database has no tables of lango_store, or older ones.
        LangoStoreError: The tables are distributed over a Citus cluster, or SQLite was built without FTS5.
    """
    return _build(database, on_progress, recreate=True)


def disable_search(database: Database) -> bool:
    """Drop the search index, even if it is damaged. No session or message is deleted.

    Args:
        database: A URL, an engine, or a connection whose transaction the call joins.

    Returns:
        True if there was an index.
    """
    with connected(database) as connection, table_transaction(connection, callers=connection is database):
        index = index_of(connection)
        existed = index.exists(connection)
        index.drop(connection)
        return existed


def search_status(database: Database) -> SearchStatus:
    """Return the status of the search index.

    Args:
        database: A URL, an engine or a connection.
    """
    with reading(database) as connection:
        return state.status(connection)


def _build(database: Database, on_progress: OnProgress | None, *, recreate: bool) -> SearchStatus:
    with connected(database) as connection:
        callers = connection is database
        transaction = partial(table_transaction, connection, callers=callers)
        index = index_of(connection)
        with transaction():
            _check_possible(connection)
            creates = recreate or index.fault(connection) is not None
            if creates:
                index.drop(connection)
                index.create_queue(connection)
        with transaction():  # a second one, because writers wait from the creation of the triggers until the commit
            if creates:
                index.create_entries(connection)
                index.fill_queue(connection)
            total = index.queued(connection)

        def report(rows: int) -> None:
            if on_progress is not None:
                on_progress(Progress(table="lango_search", rows=rows, total=total))

        state.drain(transaction, total, Pace(dialect_of(connection), rests=not callers), report)
        with transaction():
            status = state.status(connection)
        if creates and not callers:
            index.vacuum_queue(connection)
        return status


def _check_possible(connection: sa.Connection) -> None:
    """Raise an error if this database cannot have an index."""
    try:
        revision.required(connection)
    except SchemaOutOfDate as error:
        remedy = (
            "run `lango-store db upgrade`, or call ping() of a store with migrate=True, before you create the index"
        )
        raise SchemaOutOfDate(error.found, error.needed, error.schema, remedy=remedy) from None
    if dialect_of(connection).is_distributed(connection):
        raise MigrationRefused(
            "the tables are distributed, and the search index needs triggers, which Citus does not allow on "
            "distributed tables: search in a copy on one server, or run `lango-store db undistribute` first"
        )
    if (obstacle := index_of(connection).obstacle(connection)) is not None:
        raise UnsupportedDatabase(obstacle)
