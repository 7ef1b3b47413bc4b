"""A connection pool that gives each connection to the thread that has waited longest.

SQLAlchemy's queue wakes a waiting thread, but a running thread takes the connection first: with more threads than
connections, some wait until they time out.
"""

import threading
from collections import deque
from typing import Any

from sqlalchemy.pool import QueuePool
from sqlalchemy.util.queue import Empty, Full, QueueCommon


class _Waiter:
    """A thread that waits for a connection."""

    __slots__ = ("item", "ready")

    def __init__(self) -> None:
        self.item: Any = None
        self.ready = threading.Lock()
        self.ready.acquire()


class FairQueue(QueueCommon[Any]):
    """A queue whose `put` hands the item to the thread that has waited longest."""

    def __init__(self, maxsize: int = 0, use_lifo: bool = False) -> None:
        self.maxsize = maxsize
        self.use_lifo = use_lifo
        self._items: deque[Any] = deque()
        self._waiting: deque[_Waiter] = deque()
        # Reentrant: the garbage collector may give a connection back, a `put` in the middle of another call.
        self._mutex = threading.RLock()

    def qsize(self) -> int:
        """Return how many items no thread has taken."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether a thread that takes an item has to wait."""
        return not self._items

    def full(self) -> bool:
        """Return whether there is no room for another item."""
        return 0 < self.maxsize <= len(self._items)

    def put_nowait(self, item: Any) -> None:
        """Add an item, as `put` does."""
        self.put(item)

    def get_nowait(self) -> Any:
        """Take an item; `Empty` if there is none."""
        return self.get(block=False)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Hand an item to a waiting thread, or store it; `Full` if there is no room, even with `block`."""
        with self._mutex:
            try:
                waiter = self._waiting.popleft()
            except IndexError:
                if self.full():
                    raise Full from None
                self._items.append(item)
            else:
                waiter.item = item
                waiter.ready.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item; `Empty` if there is none, or with `block` if none came within `timeout` seconds."""
        with self._mutex:
            if self._items:
                return self._items.pop() if self.use_lifo else self._items.popleft()
        if not block:
            raise Empty
        waiter = _Waiter()
        try:
            with self._mutex:
                self._waiting.append(waiter)
                if self._items:  # given back since
                    self.put(self._items.popleft())
            waiter.ready.acquire(timeout=-1 if timeout is None else timeout)
        except BaseException:  # interrupted
            self._withdraw(waiter)
            if waiter.item is not None:
                self.put(waiter.item)
            raise
        self._withdraw(waiter)
        if waiter.item is None:
            raise Empty
        return waiter.item

    def _withdraw(self, waiter: _Waiter) -> None:
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)


class FairPool(QueuePool):
    """A pool of connections with a fair queue."""

    _queue_class = FairQueue
