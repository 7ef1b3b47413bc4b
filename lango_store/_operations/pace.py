"""The pace of long changes, which are done in batches so that other writers get a turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Final

_FIRST: Final = 500
_MOST: Final = 10_000
_SECONDS: Final = 0.08


class Pace:
    """The number of rows for the next batch, such that it takes about 80 ms at the speed of the last one."""

    def __init__(self, rest: float) -> None:
        """Begin with a small batch; between batches, rest for at most `rest` seconds."""
        self.rows = _FIRST
        self._rest = rest

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Time a batch, rest after it, and adapt the number of rows."""
        began = perf_counter()
        yield
        seconds = perf_counter() - began
        self.rows = max(1, min(int(self.rows * _SECONDS / max(seconds, 1e-6)), 2 * self.rows, _MOST))
        sleep(min(self._rest, seconds / 2))
