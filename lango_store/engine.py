"""From a URL to an engine with the settings we rely on, and what becomes of it in a forked child."""

from __future__ import annotations

import os
import select
import sqlite3
import time
import weakref
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolResetState, QueuePool

Durability = Literal["full", "normal"]

BEGIN_OPTION: Final = "lango_store_begin"
"""The execution option that says how our SQLite engines begin: IMMEDIATE (the default) or DEFERRED."""

_TIMEOUT: Final = 30.0
# A connection above the pool's size would be made and closed every time; the one used last has its statements prepared.
_POOL: Final = {"pool_size": 16, "max_overflow": 0, "pool_use_lifo": True}
_IDLE_BEFORE_PING: Final = 30.0
_LENT: Final = "lango_store_lent"


def create_engine(url: str | sa.URL, *, durability: Durability = "full", **options: Any) -> sa.Engine:
    """Make an engine with our settings, to share between a `Store` and your own queries.

    URLs: `sqlite:///file`, `sqlite://` (memory, one database for all threads), `postgresql://`, `postgres://`,
    `postgresql+psycopg://`; on PostgreSQL `?prepare_threshold=none` (or a number) in the URL is psycopg's setting.
    `durability="normal"` gives up SQLite's fsync per commit; on PostgreSQL the server decides. `options` go to
    SQLAlchemy's create_engine. Connects to nothing. ValueError for other databases.
    """
    try:
        parsed = sa.make_url("postgresql" + url[8:] if isinstance(url, str) and url.startswith("postgres:") else url)
    except sa.exc.ArgumentError:  # its text would show the password
        raise ValueError("that is no database URL: give sqlite:///file or postgresql://user@host/database") from None
    if "@" in (parsed.host or ""):  # an error of the server's name would show the password
        raise ValueError("the URL has an unquoted @ in its user or password: write %40")
    make = {"sqlite": _sqlite, "postgresql": _postgresql}.get(parsed.get_backend_name())
    if make is None or ("+" in parsed.drivername and parsed.get_driver_name() not in ("pysqlite", "psycopg")):
        raise ValueError(
            f"{parsed.drivername!r} is not supported: give sqlite:///file, sqlite:// or postgresql://user@host/database"
        )
    engine = make(parsed, durability, options)
    if not _in_memory(parsed):  # the child's copy of a database in memory is whole, and a new pool would lose it
        _engines.add(engine)
    return engine


def _in_memory(url: sa.URL) -> bool:
    in_memory = url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
    return in_memory and url.get_backend_name() == "sqlite"


class LendingPool(QueuePool):
    """A pool that also lends for a single statement, without all that SQLAlchemy puts around a connection.

    That would cost an append an eighth of its processor's time, which threads of one interpreter wait for. Whoever
    listens to check-outs, check-ins or resets keeps being told: then `lends` says no.
    """

    own_listeners = 0
    """How many such listeners are ours, which `lend` and `take_back` do without."""

    @property
    def lends(self) -> bool:
        """Whether nobody but us listens."""
        told = self.dispatch
        return len(told.checkout) + len(told.checkin) + len(told.reset) == self.own_listeners

    def lend(self) -> ConnectionPoolEntry:
        """Give an entry with a connection that works, to be taken back soon."""
        entry: Any = self._do_get()
        try:
            entry.get_connection()
            while not self._usable(entry):
                entry.invalidate()
                entry.get_connection()
        except BaseException:
            self._do_return_conn(entry)
            raise
        lent: ConnectionPoolEntry = entry
        return lent

    def take_back(self, entry: ConnectionPoolEntry, *, broken: bool) -> None:
        """Take an entry back; a broken one gets a new connection before it is lent again."""
        try:
            if broken:
                entry.invalidate()
        finally:
            entry.info["idle_since"] = time.monotonic()
            self._do_return_conn(entry)

    def _usable(self, entry: ConnectionPoolEntry) -> bool:
        return True


# SQLite


def _sqlite(url: sa.URL, durability: Durability, options: dict[str, Any]) -> sa.Engine:
    in_memory = _in_memory(url)
    connect_args = {"timeout": _TIMEOUT, "isolation_level": None, "check_same_thread": False}
    options["connect_args"] = connect_args | options.get("connect_args", {})
    if in_memory:  # one connection is one database: threads take turns
        options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    elif "poolclass" not in options:
        options = _POOL | {"poolclass": LendingPool} | options
    engine = sa.create_engine(url, **options)

    @event.listens_for(engine, "connect")
    def settings(driver: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        driver.execute("PRAGMA foreign_keys = ON")
        driver.execute(f"PRAGMA synchronous = {'NORMAL' if durability == 'normal' else 'FULL'}")
        if not in_memory:
            _ensure_wal(driver)

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # The driver begins nothing (isolation_level None). A deferred transaction that reads and then writes fails
        # under concurrency without waiting, so that taking the write lock first is the default.
        if not connection.connection.in_transaction:
            connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(BEGIN_OPTION, 'IMMEDIATE')}")

    return engine


def _ensure_wal(driver: sqlite3.Connection) -> None:
    """Switch a file to WAL, once: look first, and try again, since the switch ignores the timeout."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            if driver.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                driver.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY:
                return  # a file to read from: its journal mode is its owner's affair
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


# PostgreSQL


def _postgresql(url: sa.URL, durability: Durability, options: dict[str, Any]) -> sa.Engine:
    connect_args = dict(options.get("connect_args", {}))
    threshold = url.query.get("prepare_threshold")
    if threshold is not None:  # in the URL it would reach the driver as text, and break every statement
        connect_args["prepare_threshold"] = _prepare_threshold(threshold)
        url = url.difference_update_query(["prepare_threshold"])
    options = {"pool_reset_on_return": None} | options | {"connect_args": connect_args}
    if "poolclass" not in options:
        options = _POOL | {"poolclass": _PostgresPool} | options
    engine = sa.create_engine(url.set(drivername="postgresql+psycopg"), **options)

    @event.listens_for(engine, "connect")
    def settings(driver: Any, _: ConnectionPoolEntry) -> None:
        driver.autocommit = True
        driver.execute("SET TIME ZONE 'UTC'")
        driver.autocommit = False

    @event.listens_for(engine, "reset")
    def rolled_back(driver: Any, _: ConnectionPoolEntry, state: PoolResetState) -> None:
        # The pool's own reset rolls back whether or not there is a transaction, and the driver takes its time over it.
        if not state.terminate_only and not driver.closed and driver.pgconn.transaction_status:
            driver.rollback()

    @event.listens_for(engine, "checkin")
    def checked_in(driver: Any, entry: ConnectionPoolEntry) -> None:
        entry.info["idle_since"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def checked_out(driver: Any, entry: ConnectionPoolEntry, _: Any) -> None:
        if not _alive(driver, entry, engine.dialect):
            raise DisconnectionError("the server closed the connection")
        if entry.info.pop(_LENT, False):  # left on, a transaction on this connection could not be rolled back
            driver.autocommit = False

    return engine


def _alive(driver: Any, entry: ConnectionPoolEntry, engine_dialect: sa.Dialect) -> bool:
    # A server that went away leaves an end of file on the socket: looking there costs no round trip. A network that
    # dropped the connection leaves nothing, so that a long idle one is asked.
    idle_since = entry.info.get("idle_since")
    if idle_since is None:
        return True
    try:
        if driver.closed or _readable(driver.fileno()):
            return False
        if time.monotonic() - idle_since > _IDLE_BEFORE_PING:
            was, driver.autocommit = driver.autocommit, True
            driver.execute("")
            driver.autocommit = was
    except engine_dialect.loaded_dbapi.Error:
        return False
    return True


class _PostgresPool(LendingPool):
    own_listeners = 3

    def _usable(self, entry: ConnectionPoolEntry) -> bool:
        driver: Any = entry.dbapi_connection
        engine_dialect: Any = self._dialect
        if not _alive(driver, entry, engine_dialect):
            return False
        if not driver.autocommit:  # stays on from one loan to the next, until SQLAlchemy checks the connection out
            driver.autocommit = entry.info[_LENT] = True
        return True


def _prepare_threshold(text: str | tuple[str, ...]) -> int | None:
    if isinstance(text, str) and text.lower() in ("", "none", "null"):
        return None
    try:
        return int(str(text))
    except ValueError:
        raise ValueError(f"prepare_threshold={text!r} in the URL: give a number or none") from None


def _readable(descriptor: int) -> bool:
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


# Forks

_engines: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_inherited: list[Pool] = []


def _forget_inherited() -> None:
    """In a forked child, start new pools; the parent's connections are neither used nor closed here."""
    for engine in list(_engines):
        _inherited.append(engine.pool)  # closing what the parent uses would take the parent's locks and session away
        engine.dispose(close=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
