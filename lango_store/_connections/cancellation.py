"""What becomes of a call in a thread when nobody waits for its result any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

R = TypeVar("R")


class Cancelled(BaseException):
    """Ends a call that was cancelled, in its thread, where it would begin to write."""


class Cancellation:
    """Tells of one call whether it has begun to write, and keeps it from that once it is cancelled.

    So a cancelled call either wrote nothing and never will, or is to be waited for.
    """

    def __init__(self) -> None:
        self._deciding = threading.Lock()
        self._writes = False
        self._cancelled = False
        self._pausing: threading.Event | None = None

    def run(self, call: Callable[[], R]) -> R:
        """Carry the call out in this thread."""
        _HERE.cancellation = self
        try:
            return call()
        finally:
            _HERE.cancellation = None

    def begin_write(self) -> None:
        """Note that a transaction is about to write; `Cancelled` if the call may begin none any more."""
        with self._deciding:
            if self._cancelled:
                raise Cancelled
            self._writes = True

    def cancel(self) -> bool:
        """Let the call begin no other write, and return whether it has begun one."""
        with self._deciding:
            self._cancelled = True
            if self._pausing is not None:
                self._pausing.set()
            return self._writes

    def pause(self, seconds: float) -> bool:
        """Wait before the call is tried again; False as soon as it is cancelled."""
        with self._deciding:
            if self._cancelled:
                return False
            self._pausing = threading.Event()
        return not self._pausing.wait(seconds)


class _Here(threading.local):
    cancellation: Cancellation | None = None


_HERE: Final = _Here()


def pause(seconds: float) -> bool:
    """Wait before the call that runs in this thread is tried again; False if it was cancelled."""
    if _HERE.cancellation is not None:
        return _HERE.cancellation.pause(seconds)
    time.sleep(seconds)
    return True


def begin_write() -> None:
    """Note a write of the call that runs in this thread, if that can be cancelled."""
    if _HERE.cancellation is not None:
        _HERE.cancellation.begin_write()
