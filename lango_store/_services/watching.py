"""Readers that follow a session, in a thread or in an event loop. A reader that waits uses no connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any, Final

from lango_store._connections.context import Context
from lango_store._connections.threads import Threads
from lango_store._connections.watcher import Channel
from lango_store._operations import tailing
from lango_store._operations.tailing import Batch, Cursor
from lango_store._rows.encoding import checked_key
from lango_store._values.events import Event
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError

_RETRY: Final = 1.0
"""Seconds until a reader tries again that could not read."""


class Reader:
    """The position of one reader of a session. It joins the watcher when it has read what is stored."""

    def __init__(self, context: Context, key: str, after: int | str, *, follow: bool) -> None:
        if follow and context.in_callers_transaction:
            raise LangoStoreError(
                "a transaction cannot follow what others commit: call tail() on the store, or with follow=False"
            )
        self._context = context.on_primary()
        self._key = checked_key(key)
        self._cursor = Cursor.of(after)
        self._channel: Channel | None = None
        self.follows = follow

    def signal(self, loop: asyncio.AbstractEventLoop | None = None) -> Any:
        """Return the event that ends a wait; None before the reader has joined. Call this before `next_shared`."""
        return None if self._channel is None else self._context.watcher.signal(self._channel, loop)

    def next_shared(self) -> Batch | None:
        """Return the next batch of the watcher, empty if nothing is new; None if the reader has to call `read`."""
        if self._channel is None:
            return None
        batch = self._context.watcher.next_batch(self._channel, self._cursor)
        if batch is not None:
            self._cursor = batch.end
        return batch

    def read(self) -> Batch:
        """Read the next batch from the database, and change nothing: the caller may be cancelled before this ends."""
        try:
            return self._context.read_together(tailing.read, self._key, self._cursor)
        except (DatabaseBusy, DatabaseUnavailable):
            if self._channel is None:
                raise
            return Batch([], self._cursor)

    def advance(self, batch: Batch) -> Batch:
        """Move to the end of a batch that was read; at the end of the stored events, join the watcher."""
        watcher = self._context.watcher
        self._cursor = batch.end
        if self._channel is not None:
            watcher.move_head(self._channel, batch)
        elif self.follows and not batch.has_ended and (batch.state is not None or not batch.events):
            self._channel = watcher.join(self._key, batch)
        return batch

    def is_over(self, batch: Batch) -> bool:
        """Return True if no batch follows this one."""
        return batch.has_ended or not (batch.events or self.follows)

    def leave(self) -> None:
        """Leave the watcher."""
        if self._channel is not None:
            self._context.watcher.leave(self._key, self._channel)


def follow(reader: Reader) -> Generator[Event, None, None]:
    """Yield the events of a session, and wait for more in this thread."""
    try:
        while True:
            signal = reader.signal()
            batch = reader.next_shared()
            if batch is None:
                batch = reader.advance(reader.read())
            yield from batch.events
            if reader.is_over(batch):
                return
            if signal is not None and not batch.events:
                signal.wait(None if batch.state else _RETRY)
    finally:
        reader.leave()


async def follow_async(
    threads: Threads, reader: Reader, heartbeat: float | None = None
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a session, and wait for more in the event loop; reads run in worker threads.

    With `heartbeat`, also yield None after the first read, and when as many seconds have passed without an event.
    """
    loop = asyncio.get_running_loop()
    try:
        while True:
            signal = reader.signal(loop)
            batch = reader.next_shared()
            if batch is None:
                batch = reader.advance(await threads.run(reader.read))
            if signal is None and heartbeat is not None:
                yield None
            for event in batch.events:
                yield event
            if reader.is_over(batch):
                return
            if signal is None or batch.events:
                continue
            try:
                async with asyncio.timeout(heartbeat if batch.state else _RETRY):
                    await signal.wait()
            except TimeoutError:
                if heartbeat is not None:
                    yield None
    finally:
        reader.leave()
