"""A clock for stores under test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """A clock that stands until it is moved, forwards or back; `Store(url, clock=Clock())` goes by it."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the time."""
        return self.time

    def move(self, **by: float) -> None:
        """Move the clock by what a timedelta takes: `move(hours=2)`, `move(days=-1)`."""
        self.time += timedelta(**by)
