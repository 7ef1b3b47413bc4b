"""One thread per store polls the database for all followed sessions, and shares new events with their readers.

The thread runs while a reader waits. It asks for the states of all sessions with one statement, and reads the new
events of a session once. A reader takes the batch that begins at its cursor. If there is none, because the reader is
new or late, the reader reads from the database until it reaches the head, the cursor of the other readers. The next
batch of a reader depends on its cursor alone, so the reader gets each event once.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from contextlib import AbstractContextManager, suppress
from time import monotonic
from typing import Any, Final, Protocol

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment
from lango_store._engine.pool import is_listened_to, renew_lock_in_children
from lango_store._rooms.tail import reading
from lango_store._rooms.tail.reading import Cursor, EventBatch, State
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError

logger = logging.getLogger("lango_store")

_SHORTEST: Final = 0.02
_LONGEST: Final = 1.0
_DELIVERY_SHARE: Final = 20
"""The shortest pause between polls, as a multiple of the time for which the last events kept a loop's readers busy."""

_QUIET_SHARE: Final = 0.01
"""The pause between polls, as a share of the time since the last event: 20 ms after 2 s, 100 ms after 10 s."""

_CLOSE_TIMEOUT: Final = 5.0
"""Seconds that `close` waits for a running poll, because the server may not answer."""

_RECENT: Final = 8
"""The number of batches that are kept for late readers of a session."""


class Reads(Protocol):
    """Opens connections of an engine that read from the primary, without retries."""

    engine: sa.Engine

    def single_read(self) -> AbstractContextManager[AnyConnection]:
        """Open a connection for reads that need no snapshot."""

    def snapshot(self) -> AbstractContextManager[sa.Connection]:
        """Open a connection for several reads of one snapshot."""

    def moment(self, connection: AnyConnection) -> Moment:
        """Return the current time for one statement."""


class Channel:
    """The state that the readers of one session share.

    Attributes:
        context: The context variables of the first reader, with which the session is read, because a listener of the
            engine may take the tenant from them.
        readers: The number of readers.
        head: The cursor up to which events were shared; None if each reader has to read from the database.
        state: The state of the session at the head.
        recent: The latest batches by the cursor at which they begin.
        signals: The signals that wake waiting readers, by event loop; None is the key for readers in threads.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self.readers = 0
        self.head: Cursor | None = None
        self.state: State = None
        self.recent: dict[Cursor, EventBatch] = {}
        self.signals: dict[asyncio.AbstractEventLoop | None, Any] = {}

    def share(self, batch: EventBatch) -> None:
        """Keep a batch for late readers, and move the head from the beginning of the batch to its end."""
        if self.head is not None and batch.events:
            if any(event.event == "changed" for event in batch.events):
                self.recent.clear()  # earlier batches may contain what was redacted
            self.recent.pop(self.head, None)
            self.recent[self.head] = batch
            if len(self.recent) > _RECENT:
                del self.recent[next(iter(self.recent))]
        self.head = None if batch.is_over else batch.end


class Watcher:
    """The channels of all followed sessions, and the thread that polls."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._lock = threading.RLock()
        renew_lock_in_children(self)
        self._is_closed = False
        self.channels: dict[str, Channel] = {}
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self.channels.clear()
        self._thread: threading.Thread | None = None
        self._written, self._stopped = threading.Event(), threading.Event()
        self._news_at = self._delivery = 0.0

    def notify(self) -> None:
        """Poll soon, because this process has committed a write."""
        self._written.set()

    def join(self, key: str, batch: EventBatch, channel: Channel | None) -> Channel:
        """Return the channel of a session for a reader that has just read this batch.

        If the channel has no head and the batch ends at the newest event, the end of the batch becomes the head.
        """
        with self._lock:
            is_new = channel is None
            if channel is None:
                if self._process != os.getpid():  # a forked child has no thread
                    self._start()
                channel = self.channels[key] = self.channels.get(key) or Channel()
                channel.readers += 1
                self._news_at = monotonic()
                self._written.set()
            if self._is_closed:
                return channel
            if channel.head is None and batch.state is not None:
                channel.head, channel.state = batch.end, batch.state
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="lango_store_watcher", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if is_new:
                        self.leave(key, channel)
                    raise DatabaseUnavailable(
                        f"the thread that follows sessions was not started: {error}; try again with fewer threads"
                    ) from error
                self._thread = thread
            return channel

    def leave(self, key: str, channel: Channel) -> None:
        """Remove a reader from a channel."""
        with self._lock:
            channel.readers -= 1
            if not channel.readers and self.channels.get(key) is channel:
                del self.channels[key]
                self._written.set()

    def next(
        self, channel: Channel, after: Cursor, loop: asyncio.AbstractEventLoop | None
    ) -> tuple[Any, EventBatch | None]:
        """Return the signal for the next new events, and the batch after a cursor.

        The batch is empty at the head, and None if the reader has to read it from the database.
        """
        with self._lock:
            if loop not in channel.signals:
                channel.signals[loop] = threading.Event() if loop is None else asyncio.Event()
            batch = EventBatch([], after, channel.state) if channel.head == after else channel.recent.get(after)
            return channel.signals[loop], batch

    def interrupt(self) -> None:
        """Wake all readers, so that each reads from the database and notices if it has to end."""
        with self._lock:
            for channel in self.channels.values():
                channel.head = None
                channel.recent.clear()
                self._wake(channel)

    def close(self) -> None:
        """End the waits of all readers, and stop the thread; wait up to 5 seconds for the thread."""
        with self._lock:
            self._is_closed, thread = True, self._thread
            self.interrupt()
            self._stopped.set()
            self._written.set()
        if thread is not None and self._process == os.getpid():
            thread.join(_CLOSE_TIMEOUT)

    # The thread

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._is_closed or not self.channels:
                    self._thread = None
                    return
            least = min(max(_SHORTEST, self._delivery * _DELIVERY_SHARE), _LONGEST)
            pause = min(max(least, (monotonic() - self._news_at) * _QUIET_SHARE), _LONGEST)
            self._written.clear()
            try:
                self._poll()
            except LangoStoreError as error:
                pause = _LONGEST
                if not isinstance(error, DatabaseBusy | DatabaseUnavailable):
                    self.interrupt()  # readers whose session cannot be read get the same error, and leave
            except Exception:
                # Without the thread, all readers would wait forever, for example after an error of a listener.
                logger.exception("sessions could not be read for their followers; the next poll tries again")
                pause = _LONGEST
                self.interrupt()
            self._stopped.wait(least)
            self._written.wait(pause - least)

    def _poll(self) -> None:
        with self._lock:
            channels = dict(self.channels)
        is_shared = not is_listened_to(self._reads.engine)  # a listener may read the tenant from the context
        for keys in [[*channels]] if is_shared and channels else [[key] for key in channels]:
            states = channels[keys[0]].context.run(self._states, keys)
            for key in keys:
                if (state := states.get(key)) != channels[key].state:
                    channels[key].context.run(self._update, key, channels[key], state)

    def _states(self, keys: list[str]) -> dict[str, State]:
        with self._reads.single_read() as connection:
            return reading.states(connection, self._reads.moment(connection), keys)

    def _update(self, key: str, channel: Channel, state: State) -> None:
        """Share the new events of a session. After an error, the next poll tries again."""
        more = True
        while more and (head := channel.head) is not None:
            with self._reads.snapshot() as connection:
                batch = reading.read(connection, self._reads.moment(connection), key, head)
            with self._lock:
                if channel.head != head:
                    return
                channel.share(batch)
                if batch.events:
                    self._wake(channel)
            more = bool(batch.events) and batch.state is None and not batch.is_over
            if batch.events:
                self._news_at = monotonic()
            state = batch.state or state
        with self._lock:
            if channel.state and state and channel.state.user_id != state.user_id:
                channel.head = None  # readers of stores for one user have to look whether the session is still theirs
            channel.state = state
            if channel.head is None:
                self._wake(channel)

    def _wake(self, channel: Channel) -> None:
        """End the waits of the readers of a channel."""
        for loop, signal in channel.signals.items():
            if loop is None:
                signal.set()
            else:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._deliver, loop, signal)
        channel.signals = {}

    def _deliver(self, loop: asyncio.AbstractEventLoop, signal: asyncio.Event) -> None:
        """Wake the readers of a loop, and measure how long they take for the new events."""
        started = monotonic()

        def measure() -> None:
            self._delivery = monotonic() - started

        signal.set()
        loop.call_soon(measure)  # runs after the readers
