"""One thread per store asks the database for news of all followed sessions, and shares new events with their readers.

The thread runs while a reader waits. It asks for the states of all sessions with one statement, and reads the new
events of a session once. A reader takes the batch that begins at its cursor. If there is none, because the reader is
new or late, it reads from the database until it reaches the head, the cursor of the other readers. The next batch of a
reader depends on its cursor alone, so the reader gets each event once.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from time import monotonic
from typing import Any, Final, Protocol

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment, dialect_of
from lango_store._engine.pool import is_listened_to, renew_lock_in_children
from lango_store._operations import tailing
from lango_store._operations.tailing import Batch, Cursor, State
from lango_store._values.events import Changed
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError

_SHORTEST: Final = 0.02
_LONGEST: Final = 1.0
_PER_READER: Final = 0.0002
"""Seconds between polls for each reader. A delivery takes a twentieth of it, so that writers get the processor."""

_QUIET_SHARE: Final = 0.01
"""The pause between polls, as a share of the time since the last event: 20 ms for 2 s, 100 ms after 10 s."""

_CLOSE_TIMEOUT: Final = 5.0
"""Seconds in which `close` waits for the last poll, whose server may not answer."""

_RECENT: Final = 8
"""The number of batches for late readers of a session."""


class Reads(Protocol):
    """Opens connections of an engine that read from the primary, without retries."""

    engine: sa.Engine

    def single_read(self) -> AbstractContextManager[AnyConnection]:
        """Open a connection for single reads."""

    def snapshot(self) -> AbstractContextManager[sa.Connection]:
        """Open a connection for several reads of one snapshot."""

    def moment(self, connection: AnyConnection) -> Moment:
        """Return the current time for one statement."""


class Channel:
    """The state that the readers of one session share.

    Attributes:
        readers: The number of readers.
        head: The cursor up to which events were shared; None if each reader has to read from the database.
        state: The state of the session at the head.
        recent: The latest batches by the cursor at which they begin.
        signals: The events that end the waits of readers, by event loop; that of readers in threads by None.
        context: The context of the first reader, in which the session is read: a listener of the engine may take the
            tenant from it.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self.readers = 0
        self.head: Cursor | None = None
        self.state: State | None = None
        self.recent: dict[Cursor, Batch] = {}
        self.signals: dict[asyncio.AbstractEventLoop | None, Any] = {}

    def share(self, batch: Batch) -> None:
        """Move the head to the end of a batch that begins there, and wake the readers."""
        if self.head is not None and batch.events:
            if any(isinstance(event, Changed) for event in batch.events):
                self.recent.clear()  # earlier batches may contain what was redacted
            self.recent.pop(self.head, None)
            self.recent[self.head] = batch
            if len(self.recent) > _RECENT:
                del self.recent[next(iter(self.recent))]
            self.wake()
        self.head = None if batch.has_ended else batch.end

    def release_readers(self) -> None:
        """Make each reader read from the database, where it gets its own error."""
        self.head = None
        self.recent.clear()
        self.wake()

    def wake(self) -> None:
        """End the current waits."""
        signals, self.signals = self.signals, {}
        for loop, signal in signals.items():
            if loop is None:
                signal.set()
            else:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(signal.set)


class Watcher:
    """The channels of all followed sessions, and the thread that polls."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._lock = threading.RLock()
        renew_lock_in_children(self)
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._channels: dict[str, Channel] = {}
        self._thread: threading.Thread | None = None
        self._written, self._stopped = threading.Event(), threading.Event()
        self._mark: Any = None
        self._polled_at = self._news_at = 0.0

    def notify(self) -> None:
        """Poll now: this process has committed a write."""
        if self._channels:
            self._written.set()

    def join(self, key: str, batch: Batch) -> Channel:
        """Return the channel of a session for a reader that has read up to its end with this batch."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has no thread
                self._start()
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = Channel()
            channel.readers += 1
            self.move_head(channel, batch)
            self._news_at = monotonic()
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="lango_store_watcher", daemon=True)
                self._thread.start()
            self._written.set()
            return channel

    def move_head(self, channel: Channel, batch: Batch) -> None:
        """Use the cursor of a reader as the head of a channel that has none."""
        with self._lock:
            if channel.head is None and batch.state is not None and not self._is_closed:
                channel.head, channel.state = batch.end, batch.state

    def leave(self, key: str, channel: Channel) -> None:
        """Remove a reader from a channel."""
        with self._lock:
            channel.readers -= 1
            if not channel.readers and self._channels.get(key) is channel:
                del self._channels[key]
                self._written.set()

    def next_batch(self, channel: Channel, after: Cursor) -> Batch | None:
        """Return the batch after a cursor, empty at the head; None if the reader has to read it."""
        with self._lock:
            return Batch([], after, channel.state) if channel.head == after else channel.recent.get(after)

    def signal(self, channel: Channel, loop: asyncio.AbstractEventLoop | None) -> Any:
        """Return the event that the next news of a channel sets. Take it before you look for a batch."""
        with self._lock:
            if loop not in channel.signals:
                channel.signals[loop] = threading.Event() if loop is None else asyncio.Event()
            return channel.signals[loop]

    def interrupt(self) -> None:
        """Make all readers read from the database, because they may have to end."""
        with self._lock:
            for channel in self._channels.values():
                channel.release_readers()

    def close(self) -> None:
        """End the thread and the waits of all readers."""
        with self._lock:
            self._is_closed, thread = True, self._thread
            self.interrupt()
            self._stopped.set()
            self._written.set()
        if thread is not None and self._process == os.getpid():
            thread.join(_CLOSE_TIMEOUT)

    # The thread

    def _run(self) -> None:
        while (pauses := self._pauses()) is not None:
            least, longest = pauses
            self._written.clear()
            try:
                self._poll()
            except (DatabaseBusy, DatabaseUnavailable):
                self._mark, longest = None, _LONGEST
            except LangoStoreError:  # nothing can be read
                self._mark = None
                self.interrupt()
            self._stopped.wait(least)
            self._written.wait(longest - least)

    def _pauses(self) -> tuple[float, float] | None:
        """Return the least and the longest pause until the next poll; None if the thread has to end."""
        with self._lock:
            if self._is_closed or not self._channels:
                self._thread = None
                return None
            readers = sum(channel.readers for channel in self._channels.values())
        least = min(max(_SHORTEST, readers * _PER_READER), _LONGEST)
        return least, min(max(least, (monotonic() - self._news_at) * _QUIET_SHARE), _LONGEST)

    def _poll(self) -> None:
        with self._lock:
            channels = dict(self._channels)
        is_shared = not is_listened_to(self._reads.engine)  # a listener may read the tenant from the context
        for keys in [[*channels]] if is_shared and channels else [[key] for key in channels]:
            states = channels[keys[0]].context.run(self._states, keys, may_skip=is_shared)
            if states is None:
                continue
            for key in keys:
                if (state := states.get(key)) != channels[key].state:
                    channels[key].context.run(self._update, key, channels[key], state)

    def _states(self, keys: list[str], *, may_skip: bool) -> Mapping[str, State] | None:
        """Return the states of sessions; None if nothing in the database has changed."""
        with self._reads.single_read() as connection:
            mark = dialect_of(connection).change_mark(connection) if may_skip else None
            is_recent = monotonic() - self._polled_at < _LONGEST  # time passes, and sessions expire
            if mark is not None and mark == self._mark and is_recent:
                return None
            states = tailing.states(connection, self._reads.moment(connection), keys)
        self._mark, self._polled_at = mark, monotonic()
        return states

    def _update(self, key: str, channel: Channel, state: State | None) -> None:
        """Share the new events of a session. After an error of the database, the next poll tries again."""
        while True:
            head = channel.head
            batch = None if head is None else self._read(key, head)
            with self._lock:
                if channel.head != head:
                    return
                if batch is None:
                    channel.release_readers()
                    channel.state = state
                    return
                channel.share(batch)
                if batch.events:
                    self._news_at = monotonic()
                if batch.state is not None or batch.has_ended or not batch.events:
                    channel.state = batch.state or state
                    return

    def _read(self, key: str, after: Cursor) -> Batch | None:
        """Read the next batch of a session; None if the readers have to meet the error themselves."""
        try:
            with self._reads.snapshot() as connection:
                return tailing.read(connection, self._reads.moment(connection), key, after)
        except (DatabaseBusy, DatabaseUnavailable):
            raise
        except LangoStoreError:
            return None
