"""Readers that follow a session in a thread, and a check that reads the events they have seen."""

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.polling import until

from lango_store import Appended, Event, Message, Store
from lango_store._rooms.tail.following import watcher_of


class Follower:
    """A reader in a thread.

    Attributes:
        events: The events so far.
        error: The exception that ended the reader, or None.
    """

    def __init__(self, store: Store, key: str, after: int | str = 0) -> None:
        self.events: list[Event] = []
        self.error: Exception | None = None
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._follow, store, key, after), daemon=True)
        self._thread.start()

    def _follow(self, store: Store, key: str, after: int | str) -> None:
        try:
            self.events.extend(iter(store.conversation(key).tail(after=after)))
        except Exception as error:
            self.error = error

    @property
    def messages(self) -> list[Message]:
        return [each for event in list(self.events) if isinstance(event, Appended) for each in event.messages]

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; raise the error of the reader, if it has one."""
        until(lambda: condition() or self.error is not None)
        if self.error is not None:
            raise self.error

    def wait_for_messages(self, number: int) -> list[Message]:
        """Wait for a number of messages, and return them."""
        self.wait(lambda: len(self.messages) >= number)
        return self.messages

    def end(self) -> None:
        """Wait for the end of the reader."""
        self._thread.join(60)
        assert self.has_ended


@contextmanager
def follower(store: Store, key: str = "k", after: int | str = 0) -> Iterator[Follower]:
    """Follow a session, and end the reader at the end of the block by deleting the session."""
    reader = Follower(store, key, after)
    yield reader
    store.delete(key)
    reader.end()


def channel_of(store: Store, key: str = "k") -> Any:
    """Return the state that the readers of a session share."""
    return watcher_of(store._context).channels.get(key)


def until_waiting(store: Store, readers: int = 1, key: str = "k") -> None:
    """Wait until this number of readers of a session have read everything that is stored."""
    until(lambda: (channel := channel_of(store, key)) is not None and channel.readers >= readers)
