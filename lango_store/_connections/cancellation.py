"""Stop a cancelled call before its first write, or while it sleeps before a new try.

A call that has begun to write cannot be stopped.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final, TypeVar

R = TypeVar("R")

_MIN_PAUSE: Final = 0.02
_MAX_PAUSE: Final = 0.5


class Cancelled(BaseException):
    """Raised in the worker thread when a cancelled call is about to write."""


class Cancellation:
    """The state of one call, shared by its worker thread and the thread that cancels it.

    Once `cancel` returns False, the call never writes. If `cancel` returns True, wait for the call to end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_begun_write = False
        self._cancelled = False
        self._pause: threading.Event | None = None

    def run(self, call: Callable[[], R]) -> R:
        """Run the call in this thread, in which the module's `begin_write` and `pause` then refer to this object."""
        _CURRENT.cancellation = self
        try:
            return call()
        finally:
            _CURRENT.cancellation = None

    def begin_write(self) -> None:
        """Record that the call is about to write; raise `Cancelled` if it was cancelled."""
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._has_begun_write = True

    def cancel(self) -> bool:
        """Cancel the call; return True if it has already begun to write."""
        with self._lock:
            self._cancelled = True
            if self._pause is not None:
                self._pause.set()
            return self._has_begun_write

    def pause(self, seconds: float) -> bool:
        """Sleep before a retry; return False as soon as the call is cancelled."""
        with self._lock:
            if self._cancelled:
                return False
            self._pause = threading.Event()
        return not self._pause.wait(seconds)


class _CurrentCall(threading.local):
    cancellation: Cancellation | None = None


_CURRENT: Final = _CurrentCall()


def pause(seconds: float) -> bool:
    """Sleep before a retry of the call in this thread; return False as soon as the call is cancelled."""
    if _CURRENT.cancellation is not None:
        return _CURRENT.cancellation.pause(seconds)
    time.sleep(seconds)
    return True


def pauses(seconds: float) -> Iterator[float]:
    """Yield the seconds to sleep before each new try, random and growing, until `seconds` have passed."""
    deadline, longest = monotonic() + seconds, _MIN_PAUSE
    while (remaining := deadline - monotonic()) > 0:
        yield min(remaining, random.uniform(longest / 2, longest))
        longest = min(2 * longest, _MAX_PAUSE)


def begin_write() -> None:
    """Record that the call in this thread is about to write; raise `Cancelled` if it was cancelled."""
    if _CURRENT.cancellation is not None:
        _CURRENT.cancellation.begin_write()
