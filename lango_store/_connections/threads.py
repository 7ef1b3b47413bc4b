"""Calls in worker threads, awaited. The threads serve several event loops."""

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from lango_store._connections.cancellation import Cancellation, Cancelled
from lango_store.errors import LangoStoreError

R = TypeVar("R")

_MOST: Final = 32


class Threads:
    """The threads in which a store's calls run, at most as many as its engine's pool has connections.

    `at_end` is called when all have ended.
    """

    def __init__(self, engine: sa.Engine, *, at_end: Callable[[], None] | None = None) -> None:
        self._engine = engine
        self._at_end = at_end
        self.is_closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(_connections(self._engine), thread_name_prefix="lango_store")

    async def run(self, call: Callable[[], R]) -> R:
        """Run a call and return what it returns; cancelled, it leaves at once unless the call is writing."""
        work, cancellation = self.submit(call)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError as cancelled:
            if not work.cancel() and cancellation.cancel():
                raise cancelled from await _ended(work)
            raise

    def submit(self, call: Callable[[], R]) -> tuple[Future[R], Cancellation]:
        """Begin a call, to be waited for under any event loop."""
        if self.is_closed:
            raise LangoStoreError("this store is closed: make a new one")
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            self._start()
        cancellation, context = Cancellation(), contextvars.copy_context()
        return self._executor.submit(context.run, cancellation.run, call), cancellation

    def close(self) -> None:
        """Begin no more calls."""
        self.is_closed = True

    def wait(self) -> None:
        """Wait for the calls under way, then close what the threads worked with."""
        self._executor.shutdown()
        if self._at_end is not None:
            self._at_end()


async def _ended(work: Future[Any]) -> BaseException | None:
    """Wait until a call has ended, however often the wait is cancelled; return its error if it had one."""
    ended = asyncio.wrap_future(work)
    while not ended.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([ended])
    error = ended.exception()
    return None if isinstance(error, Cancelled) else error


def _connections(engine: sa.Engine) -> int:
    """Return how many connections the engine's pool opens at once: more threads would only wait for them."""
    pool: Any = engine.pool
    if not isinstance(pool, sa.QueuePool):
        return 1 if isinstance(pool, sa.StaticPool) else _MOST
    overflow = pool._max_overflow
    return _MOST if overflow < 0 else min(_MOST, pool.size() + overflow)
