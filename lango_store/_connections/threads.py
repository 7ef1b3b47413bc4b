"""Run the calls of an async store in worker threads, which any number of event loops can share."""

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from lango_store._connections.cancellation import Cancellation, Cancelled
from lango_store.errors import StoreClosed

R = TypeVar("R")

_MAX_THREADS: Final = 32


class Threads:
    """A thread pool with at most one thread per connection of the engine's pool, and at most 32.

    `wait` waits for the last call, then calls `at_end`.
    """

    def __init__(self, engine: sa.Engine, *, at_end: Callable[[], None] | None = None) -> None:
        self._engine = engine
        self._at_end = at_end
        self.is_closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(_max_connections(self._engine), thread_name_prefix="lango_store")

    async def run(self, call: Callable[[], R]) -> R:
        """Run a call and return its result; on cancellation, wait for the call only if it has begun to write."""
        work, cancellation = self.submit(call)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError as cancelled:
            if not work.cancel() and cancellation.cancel():
                raise cancelled from await _wait_until_ended(work)
            raise

    async def run_to_end(self, call: Callable[[], R]) -> R:
        """Run a call and return its result; on cancellation, wait for the call even if it has not begun."""
        work, _ = self.submit(call)
        try:
            return await asyncio.shield(asyncio.wrap_future(work))
        except asyncio.CancelledError as cancelled:
            raise cancelled from await _wait_until_ended(work)

    def submit(self, call: Callable[[], R]) -> tuple[Future[R], Cancellation]:
        """Start a call; return its future, which any event loop can await, and its `Cancellation`."""
        if self.is_closed:
            raise StoreClosed("this store is closed: create a new one")
        if self._process != os.getpid():  # a forked child process has no worker threads
            self._start()
        cancellation, context = Cancellation(), contextvars.copy_context()
        return self._executor.submit(context.run, cancellation.run, call), cancellation

    def close(self) -> None:
        """Refuse new calls; running calls continue."""
        self.is_closed = True

    def wait(self) -> None:
        """Wait for the running calls, then call `at_end`."""
        self._executor.shutdown()
        if self._at_end is not None:
            self._at_end()


async def _wait_until_ended(work: Future[Any]) -> BaseException | None:
    """Wait for a call even if the wait is cancelled, once or several times; return the error of the call, if any."""
    ended = asyncio.wrap_future(work)
    while not ended.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([ended])
    error = ended.exception()
    return None if isinstance(error, Cancelled) else error


def _max_connections(engine: sa.Engine) -> int:
    """Return the most connections that the pool opens at once; more threads would only wait for a connection."""
    pool: Any = engine.pool
    if not isinstance(pool, sa.QueuePool):
        return 1 if isinstance(pool, sa.StaticPool) else _MAX_THREADS
    overflow = pool._max_overflow
    return _MAX_THREADS if overflow < 0 else min(_MAX_THREADS, pool.size() + overflow)
