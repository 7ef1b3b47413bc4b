"""What SQLAlchemy's pool has to know of our connections: that they work, whose they are, and which file they are of.

Our engines have listeners here; an engine that a host made has none of them, and is served all the same.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolProxiedConnection, PoolResetState

BEGIN_OPTION: Final = "lango_store_begin"
"""The execution option that says how our SQLite engines begin: IMMEDIATE (the default) or DEFERRED."""

_IDLE_BEFORE_PING: Final = 30.0
_PING_TIMEOUT: Final = 10.0
_AUTOCOMMIT: Final = "lango_store_autocommit"
_WAL: Final = "lango_store_wal"


# A connection for one statement


class _Taking(threading.local):
    for_one_statement = False


_taking = _Taking()


def take(engine: sa.Engine) -> PoolProxiedConnection:
    """Return a connection for one statement; on PostgreSQL one of our engines has it in autocommit then."""
    try:
        _taking.for_one_statement = True
        return engine.raw_connection()
    finally:
        _taking.for_one_statement = False


def is_listened_to(engine: sa.Engine) -> bool:
    """Whether anybody else listens for connections that are taken, or for transactions that begin.

    A host sets there what its policies for rows look at: every statement then runs in a transaction that SQLAlchemy
    begins. Listeners are compared, not counted.
    """
    told = engine.dispatch
    if told.engine_connect:
        return True
    for listener in told.begin:
        if listener is not begin_sqlite:
            return True
    for listener in engine.pool.dispatch.checkout:  # noqa: SIM110 # at every call, where any() would cost twice as much
        if listener is not checked_out:
            return True
    return False


def begin_sqlite(connection: sa.Connection) -> None:
    """Begin a transaction: the driver begins nothing (isolation_level None)."""
    # A deferred transaction that reads and then writes fails under concurrency without waiting, so that taking the
    # write lock first is the default.
    if not connection.connection.in_transaction:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(BEGIN_OPTION, 'IMMEDIATE')}")


def checked_out(driver: Any, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    """Check that a connection to PostgreSQL works, and let its driver begin transactions or not."""
    for_one_statement, _taking.for_one_statement = _taking.for_one_statement, False
    _refuse_lost(driver, entry)
    # To switch takes the driver longer than anything else here: autocommit stays on from one single statement to the
    # next, until somebody else takes the connection, whose transaction could not be rolled back.
    if not for_one_statement:
        if entry.info.pop(_AUTOCOMMIT, False):
            driver.autocommit = False
    elif not driver.autocommit and not driver.pgconn.transaction_status:
        entry.info[_AUTOCOMMIT] = True
        driver.autocommit = True


def given_back(driver: Any, entry: ConnectionPoolEntry, state: PoolResetState) -> None:
    """Roll back what was begun; the pool's own way asks the driver whether or not there is a transaction."""
    if not state.terminate_only and not driver.closed and driver.pgconn.transaction_status:
        driver.rollback()
    entry.info["idle_since"] = time.monotonic()


def retire(engine: sa.Engine, proxy: PoolProxiedConnection) -> None:
    """Lend neither this connection again nor any that was made before it: what it met, its siblings will meet."""
    # As SQLAlchemy does with a connection that was lost. One made since an earlier call stays.
    engine.pool._invalidate(proxy, _checkin=False)


def _refuse_lost(driver: Any, entry: ConnectionPoolEntry) -> None:
    """Raise what makes the pool connect anew if a connection is lost."""
    # A server that went away leaves an end of file on the socket: looking there costs no round trip. A network that
    # dropped the connection leaves nothing, so that a long idle one is asked.
    idle_since = entry.info.get("idle_since")
    if idle_since is None:
        return
    if driver.closed or _readable(driver.pgconn.socket):
        raise DisconnectionError("the server closed the connection")
    if time.monotonic() - idle_since > _IDLE_BEFORE_PING and not _answers(driver.pgconn):
        raise InvalidatePoolError("the server answers no more")  # its siblings would be waited for as long


def _answers(server: Any) -> bool:
    """Ask a server for nothing, which begins no transaction, and wait no longer than for a new connection."""
    import psycopg  # there already, since this is one of its connections

    try:
        server.send_query(b"")
        if not _readable(server.socket, _PING_TIMEOUT):
            return False
        while server.get_result() is not None:
            pass
    except psycopg.Error:
        return False
    return bool(server.status == psycopg.pq.ConnStatus.OK)


def _readable(descriptor: int, seconds: float = 0) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], seconds)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


# Files that go away


class DatabaseFile:
    """The file of a SQLite database, and whether its path still leads to it.

    A connection goes on with the file that it opened, whatever becomes of the path: what is appended would be
    acknowledged, and found by nobody.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity = _identity(path)

    def fault(self) -> str | None:
        """Return what became of the file; None if it is where it was."""
        found = _identity(self.path)
        if found == self._identity:
            return None
        if found is None:
            return f"{self.path} is gone, deleted or moved under a running store: nothing was done; put it back"
        return f"{self.path} was replaced under a running store: nothing was done; the next call opens the new file"

    @property
    def is_there(self) -> bool:
        """Whether there is a file at the path, this one or another."""
        return Path(self.path).exists()

    def wal_fault(self, info: MutableMapping[Any, Any]) -> str | None:
        """Return what became of the log that a connection (`info` is its entry's) writes to; None if it is there."""
        # It exists as long as a connection that read or wrote the file is open.
        found = _identity(f"{self.path}-wal")
        expected = info.get(_WAL)
        if found == expected:
            return None
        if expected is None:
            info[_WAL] = found
            return None
        return (
            f"{self.path}-wal was deleted or replaced under a running store, and what was appended last may be gone "
            "with it: nothing was done; the next call opens the file as it is, see `lango-store doctor`"
        )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (a Path costs more than the look)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Forks

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_inherited: list[Pool] = []


def start_anew_in_children(engine: sa.Engine) -> None:
    """Let a forked child have connections of its own."""
    _engines.add(engine)


def _forget_inherited() -> None:
    """In a forked child, start new pools; the parent's connections are neither used nor closed here."""
    for engine in list(_engines):
        _inherited.append(engine.pool)  # closing what the parent uses would take the parent's locks and session away
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
