"""Keep the search index up to date when the core changes tables or removes messages."""

import logging
from functools import partial

import sqlalchemy as sa

from lango_store._connections.context import EVERY, Context
from lango_store._dialect import dialect_of
from lango_store._operations.derived_data import DERIVED, DerivedData
from lango_store._operations.pace import Pace
from lango_store._rooms.search import state
from lango_store._rooms.search.index import REBUILD, TRIGGERS
from lango_store._rooms.search.indexes import INDEXES, index_of
from lango_store.errors import LangoStoreError, NotPermitted

logger = logging.getLogger("lango_store")


class SearchData(DerivedData):
    """The search index, for migrations and removals."""

    name = "search index"
    tables = frozenset(table for index in INDEXES.values() for table in index.tables)
    triggers = frozenset(TRIGGERS)

    def fault(self, connection: sa.Connection) -> str | None:
        index = index_of(connection)
        return index.fault(connection) if index.exists(connection) else None

    def obstacle(self, connection: sa.Connection) -> str | None:
        if not index_of(connection).exists(connection):
            return None
        return "the search index does not work on a cluster: run `lango-store search disable`, then this again"

    def is_outdated(self, connection: sa.Connection) -> bool:
        return index_of(connection).has_outdated_function(connection)

    def upgrade(self, connection: sa.Connection) -> None:
        index_of(connection).replace_function(connection)

    def drop(self, connection: sa.Connection) -> None:
        index_of(connection).drop(connection)

    def clean(self, context: Context) -> None:
        """Index the whole queue, so that removed words leave the index.

        If the index is damaged or incomplete, or the role may not write to it, log a warning.
        In a caller's transaction, do nothing.
        """
        if context.in_callers_transaction:
            return
        index = index_of(context.engine)
        try:
            with context.snapshot(EVERY) as connection:
                if not index.exists(connection):
                    return
                fault = index.fault(connection)
                number = index.queued(connection) if fault is None else 0
            if fault is None:
                state.drain(partial(context.unguarded().transaction, EVERY), number, Pace(dialect_of(context.engine)))
                with context.unguarded().transaction(EVERY) as connection:
                    index.purge(connection)
        except LangoStoreError as error:
            damage = damage_of(context, error)
            if damage is None and not isinstance(error, NotPermitted):
                raise
            fault = str(error) if damage is None else f"{damage}: {REBUILD}"
        if fault is not None:
            logger.warning("the search index may still contain words that were removed: %s", fault)


DERIVED.append(SearchData())


def damage_of(context: Context, error: LangoStoreError) -> str | None:
    """Return the text of an error that a damaged index can cause; None for any other error."""
    cause = error.driver_error
    return str(error) if cause is not None and index_of(context.engine).is_damage(cause) else None
