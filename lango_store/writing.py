"""Writes that may find somebody was first: one statement where that suffices, else a transaction that looks."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

import sqlalchemy as sa

from lango_store.access import Access
from lango_store.dialect import AnyConnection, Moment
from lango_store.errors import (
    Conflict,
    InvalidMessage,
    NotPermitted,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    UniqueViolation,
)
from lango_store.model import UNSET, Message, SessionFields, Unset
from lango_store.operations import appends, edits, messages, session_changes, sessions
from lango_store.operations.appends import NO_TERMS, Terms
from lango_store.operations.batches import Batch, batch
from lango_store.operations.sessions import ANYTHING, Expected, New
from lango_store.session import Session

R = TypeVar("R")

_FIELDS: Final = tuple(typing.get_type_hints(SessionFields))


def encoded(access: Access, new: Sequence[Message]) -> Batch:
    """Encode messages, their tokens counted, with the ids they need; `InvalidMessage` for what cannot be stored."""
    if access.token_counter is None and not access.gives_ids:
        return batch(list(new))
    return batch([access.identified(access.counted(message)) for message in new])


def new_session(access: Access, key: str, ttl: timedelta | None | Unset, fields: SessionFields) -> New:
    """Return what a session is to be made of, with the store's TTL where none is given."""
    for name in fields.keys() - _FIELDS:
        raise TypeError(f"a session has no field {name!r}: give {', '.join(_FIELDS)}")
    return New(key, access.ttl(key, ttl), fields)


def missing(
    access: Access,
    key: str,
    create: bool,
    ttl: timedelta | None | Unset,
    fields: SessionFields,
    *,
    metadata: str = "metadata",
) -> New | None:
    """Return what a write makes its session of if there is none; None if it does not.

    TypeError for fields without `create`; that of the metadata is called `metadata` by the caller.
    """
    if create:
        return new_session(access, key, ttl, fields)
    if ttl is UNSET and not fields:
        return None
    given = [metadata if name == "metadata" else name for name, value in fields.items() if value is not None]
    if given or ttl is not UNSET:
        named = ", ".join(given) or "ttl"
        raise TypeError(f"{named}: fields of a new session need create=True; those of one that is there, update()")
    return None


def terms(after: int | None, expect: int | None, make: New | None) -> Terms:
    """Return what an append asks of its session: where it has to be, and what it is made of."""
    if after is None and expect is None and make is None:
        return NO_TERMS
    return Terms(Expected(after, expect), make)


def append(
    access: Access,
    key: str,
    new: Sequence[Message],
    replace_after: int | None,
    after: int | None,
    expect: int | None,
    create: bool,
    ttl: timedelta | None | Unset,
    fields: SessionFields,
) -> list[Message]:
    """Append messages, in the place of those above `replace_after` if that is given."""
    # The verbs have checked the arguments that they were given: to check the others too would cost each append.
    rows = encoded(access, new)
    make = missing(access, key, create, ttl, fields)
    wanted = terms(after, expect, make)
    if replace_after is not None:
        if make is not None:
            raise TypeError("replace_after changes a session that is there: leave `create` out")
        return _replace(access, key, rows, replace_after, wanted)
    return append_once(
        access,
        rows,
        bool(rows.ids),
        lambda connection, now: appends.append(connection, now, key, rows, wanted),
        lambda connection, now: appends.append_new_ids(connection, now, key, rows, wanted),
        wanted,
    )


def _replace(access: Access, key: str, new: Batch, after: int, terms: Terms) -> list[Message]:
    def replace() -> list[Message]:
        with access.transaction() as connection:
            return appends.replace(connection, access.now(connection), key, new, after=after, terms=terms)

    # Done already, it would drop what came in since, unless it says where the session has to stand.
    return access.trying(replace, if_lost=terms.expected != ANYTHING)


def append_once(
    access: Access,
    new: Batch,
    has_ids: bool,
    write: Callable[[AnyConnection, Moment], R],
    write_new: Callable[[sa.Connection, datetime], R],
    terms: Terms = NO_TERMS,
) -> R:
    """Write what is new in one statement, or where an id may be stored already in a transaction that tells.

    With terms to make a session, it is made in the place of an expired one too; `Conflict` if they need what only a
    session that is there can have.
    """
    try:
        return access.trying(lambda: _append_once(access, new, has_ids, write, write_new, terms), told_apart=has_ids)
    except SessionNotFound as error:
        if terms.make is None or not terms.expected.needs_session:
            raise
        raise terms.expected.missed(terms.make.key) from error


def _append_once(
    access: Access,
    new: Batch,
    has_ids: bool,
    write: Callable[[AnyConnection, Moment], R],
    write_new: Callable[[sa.Connection, datetime], R],
    terms: Terms,
) -> R:
    callers, makes = access.in_callers_transaction, terms.make if terms.shape.inserts else None
    # An error of one statement would end the caller's transaction.
    if not ((has_ids and (new.repeats or callers)) or (makes and callers)):
        try:
            with access.single_write() as connection:
                return write(connection, access.moment(connection))
        except (UniqueViolation, Conflict):  # all is rolled back, and a retry has moved `last_seq` itself
            if not has_ids:
                raise
        except (SessionExpired, NotPermitted):  # a policy for messages may look for a session made before them
            if not makes:
                raise
    tries = sessions.TRIES
    while True:
        tries -= 1
        try:
            with access.transaction() as connection:
                now = access.now(connection)
                if makes is not None:
                    _make(connection, now, makes)
                return write_new(connection, now)
        except SessionNotFound:  # somebody has deleted it between two statements
            if not makes:
                raise
            if not tries:
                raise sessions.not_made(makes.key) from None


def _make(connection: sa.Connection, now: datetime, make: New) -> None:
    session_changes.delete_expired(connection, now, make.key)
    sessions.insert(connection, now, make)


def update_message(access: Access, key: str, seq_or_id: int | str, message: Message, expected: Expected) -> Message:
    """Put a message in the place of another; `InvalidMessage` if a third one has its id."""
    message = access.counted(message)
    try:
        with access.transaction() as connection:
            return edits.update(connection, access.moment(connection), key, seq_or_id, message, expected)
    except UniqueViolation as error:
        reason = f"{message.id!r} is the id of another message: give another, or None for the one it has"
        raise InvalidMessage("id", reason) from error


def create(access: Access, new: New, first: Batch, *, own_key: bool = False) -> Session:
    """Create a session with its first messages; `SessionExists` if its key is taken.

    With a key of our own, which nobody else has, a second try finds what the first one made.
    """

    def make() -> Session:
        try:
            return _create(access, new, first)
        except SessionExists:
            if not own_key:
                raise
        with access.single_read() as connection:
            return messages.load(connection, access.moment(connection), new.key)

    return access.trying(make)


def _create(access: Access, new: New, first: Batch) -> Session:
    if not first.repeats and not (first.rows and access.in_callers_transaction):
        try:
            with access.single_write() as connection:
                moment = access.moment(connection)
                return _there_now(connection, moment, new, appends.create(connection, moment, new, first))
        except NotPermitted:  # a policy for messages may look for a session made before them
            if not first.rows:
                raise
    with access.transaction() as connection:
        now = access.now(connection)
        return _there_now(connection, now, new, _insert(connection, now, new, first))


def _there_now(connection: AnyConnection, now: Moment, new: New, session: Session | None) -> Session:
    if session is None:
        raise sessions.exists_error(connection, now, new.key)
    return session


def find_or_create(
    access: Access, new: New, first: Batch, find: Callable[[AnyConnection, Moment, str], R], *, renew: bool
) -> Session | R:
    """Find a live session, or create it with its first messages; with `renew` in the place of an expired one."""
    return access.trying(lambda: _find_or_create(access, new, first, find, renew=renew))


def _find_or_create(
    access: Access, new: New, first: Batch, find: Callable[[AnyConnection, Moment, str], R], *, renew: bool
) -> Session | R:
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
            session_changes.delete_expired(connection, now, new.key)
        return _insert(connection, now, new, first) or find(connection, now, new.key)


def _insert(connection: sa.Connection, now: Moment, new: New, first: Batch) -> Session | None:
    info = sessions.insert(connection, now, new)
    if info is None:
        return None
    if not first.rows:
        return Session(**dict(info))
    append = appends.append_new_ids if first.repeats else appends.append
    append(connection, now, new.key, first)
    return messages.load(connection, now, new.key)
