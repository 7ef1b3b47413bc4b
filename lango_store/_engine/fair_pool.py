"""A connection pool that gives each free connection to the thread that has waited longest.

SQLAlchemy's queue wakes a waiting thread, but a running thread may take the connection first. With more threads than
connections, some threads could wait until they time out.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from sqlalchemy.pool import QueuePool
from sqlalchemy.util.queue import Empty, Queue


class FairQueue(Queue[Any]):
    """A queue in which a new thread takes an item only if there are more items than waiting threads."""

    _waiting = 0
    on_wait: Callable[[float], None] | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item, or raise `Empty`; with `block`, wait up to `timeout` seconds for one."""
        with self.not_empty:
            if len(self.queue) > self._waiting:
                return self._get()
            if not block:
                raise Empty
            self._waiting += 1
            started = perf_counter()
            try:
                # The current items are for the threads that were woken for them, so this thread waits at least once.
                if not (self.not_empty.wait(timeout) and self.not_empty.wait_for(self._qsize, timeout)):
                    raise Empty
                return self._get()
            except BaseException:  # another waiting thread can take the item that this thread was woken for
                self.not_empty.notify()
                raise
            finally:
                self._waiting -= 1
                if self.on_wait is not None:
                    self.on_wait(perf_counter() - started)


class FairPool(QueuePool):
    """A pool of connections with a fair queue."""

    _queue_class = FairQueue

    @property
    def on_wait(self) -> Callable[[float], None] | None:
        """A function that is called after each wait for a connection, with the seconds."""
        queue: FairQueue = self._pool  # type: ignore[assignment]
        return queue.on_wait

    @on_wait.setter
    def on_wait(self, function: Callable[[float], None] | None) -> None:
        queue: FairQueue = self._pool  # type: ignore[assignment]
        queue.on_wait = function
