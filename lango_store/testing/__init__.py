"""A clock and messages for tests of programs that use a store.

`lango_store.testing.fixtures` is a pytest plugin with fixtures for stores.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from lango_store import Message, MessageRole

__all__ = ["Clock", "make_message", "make_messages"]


class Clock:
    """A clock whose time changes only when a test moves it, for `Store(url, clock=Clock())`.

    Attributes:
        time: The current time of the clock, in UTC. It starts at 2026-11-21 12:00:00.123456.

    Example:
        ```python
        from datetime import timedelta

        from lango_store import Store
        from lango_store.testing import Clock

        clock = Clock()
        with Store("sqlite://", migrate=True, clock=clock) as store:
            store.create("k", ttl=timedelta(hours=1))
            clock.move(hours=2)
            assert not store.exists("k")
        ```
    """

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Return the current time of the clock, in UTC."""
        return self.time

    def move(self, **by: float) -> None:
        """Move the clock forward, or back by a negative number.

        Args:
            **by: Arguments of `datetime.timedelta`, for example `hours=2` or `days=-1`.
        """
        self.time += timedelta(**by)


def make_message(content: Any = "hello", *, role: MessageRole | str = MessageRole.USER, **fields: Any) -> Message:
    """Create a message, by default a user message with the content `hello`.

    Args:
        content: Any JSON. Default: "hello".
        role: The role. Default: `user`.
        **fields: Any other field of `Message`.
    """
    return Message(role=MessageRole(role), content=content, **fields)


def make_messages(number: int, **fields: Any) -> list[Message]:
    """Create messages with the contents `message 0`, `message 1`, and so on.

    Args:
        number: The number of messages.
        **fields: Fields that all of the messages get, as in `make_message`.
    """
    return [make_message(f"message {n}", **fields) for n in range(number)]
