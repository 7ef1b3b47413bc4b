"""From a URL to an engine with the settings we rely on."""

import os
import sqlite3
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import ConnectionPoolEntry

from lango_store._engine import checkpoints, pool
from lango_store._engine.fair_pool import FairPool
from lango_store._engine.sqlite_library import is_affected, log_affected
from lango_store._engine.url import milliseconds, parse
from lango_store.errors import LangoStoreError

Durability = Literal["full", "normal"]

_TIMEOUT: Final = 30.0
# A peer that is gone is noticed after 25 s: it acknowledges nothing that it is sent, and answers no probe.
_PEER: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
RELEASE: Final = "lango_store/"
"""How the `application_name` of a connection begins; the release follows."""

# A connection above the pool's size would be made and closed every time; the one used last has its statements prepared.
_POOL: Final = {"poolclass": FairPool, "pool_size": 16, "max_overflow": 0, "pool_use_lifo": True}

sa.dialects.registry.register("sqlite.pysqlite3", "lango_store._engine.pysqlite3_dialect", "PySQLite3")


def create_engine(url: str | sa.URL, *, durability: Durability = "full", **options: Any) -> sa.Engine:
    """Create an engine with the store's settings, to share between a `Store` and your own queries.

    URLs: `sqlite:///file`, `sqlite://` (memory, one database for all threads), `sqlite+pysqlite3:///file` (with the
    extra `sqlite`), `postgresql://`, `postgres://`; those of async engines (`postgresql+asyncpg://`,
    `sqlite+aiosqlite://`) are taken too, with our own driver. On PostgreSQL `?prepare_threshold=none` (or a number) in
    the URL is psycopg's setting, and `?statement_timeout=5s` the longest that a statement may take. Passwords are in no
    text of the engine. `durability="normal"` gives up SQLite's fsync per commit; on PostgreSQL the server decides.
    `options` go to SQLAlchemy's create_engine. Connects to nothing.
    ValueError for other databases.
    """
    parsed, connect_args = parse(url)
    options["connect_args"] = {**options.get("connect_args", {}), **connect_args}
    options = {"hide_parameters": True} | options
    if "poolclass" not in options:
        options = _POOL | options
    make = _sqlite if parsed.get_backend_name() == "sqlite" else _postgresql
    engine = make(parsed, durability, options)
    if not _in_memory(parsed):  # the child's copy of a database in memory is whole, and a new pool would lose it
        pool.separate_in_children(engine, database_file(parsed))
    return engine


def read_only_engine(url: str | sa.URL) -> sa.Engine:
    """Create an engine as `create_engine` does, whose connections the database lets write nothing.

    A SQLite file must exist, and keeps its journal mode.
    """
    parse(url)  # in words that show no password
    given = sa.make_url(url)
    if given.get_backend_name() == "sqlite":
        if not _in_memory(given):
            if not str(given.database).startswith("file:"):
                given = given.set(database=f"file:{quote(str(given.database))}")
            given = given.update_query_dict({"mode": "ro", "uri": "true"})
        engine = create_engine(given)
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
        return engine
    # At the start of the connection: a later setting would leak to other clients of a pooler.
    options = [*sa.util.to_list(given.query.get("options"), []), "-c default_transaction_read_only=on"]
    return create_engine(given.update_query_dict({"options": " ".join(options)}))


def _in_memory(url: sa.URL) -> bool:
    in_memory = url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
    return in_memory and url.get_backend_name() == "sqlite"


# SQLite


def _sqlite(url: sa.URL, durability: Durability, options: dict[str, Any]) -> sa.Engine:
    in_memory = _in_memory(url)
    connect_args: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
    if "timeout" not in url.query:
        connect_args["timeout"] = _TIMEOUT
    options["connect_args"] = connect_args | options["connect_args"]
    if in_memory:  # one connection is one database: threads take turns
        options |= _POOL | {"pool_size": 1}
    engine = sa.create_engine(url, **options)
    sqlite = engine.dialect.loaded_dbapi
    safe_checkpoints = None
    if not in_memory and is_affected(sqlite.sqlite_version_info):
        safe_checkpoints = checkpoints.Checkpoints(sqlite)

    if not in_memory:

        @event.listens_for(engine, "do_connect")
        def prepare(_: sa.Dialect, __: ConnectionPoolEntry, names: Any, settings: Any) -> None:
            if not settings.get("uri"):
                _create_private(names[0])

    @event.listens_for(engine, "connect")
    def settings(driver: Any, entry: ConnectionPoolEntry) -> None:
        try:
            driver.execute("PRAGMA foreign_keys = ON")
            driver.execute(f"PRAGMA synchronous = {'NORMAL' if durability == 'normal' else 'FULL'}")
            if not in_memory:
                _ensure_wal(driver, sqlite.OperationalError)
            if safe_checkpoints is not None:
                safe_checkpoints.connected(driver, entry.info)
                log_affected(sqlite.sqlite_version)
        except BaseException:
            driver.close()  # the pool forgets it
            raise

    event.listen(engine, "begin", pool.begin_sqlite)
    event.listen(engine, "close", pool.roll_back)
    return engine


def database_file(url: sa.URL) -> Path | None:
    """Return the file of a SQLite database, None for other databases and those in memory."""
    if url.get_backend_name() != "sqlite" or _in_memory(url):
        return None
    name = url.database or ""
    return Path(unquote(name.removeprefix("file:")) if name.startswith("file:") else name)


def _create_private(name: str) -> None:
    """Create a file that only its owner may read; SQLite gives its -wal and -shm the same permissions."""
    with suppress(OSError):  # it exists, or SQLite's own error says more
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _ensure_wal(driver: Any, operational_error: type[Exception]) -> None:
    """Switch a file to WAL, once: look first, and try again, since the switch ignores the timeout."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            if driver.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                driver.execute("PRAGMA journal_mode = WAL")
            return
        except operational_error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_READONLY:
                return  # a read-only file, whose owner chooses the journal mode
            if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


# PostgreSQL


def _application_name() -> str:
    try:
        return RELEASE + metadata.version("lango-store")
    except metadata.PackageNotFoundError:  # a copy of the package in another one
        return RELEASE + "unknown"


def _postgresql(url: sa.URL, durability: Durability, options: dict[str, Any]) -> sa.Engine:
    # Without a query for the extension hstore at the first connection: the store does not use it.
    options = {"pool_reset_on_return": None, "use_native_hstore": False} | options
    defaults = _PEER | {"fallback_application_name": _application_name()}
    connect_args = {name: value for name, value in defaults.items() if name not in url.query} | options["connect_args"]
    if os.environ.get("PGCONNECT_TIMEOUT") and "connect_timeout" not in options["connect_args"]:
        connect_args.pop("connect_timeout", None)
    timeout = milliseconds(connect_args.pop("statement_timeout", 0))
    if timeout:  # sent with the connection's start: a SET would be sent later, and a pooler might keep it for others
        given = connect_args.get("options") or url.query.get("options") or ""
        connect_args["options"] = f"{given} -cstatement_timeout={timeout}".strip()
    try:
        engine = sa.create_engine(url, **options | {"connect_args": connect_args})
    except ImportError as error:  # of psycopg
        reason = str(error).splitlines()[0]
        raise LangoStoreError(
            f"PostgreSQL's client library is missing ({reason}): "
            "pip install 'lango-store[postgresql]', or install libpq"
        ) from error

    if timeout:

        @event.listens_for(engine, "do_connect")
        def connect(_: sa.Dialect, __: ConnectionPoolEntry, words: Any, settings: Any) -> Any:
            from lango_store._engine.answer_timeout import (
                BoundedConnection,  # psycopg: only PostgreSQL's users wait for its import
            )

            driver = BoundedConnection.connect(*words, **settings)
            driver.answer_timeout = 2 * timeout / 1000 + 1  # the server says itself that it took too long, if it can
            return driver

    @event.listens_for(engine, "connect")
    def settings(driver: Any, _: ConnectionPoolEntry) -> None:
        try:
            was, driver.autocommit = driver.autocommit, True
            driver.execute("SET TIME ZONE 'UTC'")
            driver.autocommit = was
        except BaseException:
            driver.close()
            raise

    event.listen(engine, "checkout", pool.checked_out)
    event.listen(engine, "reset", pool.given_back)
    return engine
