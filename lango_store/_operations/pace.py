"""The pace of long changes: choose the size of batches, and rest between them, so that other writers can commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Final

from lango_store._dialect import Dialect

_FIRST: Final = 500
_MOST: Final = 10_000


class Pace:
    """The batch size, adapted to the speed of the last batch so that the next one takes about `batch_seconds`."""

    def __init__(self, dialect: Dialect, *, rests: bool = True) -> None:
        """Begin with a small batch; with `rests`, rest between batches."""
        self.rows = _FIRST
        self._seconds = dialect.batch_seconds
        self._rest = dialect.batch_rest if rests else 0.0

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Time a batch, rest after it, and adapt the number of rows."""
        began = perf_counter()
        yield
        seconds = perf_counter() - began
        self.rows = max(1, min(int(self.rows * self._seconds / max(seconds, 1e-6)), 2 * self.rows, _MOST))
        sleep(min(self._rest, seconds / 2))
