"""A connection pool that gives each free connection to the thread that has waited longest.

SQLAlchemy's queue wakes a waiting thread, but a running thread may take the connection first. With more threads than
connections, some threads would wait until they time out.
"""

from typing import Any

from sqlalchemy.pool import QueuePool
from sqlalchemy.util.queue import Empty, Queue


class FairQueue(Queue[Any]):
    """A queue in which a new thread takes an item only if there are more items than waiting threads."""

    _waiting = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item, or raise `Empty`; with `block`, wait up to `timeout` seconds for one."""
        with self.not_empty:
            if len(self.queue) > self._waiting:
                return self._get()
            if not block:
                raise Empty
            self._waiting += 1
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


class FairPool(QueuePool):
    """A pool of connections with a fair queue."""

    _queue_class = FairQueue
