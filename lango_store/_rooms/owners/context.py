"""The context of a store for one user (`Store.for_user`), which refuses every operation that it cannot check.

An operation names its session, its sessions or a filter in its first argument after the connection and the time. The
context checks that a session belongs to the user, in the transaction of the operation, and adds the user to a filter.
Code that opens a connection passes the session's key, or `EVERY` if it checks or narrows each session itself. A call
that does neither is refused, so an operation that forgets the user cannot reach the sessions of others.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections import cancellation
from lango_store._connections.context import EVERY, Context
from lango_store._dialect import AnyConnection
from lango_store._dialect.statement import Statement
from lango_store._operations.binds import SESSION, of_session, text
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._operations.session_tables import SHARED
from lango_store._rows.encoding import checked_key, checked_keys, encode_text
from lango_store.errors import InvalidState, LangoStoreError, SessionExists, SessionNotFound, quoted

_OWNED: Final = sa.select(SESSION.c.key).where(of_session(SESSION), SESSION.c.user_id == text("user_id"))
_is_owned: Final = Statement(_OWNED)
_lock_owned: Final = Statement(_OWNED.with_for_update())
_owned_of: Final = Statement(
    lambda dialect: sa.select(SESSION.c.key).where(
        SESSION.c.user_id == text("user_id"), SESSION.c.key.in_(dialect.texts_of_list(text("keys")))
    )
)
_is_taken: Final = Statement(sa.select(SESSION.c.key).where(of_session(SESSION)))


def for_user(context: Context, user_id: str) -> Context:
    """Return a copy of a context that only reaches the sessions of a user."""
    if not isinstance(user_id, str) or not encode_text(user_id, "user_id"):
        raise ValueError(f"user_id={quoted(user_id)}: give the text that is the user_id of the user's sessions")
    if context.owner is not None and context.owner != user_id:
        raise ValueError(f"this store is for user {quoted(context.owner)}: call for_user() on the store that has all")
    owned = copy.copy(context)
    owned.__class__ = OwnedContext
    owned.owner, owned._is_bound = user_id, True
    return owned


class OwnedContext(Context):
    """Runs operations on the sessions of one user."""

    owner: str
    _key: str | None = None
    """The session that the next connection is opened for."""

    # Operations

    def read_once(self, opened: Any, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run a read in a snapshot that shows whose the session is."""
        context, run, args = self._checking(operation, args)
        return super(OwnedContext, context).read_once(context.snapshot, run, *args, **options)

    def _write(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        context, run, args = self._checking(operation, args)
        with context.transaction() as connection:
            return run(connection, context.moment(connection), *args, **options)

    def _transact(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        context, run, args = self._checking(operation, args)
        return super(OwnedContext, context)._transact(run, *args, **options)

    def _checking(self, operation: Any, args: tuple[Any, ...]) -> tuple[OwnedContext, Any, tuple[Any, ...]]:
        """Return what runs an operation: a context for its session, the operation, and its narrowed arguments."""
        subject: Any = args[0] if args else None
        rest = args[1:]
        name = _subject_of(operation)
        context = copy.copy(self)
        context._key = EVERY
        if name in ("owner", "owners") and any(each in SHARED for each in rest if isinstance(each, sa.Table)):
            self.check_scopes([subject] if name == "owner" else subject)
        elif hasattr(subject, "of_user"):
            args = (subject.of_user(self.owner), *rest)
        elif name in ("keys", "owners"):
            return context, partial(self._run_on_own, operation), args
        elif name in ("key", "owner"):
            context._key = checked_key(subject)
        elif isinstance(key := getattr(subject, "key", None), str):
            context._key = key
        else:
            raise self._refusal()
        return context, operation, args

    def _refusal(self) -> InvalidState:
        return InvalidState(
            f"this store is for the sessions of user {quoted(self.owner)}, and this call is for the whole database: "
            "make it on the store itself"
        )

    # Connections

    def single_read(self, key: str | None = None, *, allow_replica: bool = False) -> AbstractContextManager[Any]:
        """Open a snapshot, in which the user's session is checked."""
        return self.snapshot(key, allow_replica=allow_replica)

    def single_write(
        self, expected: Expected = ANYTHING, key: str | None = None, *, creates: bool = False
    ) -> AbstractContextManager[Any]:
        """Open a transaction, in which the user's session is checked and locked."""
        return self.transaction(key, creates=creates)

    def snapshot(self, key: str | None = None, *, allow_replica: bool = False) -> AbstractContextManager[sa.Connection]:
        """Open a snapshot, in which the user's session is checked."""
        return self._checked(self._connections.snapshot(allow_replica=allow_replica), key)

    def transaction(
        self, key: str | None = None, *, synced: bool = True, creates: bool = False
    ) -> AbstractContextManager[sa.Connection]:
        """Open a transaction, in which the user's session is checked and locked."""
        cancellation.begin_write()
        return self._checked(self._connections.transaction(synced=synced), key, writes=True, creates=creates)

    @contextmanager
    def _checked(
        self,
        opened: AbstractContextManager[sa.Connection],
        key: str | None,
        *,
        writes: bool = False,
        creates: bool = False,
    ) -> Iterator[sa.Connection]:
        key = self._key if key is None else key
        if key is None:
            raise self._refusal()
        guarded, guard = self._guard if writes and self._guard is not None else (EVERY, None)
        with opened as connection:
            if guard is not None:
                self._check(connection, guarded, locks=True)
                guard.renew(connection, self.moment(connection), guarded)
            if key is not EVERY:
                self._check(connection, key, locks=writes, creates=creates)
            yield connection
            if creates:  # another user may have created it since it was missing
                self._check(connection, key, locks=True, creates=True)

    # The user's sessions

    def _check(self, connection: AnyConnection, key: str, *, locks: bool = False, creates: bool = False) -> None:
        """Raise `SessionNotFound` unless the session, live or expired, is the user's or, with `creates`, missing."""
        bound = {"key": checked_key(key), "user_id": self.owner}
        find = _lock_owned if locks else _is_owned
        if find.run(connection, bound) or (creates and not _is_taken.run(connection, bound)):
            return
        if not (creates and find.run(connection, bound)):  # the user may have created it between the two statements
            raise SessionNotFound(key)

    def owns(self, connection: AnyConnection, key: str) -> bool:
        """Lock a session, live or expired; return False if it is not the user's."""
        return bool(_lock_owned.run(connection, {"key": checked_key(key), "user_id": self.owner}))

    def _run_on_own(self, operation: Any, connection: Any, now: Any, keys: Any, *args: Any, **options: Any) -> Any:
        """Run an operation on the user's sessions among those with the keys."""
        wanted = checked_keys(keys)
        rows = _owned_of.run(connection, {"keys": json.dumps(wanted), "user_id": self.owner})
        own = {key for (key,) in rows}
        return operation(connection, now, [key for key in wanted if key in own], *args, **options)

    def narrowed(self, chosen: Filter) -> Filter:
        """Return a filter that selects only the user's sessions."""
        return chosen.of_user(self.owner)

    def taken(self, error: SessionExists) -> LangoStoreError:
        """Return `error`, or `SessionNotFound` for the session of another user."""
        try:
            with self.snapshot(error.key):
                return error
        except SessionNotFound as missing:
            return missing

    def bind(self, other: Context) -> Context:
        """Return a context of another database, with the same user."""
        return for_user(other, self.owner)

    def own_fields(self, fields: Any, *, creates: bool = False) -> Any:
        """Return fields of a session of the user; raise ValueError if they name another user."""
        if "hold" in fields:
            raise InvalidState(
                f"this store is for user {quoted(self.owner)}: set and release a hold on the store itself"
            )
        named = fields.get("user_id", self.owner)
        if named != self.owner and not (creates and named is None):
            raise ValueError(f"user_id={quoted(named)}: this store is for user {quoted(self.owner)}")
        return {**fields, "user_id": self.owner} if creates else fields

    def check_scopes(self, scopes: Sequence[str]) -> None:
        """Raise `InvalidState` for shared values of another scope than the user's."""
        own = f"user:{self.owner}"
        if any(scope != own for scope in scopes):
            raise InvalidState(f"this store is for user {quoted(self.owner)}, who has only the scope {own}")


def _subject_of(operation: Any) -> str | None:
    """Return the name of an operation's first parameter after the connection and the time."""
    function = getattr(operation, "__func__", operation)
    if (code := getattr(function, "__code__", None)) is None:
        return None
    names = code.co_varnames[: code.co_argcount][2 + (function is not operation) :]
    return names[0] if names else None
