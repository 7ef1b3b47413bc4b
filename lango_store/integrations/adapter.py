"""Base class of the adapters, and helpers for their transactions."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import sqlalchemy as sa

from lango_store import (
    AsyncRunningTurn,
    AsyncStore,
    Conflict,
    LangoStoreError,
    LeaseLost,
    RunningTurn,
    Session,
    SessionNotFound,
    Store,
)

R = TypeVar("R")

_TRIES: Final = 100


class Adapter:
    """Base class of the storage classes for frameworks.

    An adapter is not bound to an event loop.

    Args:
        store: A `Store`, an `AsyncStore`, or the URL of a database. URLs for asyncpg and aiosqlite are accepted too.
        **options: Options of `Store`; only with a URL.

    Raises:
        TypeError: `options` are given together with a store.
        ValueError: The database of the URL is not supported, or an option is invalid.
    """

    def __init__(self, store: Store | AsyncStore | str | sa.URL, **options: Any) -> None:
        if options and isinstance(store, Store | AsyncStore):
            raise TypeError(f"{', '.join(options)}: options can only be given with a URL, not with a store")
        self._closes = not isinstance(store, AsyncStore)
        self._awaited = store if isinstance(store, AsyncStore) else AsyncStore(store, **options)

    @property
    def store(self) -> Store:
        """The synchronous store that the adapter uses."""
        return self._awaited.store

    def in_turn(self, turn: RunningTurn | AsyncRunningTurn) -> Self:
        """Return this adapter for a turn in progress.

        Appends of the returned adapter to the session of the turn need the lease of the turn. Once the turn has lost
        the lease, they raise `LeaseLost`. Closing the returned adapter has no effect.

        Args:
            turn: A turn of `AsyncConversation.turn` or `Conversation.turn`, in its block.
        """
        adapter = copy.copy(self)
        if isinstance(turn, AsyncRunningTurn):
            adapter._awaited = self._awaited.in_turn(turn)
        else:
            adapter._awaited = AsyncStore(self.store.in_turn(turn))
        adapter._closes = False
        return adapter

    async def close(self) -> None:
        """Close what the adapter opened: its threads and, for a URL, its store.

        With an `AsyncStore`, the method does nothing.
        """
        if self._closes:
            await self._awaited.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def create_session(tx: Store, key: str, **fields: Any) -> Session:
    """Create a session in a transaction, or replace an expired session with the key.

    Raises:
        SessionExists: A live session has the key.
    """
    with suppress(SessionNotFound):
        expired = tx.conversation(key).info(expired=True)
        if not tx.exists(key):
            tx.delete(key, expect=expired.revision)
    return tx.create(key, **fields)


def retry_conflicts(call: Callable[[], R], *errors: type[LangoStoreError]) -> R:
    """Call a function up to 100 times while other writers commit first.

    Retries after `Conflict` and after each class in `errors`, but not after `LeaseLost`.
    """
    for _ in range(_TRIES - 1):
        try:
            return call()
        except LangoStoreError as error:
            if isinstance(error, LeaseLost) or not isinstance(error, (Conflict, *errors)):
                raise
    return call()
