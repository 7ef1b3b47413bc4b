"""Appends that may be retried: one statement if possible, otherwise a transaction that looks for stored ids."""

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from lango_store._connections.context import Context
from lango_store._operations import appends, sessions
from lango_store._operations.appends import Batch
from lango_store._operations.sessions import ANYTHING, Expected, New
from lango_store._values.model import UNSET, Message, SessionFields, Unset
from lango_store.errors import (
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    NotPermitted,
    SessionExpired,
    SessionNotFound,
    UniqueViolation,
    quoted,
)

R = TypeVar("R")


def encoded(context: Context, new: Sequence[Message]) -> Batch:
    """Add missing token counts and ids, then encode; raise `InvalidMessage` if a message cannot be stored."""
    return Batch([context.with_id(context.counted(message)) for message in new])


def new_session(context: Context, key: str | None, ttl: timedelta | None | Unset, fields: SessionFields) -> New:
    """Return an encoded new session, by default with a new key and the store's default TTL."""
    sessions.check_fields(fields, SessionFields)
    key = context.new_id() if key is None else key
    return New(key, context.ttl(key, ttl), fields)


def missing(
    context: Context, key: str, create: bool, ttl: timedelta | None | Unset, fields: SessionFields
) -> New | None:
    """Return the session that a write creates if it is missing; None without `create`."""
    if create:
        return new_session(context, key, ttl, fields)
    if ttl is not UNSET or any(value is not None for value in fields.values()):
        raise TypeError("the ttl and fields of a new session need create=True; those of an existing one, update()")
    return None


def append(
    context: Context,
    key: str,
    new: Sequence[Message],
    replace_after: int | None,
    after: int | None,
    expect: int | None,
    create: bool,
    ttl: timedelta | None | Unset,
    fields: SessionFields,
) -> list[Message]:
    """Append messages; with `replace_after`, first remove the messages after that seq."""
    batch = Batch(new) if context.stores_unchanged else encoded(context, new)
    make = missing(context, key, create, ttl, fields) if create or fields or ttl is not UNSET else None
    expected = ANYTHING if after is None and expect is None else Expected(after, expect)
    if replace_after is not None:
        if make is not None:
            raise TypeError("replace_after changes a session that is there: leave `create` out")
        # A second run could remove messages that were appended since, unless `expected` detects them.
        run = context.remove if expected == ANYTHING else context.transact
        return run(appends.replace, key, batch, after=replace_after, expected=expected)
    return append_with_retry(context, key, batch, expected, make, appends.append, appends.append_new_ids)


def append_with_retry(
    context: Context,
    key: str,
    new: Batch,
    expected: Expected,
    make: New | None,
    write: Callable[..., R],
    write_new_ids: Callable[..., R],
    *,
    has_ids: bool = False,
) -> R:
    """Append in a single write; if an id may be stored already, look it up in a transaction.

    `write` and `write_new_ids` have the signatures of `append` and `append_new_ids` in `_operations.appends`. With
    `make`, a missing or expired session is created; raises `Conflict` if `expected` can only hold for an existing one.
    """
    has_ids = has_ids or bool(new.ids)
    create = None if make is None or expected.needs_session else make
    once = functools.partial(_try_append, context, key, new, expected, create, write, write_new_ids, has_ids=has_ids)
    try:
        try:
            return once()
        except (DatabaseBusy, DatabaseUnavailable) as error:
            return context.retry_after(once, error, if_lost=True, detects_repeats=has_ids)
    except SessionNotFound as error:
        if make is None or create is not None:
            raise
        wanted = f"after={expected.last_seq}, expect={expected.revision}"
        message = (
            f"there is no session {quoted(key)}, and a new one does not match {wanted}: leave them out to create one"
        )
        raise Conflict(
            key, expected=expected.last_seq or expected.revision or 0, last_seq=0, message=message
        ) from error


def _try_append(
    context: Context,
    key: str,
    new: Batch,
    expected: Expected,
    create: New | None,
    write: Callable[..., R],
    write_new_ids: Callable[..., R],
    *,
    has_ids: bool,
) -> R:
    # An error that is caught here would end the caller's transaction, unless there is a savepoint.
    may_fail = context.in_callers_transaction and (create is not None or has_ids)
    if not new.repeats:
        try:
            with context.transaction() if may_fail else context.single_write() as connection:
                return write(connection, context.moment(connection), key, new, expected, create)
        except (UniqueViolation, Conflict):  # all is rolled back, and a retry has moved `last_seq` itself
            if not has_ids:
                raise
        except (SessionExpired, NotPermitted):  # a policy for messages may look for a session made before them
            if create is None:
                raise
    tries = sessions.MAX_TRIES
    while True:
        tries -= 1
        try:
            with context.transaction() as connection:
                now = context.now(connection)
                if create is not None:
                    sessions.delete_expired(connection, now, key)
                    sessions.insert(connection, now, create)
                return write_new_ids(connection, now, key, new, expected)
        except SessionNotFound:  # deleted between two statements
            if create is None or not tries:
                raise
