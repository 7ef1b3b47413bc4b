"""The stores of sessions: one for all sessions of a URL, an engine or a `Store`, as each session is an object."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final

import sqlalchemy as sa

from lango_store.aio import AsyncStore
from lango_store.engine import create_engine, database_file
from lango_store.store import Store


class Lease:
    """A share in a pool. The pool is closed with the last of its shares that is given back.

    A share that is only forgotten leaves the pool open: the next session would have to connect again.
    """

    def __init__(self, pool: _Pool, store: AsyncStore) -> None:
        self.store = store
        self._pool = pool
        self._forgotten = weakref.finalize(self, pool.forget)
        self._forgotten.atexit = False

    async def close(self) -> None:
        """Give the share back, once."""
        if self._forgotten.detach() is not None:
            await self._pool.give_back()


class _Pool:
    """The engine of a database, and the stores over it: of those that may create its tables, and of the others."""

    def __init__(self, url: str | sa.URL, options: dict[str, Any], leave: Callable[[], object] | None) -> None:
        self._engine = create_engine(url, **options)
        self._stores: dict[bool, AsyncStore] = {}
        self._leave = leave
        self._users = 0

    def lease(self, *, migrate: bool) -> Lease:
        self._users += 1
        if migrate not in self._stores:
            self._stores[migrate] = AsyncStore(Store(self._engine, migrate=migrate))
        return Lease(self, self._stores[migrate])

    def forget(self) -> None:
        with _lock:
            self._users -= 1
            if self._leave is None and not self._users:  # nobody can reach it any more
                self._engine.dispose()

    async def give_back(self) -> None:
        with _lock:
            self._users -= 1
            if self._users:
                return
            if self._leave is not None:
                self._leave()
        for store in self._stores.values():
            await store.close()
            store.store.close()
        self._engine.dispose()


_lock: Final = threading.RLock()  # a share may be forgotten in the middle of making one
_of_urls: Final[dict[Hashable, _Pool]] = {}
_of_engines: Final[weakref.WeakKeyDictionary[Any, _Pool]] = weakref.WeakKeyDictionary()
_of_stores: Final[weakref.WeakValueDictionary[int, AsyncStore]] = weakref.WeakValueDictionary()


def lease(url: str | sa.URL, options: dict[str, Any], *, migrate: bool) -> Lease:
    """Return a share in the one pool for a URL with these engine options; in memory each has its own database."""
    made = sa.make_url(url)
    with _lock:
        if _in_memory(made):
            return _Pool(url, options, None).lease(migrate=migrate)
        key = made, repr(sorted(options.items()))
        if key not in _of_urls:
            _of_urls[key] = _Pool(url, options, functools.partial(_of_urls.pop, key, None))
        return _of_urls[key].lease(migrate=migrate)


def lease_for(engine: Any, *, migrate: bool) -> Lease:
    """Return a share in the pool for an asynchronous engine: the one for its URL, in memory one for itself."""
    url = getattr(getattr(engine, "sync_engine", None), "url", None)
    if not isinstance(url, sa.URL):
        raise TypeError(
            f"engine is {type(engine).__name__}, not an AsyncEngine: "
            "give another one to a store, LangoSession(session_id, Store(engine))"
        )
    if not _in_memory(url):
        return lease(url, {}, migrate=migrate)
    with _lock:
        if engine not in _of_engines:
            _of_engines[engine] = _Pool(url, {}, functools.partial(_forget, weakref.ref(engine)))
        return _of_engines[engine].lease(migrate=migrate)


def _forget(engine: weakref.ref[Any]) -> None:
    if (found := engine()) is not None:
        _of_engines.pop(found, None)


def awaited(store: Store) -> AsyncStore:
    """Return the one `AsyncStore` over a store, so that its sessions share their threads."""
    with _lock:
        found = _of_stores.get(id(store))  # who finds one, finds one of this very store: it is held there
        if found is None:
            found = _of_stores[id(store)] = AsyncStore(store)
        return found


def _in_memory(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite" and database_file(url) is None
