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

    def in_turn(self, turn: AsyncRunningTurn) -> Self:
        """Return this adapter for the writes of a turn in progress, which need the lease of the turn.

        After another process has taken over the turn's session, writes to it raise `LeaseLost`. Closing the returned
        adapter has no effect.

        Args:
            turn: A turn of `AsyncConversation.turn`, in its block.
        """
        adapter = copy.copy(self)
        adapter._awaited, adapter._closes = self._awaited.in_turn(turn), False
        return adapter

    async def close(self) -> None:
        """Close the adapter's threads, and its store if the adapter opened it for a URL."""
        if self._closes:
            await self._awaited.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def create_session(tx: Store, key: str, **fields: Any) -> Session:
    """Create a session in a transaction. An expired session with the key is replaced."""
    with suppress(SessionNotFound):
        expired = tx.info(key, expired=True)
        if not tx.exists(key):
            tx.delete(key, expect=expired.revision)
    return tx.create(key, **fields)


def retry_conflicts(call: Callable[[], R], *errors: type[LangoStoreError]) -> R:
    """Repeat a call, at most 100 times, while another writer commits first: on `Conflict` or one of `errors`."""
    for _ in range(_TRIES - 1):
        try:
            return call()
        except LangoStoreError as error:
            if isinstance(error, LeaseLost) or not isinstance(error, (Conflict, *errors)):
                raise
    return call()
