"""A clock and messages for tests of programs that use a store; `lango_store.testing.fixtures` is a pytest plugin."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lango_store._values.model import Message, MessageRole

__all__ = ["Clock", "make_message", "make_messages"]


class Clock:
    """A clock that changes only when it is moved, for `Store(url, clock=Clock())`."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the current time of the clock, aware, in UTC."""
        return self.time

    def move(self, **by: float) -> None:
        """Move the clock by a timedelta's arguments: `move(hours=2)`, `move(days=-1)`."""
        self.time += timedelta(**by)


def make_message(content: Any = "hello", *, role: MessageRole | str = MessageRole.USER, **fields: Any) -> Message:
    """Create a message of a user; keywords set any other field of `Message`."""
    return Message(role=MessageRole(role), content=content, **fields)


def make_messages(number: int, **fields: Any) -> list[Message]:
    """Create messages with the contents `message 0`, `message 1`, …; keywords as in `make_message`."""
    return [make_message(f"message {n}", **fields) for n in range(number)]
