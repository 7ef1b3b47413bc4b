"""Full-text search.

A search first indexes up to 5,000 queued changes, unless it runs in a caller's transaction or cannot write the index.
"""

import re
from contextlib import suppress
from functools import partial
from typing import Final

import sqlalchemy as sa

from lango_store._connections.context import EVERY, Context
from lango_store._dialect import dialect_of
from lango_store._operations.binds import MESSAGE
from lango_store._operations.pace import Pace
from lango_store._operations.session import sessions
from lango_store._operations.session.lists import MAX_PAGE, check_limit
from lango_store._rooms.search import hits, state
from lango_store._rooms.search.errors import SearchUnavailable
from lango_store._rooms.search.hits import Search, SearchFilters
from lango_store._rooms.search.index import REBUILD
from lango_store._rooms.search.indexes import index_of
from lango_store._rooms.search.query import parse_query
from lango_store._rooms.search.upkeep import damage_of
from lango_store._rooms.search.values import SearchPage
from lango_store.errors import DatabaseUnavailable, InvalidCursor, LangoStoreError, quoted

_MAX_DRAINED: Final = 5_000
_CURSOR: Final = re.compile("[0-9]{1,19}")  # the number of hits before the page
_MAX_OFFSET: Final = 2**63 - MAX_PAGE - 2


def find(
    context: Context,
    words: str,
    limit: int,
    cursor: str | None,
    which: SearchFilters,
    key: str | None = None,
    *,
    alternatives: bool = False,
) -> SearchPage:
    """Search the messages of all sessions or, with `key`, of one live session, or those that are set aside."""
    check_limit(limit)
    offset = _offset(cursor)
    query = parse_query(words)
    hits.filters(MESSAGE, **which)  # raises for an invalid filter before a connection is opened

    def page(connection: sa.Connection) -> SearchPage:
        now = context.now(connection)  # this statement is built for each call and needs a bound time
        if key is not None:
            sessions.row_of(connection, now, key)
        read = hits.page_of_alternatives if alternatives else hits.page
        return read(connection, Search(query, which, now, key, context.narrowed), limit, offset)

    if alternatives:  # no index has them
        with context.snapshot(key or EVERY) as connection:
            return page(connection)

    try:
        with context.snapshot(key or EVERY) as connection:
            state.check_usable(connection)
            # In a caller's transaction, other processes that index would wait until that transaction ends.
            if context.in_callers_transaction or not index_of(context.engine).can_drain(connection):
                return page(connection)
        with suppress(DatabaseUnavailable):  # read-only file or full disk: search what is already indexed
            state.drain(partial(context.unguarded().transaction, EVERY), _MAX_DRAINED, Pace(dialect_of(context.engine)))
        with context.snapshot(key or EVERY) as connection:
            return page(connection)
    except LangoStoreError as error:
        if (damage := damage_of(context, error)) is None:
            raise
        raise SearchUnavailable(f"the search index is damaged ({damage}): {REBUILD}") from error


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if isinstance(cursor, str) and _CURSOR.fullmatch(cursor) and int(cursor) <= _MAX_OFFSET:
        return int(cursor)
    raise InvalidCursor(f"{quoted(cursor)} is not a cursor of search: pass Page.next unchanged")
