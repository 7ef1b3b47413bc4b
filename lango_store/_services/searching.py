"""Full-text search of a store, which first drains the queue of the search index."""

from __future__ import annotations

import logging
from typing import Final

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._dialect import dialect_of
from lango_store._dialect.driver_errors import of_driver
from lango_store._dialect.search import REBUILD, IndexState, Place, SearchIndex
from lango_store._operations import search, sessions
from lango_store._operations.search import Search, Which
from lango_store._values.reports import SearchPage
from lango_store.errors import LangoStoreError, NotPermitted, SearchUnavailable

logger = logging.getLogger("lango_store")

_BATCH: Final = 1_000
_MAX_DRAINED: Final = 5_000


def find(context: Context, words: str, which: Which, limit: int, cursor: str | None) -> SearchPage:
    """Find messages by their words; if `which` names a session, it must exist."""
    checked = Search.checked(words, which, limit, cursor)
    try:
        return _find(context, checked)
    except LangoStoreError as error:
        if (damage := _damage(context, error)) is None:
            raise
        raise SearchUnavailable(f"the search index is damaged ({damage}): {REBUILD}") from error


def _find(context: Context, checked: Search) -> SearchPage:
    with context.snapshot() as connection:
        state = search.usable(connection)
        if _leaves_queue(context) or not _index(context).has_queued(connection):
            return _page(context, connection, state, checked)
    _drain(context, _MAX_DRAINED)
    with context.snapshot() as connection:
        return _page(context, connection, search.usable(connection), checked)


def _page(context: Context, connection: sa.Connection, state: IndexState, checked: Search) -> SearchPage:
    now = context.now(connection)  # the statement is built for each call, and needs a time
    if checked.which.key is not None:
        sessions.row_of(connection, now, checked.which.key)
    return search.page(connection, now, state, checked)


def drain(context: Context, only: Place | None = None) -> None:
    """Let removed words leave the index, those of all messages or of one; a warning is logged if that fails."""
    if _leaves_queue(context):
        return
    index = _index(context)
    try:
        with context.snapshot() as connection:
            state = index.state(connection)
            if state is None:
                return
            fault = state.fault
            number = index.queued(connection) if fault is None else 0
        if fault is None:
            _drain(context, number, only)
            with context.transaction() as connection:
                index.purge(connection)
            return
    except LangoStoreError as error:
        fault = _damage(context, error)
        if fault is None and not isinstance(error, NotPermitted):
            raise
        fault = str(error) if fault is None else f"{fault}: {REBUILD}"
    logger.warning("the search index may still contain words that were removed: %s", fault)


def _drain(context: Context, number: int, only: Place | None = None) -> None:
    while number > 0:
        with context.transaction() as connection:
            done = _index(context).drain(connection, min(number, _BATCH), only)
        number -= done or number


def _leaves_queue(context: Context) -> bool:
    """Return whether the queue is left to others: who waits for its locks would wait until a caller commits."""
    return context.in_callers_transaction and _index(context).reads_queue


def _damage(context: Context, error: LangoStoreError) -> str | None:
    """Return the driver's error behind an error that can come from a damaged index."""
    cause = None if error.__cause__ is None else of_driver(error.__cause__)
    return str(cause).strip() if cause is not None and _index(context).is_damage(cause) else None


def _index(context: Context) -> SearchIndex:
    return dialect_of(context.engine).search_index
