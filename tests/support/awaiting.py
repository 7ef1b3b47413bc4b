"""An asynchronous store with the interface of a synchronous one, for tests that run on both."""

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, Self, cast

from lango_store import AsyncStore, Store
from lango_store._parts.twins import AsyncPart

_TIMEOUT: Final = 120.0
_NOTHING: Final = object()


class Awaiting:
    """An `AsyncStore`, a conversation or a group with synchronous methods that can be called from any thread."""

    def __init__(self, awaited: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.awaited = awaited
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.awaited, name)
        if isinstance(found, AsyncPart):
            return Awaiting(found, self._loop)
        return functools.partial(self._call, found) if callable(found) else found

    def using(self, connection: Any) -> Any:
        """Return the synchronous store on the caller's connection; `AsyncStore` has no such method."""
        return self.awaited.store.using(connection)

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        found = method(*arguments, **options)
        if inspect.isawaitable(found):
            found = asyncio.run_coroutine_threadsafe(_result(found), self._loop).result(_TIMEOUT)
        if isinstance(found, AsyncIterator):
            return self._each(found)
        if inspect.isasyncgen(getattr(found, "gen", None)):
            return self._block(found)
        if hasattr(found, "__aenter__") and not isinstance(found, AsyncStore):  # a turn in progress
            return AwaitingTurn(found, self._loop)
        return Awaiting(found, self._loop) if isinstance(found, AsyncPart | AsyncStore) else found

    def _each(self, found: AsyncIterator[Any]) -> Iterator[Any]:
        while (one := self._call(anext, found, _NOTHING)) is not _NOTHING:
            yield one

    @contextmanager
    def _block(self, found: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        entered = self._call(found.__aenter__)
        try:
            yield entered
        except BaseException as error:
            if not self._call(found.__aexit__, type(error), error, error.__traceback__):
                raise
        else:
            self._call(found.__aexit__, None, None, None)


class AwaitingTurn(Awaiting):
    """An `AsyncRunningTurn` with synchronous methods, as a context manager."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("usage", "metadata"):
            setattr(self.awaited, name, value)
        else:
            super().__setattr__(name, value)

    def __enter__(self) -> Self:
        self._call(self.awaited.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._call(self.awaited.__aexit__, *error)


async def _result(found: Any) -> Any:
    return await found


@contextmanager
def awaiting(store: AsyncStore) -> Iterator[Store]:
    """Give an `AsyncStore` the interface of a `Store`: each call is awaited on an event loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield cast(Store, Awaiting(store, loop))
    finally:
        asyncio.run_coroutine_threadsafe(store.close(), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
