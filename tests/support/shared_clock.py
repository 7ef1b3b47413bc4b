"""A clock that several processes share, and that a test moves by whole days."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path


class SharedClock:
    """The time of the machine plus the number of days that a file contains."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + timedelta(days=self.days)

    @property
    def days(self) -> int:
        return int(os.pread(self._file, 8, 0) or 0)

    def move(self) -> None:
        """Move the clock by a day."""
        os.pwrite(self._file, f"{self.days + 1:08}".encode(), 0)
