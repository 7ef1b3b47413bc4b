"""Group commit on SQLite: writes that wait for each other are committed together.

SQLite has one writer at a time, and each commit waits for the disk. While one thread commits, others queue up here.
Each of them then writes in the same transaction, in a separate savepoint and in order of arrival, and the last one
commits for all. No write returns before the commit that contains it.
"""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from lango_store._dialect import AnyConnection
from lango_store.errors import DatabaseBusy, DatabaseUnavailable

_LONGEST: Final = 0.05
"""The seconds after which a group is committed although other threads are waiting."""

_REST: Final = 0.1
"""The time in which other processes can take the lock after a group, as a part of the time that the group took."""


_ROLLED_BACK: Final = "another write of the same transaction failed, and nothing was written: try again"


class QueueBusy(DatabaseBusy):
    """Other threads of this store wrote for too long; nothing was written."""


class Transaction(Protocol):
    """A write transaction on a separate connection."""

    def __enter__(self) -> AnyConnection: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any, /) -> None: ...

    def savepoint(self) -> None:
        """Begin a savepoint."""

    def end_savepoint(self, error: BaseException | None) -> bool:
        """Keep what was written since the savepoint, or undo it after an error.

        Returns:
            False if the transaction has ended or cannot be continued.
        """

    def translate(self, error: BaseException) -> None:
        """Raise the store's error for an error of the driver; return for any other error."""


class _Group:
    """A transaction with the writes of several threads, and the error that ended it."""

    def __init__(self, transaction: Transaction, connection: AnyConnection, began: float) -> None:
        self.transaction = transaction
        self.connection = connection
        self.began = began
        self.error: BaseException | None = None
        self.has_ended = threading.Event()

    def end(self, error: BaseException | None = None) -> None:
        """Commit, or roll back because of an error; all threads of the group get an error of the commit."""
        self.error = DatabaseUnavailable("the commit was interrupted, so the write may be stored: check what is stored")
        try:
            self.transaction.__exit__(None if error is None else type(error), error, None)
            self.error = None if error is None else DatabaseUnavailable(_ROLLED_BACK)
        except Exception as failed:
            self.error = failed
        finally:
            self.has_ended.set()

    def wait(self) -> None:
        """Wait for the commit; raise the error that it failed with."""
        self.has_ended.wait()
        if self.error is not None:
            raise copy.copy(self.error)  # so that each thread has a separate traceback


class WriteQueue:
    """The threads of a store that want to write: one of them has the turn, the others wait in order of arrival.

    Args:
        timeout: The number of seconds that a thread waits for its turn.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        _queues.add(self)
        self.reset()

    def reset(self) -> None:
        """Forget all threads: those of the parent do not exist in a forked child."""
        self.lock = threading.Lock()
        self.is_taken = False
        """True if a thread has the turn."""
        self.waiting: deque[threading.Lock] = deque()
        """The threads that wait for their turn, each for the release of its lock."""
        self.group: _Group | None = None
        """The open transaction; only the thread that has the turn uses it."""
        self.rest_until = 0.0
        """The time until which other processes can take the lock of the file; 0 if no group has been committed."""

    def take_turn(self) -> None:
        """Wait for this thread's turn.

        Raises:
            QueueBusy: Other threads of this store wrote for longer than the timeout.
        """
        with self.lock:
            if not self.is_taken:
                self.is_taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self.waiting.append(turn)
        has_turn = False
        try:
            has_turn = turn.acquire(timeout=self._timeout)
        finally:
            if not has_turn:
                self._stop_waiting(turn)
        if not has_turn:
            raise QueueBusy(
                f"other threads wrote for {self._timeout:g} seconds: try again, and keep transactions short"
            )

    def _stop_waiting(self, turn: threading.Lock) -> None:
        with self.lock:
            if turn in self.waiting:
                self.waiting.remove(turn)
                return
        self.end_turn()  # the turn came at the last moment

    def end_turn(self) -> None:
        """Give the turn to the next thread, which continues the group; commit the group if no thread is waiting."""
        try:
            if self.group is not None and (not self.waiting or time.monotonic() - self.group.began > _LONGEST):
                self.end_group()
        finally:
            with self.lock:
                has_ended = True
                if self.waiting:
                    self.waiting.popleft().release()
                elif self.group is None:
                    self.is_taken = False
                else:  # the thread that was to continue has stopped waiting
                    has_ended = False
            if not has_ended:
                self.end_turn()

    def end_group(self, error: BaseException | None = None) -> None:
        """End the group, if there is one: commit it, or roll it back because of an error."""
        group, self.group = self.group, None
        if group is not None:
            group.end(error)
            now = time.monotonic()
            self.rest_until = now + _REST * (now - group.began)

    def rest(self) -> None:
        """Leave the lock of the file to other processes for a while: successive groups would hold it all the time."""
        seconds, self.rest_until = self.rest_until - time.monotonic(), 0.0
        if seconds > 0:
            time.sleep(seconds)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for this thread's turn, and keep it for a transaction on another connection."""
        self.take_turn()
        try:
            self.end_group()
            yield
        finally:
            self.end_turn()


class GroupedWrite:
    """A write that joins the group of the queue, or begins one if other threads are waiting."""

    __slots__ = ("_began", "_connection", "_group", "_queue", "_transaction")

    def __init__(self, queue: WriteQueue, transaction: Transaction) -> None:
        self._queue = queue
        self._transaction = transaction

    def __enter__(self) -> AnyConnection:
        queue = self._queue
        with queue.lock:  # the first lines of `take_turn`, without the cost of a call
            waits, queue.is_taken = queue.is_taken, True
        if waits:
            queue.take_turn()
        try:
            self._group = group = queue.group
            if group is None:
                if queue.rest_until:
                    queue.rest()
                self._began = time.monotonic()
                self._connection = self._transaction.__enter__()
                return self._connection
            group.transaction.savepoint()
        except BaseException:
            queue.end_turn()
            raise
        return group.connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        queue, group = self._queue, self._group
        try:
            if group is None:
                if error is not None or not queue.waiting:
                    self._transaction.__exit__(kind, error, traceback)
                    return
                group = queue.group = _Group(self._transaction, self._connection, self._began)
            else:
                continues = False
                try:
                    continues = group.transaction.end_savepoint(error)
                finally:
                    if not continues:
                        queue.end_group(error or DatabaseUnavailable(_ROLLED_BACK))
        finally:
            queue.end_turn()
        if error is None:
            group.wait()
        else:
            group.transaction.translate(error)


_queues: weakref.WeakSet[WriteQueue] = weakref.WeakSet()


def _reset_queues() -> None:
    for queue in _queues:
        queue.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_queues)
