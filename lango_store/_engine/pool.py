"""Listeners on the connection pools of our engines: lost connections, forked processes, deleted or replaced files.

An engine that a host has made works without these listeners.
"""

import ctypes
import os
import select
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, PoolResetState, QueuePool
from sqlalchemy.util.queue import Empty

from lango_store._engine import checkpoints
from lango_store.errors import DatabaseUnavailable

BEGIN_OPTION: Final = "lango_store_begin"
"""The execution option that says how our SQLite engines begin: IMMEDIATE (the default) or DEFERRED."""

_IDLE_BEFORE_PING: Final = 30.0
_PING_TIMEOUT: Final = 10.0
_AUTOCOMMIT: Final = "lango_store_autocommit"
_LOOK_INTERVAL: Final = 1.0


# A connection for one statement


_taking = threading.local()


def take(engine: sa.Engine) -> PoolProxiedConnection:
    """Take a connection without a transaction of SQLAlchemy; in autocommit, if it is PostgreSQL's and of our engine."""
    try:
        _taking.for_one_statement = True
        return engine.raw_connection()
    finally:
        _taking.for_one_statement = False


def is_listened_to(engine: sa.Engine) -> bool:
    """Return whether a host listens for checkouts of connections or for transactions.

    Such a listener may set what the policies for rows read: every statement then runs in a transaction of SQLAlchemy.
    """
    if engine.dispatch.engine_connect:
        return True
    for listener in engine.dispatch.begin:
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
    proxy = connection.connection
    if not proxy.in_transaction:
        checkpoints.make_if_due(proxy.dbapi_connection, proxy.info)
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(BEGIN_OPTION, 'IMMEDIATE')}")


def roll_back(driver: Any, _: ConnectionPoolEntry) -> None:
    """Roll back before a connection is closed: SQLite keeps it, and the write lock, as long as one of its cursors."""
    with suppress(Exception):  # a connection that cannot roll back can be closed
        driver.rollback()


def checked_out(driver: Any, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    """Check that a connection to PostgreSQL works, and let its driver begin transactions or not."""
    for_one_statement, _taking.for_one_statement = getattr(_taking, "for_one_statement", False), False
    _reject_lost(driver, entry)
    # Switching takes the driver longer than anything else here: autocommit stays on from one single statement to the
    # next, until the connection is taken for a transaction, which could not be rolled back.
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
    """Close this connection and all that were made before it, since they would meet the same error."""
    # SQLAlchemy does the same with a lost connection. Connections that were made later are kept.
    engine.pool._invalidate(proxy, _checkin=False)


def _reject_lost(driver: Any, entry: ConnectionPoolEntry) -> None:
    """Raise an error that makes the pool reconnect if a connection is lost."""
    # A server that went away leaves an end of file on the socket, which is read without a round trip. A network that
    # dropped the connection leaves nothing, so a connection that was idle for long is pinged.
    idle_since = entry.info.get("idle_since")
    if idle_since is None:
        return
    if driver.closed or _readable(driver.pgconn.socket):
        raise DisconnectionError("the server closed the connection")
    if time.monotonic() - idle_since > _IDLE_BEFORE_PING and not _answers(driver.pgconn):
        raise InvalidatePoolError("the server does not answer")  # the others would not be answered either


def _answers(server: Any) -> bool:
    """Send an empty query, which begins no transaction, and wait no longer than for a new connection."""
    import psycopg  # loaded already, since this is one of its connections

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


# Files that are deleted or replaced


class DatabaseFile:
    """The file of a SQLite database, checked while an engine has it open.

    A connection keeps writing to the file that it opened: an append to a deleted file would be acknowledged and lost.
    A new connection would open the file that has taken its place, with the log of the old one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = _identity(path)
        self._fault: str | None = None
        self._next_look = time.monotonic() + _LOOK_INTERVAL

    def check(self) -> None:
        """Look at the file at most once a second; `DatabaseUnavailable` from the first fault on."""
        if self._fault is not None or time.monotonic() >= self._next_look:
            self.look()

    def look(self) -> None:
        """Raise `DatabaseUnavailable` if the file was ever found to be deleted or replaced."""
        if self._fault is None:
            self._next_look = time.monotonic() + _LOOK_INTERVAL
            identity = _identity(self._path)
            if identity == self._identity:
                return
            change = "deleted or moved" if identity is None else "replaced"
            self._fault = (
                f"{self._path} was {change} while a store had it open: nothing was done; stop all processes that "
                "have it open, put back the file that belongs here without an older -wal and -shm, and make a new Store"
            )
        raise DatabaseUnavailable(self._fault)


def watch_file(engine: sa.Engine, path: str) -> DatabaseFile:
    """Return the file of an engine's database, which is checked before each new connection."""
    _reject_open_at_fork(Path(path))
    file = _files.get(engine)
    if file is None:
        file = _files[engine] = DatabaseFile(path)
        # Before the engine's listener, which creates a file that does not exist.
        event.listen(engine, "do_connect", lambda *_: file.look(), insert=True)
        # These two are listeners of our engines already, but not of a host's.
        separate_in_children(engine, Path(path))
        if not engine.dialect.is_async and not event.contains(engine, "close", roll_back):
            event.listen(engine, "close", roll_back)
    return file


_files: weakref.WeakKeyDictionary[sa.Engine, DatabaseFile] = weakref.WeakKeyDictionary()


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 # at every write, where Path takes twice as long
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Forks


_engines: weakref.WeakKeyDictionary[sa.Engine, Path | None] = weakref.WeakKeyDictionary()
_lock_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_open_at_fork: set[tuple[int, int]] = set()


def separate_in_children(engine: sa.Engine, file: Path | None) -> None:
    """Open separate connections in a forked child, unless the file of a SQLite database was in use during the fork."""
    if engine not in _engines:
        _engines[engine] = file
        if file is not None:
            event.listen(engine, "do_connect", lambda *_: _reject_open_at_fork(file), insert=True)


def renew_lock_in_children(owner: Any) -> None:
    """Give an object a new `_lock` in a forked child: another thread of the parent may have held the old one."""
    _lock_owners.add(owner)


def _reject_open_at_fork(file: Path) -> None:
    if _identity(file) in _open_at_fork:
        raise DatabaseUnavailable(
            f"this process was forked while its parent used {file}, and SQLite would take the parent's locks for its "
            "own: nothing was done; fork before the first call, or while no call runs, or start processes with spawn"
        )


def _close_idle() -> None:
    """Before a fork, close idle connections to SQLite files: a child would inherit SQLite's table of their locks."""
    for engine, file in list(_engines.items()):
        pool = engine.pool
        if file is None or not isinstance(pool, QueuePool) or engine.dialect.is_async:
            continue
        for _ in range(pool.checkedin()):
            try:
                record = pool._pool.get(block=False)
            except Empty:
                break  # another thread took it
            try:
                record.close()  # it connects again at its next use
            finally:
                pool._do_return_conn(record)


def _separate() -> None:
    """In a forked child, start new pools and locks; the parent's connections are neither used nor closed here."""
    for engine, file in list(_engines.items()):
        pool: Any = engine.pool
        if file is not None and isinstance(pool, QueuePool) and not engine.dialect.is_async:
            pool._pool.mutex = threading.RLock()  # type: ignore[attr-defined] # for checkedout(): it may have been held
            if pool.checkedout() and (identity := _identity(file)):
                _open_at_fork.add(identity)  # or another thread was about to open it
        # Closing a connection would close the parent's session, or write the parent's log into the file. One reference
        # too many, since the end of the interpreter clears every module.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        engine.dispose(close=False)
    _open_at_fork.update(_open_files())  # also those of engines that no store has used yet
    for owner in list(_lock_owners):
        owner._lock = threading.RLock()


def _open_files() -> Iterator[tuple[int, int]]:
    folder = Path("/dev/fd")  # of Linux, macOS and BSD
    for descriptor in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            status = os.fstat(int(descriptor.name))
            yield status.st_dev, status.st_ino


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_idle, after_in_child=_separate)
