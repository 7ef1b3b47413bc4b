"""Create engines with the settings that the store needs."""

import os
import sqlite3
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qs, quote, unquote, urlsplit

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import ConnectionPoolEntry

from lango_store._engine import checkpoints, pool
from lango_store._engine.fair_pool import FairPool
from lango_store._engine.sqlite_library import is_affected, log_affected
from lango_store._engine.url import milliseconds, parse
from lango_store.errors import DatabaseUnavailable, InstallationIncomplete, UnsupportedDatabase, quoted

Durability = Literal["full", "normal"]

_TIMEOUT: Final = 30.0
_OTHER_PARAMETERS: Final = {"connection_limit", "pgbouncer", "pool_timeout", "schema", "sslaccept", "ssl"}
"""Parameters of other libraries, which an error may name; other names may be parts of a password."""
# Detects a lost server after 25 s: it neither acknowledges packets nor answers keepalive probes.
_PEER: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
RELEASE: Final = "lango_store/"
"""The beginning of the `application_name` of a connection; the release follows."""

_SETTINGS: Final = (
    "SELECT pg_catalog.set_config('TimeZone', 'UTC', false), pg_catalog.set_config('DateStyle', 'ISO, MDY', false)"
)
"""The style of times. psycopg reads only the style ISO, and in zones other than UTC not every stored time.

PgBouncer keeps both settings for each client.
"""

# No overflow, because connections above the pool size are created and closed at each use. LIFO, because the connection
# that was used last has its statements prepared.
_POOL: Final = {"poolclass": FairPool, "pool_size": 16, "max_overflow": 0, "pool_use_lifo": True}

LOG_LIMIT: Final = 16 * 2**20
"""The size in bytes to which SQLite shortens its log file; between two checkpoints the log usually has 4 MiB.

A longer log, after a large transaction or a long read, is shortened by the first commit after it was restarted.
"""

PAGE_CACHE: Final = 16_000
"""The most KiB of a SQLite file that a connection caches. SQLite's default of 2,000 is less than one long session."""

NO_SHARED_MEMORY: Final = (
    "SQLite's WAL mode needs shared memory, which network file systems and some containers do not have: use a local "
    "disk or PostgreSQL, or give the store an engine of SQLAlchemy with another journal mode"
)

sa.dialects.registry.register("sqlite.pysqlite3", "lango_store._engine.pysqlite3_dialect", "PySQLite3")


def create_engine(url: str | sa.URL, *, durability: Durability = "full", **options: Any) -> sa.Engine:
    """Create a SQLAlchemy engine with the settings of the store.

    Use it to share one engine between a `Store` and your own queries. The function does not connect to the database. No
    text of the engine, such as its `repr`, contains a password.

    Args:
        url: The URL of the database:

            - `sqlite:///file`, or `sqlite+pysqlite3:///file` with the extra `sqlite`
            - `sqlite://`: one database in memory, which all threads use in turn
            - `postgresql://user:password@host/database`, or `postgres://`

            URLs of async engines (`postgresql+asyncpg://`, `sqlite+aiosqlite://`) are accepted, but the drivers are
            psycopg and sqlite3. PostgreSQL URLs accept `?statement_timeout=5s`, the maximum duration of a statement,
            and `?prepare_threshold=none` (or a number), the setting of psycopg.
        durability: `full` (the default): SQLite syncs the disk at each commit. `normal`: it does not, so a power
            failure can lose the last commits. On PostgreSQL the server decides, and the argument has no effect.
        **options: Options of `sqlalchemy.create_engine`, such as `pool_size` (default: 16).

    Returns:
        The engine. Close its connections with `engine.dispose()`.

    Raises:
        ValueError: The URL is of another database, has an invalid parameter, or would show a password in errors; or
            `durability` is neither `full` nor `normal`.
        LangoStoreError: The client library of the database is not installed. A connection raises it if a SQLite file
            cannot be switched to WAL mode.
    """
    if durability not in get_args(Durability):
        raise ValueError(f"durability={quoted(durability)}: give 'full' or 'normal'")
    parsed, connect_args = parse(url)
    options["connect_args"] = {**options.get("connect_args", {}), **connect_args}
    options = {"hide_parameters": True} | options
    if "poolclass" not in options:
        options = _POOL | options
    make = _sqlite if parsed.get_backend_name() == "sqlite" else _postgresql
    engine = make(parsed, durability, options)
    if not _in_memory(parsed):  # a forked child has a copy of a database in memory, and a new pool would lose it
        pool.separate_in_children(engine, database_file(parsed))
    return engine


def read_only_engine(url: str | sa.URL) -> sa.Engine:
    """Create an engine on whose connections the database refuses writes.

    It has the settings of `create_engine`. A SQLite file must exist, and its journal mode is not changed.

    Args:
        url: The URL of the database, as for `create_engine`.

    Returns:
        The engine. Close its connections with `engine.dispose()`.

    Raises:
        ValueError: The URL is of another database, has an invalid parameter, or would show a password in errors.
        LangoStoreError: The client library of the database is not installed.
    """
    parse(url)  # raises errors that show no password
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if not _in_memory(parsed):
            if not _is_uri(parsed):
                parsed = parsed.set(database=f"file:{quote(str(parsed.database))}")
            parsed = parsed.update_query_dict({"mode": "ro", "uri": "true"})
        engine = create_engine(parsed)
        event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA query_only = ON"))
        return engine
    # Sent in the startup packet: a SET would affect other clients of a connection pooler.
    options = [*sa.util.to_list(parsed.query.get("options"), []), "-c default_transaction_read_only=on"]
    return create_engine(parsed.update_query_dict({"options": " ".join(options)}))


def _in_memory(url: sa.URL) -> bool:
    return url.get_backend_name() == "sqlite" and (
        _sqlite_name(url) in ("", ":memory:") or url.query.get("mode") == "memory"
    )


def _is_uri(url: sa.URL) -> bool:
    """Return whether SQLite parses the database of a URL as a URI: without `uri=true`, `file:a.db` is a file name."""
    is_enabled = url.get_backend_name() == "sqlite" and sa.util.asbool(url.query.get("uri", False))
    return is_enabled and (url.database or "").startswith("file:")


def _sqlite_name(url: sa.URL) -> str:
    """Return the name of the database that SQLite opens: a path, or one of its names of databases in memory."""
    return _path_of(url.database or "") if _is_uri(url) else url.database or ""


def _path_of(uri: str) -> str:
    return unquote(urlsplit(uri).path)


# SQLite


def _sqlite(url: sa.URL, durability: Durability, options: dict[str, Any]) -> sa.Engine:
    in_memory = _in_memory(url)
    url = _absolute(url)
    connect_args: dict[str, Any] = {"check_same_thread": False}
    if "timeout" not in url.query:
        connect_args["timeout"] = _TIMEOUT
    options["connect_args"] = connect_args | options["connect_args"]
    if in_memory:  # each connection would be a separate database, so all threads share one
        options |= _POOL | {"pool_size": 1}
    engine = sa.create_engine(url, **options)
    sqlite = engine.dialect.loaded_dbapi
    safe_checkpoints = None
    if not in_memory and is_affected(sqlite.sqlite_version_info):
        safe_checkpoints = checkpoints.Checkpoints(sqlite)

    if not in_memory:

        @event.listens_for(engine, "do_connect")
        def prepare(_: sa.Dialect, __: ConnectionPoolEntry, arguments: Any, settings: Any) -> None:
            name = arguments[0]
            if settings.get("uri") and name.startswith("file:"):
                parameters = parse_qs(urlsplit(name).query)
                if parameters.get("mode", ["rwc"])[-1] != "rwc" or "immutable" in parameters:
                    return  # SQLite does not create the file
                name = _path_of(name)
            _create_private(name)

    @event.listens_for(engine, "connect")
    def settings(driver: Any, entry: ConnectionPoolEntry) -> None:
        try:
            if not in_memory:  # first, because it explains why a file cannot be opened
                driver.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT}")
                if "immutable" not in url.query:  # nothing writes to such a file
                    _ensure_wal(driver, sqlite.OperationalError)
            driver.execute(f"PRAGMA cache_size = -{PAGE_CACHE}")
            driver.execute("PRAGMA foreign_keys = ON")
            # Some builds of SQLite leave deleted texts in the file. FAST would leave them in free pages.
            driver.execute("PRAGMA secure_delete = ON")
            driver.execute(f"PRAGMA synchronous = {'NORMAL' if durability == 'normal' else 'FULL'}")
            if safe_checkpoints is not None:
                safe_checkpoints.connected(driver, entry.info)
                log_affected(sqlite.sqlite_version)
        except BaseException:
            driver.close()  # the pool does not close a connection whose setup failed
            raise

    event.listen(engine, "begin", pool.checkpoint)
    event.listen(engine, "savepoint", pool.begin_before_savepoint)
    event.listen(engine, "close", pool.roll_back)
    return engine


def _absolute(url: sa.URL) -> sa.URL:
    """Make the relative path of a URI absolute, as SQLAlchemy does for other names: a later `chdir` must not matter."""
    if _in_memory(url) or not _is_uri(url) or (url.database or "").startswith("file:/"):
        return url
    return url.set(database=f"file:{quote(str(Path(_sqlite_name(url)).absolute()))}")


def database_file(url: sa.URL) -> Path | None:
    """Return the file of a SQLite database; None for other databases and for databases in memory."""
    if url.get_backend_name() != "sqlite" or _in_memory(url):
        return None
    return Path(_sqlite_name(url))


def busy_timeout(url: sa.URL) -> float:
    """Return the number of seconds that SQLite waits for its lock."""
    return float(str(url.query.get("timeout", _TIMEOUT)))


def _create_private(name: str) -> None:
    """Create a file that only its owner may read; SQLite gives its -wal and -shm the same permissions."""
    with suppress(OSError):  # the file exists, or SQLite's error is more specific
        # O_EXCL follows no symbolic link, and SQLite would create the target with the permissions of the umask.
        os.close(os.open(os.path.realpath(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _ensure_wal(driver: Any, operational_error: type[Exception]) -> None:
    """Switch a file to WAL mode; retry while the file is locked, because the switch ignores SQLite's timeout."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            (mode,) = driver.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                (mode,) = driver.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":  # SQLite keeps the old mode and reports no error
                raise UnsupportedDatabase(f"the file stays in journal mode {mode!r}: {NO_SHARED_MEMORY}")
            return
        except operational_error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_READONLY:
                return  # a read-only file, whose owner chooses the journal mode
            if code == sqlite3.SQLITE_CANTOPEN:  # not the file, which is open, but its log or the shared memory
                raise DatabaseUnavailable(
                    f"SQLite: {error}; check that the folder is writable. {NO_SHARED_MEMORY}"
                ) from error
            if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


# PostgreSQL


def _application_name() -> str:
    try:
        return RELEASE + metadata.version("lango-store")
    except metadata.PackageNotFoundError:  # a copy of this package inside another package
        return RELEASE + "unknown"


def _reject_unknown_parameters(url: sa.URL) -> None:
    import psycopg  # already imported by the engine; users of SQLite do not need it

    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    if unknown := set(url.query) - known:
        names = ", ".join(sorted(unknown & _OTHER_PARAMETERS)) or "one"
        raise ValueError(
            f"the URL has parameters that libpq does not know ({names}): remove them. A schema is chosen with "
            "?options=-csearch_path%3Dname"
        )


def _postgresql(url: sa.URL, durability: Durability, options: dict[str, Any]) -> sa.Engine:
    # No hstore, which the store does not use: it would cost a query at the first connection.
    options = {"pool_reset_on_return": None, "use_native_hstore": False} | options
    defaults = _PEER | {"fallback_application_name": _application_name()}
    connect_args = {name: value for name, value in defaults.items() if name not in url.query} | options["connect_args"]
    url, connect_args["client_encoding"] = url.difference_update_query(["client_encoding"]), "utf8"
    if os.environ.get("PGCONNECT_TIMEOUT") and "connect_timeout" not in options["connect_args"]:
        connect_args.pop("connect_timeout", None)
    timeout = milliseconds(connect_args.pop("statement_timeout", 0))
    if timeout:  # sent in the startup packet: a SET could affect other clients of a connection pooler
        options_text = connect_args.get("options") or url.query.get("options") or ""
        connect_args["options"] = f"{options_text} -cstatement_timeout={timeout}".strip()
    try:
        engine = sa.create_engine(url, **options | {"connect_args": connect_args})
        _reject_unknown_parameters(url)
    except ImportError as error:  # raised by psycopg
        reason = str(error).splitlines()[0]
        raise InstallationIncomplete(
            f"PostgreSQL's client library is missing ({reason}): "
            "pip install 'lango-store[postgresql]', or install libpq"
        ) from error

    if timeout:

        @event.listens_for(engine, "do_connect")
        def connect(_: sa.Dialect, __: ConnectionPoolEntry, arguments: Any, settings: Any) -> Any:
            from lango_store._engine.answer_timeout import (
                BoundedConnection,  # imports psycopg, which users of SQLite do not need
            )

            driver = BoundedConnection.connect(*arguments, **settings)
            driver.answer_timeout = (
                2 * timeout / 1000 + 1
            )  # longer than statement_timeout, so that the server reports the timeout if it can
            return driver

    @event.listens_for(engine, "connect")
    def settings(driver: Any, _: ConnectionPoolEntry) -> None:
        # The server reports its settings when it accepts a connection. A statement that changes a setting costs a round
        # trip, and makes RDS Proxy pin the connection.
        reported = driver.pgconn.parameter_status
        if reported(b"TimeZone") == b"UTC" and (reported(b"DateStyle") or b"").startswith(b"ISO"):
            return
        try:
            autocommit, driver.autocommit = driver.autocommit, True
            driver.execute(_SETTINGS)
            driver.autocommit = autocommit
        except BaseException:
            driver.close()
            raise

    event.listen(engine, "checkout", pool.checked_out)
    event.listen(engine, "reset", pool.given_back)
    return engine
