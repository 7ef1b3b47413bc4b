"""Listeners on the connection pools of our engines, for lost connections, forks, and deleted or replaced files.

An engine that the application created works without these listeners.
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

_IDLE_BEFORE_PING: Final = 30.0
_PING_TIMEOUT: Final = 10.0
_AUTOCOMMIT: Final = "lango_store_autocommit"
_LOOK_INTERVAL: Final = 1.0


# A connection for one statement


_taking = threading.local()


def take(engine: sa.Engine) -> PoolProxiedConnection:
    """Take a connection for one statement without a SQLAlchemy transaction; on our PostgreSQL engines in autocommit."""
    try:
        _taking.for_one_statement = True
        return engine.raw_connection()
    finally:
        _taking.for_one_statement = False


def is_listened_to(engine: sa.Engine) -> bool:
    """Return True if the application has listeners for connection checkouts or transactions of the engine.

    Such a listener may set the tenant for row-level security. Every statement must then run in a SQLAlchemy
    transaction.
    """
    if engine.dispatch.engine_connect:
        return True
    for listener in engine.dispatch.begin:
        if listener is not checkpoint:
            return True
    for listener in engine.pool.dispatch.checkout:  # noqa: SIM110 # runs at every call, and any() takes twice as long
        if listener is not checked_out:
            return True
    return False


def checkpoint(connection: sa.Connection) -> None:
    """Make a checkpoint of a SQLite file if one is due, before a transaction begins."""
    proxy = connection.connection
    if not proxy.in_transaction:
        checkpoints.make_if_due(proxy.dbapi_connection, proxy.info)


def begin_before_savepoint(connection: sa.Connection, _: str) -> None:
    """Begin a transaction on SQLite before its first savepoint, whose release would commit."""
    # The driver begins a transaction at the first INSERT, UPDATE or DELETE, but not at a SAVEPOINT.
    driver: Any = connection.connection.dbapi_connection
    if driver.isolation_level is not None and not driver.in_transaction:
        driver.execute("BEGIN")


def roll_back(driver: Any, _: ConnectionPoolEntry) -> None:
    """Roll back before closing: SQLite keeps a closed connection and its write lock while a cursor of it exists."""
    with suppress(Exception):  # a connection that cannot roll back can be closed
        driver.rollback()


def checked_out(driver: Any, entry: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    """Check that a PostgreSQL connection works, and switch autocommit on or off, as its next use needs."""
    for_one_statement, _taking.for_one_statement = getattr(_taking, "for_one_statement", False), False
    _reject_lost(driver, entry)
    # Switching autocommit is the slowest step here, so autocommit stays on after a single statement. It is switched
    # off when the connection is taken for a transaction, because autocommit would make a rollback impossible.
    if not for_one_statement:
        if entry.info.pop(_AUTOCOMMIT, False):
            driver.autocommit = False
    elif not driver.autocommit and not driver.pgconn.transaction_status:
        entry.info[_AUTOCOMMIT] = True
        driver.autocommit = True


def given_back(driver: Any, entry: ConnectionPoolEntry, state: PoolResetState) -> None:
    """Roll back an open transaction; unlike the default of the pool, do nothing if there is none."""
    if not state.terminate_only and not driver.closed and driver.pgconn.transaction_status:
        driver.rollback()
    entry.info["idle_since"] = time.monotonic()


def retire(engine: sa.Engine, proxy: PoolProxiedConnection) -> None:
    """Close this connection and all older connections of the pool, which would fail in the same way."""
    # SQLAlchemy does the same with a lost connection. Newer connections stay open.
    engine.pool._invalidate(proxy, _checkin=False)


def _reject_lost(driver: Any, entry: ConnectionPoolEntry) -> None:
    """If a connection is lost, raise the error that makes the pool reconnect."""
    # A server that went away leaves an end of file on the socket, which is read without a round trip. A network that
    # dropped the connection leaves nothing, so a connection that was idle for long is pinged.
    idle_since = entry.info.get("idle_since")
    if idle_since is None:
        return
    if driver.closed or _readable(driver.pgconn.socket):
        raise DisconnectionError("the server closed the connection")
    if time.monotonic() - idle_since > _IDLE_BEFORE_PING and not _answers(driver.pgconn):
        raise InvalidatePoolError(
            "the server does not answer"
        )  # the other connections of the pool would get no answer either


def _answers(server: Any) -> bool:
    """Send an empty query, which begins no transaction, and wait up to 10 seconds for the answer."""
    import psycopg  # already imported, because this is a connection of psycopg

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
    """The file of a SQLite database, which is checked while an engine has it open.

    A connection continues to write to the file that it opened, so an append to a deleted file would be lost. If another
    file has replaced it, a new connection would open that file together with the write-ahead log of the old one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = _identity(path)
        self._fault: str | None = None
        self._next_look = time.monotonic() + _LOOK_INTERVAL

    def check(self) -> None:
        """Check the file at most once per second; after the first fault, always raise `DatabaseUnavailable`."""
        if self._fault is not None or time.monotonic() >= self._next_look:
            self.look()

    def look(self) -> None:
        """Check the file now; raise `DatabaseUnavailable` if it is or was deleted or replaced."""
        if self._fault is None:
            self._next_look = time.monotonic() + _LOOK_INTERVAL
            try:
                status = os.stat(self._path)  # noqa: PTH116 # runs at every write, and Path takes twice as long
            except OSError:
                status = None
            if status is not None and (status.st_dev, status.st_ino) == self._identity:
                return
            change = "deleted or moved" if status is None else "replaced"
            self._fault = (
                f"{self._path} was {change} while a store had it open; nothing was read or written. Stop all processes "
                "that have it open, restore the right file without old -wal and -shm files, and create a new Store"
            )
        raise DatabaseUnavailable(self._fault)


def watch_file(engine: sa.Engine, path: str) -> DatabaseFile:
    """Make an engine check its database file before each new connection; return the `DatabaseFile`."""
    _reject_open_at_fork(Path(path))
    file = _files.get(engine)
    if file is None:
        file = _files[engine] = DatabaseFile(path)
        # Inserted before the engine's listener, which creates a missing file.
        event.listen(engine, "do_connect", lambda *_: file.look(), insert=True)
        # Our own engines already do both of the following, but engines of the application do not.
        separate_in_children(engine, Path(path))
        if not engine.dialect.is_async and not event.contains(engine, "close", roll_back):
            event.listen(engine, "close", roll_back)
    return file


_files: weakref.WeakKeyDictionary[sa.Engine, DatabaseFile] = weakref.WeakKeyDictionary()


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Forks


_engines: weakref.WeakKeyDictionary[sa.Engine, Path | None] = weakref.WeakKeyDictionary()
_lock_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_open_at_fork: set[tuple[int, int]] = set()


def separate_in_children(engine: sa.Engine, file: Path | None) -> None:
    """Make forked children open new connections, or refuse a SQLite file that was in use during the fork."""
    if engine not in _engines:
        _engines[engine] = file
        if file is not None:
            event.listen(engine, "do_connect", lambda *_: _reject_open_at_fork(file), insert=True)


def renew_lock_in_children(owner: Any) -> None:
    """Replace the `_lock` of an object in forked children, because another thread of the parent may hold it."""
    _lock_owners.add(owner)


def _reject_open_at_fork(file: Path) -> None:
    if _identity(file) in _open_at_fork:
        raise DatabaseUnavailable(
            f"this process was forked while its parent used {file}, and SQLite would confuse their locks; nothing "
            "was read or written. Fork before the first call, or while no call runs, or start processes with spawn"
        )


def _close_idle() -> None:
    """Before a fork, close idle connections to SQLite files, because a child would inherit SQLite's table of locks."""
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
                record.close()  # the record reconnects at its next use
            finally:
                pool._do_return_conn(record)


def _separate() -> None:
    """In a forked child, create new pools and locks; never use or close the connections of the parent."""
    for engine, file in list(_engines.items()):
        pool: Any = engine.pool
        if file is not None and isinstance(pool, QueuePool) and not engine.dialect.is_async:
            pool._pool.mutex = threading.RLock()  # type: ignore[attr-defined] # another thread may have held it, and checkedout() needs it
            if pool.checkedout() and (identity := _identity(file)):
                _open_at_fork.add(identity)  # a thread had the file open, or was about to open it
        # Closing a connection would close the parent's session on the server, or write the parent's log into the file.
        # The extra reference keeps the connections alive even when the interpreter clears all modules at its end.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        engine.dispose(close=False)
    _open_at_fork.update(_open_files())  # including files of engines that no store has used yet
    for owner in list(_lock_owners):
        owner._lock = threading.RLock()


def _open_files() -> Iterator[tuple[int, int]]:
    folder = Path("/dev/fd")  # exists on Linux, macOS and BSD
    for descriptor in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            status = os.fstat(int(descriptor.name))
            yield status.st_dev, status.st_ino


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_idle, after_in_child=_separate)
