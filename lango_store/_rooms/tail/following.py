"""Readers that follow a session, in a thread or in an event loop. A reader that waits uses no connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any, Final, cast

from lango_store._connections.context import Context
from lango_store._connections.threads import Threads
from lango_store._rooms.tail import reading
from lango_store._rooms.tail.reading import Cursor, EventBatch
from lango_store._rooms.tail.values import Event
from lango_store._rooms.tail.watcher import Channel, Watcher
from lango_store._rows.encoding import checked_key
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, InvalidState, SessionNotFound

_RETRY: Final = 1.0
"""Seconds until a reader that could not read tries again."""


def watcher_of(context: Context) -> Watcher:
    """Return the watcher of a store."""
    return cast(Watcher, context.watcher)


class Reader:
    """A reader of a session, with its `cursor`. With `follow`, it joins the watcher when it has read what is stored."""

    def __init__(self, context: Context, key: str, after: int | str, *, follow: bool) -> None:
        if follow and context.in_callers_transaction:
            raise InvalidState(
                "a transaction cannot follow other writers: call tail() on the store, or with follow=False"
            )
        self._context = context.on_primary()
        self._watcher = watcher_of(context)
        self._key = checked_key(key)
        self.cursor = Cursor.of(after)
        self._channel: Channel | None = None
        self._follows = follow

    def next_shared(self, loop: asyncio.AbstractEventLoop | None = None) -> tuple[Any, EventBatch | None]:
        """Return the signal that ends a wait, and the watcher's next batch, which is empty if nothing is new.

        The batch is None if the reader has to call `read`. Before the reader has joined the watcher, both are None.
        """
        if self._channel is None:
            return None, None
        signal, batch = self._watcher.next(self._channel, self.cursor, loop)
        owner = self._context.owner
        if owner is not None and batch is not None and (batch.state is None or batch.state.user_id != owner):
            return signal, None  # the session may belong to another user now
        return signal, batch

    def read(self) -> EventBatch:
        """Read the next batch from the database; do not move the cursor, because the caller may be cancelled."""
        try:
            return self._context.read_together(reading.read, self._key, self.cursor)
        except SessionNotFound:
            if self.cursor.incarnation is None:
                raise
            return reading.end_of(self._key, self.cursor, "deleted")  # for a store for one user
        except (DatabaseBusy, DatabaseUnavailable):
            if self._channel is None:
                raise
            return EventBatch([], self.cursor)

    def advance(self, batch: EventBatch) -> bool:
        """Move the cursor past a batch, and join the watcher after the last stored event; False if nothing follows."""
        self.cursor = batch.end
        if batch.is_over or not (batch.events or self._follows):
            return False
        if self._follows and (batch.state is not None or not batch.events):
            self._channel = self._watcher.join(self._key, batch, self._channel)
        return True

    def leave(self) -> None:
        """Leave the watcher."""
        if self._channel is not None:
            self._watcher.leave(self._key, self._channel)


def follow(reader: Reader) -> Generator[Event, None, None]:
    """Yield the events of a session; a reader that follows waits for more in this thread."""
    try:
        while True:
            signal, batch = reader.next_shared()
            if batch is None:
                batch = reader.read()
            continues = reader.advance(batch)
            yield from batch.events
            if not continues:
                return
            if signal is not None and not batch.events:
                signal.wait(None if batch.state else _RETRY)
    finally:
        reader.leave()


async def follow_async(
    threads: Threads, reader: Reader, heartbeat: float | None = None
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a session; a reader that follows waits for more in the event loop.

    Reads run in worker threads. With `heartbeat`, also yield None before each batch of
    stored events, and when that many seconds have passed without an event.
    """
    loop = asyncio.get_running_loop()
    try:
        while True:
            signal, batch = reader.next_shared(loop)
            if batch is None:
                batch = await threads.run(reader.read)
            continues = reader.advance(batch)
            if signal is None and heartbeat is not None:
                yield None
            for event in batch.events:
                yield event
            if not continues:
                return
            if signal is not None and not batch.events:
                try:
                    async with asyncio.timeout(heartbeat if batch.state else _RETRY):
                        await signal.wait()
                except TimeoutError:
                    if heartbeat is not None:
                        yield None
    finally:
        reader.leave()
