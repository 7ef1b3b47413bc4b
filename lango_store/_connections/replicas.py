"""A replica answers a read only after it has replayed every write of this store; otherwise the primary answers."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from time import monotonic, sleep
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from lango_store._connections.providers import Pooled
from lango_store._dialect import AnyConnection, TransientReason
from lango_store._dialect.postgresql import replay_position, write_position
from lango_store._engine.pool import renew_lock_in_children
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError, SchemaOutOfDate, quoted

C = TypeVar("C", bound=AnyConnection)

_CATCH_UP_TIMEOUT: Final = 0.1
_PAUSE: Final = 0.005
_REPLICA_COOLDOWN: Final = 5.0


class ReplicaLost(DatabaseUnavailable):
    """The connection to a replica was lost, or the replica cancelled a read; a retry reads from the primary."""


class _ReplicaBehind(Exception):
    """A replica has not replayed the required position yet."""


class LastWrite:
    """The write position of the primary after the last write of a store, if it is known."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._writes = 0
        self._noted = 0
        self.position = 0
        renew_lock_in_children(self)

    @property
    def is_known(self) -> bool:
        """True if the position includes every write that was counted."""
        return self._noted == self._writes

    def count(self) -> int:
        """Count a committed write and return its number; call this before querying its position."""
        with self._lock:
            self._writes += 1
            return self._writes

    def note(self, number: int, position: int) -> None:
        """Store a position of the primary that includes the write with this number and all earlier ones."""
        with self._lock:
            self._noted = max(self._noted, number)
            self.position = max(self.position, position)


class Replicated:
    """Opens connections to the primary, and to the replica for reads with `allow_replica`."""

    def __init__(self, primary: Pooled, replica: Pooled, last_write: LastWrite | None = None, least: int = 0) -> None:
        self._primary = primary
        self._replica = replica
        self._last_write = LastWrite() if last_write is None else last_write
        self._least = least
        self._replayed: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._waits = True
        self._unavailable_until = 0.0

    def at(self, position: int) -> Replicated:
        """Return a provider with the same engines for reads that must include all writes up to a position."""
        return Replicated(self._primary, self._replica, self._last_write, max(self._least, position))

    def single(self, *, writes: bool, allow_replica: bool = False) -> AbstractContextManager[AnyConnection]:
        """Open a connection for reads that need no snapshot, or for one write."""
        if writes:
            return self._recording_position(self._primary.single(writes=True))
        if not allow_replica:
            return self._primary.single(writes=False)
        return self._open(self._primary.single(writes=False), self._checked_single())

    def snapshot(self, *, allow_replica: bool = False) -> AbstractContextManager[sa.Connection]:
        """Open a connection for several reads of one snapshot."""
        if not allow_replica:
            return self._primary.snapshot()
        return self._open(self._primary.snapshot(), self._replica.snapshot(before=self._reject_behind))

    def transaction(self, *, synced: bool = True) -> AbstractContextManager[sa.Connection]:
        """Open a connection whose writes are committed or undone together."""
        return self._recording_position(self._primary.transaction(synced=synced))

    # Writes

    @contextmanager
    def _recording_position(self, opened: AbstractContextManager[C]) -> Iterator[C]:
        with opened as connection:
            yield connection
        number = self._last_write.count()
        try:
            with self._primary.single(writes=False) as connection:
                position = write_position(connection)
        except LangoStoreError:
            return  # the write is committed; reads use the primary until the position of a later write is known
        self._last_write.note(number, position)

    # Reads

    @contextmanager
    def _open(self, primary: AbstractContextManager[C], replica: AbstractContextManager[C]) -> Iterator[C]:
        connection: C | None = None
        try:
            with ExitStack() as stack:
                connection = self._from_replica(stack, replica)
                yield stack.enter_context(primary) if connection is None else connection
        except (DatabaseUnavailable, DatabaseBusy) as error:
            cause = error.driver_error
            reason = None if cause is None else self._replica.dialect.transient_reason(cause)
            if connection is None or reason not in (TransientReason.LOST, TransientReason.ROLLED_BACK):
                raise
            self._unavailable_until = monotonic() + _REPLICA_COOLDOWN
            raise ReplicaLost(str(error)) from error

    def _from_replica(self, stack: ExitStack, replica: AbstractContextManager[C]) -> C | None:
        if not self._last_write.is_known or monotonic() < self._unavailable_until:
            return None
        try:
            return stack.enter_context(replica)
        except _ReplicaBehind:
            return None
        except (DatabaseUnavailable, DatabaseBusy, SchemaOutOfDate):
            self._unavailable_until = monotonic() + _REPLICA_COOLDOWN
            return None

    @contextmanager
    def _checked_single(self) -> Iterator[AnyConnection]:
        with self._replica.single(writes=False) as connection:
            self._reject_behind(connection)
            yield connection

    def _reject_behind(self, connection: AnyConnection) -> None:
        """Raise `_ReplicaBehind` if a replica has not replayed a required write.

        Waits briefly for the replica first, unless the previous wait timed out.
        """
        needed = max(self._least, self._last_write.position)
        driver = getattr(connection.connection, "dbapi_connection", connection.connection)
        if self._replayed.get(driver, 0) >= needed:
            return
        deadline = monotonic() + _CATCH_UP_TIMEOUT
        while (position := replay_position(connection)) < needed:
            if not self._waits or monotonic() > deadline:
                self._waits = False
                raise _ReplicaBehind
            sleep(_PAUSE)
        self._replayed[driver] = position
        self._waits = True


def position_of(text: str) -> int:
    """Parse a position that `Store.position` returned; raise ValueError for any other text."""
    if not isinstance(text, str):
        raise TypeError(f"position is {type(text).__name__}: pass the result of position()")
    if not re.fullmatch(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}", text):
        raise ValueError(f"position={quoted(text)} is not a write position: pass the result of position()")
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def text_of(position: int) -> str:
    """Format a position as PostgreSQL does, such as `0/16B3748`."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
