"""Writes that may find somebody was first: one statement where that suffices, else a transaction that looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa

from lango_store.access import Access
from lango_store.dialect import AnyConnection, Moment
from lango_store.errors import Conflict, SessionExpired, SessionNotFound, UniqueViolation
from lango_store.model import Message, Session
from lango_store.operations import appends, messages, sessions
from lango_store.operations.batches import Batch, batch
from lango_store.operations.sessions import New

R = TypeVar("R")


def encoded(access: Access, new: Sequence[Message]) -> Batch:
    """Encode messages, their tokens counted; `InvalidMessage` for what cannot be stored."""
    return batch([access.counted(message) for message in new])


def once(
    access: Access,
    new: Batch,
    has_ids: bool,
    write: Callable[[AnyConnection, Moment], R],
    write_new: Callable[[sa.Connection, datetime], R],
) -> R:
    """Write what is new in one statement, or where an id may be stored already in a transaction that tells."""
    if not (has_ids and (new.repeats or access.in_callers_transaction)):  # which a duplicate would end
        try:
            with access.single_write() as connection:
                return write(connection, access.moment(connection))
        except (UniqueViolation, Conflict):  # all is rolled back, and a retry has moved `last_seq` itself
            if not has_ids:
                raise
    with access.transaction() as connection:
        return write_new(connection, access.now(connection))


def create(access: Access, new: New, first: Batch) -> Session:
    """Create a session with its first messages; `SessionExists` if its key is taken."""
    if first.rows:
        with access.transaction() as connection:
            now: Moment = access.now(connection)
            session = _insert(connection, now, new, first)
            if session is None:
                raise sessions.exists_error(connection, now, new.key)
            return session
    with access.single_write() as connection:
        now = access.moment(connection)
        info = sessions.insert(connection, now, new)
        if info is None:
            raise sessions.exists_error(connection, now, new.key)
        return Session(**dict(info))


def find_or_create(
    access: Access, new: New, first: Batch, find: Callable[[AnyConnection, Moment, str], R], *, renew: bool
) -> Session | R:
    """Find a live session, or create it with its first messages; with `renew` in the place of an expired one."""
    try:
        with access.single_read() as connection:
            return find(connection, access.moment(connection), new.key)
    except SessionExpired:
        if not renew:
            raise
    except SessionNotFound:
        pass
    with access.transaction() as connection:
        now = access.now(connection)
        if renew:
            sessions.delete_expired(connection, now, new.key)
        return _insert(connection, now, new, first) or find(connection, now, new.key)


def _insert(connection: sa.Connection, now: Moment, new: New, first: Batch) -> Session | None:
    info = sessions.insert(connection, now, new)
    if info is None:
        return None
    if not first.rows:
        return Session(**dict(info))
    appends.append_new_ids(connection, now, new.key, first)
    return messages.load(connection, now, new.key)
