"""Create and delete whole sessions; each function decides on transactions and retries."""

from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn, TypeVar

from lango_store._connections.context import EVERY, Context
from lango_store._dialect import AnyConnection, Moment
from lango_store._operations.log import appends, messages
from lango_store._operations.log.appends import Batch
from lango_store._operations.session import levels, lists, sessions
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import Expected, NewSession
from lango_store._services import appending
from lango_store._values.model import UNSET, SessionFields, Unset
from lango_store._values.session import Session
from lango_store.errors import SessionExists, SessionExpired, SessionHeld, SessionNotFound, SessionOnHold

R = TypeVar("R")
Find = Callable[[AnyConnection, Moment, str], R]


# Create


def create(context: Context, new: NewSession, first: Batch, *, own_key: bool) -> Session:
    """Create a session with its first messages; raise `SessionExists` if its key is taken.

    With `own_key` the store has generated the key, so a retry returns the session that the first try created.
    """

    def run() -> Session:
        try:
            key = new.key
            with (
                context.transaction(key, creates=True) if first.rows else context.single_write(key=key, creates=True)
            ) as connection:
                return _insert_or_find(connection, context.moment(connection), new, first, _reject_taken)
        except SessionExists:
            if not own_key:
                raise
        return context.on_primary().read_once(context.single_read, messages.load, new.key)

    return context.trying(run)


def find_or_create(
    context: Context, new: NewSession, first: Batch, find: Find[R], *, renew: bool, parent: str | None = None
) -> Session | R:
    """Find a live session, or create it with its first messages; with `renew`, replace an expired session.

    A `parent` is locked before the session is created, so that it is not deleted at the same time.
    """

    def run() -> Session | R:
        try:
            return context.on_primary().read_once(context.single_read, find, new.key)
        except SessionExpired:
            if not renew:
                raise
        except SessionNotFound:
            pass
        with context.transaction(new.key, creates=True) as connection:
            now = context.now(connection)
            if parent is not None:
                sessions.lock(connection, now, parent)
            if renew:
                sessions.delete_expired(connection, now, new.key)
            return _insert_or_find(connection, now, new, first, find)

    return context.trying(run)


def open_child(
    context: Context, parent: str, name: str, ttl: timedelta | None | Unset, fields: SessionFields, *, renew: bool
) -> str:
    """Open or create a child session, by default with the user and the TTL of its parent, and return its key."""
    key = levels.child_key(parent, name)
    info = context.on_primary().read(sessions.info, parent)
    if ttl is UNSET:
        ttl = None if info.ttl_seconds is None else timedelta(seconds=info.ttl_seconds)
    new = appending.new_session(context, key, ttl, SessionFields(**{"user_id": info.user_id, **fields}))
    find_or_create(context, new, Batch([]), sessions.row_of, renew=renew, parent=parent)
    return key


def _reject_taken(connection: AnyConnection, now: Moment, key: str) -> NoReturn:
    error = sessions.exists_error(connection, now, key)
    raise error if isinstance(error, SessionExists) else SessionNotFound(key)


def _insert_or_find(
    connection: AnyConnection, now: Moment, new: NewSession, first: Batch, find: Find[R]
) -> Session | R:
    """Create a session, or find the session that has its key; raise `NotPermitted` if a policy hides that session."""
    for _ in range(sessions.MAX_TRIES):
        if (session := _insert(connection, now, new, first)) is not None:
            return session
        try:
            return find(connection, now, new.key)
        except SessionExpired:
            raise
        except SessionNotFound:  # deleted after our insert was refused, or hidden by a policy
            continue
    raise sessions.exists_error(connection, now, new.key)


def _insert(connection: AnyConnection, now: Moment, new: NewSession, first: Batch) -> Session | None:
    """Create a session with its first messages, or return None if its key exists. Messages require a transaction."""
    info = sessions.insert(connection, now, new)
    if info is None or not first.rows:
        return None if info is None else Session(**dict(info))
    write = appends.append_new_ids if first.repeats else appends.append
    write(connection, now, new.key, first)  # type: ignore[arg-type]
    return messages.load(connection, now, new.key)


# Delete


def delete(context: Context, key: str, expected: Expected, *, descendants: bool) -> bool:
    """Delete a session and everything that belongs to it; with `descendants`, also delete its descendants.

    Raises:
        SessionHeld: A foreign key of the application protects a session. The error names the
            session and the foreign key.
        Conflict: The session has another revision than expected.
    """
    # On PostgreSQL, a violated foreign key ends the caller's transaction, unless there is a savepoint.
    get_connection = context.transaction if descendants or context.in_callers_transaction else context.single_write
    current = key

    def run() -> bool:
        nonlocal current
        with get_connection(key=EVERY) as connection:
            current = key
            # Delete the session first: `open_child` locks its parent, so no child can be committed after this delete.
            deleted = context.owns(connection, key) and sessions.delete(connection, key, expected)
            if descendants and (deleted or not expected.needs_session):
                below = Filter(key_prefix=levels.below(key), expired=None)
                for current in lists.keys(connection, None, below):
                    if context.owns(connection, current):
                        deleted = sessions.delete(connection, current) or deleted
            current = key
            return deleted

    try:
        return context.trying(run, if_lost=False)
    except SessionOnHold:
        raise
    except SessionHeld as error:
        raise SessionHeld(current, error.constraint) from error
