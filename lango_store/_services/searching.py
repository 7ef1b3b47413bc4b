"""Full-text search.

A search first indexes up to 5,000 queued changes, unless it runs in a caller's transaction or cannot write the index.
"""

import logging
from contextlib import suppress
from typing import Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._dialect.search import REBUILD, SearchIndex
from lango_store._operations.binds import MESSAGE
from lango_store._operations.maintenance import search
from lango_store._operations.maintenance.search import SearchFilters
from lango_store._operations.pace import Pace
from lango_store._operations.session import sessions
from lango_store._operations.session.lists import MAX_PAGE, check_limit
from lango_store._values.reports import SearchPage
from lango_store._values.search_query import parse_query
from lango_store.errors import DatabaseUnavailable, LangoStoreError, NotPermitted, SearchUnavailable, quoted

logger = logging.getLogger("lango_store")

_MAX_DRAINED: Final = 5_000
_MAX_OFFSET: Final = 2**63 - MAX_PAGE - 2


def find(
    context: Context, words: str, limit: int, offset: int, which: SearchFilters, key: str | None = None
) -> SearchPage:
    """Search the messages of all sessions or, with `key`, of one live session."""
    check_limit(limit)
    if type(offset) is not int or not 0 <= offset <= _MAX_OFFSET:
        raise ValueError(f"offset={quoted(offset)} is out of range: pass the `next` of the previous page")
    query = parse_query(words)
    search.conditions(MESSAGE, **which)  # raises for an invalid filter before a connection is opened

    def page(connection: sa.Connection) -> SearchPage:
        now = context.now(connection)  # this statement is built for each call and needs a bound time
        if key is not None:
            sessions.row_of(connection, now, key)
        return search.page(connection, search.Search(query, which, now, key), limit, offset)

    try:
        with context.snapshot() as connection:
            search.check_usable(connection)
            # In a caller's transaction, other processes that index would wait until that transaction ends.
            if context.in_callers_transaction or not _index(context).can_drain(connection):
                return page(connection)
        with suppress(DatabaseUnavailable):  # read-only file or full disk: search what is already indexed
            search.drain(context.unguarded().transaction, _MAX_DRAINED, _pace(context))
        with context.snapshot() as connection:
            return page(connection)
    except LangoStoreError as error:
        if (damage := _damage(context, error)) is None:
            raise
        raise SearchUnavailable(f"the search index is damaged ({damage}): {REBUILD}") from error


def drain(context: Context) -> None:
    """Index the whole queue, so that removed words leave the index.

    If the index is damaged or incomplete, or the role may not write to it, log a warning.
    In a caller's transaction, do nothing.
    """
    if context.in_callers_transaction:
        return
    index = _index(context)
    try:
        with context.snapshot() as connection:
            if not index.exists(connection):
                return
            fault = index.fault(connection)
            number = index.queued(connection) if fault is None else 0
        if fault is None:
            search.drain(context.unguarded().transaction, number, _pace(context))
            with context.unguarded().transaction() as connection:
                index.purge(connection)
    except LangoStoreError as error:
        damage = _damage(context, error)
        if damage is None and not isinstance(error, NotPermitted):
            raise
        fault = str(error) if damage is None else f"{damage}: {REBUILD}"
    if fault is not None:
        logger.warning("the search index may still contain words that were removed: %s", fault)


def _damage(context: Context, error: LangoStoreError) -> str | None:
    """Return the text of an error that a damaged index can cause; None for any other error."""
    cause = error.driver_error
    return str(error) if cause is not None and _index(context).is_damage(cause) else None


def _pace(context: Context) -> Pace:
    return Pace(dialect_of(context.engine))


def _index(context: Context) -> SearchIndex:
    return dialect_of(context.engine).search_index
