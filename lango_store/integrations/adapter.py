"""The base of the adapters for frameworks: a store given by the caller, or opened for a URL and closed again."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import sqlalchemy as sa

from lango_store import AsyncStore, Conflict, LangoStoreError, Session, SessionNotFound, Store

R = TypeVar("R")

_TRIES: Final = 100


class Adapter:
    """A framework's storage class on a `Store`.

    Takes a `Store`, an `AsyncStore`, or a URL, also one of asyncpg or aiosqlite, with `options` of `Store`. It closes
    only a store that it opened, and is not bound to an event loop.
    """

    def __init__(self, store: Store | AsyncStore | str | sa.URL, **options: Any) -> None:
        if options and isinstance(store, Store | AsyncStore):
            raise TypeError(f"{', '.join(options)}: options are for a URL; this store has its own already")
        self._closes = not isinstance(store, AsyncStore)
        self._awaited = store if isinstance(store, AsyncStore) else AsyncStore(store, **options)

    @property
    def store(self) -> Store:
        """The store that everything is in."""
        return self._awaited.store

    async def close(self) -> None:
        """Close what this adapter made: its threads, and its store if it was given a URL."""
        if self._closes:
            await self._awaited.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def create_session(tx: Store, key: str, **fields: Any) -> Session:
    """Create a session inside a transaction, in the place of an expired one too."""
    with suppress(SessionNotFound):
        expired = tx.info(key, expired=True)
        if not tx.exists(key):
            tx.delete(key, expect=expired.revision)
    return tx.create(key, **fields)


def retry_conflicts(call: Callable[[], R], *errors: type[LangoStoreError]) -> R:
    """Call again, at most 100 times, while another writer was first: on `Conflict`, or one of the other errors."""
    for _ in range(_TRIES - 1):
        with suppress(Conflict, *errors):
            return call()
    return call()
