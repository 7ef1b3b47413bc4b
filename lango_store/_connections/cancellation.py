"""Cancellation of calls that run in worker threads."""

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

R = TypeVar("R")


class Cancelled(BaseException):
    """Raised in the thread of a cancelled call when it is about to write."""


class Cancellation:
    """The state of one call: whether it has begun to write, and whether it was cancelled.

    A cancelled call either has written nothing and never will, or must be waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = False
        self._cancelled = False
        self._pause: threading.Event | None = None

    def run(self, call: Callable[[], R]) -> R:
        """Run the call in this thread."""
        _CURRENT.cancellation = self
        try:
            return call()
        finally:
            _CURRENT.cancellation = None

    def begin_write(self) -> None:
        """Note that a transaction is about to write; raise `Cancelled` if the call was cancelled."""
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._writes = True

    def cancel(self) -> bool:
        """Prevent further writes, and return whether the call has begun one."""
        with self._lock:
            self._cancelled = True
            if self._pause is not None:
                self._pause.set()
            return self._writes

    def pause(self, seconds: float) -> bool:
        """Wait before a retry; return False on cancellation."""
        with self._lock:
            if self._cancelled:
                return False
            self._pause = threading.Event()
        return not self._pause.wait(seconds)


class _CurrentCall(threading.local):
    cancellation: Cancellation | None = None


_CURRENT: Final = _CurrentCall()


def pause(seconds: float) -> bool:
    """Wait before a retry of the call in this thread; return False if it was cancelled."""
    if _CURRENT.cancellation is not None:
        return _CURRENT.cancellation.pause(seconds)
    time.sleep(seconds)
    return True


def begin_write() -> None:
    """Note that the call in this thread is about to write, if it can be cancelled."""
    if _CURRENT.cancellation is not None:
        _CURRENT.cancellation.begin_write()
