"""The dialect for SQLite: a file with one writer at a time and no server, where round trips cost nothing."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.operators import custom_op

from lango_store._dialect.base import (
    NO_TRANSACTION,
    AnyConnection,
    AppendMethod,
    Dialect,
    TransientReason,
    ensure_transaction,
)
from lango_store._engine.engine import LOG_LIMIT, NO_SHARED_MEMORY
from lango_store._engine.sqlite_library import REMEDY, is_affected, library_version
from lango_store._rows.columns import TimeColumn
from lango_store._rows.encoding import encode_time_text
from lango_store.errors import (
    DatabaseBusy,
    DatabaseError,
    DatabaseUnavailable,
    LangoStoreError,
    MigrationRefused,
    SessionHeld,
    UniqueViolation,
    UnsupportedDatabase,
)
from lango_store.tables import Base

_SYNC_CHECKPOINTS: Final = 1  # PRAGMA synchronous = NORMAL: with a WAL, only checkpoints wait for the disk
_SHARED_MEMORY_ERRORS: Final = (
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_IOERR_SHMLOCK,
    sqlite3.SQLITE_IOERR_SHMMAP,
    sqlite3.SQLITE_IOERR_SHMOPEN,
)
_LARGE_LOG: Final = 4 * LOG_LIMIT
_OURS: Final = tuple(table.name for table in Base.metadata.sorted_tables)
_CHILDREN: Final = tuple(table.name for table in Base.metadata.sorted_tables if table.foreign_keys)


class SQLite(Dialect):
    """One writer at a time among all processes; no server, so round trips are free."""

    name = "sqlite"
    drivers = ("pysqlite", "aiosqlite", "pysqlcipher")
    has_replicas = False
    batch_seconds = 0.08  # all writers wait for a batch
    batch_rest = 0.1  # a waiting writer retries at least every 0.1 s
    modifying_cte = False
    append_method = AppendMethod.TRANSACTION
    tells_time = False  # all processes that open the file run on the same machine, so this machine's clock is used
    leaves_dead_rows = False  # our connections set PRAGMA secure_delete
    reads_ahead = False
    generates_columns = False
    select_triggers = "SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger'"

    time = staticmethod(encode_time_text)

    def is_malformed_time(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        digits = "[0-9][0-9]"
        form = f"{digits}{digits}-{digits}-{digits}T{digits}:{digits}:{digits}.{digits}{digits}{digits}+00:00"
        text = sa.type_coerce(column, sa.Text)
        return sa.or_(sa.func.typeof(text) != sa.literal("text"), text.op("NOT GLOB")(sa.literal(form)))

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        # SQLite's date functions have millisecond precision: strftime() adds whole seconds, and the microseconds are
        # added separately.
        million: sa.ColumnElement[int] = sa.literal_column("1000000", sa.Integer)
        whole = sa.cast(ttl, sa.Integer)
        rest = sa.cast(sa.func.round((ttl - whole) * million), sa.Integer)
        micros = sa.cast(_part(now, 21, 6), sa.Integer) + rest
        seconds = sa.func.strftime(
            sa.literal_column("'%Y-%m-%dT%H:%M:%S'"),
            _part(now, 1, 19),
            sa.cast(whole + micros // million, sa.Text).concat(sa.literal_column("' seconds'")),
            type_=sa.Text,
        )
        digits = sa.func.printf(sa.literal_column("'.%06d+00:00'"), micros % million, type_=sa.Text)
        return sa.case((ttl.is_not(None), sa.type_coerce(seconds.concat(digits), TimeColumn())))

    def contains_text(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        return sa.func.instr(sa.func.lower(column), part) > sa.literal_column("0")

    def without_index(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        # Without statistics the planner cannot know which of two indexes is better. Statistics from ANALYZE do not
        # help: with them, listing sessions by creation uses another index and takes 18 times as long.
        return sa.UnaryExpression(column, operator=custom_op("+"), type_=column.type)

    def day_of(self, column: sa.ColumnElement[datetime], *, minute: bool = False) -> sa.ColumnElement[str]:
        return sa.func.substr(sa.type_coerce(column, sa.Text), 1, 16 if minute else 10, type_=sa.Text)

    def text_member(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[str | None]:
        return sa.cast(sa.func.json_extract(sa.type_coerce(column, sa.Text), f"$.{name}"), sa.Text)

    def texts_of_list(self, texts: sa.BindParameter[str]) -> sa.Select[tuple[str]]:
        return sa.select(sa.func.json_each(texts).table_valued("value").c.value)

    def insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table)

    def join(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        options = connection.get_execution_options()
        begins_none = driver.isolation_level is None and not driver.in_transaction
        if options.get("isolation_level") == "AUTOCOMMIT" or begins_none or getattr(driver, "autocommit", None) is True:
            raise UnsupportedDatabase(NO_TRANSACTION)
        _begin_immediate(connection)

    @contextmanager
    def transaction(self, connection: sa.Connection) -> Iterator[None]:
        with ensure_transaction(connection):
            driver: Any = connection.connection.driver_connection
            if getattr(driver, "autocommit", None) is False and driver.in_transaction:
                # With autocommit=False (Python 3.12) the driver has begun a deferred transaction, which cannot wait
                # for the write lock after a read.
                connection.exec_driver_sql("ROLLBACK")
            _begin_immediate(connection)
            yield

    @contextmanager
    def unsynced_transaction(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.dbapi_connection
        (before,) = driver.execute("PRAGMA synchronous").fetchone()
        changes = before > _SYNC_CHECKPOINTS and not driver.in_transaction  # SQLite refuses it in a transaction
        if changes:
            driver.execute(f"PRAGMA synchronous = {_SYNC_CHECKPOINTS}")
        try:
            with self.transaction(connection):
                yield
        finally:
            if changes:
                driver.execute(f"PRAGMA synchronous = {before}")

    @contextmanager
    def snapshot(self, connection: sa.Connection) -> Iterator[None]:
        with ensure_transaction(connection):
            if not connection.connection.in_transaction:
                connection.exec_driver_sql("BEGIN")
            yield

    @contextmanager
    def append_savepoint(self, connection: sa.Connection) -> Iterator[None]:
        # An append is several statements. This runs on the driver's cursor, because a savepoint through SQLAlchemy
        # takes three times as long as the append itself.
        driver: Any = connection.connection.driver_connection
        cursor: Any = connection.connection.cursor()
        try:
            cursor.execute("SAVEPOINT lango_append")
            try:
                yield
            except BaseException:
                if driver.in_transaction:  # SQLite may have rolled back already, for example on a full disk
                    cursor.execute("ROLLBACK TO lango_append")
                    cursor.execute("RELEASE lango_append")
                raise
            cursor.execute("RELEASE lango_append")
        finally:
            cursor.close()

    def start(self, driver: Any, *, writes: bool) -> bool:
        if writes and not driver.in_transaction:  # a single read needs no transaction
            driver.execute("BEGIN IMMEDIATE")
        return writes

    def finish(self, driver: Any, started: bool, *, failed: bool) -> None:
        if not started:
            return
        try:
            if not failed:
                driver.execute("COMMIT")
        finally:
            driver.rollback()  # has no effect after a commit, or if a full disk caused a rollback

    @contextmanager
    def migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # Alembic's batch mode drops the old table, which with foreign keys on would delete the messages too. The
        # pragma has no effect inside a transaction.
        driver: Any = connection.connection.dbapi_connection
        (before,) = driver.execute("PRAGMA foreign_keys").fetchone()
        driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with self.transaction(connection):
                yield
                _reject_orphans(connection)
        finally:
            driver.execute(f"PRAGMA foreign_keys = {before}")

    def switch_off_foreign_keys(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.dbapi_connection  # SQLAlchemy would begin a transaction
        cursor = driver.cursor()
        cursor.execute("PRAGMA foreign_keys = OFF")
        cursor.execute("PRAGMA foreign_keys")
        (still_on,) = cursor.fetchone()
        cursor.close()
        if still_on:
            raise MigrationRefused(
                "the connection has foreign keys on and has begun a transaction, and batch operations would delete the "
                "rows of child tables: call schema.upgrade_in_env(context) before you write"
            )

    @contextmanager
    def joined_migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # Foreign keys cannot be switched off inside a transaction, so a migration that recreates a table is refused.
        def guard(_: object, __: object, statement: str, *___: object) -> None:
            if re.match(r'\s*DROP TABLE "?lango_session\b', statement) and _children_have_rows(connection):
                raise MigrationRefused(
                    "this revision recreates lango_session, which with foreign keys on would delete its messages: "
                    "run `PRAGMA foreign_keys = OFF` before the transaction begins, or give the engine"
                )

        guarded = bool(connection.exec_driver_sql("PRAGMA foreign_keys").scalar())
        if guarded:
            event.listen(connection, "before_cursor_execute", guard)
        try:
            with connection.begin_nested():
                yield
                _reject_orphans(connection)
        finally:
            if guarded:
                event.remove(connection, "before_cursor_execute", guard)

    def file(self, connection: sa.Connection) -> str | None:
        for _, name, path in connection.exec_driver_sql("PRAGMA database_list"):
            if name == "main":
                return path or None
        return None

    def has_table(self, connection: sa.Connection, name: str) -> bool:
        return connection.exec_driver_sql(f"PRAGMA table_info({name})").first() is not None

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        # The size of one table is known only after reading the whole file, so this is the size of the file without
        # its free pages.
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names)
        return int((pages - free) * size)

    def translate_error(self, error: BaseException) -> LangoStoreError:
        code = getattr(error, "sqlite_errorcode", None)
        text = str(error)
        if self.is_undecodable(error):  # SQLite's message ends with the stored text
            text = text.partition(" with text ")[0]
        reason = f"SQLite: {text}"
        match None if code is None else code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return DatabaseBusy(f"{reason}; another connection held the file for too long, try again")
            case sqlite3.SQLITE_FULL:
                return DatabaseUnavailable(f"{reason}; nothing was written: make room, then try again")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return DatabaseUnavailable(f"{reason}; the file or its folder is not writable")
            case sqlite3.SQLITE_CANTOPEN:
                return DatabaseUnavailable(f"{reason}; check that the path is right and the folder is writable")
            case sqlite3.SQLITE_NOTADB:
                return DatabaseUnavailable(
                    f"{reason}; if it is encrypted, give the right key. Otherwise restore the file from a backup, or "
                    "save its rows: lango-store copy --salvage"
                )
            case sqlite3.SQLITE_CORRUPT:
                return DatabaseUnavailable(
                    f"{reason}; restore the file from a backup, or save its rows: lango-store copy --salvage"
                )
            case sqlite3.SQLITE_PROTOCOL | sqlite3.SQLITE_IOERR if code in _SHARED_MEMORY_ERRORS:
                return DatabaseUnavailable(f"{reason}; {NO_SHARED_MEMORY}")
            case sqlite3.SQLITE_IOERR:
                return DatabaseUnavailable(f"{reason}; the disk refused")
            case sqlite3.SQLITE_CONSTRAINT if "FOREIGN KEY" in reason:  # ON DELETE RESTRICT has a trigger's error code
                return SessionHeld(None, reason)
            case sqlite3.SQLITE_CONSTRAINT if str(error).startswith("UNIQUE"):  # pysqlite3 has no extended error codes
                return UniqueViolation(reason)
            case _:
                return DatabaseError(reason)

    def transient_reason(self, error: BaseException) -> TransientReason | None:
        code = getattr(error, "sqlite_errorcode", None)
        busy = code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        return TransientReason.REFUSED if busy else None

    def is_undecodable(self, error: BaseException) -> bool:
        # The driver sets no error code, and its class may be that of pysqlite3 or aiosqlite.
        return type(error).__name__ == "OperationalError" and str(error).startswith("Could not decode to UTF-8")

    @contextmanager
    def bytes_for_bad_text(self, connection: AnyConnection) -> Iterator[None]:
        driver: Any = getattr(connection.connection, "driver_connection", connection.connection)
        before, driver.text_factory = driver.text_factory, _text_or_bytes
        try:
            yield
        finally:
            driver.text_factory = before

    def damage(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        for (fault,) in connection.exec_driver_sql("PRAGMA integrity_check(20)"):
            if fault != "ok":
                yield (
                    f"the file is damaged: {fault}",
                    "restore it from a backup, or save its rows: lango-store copy --from FILE --to URL --salvage",
                )

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        if mode not in ("wal", "memory"):
            yield f"journal_mode is {mode}: readers wait for writers", "sqlite3 FILE 'PRAGMA journal_mode = WAL'"
        if mode == "wal" and (size := _log_size(file := self.file(connection))) > _LARGE_LOG:
            yield (
                f"{file}-wal has {size >> 20} MiB instead of about 4: a connection keeps a snapshot open, or the "
                "connections that write make no checkpoints or have no journal_size_limit",
                "end long reads, stop the processes that write, and run "
                f"`sqlite3 {file} 'PRAGMA wal_checkpoint(TRUNCATE)'`: if it prints 1 first, a snapshot is still open",
            )
        if mode == "wal" and is_affected(version := library_version(connection)):
            yield (
                f"SQLite {'.'.join(map(str, version))} can lose commits during a checkpoint (its WAL-reset bug): "
                "connections of lango_store.create_engine(url) prevent that, others to this file do not",
                REMEDY,
            )

    def incompatibility(self, connection: sa.Connection) -> str | None:
        if (version := library_version(connection)) < (3, 35):
            name = ".".join(map(str, version))
            return f"SQLite is {name}, 3.35 is needed for RETURNING: install a newer Python or SQLite"
        if not connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
            return (
                "this engine's connections have foreign keys off, a delete would leave messages behind: "
                "make the engine with lango_store.create_engine(url), or add "
                '`sqlalchemy.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = ON"))`'
            )
        if isinstance(connection.engine.pool, sa.SingletonThreadPool) and self.file(connection) is not None:
            return (
                "this engine's pool gives each thread one connection, so a write would join an open snapshot: make the "
                "engine with poolclass=QueuePool"
            )
        driver: Any = connection.connection.driver_connection
        if getattr(driver, "autocommit", None) is True:  # commit() and rollback() would have no effect
            return (
                "this engine's connections have sqlite3's autocommit=True and begin no transaction: "
                'make the engine with connect_args={"autocommit": False}, or without it'
            )
        return None


def _begin_immediate(connection: sa.Connection) -> None:
    """Take the write lock unless a transaction has begun."""
    # By default the driver begins a transaction at the first INSERT but not at a SAVEPOINT, and releasing the outermost
    # savepoint would commit.
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _children_have_rows(connection: sa.Connection) -> bool:
    existing = [table for table in _CHILDREN if sa.inspect(connection).has_table(table)]
    return any(connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() for table in existing)


def _reject_orphans(connection: sa.Connection) -> None:
    for table in _OURS:  # tables of the host application are not checked
        if sa.inspect(connection).has_table(table):
            orphans = connection.exec_driver_sql(f"PRAGMA foreign_key_check({table})").all()
            if orphans:
                raise MigrationRefused(f"the migration would leave rows without their session: {orphans[:3]}")


def _log_size(file: str | None) -> int:
    log = Path(f"{file}-wal")
    return log.stat().st_size if log.exists() else 0


def _part(text: sa.ColumnElement[Any], start: int, length: int) -> sa.ColumnElement[str]:
    """Return a substring in SQL without bound values."""
    return sa.func.substr(text, sa.literal_column(str(start)), sa.literal_column(str(length)), type_=sa.Text)


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored
