"""Appends: one write or, if the database refuses an id, a second try in a transaction that looks for stored ids."""

import functools
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._operations.log import appends, removals
from lango_store._operations.log.appends import Batch
from lango_store._operations.session import sessions
from lango_store._operations.session.guards import Guard
from lango_store._operations.session.sessions import ANYTHING, Expected, NewSession
from lango_store._values.model import UNSET, Message, SessionFields, SessionInfo, Unset
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
    """Encode messages; add a missing token count and, if the store retries calls, a missing id.

    Raises:
        InvalidMessage: A message cannot be stored.
    """
    return context.batch([context.with_id(message) for message in new])


def new_session(context: Context, key: str | None, ttl: timedelta | None | Unset, fields: SessionFields) -> NewSession:
    """Encode a new session, by default with a generated key and the store's default TTL."""
    sessions.check_fields(fields, SessionFields)
    if context.owner is not None:
        fields = context.own_fields(fields, creates=True)
    key = context.new_id() if key is None else key
    return NewSession(key, context.ttl(key, ttl), fields)


def missing(
    context: Context, key: str, create: bool, ttl: timedelta | None | Unset, fields: SessionFields
) -> NewSession | None:
    """Return the session to create if a write with `create` finds none; return None without `create`."""
    if create:
        return new_session(context, key, ttl, fields)
    if ttl is not UNSET or any(value is not None for value in fields.values()):
        raise TypeError("ttl and fields are for a new session: pass create=True, or call update() for a stored one")
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
    intact_since: SessionInfo | None = None,
    *,
    keep: bool = False,
) -> list[Message]:
    """Append messages; with `replace_after`, first remove the messages after that seq, or `keep` them aside."""
    batch = Batch(new, context.payload_threshold) if context.stores_unchanged else encoded(context, new)
    new_if_missing = missing(context, key, create, ttl, fields) if create or fields or ttl is not UNSET else None
    expected = context.expected(key, after, expect, intact_since)
    if replace_after is not None:
        if new_if_missing is not None:
            raise TypeError("replace_after needs an existing session: call it without create")
        # A second run could remove messages appended after the first run, unless `expected` detects them.
        run = context.transact_once if expected == ANYTHING else context.transact
        cut = context.set_aside if keep else removals.cut
        return run(appends.replace, key, batch, after=replace_after, expected=expected, cut=cut)
    if keep:
        raise TypeError("keep needs replace_after: it keeps the messages that the call replaces")
    return append_with_retry(context, key, batch, expected, new_if_missing, appends.append, appends.append_new_ids)


def append_with_retry(
    context: Context,
    key: str,
    new: Batch,
    expected: Expected,
    new_if_missing: NewSession | None,
    write: Callable[..., R],
    write_new_ids: Callable[..., R],
    *,
    has_ids: bool = False,
) -> R:
    """Append in a single write; if the database refuses an id, append in a transaction that looks for stored ids.

    `write` and `write_new_ids` have the signatures of `append` and `append_new_ids` in `_operations.log.appends`.
    `new_if_missing`, if set, is created in place of a missing or expired session, unless `expected` requires an
    existing session: then `Conflict` is raised.
    """
    has_ids = has_ids or bool(new.ids)
    if expected.guard is not None and expected.guard.needs_more(new.messages):
        run = context.transact if has_ids else context.transact_once
        stored = run(_append_more, key, new, expected.guard, expected, write_new_ids)
        expected.guard.note_more()
        return stored
    create = None if new_if_missing is None or expected.needs_session else new_if_missing
    arguments = (context, key, new, expected, create, write, write_new_ids, has_ids)
    try:
        try:
            return _try_append(*arguments)
        except (DatabaseBusy, DatabaseUnavailable) as error:
            once = functools.partial(_try_append, *arguments)
            return context.retry_after(once, error, if_lost=True, detects_repeats=has_ids)
    except SessionNotFound as error:
        if new_if_missing is None or create is not None:
            raise
        expectations = f"after={expected.last_seq}, expect={expected.revision}"
        expectations += ", intact_since" * (expected.intact_since is not None)
        message = (
            f"there is no session {quoted(key)}, and a new session does not match {expectations}: "
            "omit these arguments to create it"
        )
        raise Conflict(
            key, expected=expected.last_seq or expected.revision or 0, last_seq=0, message=message
        ) from error


def _append_more(
    connection: sa.Connection,
    now: datetime,
    key: str,
    new: Batch,
    guard: Guard,
    expected: Expected,
    write_new_ids: Callable[..., R],
) -> R:
    """Append messages, and write what their guard has to write with them."""
    stored = write_new_ids(connection, now, key, new, expected)
    guard.write_more(connection, key)
    return stored


def _try_append(
    context: Context,
    key: str,
    new: Batch,
    expected: Expected,
    create: NewSession | None,
    write: Callable[..., R],
    write_new_ids: Callable[..., R],
    has_ids: bool,
) -> R:
    new.may_be_stored = has_ids
    # Without a savepoint, an error that is handled here would still end the caller's transaction on PostgreSQL.
    may_fail = context.in_callers_transaction and (create is not None or has_ids)
    if not new.repeats:
        try:
            creates = create is not None
            opened = (
                context.transaction(key, creates=creates)
                if may_fail
                else context.single_write(expected, key, creates=creates)
            )
            with opened as connection:
                return write(connection, context.moment(connection), key, new, expected, create)
        except (UniqueViolation, Conflict):  # rolled back; `Conflict`: perhaps an earlier try was committed
            if not has_ids:
                raise
        except (SessionExpired, NotPermitted):
            # Below, an expired session is replaced, and a row-level policy for messages can see the new session.
            if create is None:
                raise
    tries = sessions.MAX_TRIES
    while True:
        tries -= 1
        try:
            with context.transaction(key, creates=create is not None) as connection:
                now = context.now(connection)
                if create is not None:
                    sessions.delete_expired(connection, now, key)
                    sessions.insert(connection, now, create)
                return write_new_ids(connection, now, key, new, expected)
        except SessionNotFound:  # another writer deleted it between our statements
            if create is None or not tries:
                raise
