"""A search of the store: what was written since the last one is indexed first, where writers leave that to it."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from lango_store.access import Access
from lango_store.dialect import dialect_of
from lango_store.dialect.search import IndexState
from lango_store.errors import LangoStoreError, SearchUnavailable
from lango_store.operations import search, sessions
from lango_store.operations.search import REBUILD, Search, Which
from lango_store.reports import SearchPage

_BATCH: Final = 1_000


def find(access: Access, typed: str, which: Which, limit: int, cursor: str | None) -> SearchPage:
    """Find messages by their words; one session's only, if `which` names it, which has to be there."""
    asked = Search.asked(typed, which, limit, cursor)
    try:
        return _find(access, asked)
    except LangoStoreError as error:
        if not _is_detached_for(access, error):
            raise
        raise SearchUnavailable(f"the search index is damaged ({error}), and was detached: {REBUILD}") from error


def _find(access: Access, asked: Search) -> SearchPage:
    index = dialect_of(access.engine).search_index
    with access.snapshot() as connection:
        found = search.usable(connection)
        if _is_left_to_others(access) or not index.is_behind(connection):
            return _page(access, connection, found, asked)
        waiting = index.waiting(connection)
    _catch_up(access, waiting)
    with access.snapshot() as connection:
        return _page(access, connection, search.usable(connection), asked)


def _is_left_to_others(access: Access) -> bool:
    """Return whether what waits had better wait: others would wait with it until a caller commits."""
    return access.in_callers_transaction and dialect_of(access.engine).search_index.reads_what_waits


def _page(access: Access, connection: sa.Connection, found: IndexState, asked: Search) -> SearchPage:
    now = access.now(connection)  # the search's own text is written at each call: in it a time has to be given
    if asked.which.key is not None:
        sessions.row_of(connection, now, asked.which.key)
    return search.page(connection, now, found, asked)


def _catch_up(access: Access, waiting: int) -> None:
    """Index so many messages that wait for it."""
    index = dialect_of(access.engine).search_index
    while waiting > 0:  # what comes in meanwhile waits for the next one
        with access.transaction() as connection:
            done = index.fill(connection, _BATCH)
        if not done:
            return
        waiting -= done


def tidy(access: Access) -> None:
    """Let words of what was deleted leave the file, if the store has an index that is in use; a warning if it fails."""
    index = dialect_of(access.engine).search_index
    with access.snapshot() as connection:
        found = index.state(connection)
    if found is None or found.state != "ready" or _is_left_to_others(access):
        return
    try:
        with access.transaction() as connection:
            index.tidy(connection)
    except LangoStoreError as error:
        if not _is_detached_for(access, error):  # and the log has said so
            raise


def _is_detached_for(access: Access, error: LangoStoreError) -> bool:
    """Detach the index if it is to blame for an error, and return whether it was."""
    detaching = access.despite_index(error, is_its_own=True)
    if detaching is None:
        return False
    try:
        with detaching.transaction():
            return True
    except LangoStoreError:  # nothing can be written here: what the caller is told is the first error
        return False
