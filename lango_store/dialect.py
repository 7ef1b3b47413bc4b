"""Each difference between SQLite and PostgreSQL, named, with its reason. Nothing else asks which database it is."""

from __future__ import annotations

import itertools
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles

from lango_store.columns import TimeColumn, encode_time_text
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, LangoStoreError, SessionHeld
from lango_store.pool import BEGIN_OPTION
from lango_store.tables import Base

_MIGRATION_LOCK: Final = 0x6C616E676F  # "lango"
_MIGRATION_PATIENCE: Final = 60.0
_CLOCKS_MAY_DIFFER: Final = 5.0
_OURS: Final = tuple(table.name for table in Base.metadata.sorted_tables)
_CHILDREN: Final = tuple(table.name for table in Base.metadata.sorted_tables if table.foreign_keys)


_READ_COMMITTED: Final = 2  # as psycopg numbers them
_REPEATABLE_READ: Final = 3
_NO_TRANSACTION: Final = (
    "this connection is in autocommit, so that there is no transaction to take part in: give using() a connection "
    'with .execution_options(isolation_level="READ COMMITTED") ("SERIALIZABLE" on SQLite), '
    "or use the store without using()"
)


class Started(Enum):
    """What `Dialect.start` began, for `Dialect.finish` to end."""

    ALONE = auto()
    """Nothing: each statement commits by itself."""

    SWITCHED = auto()
    """Nothing, after the driver was told to let each statement commit by itself."""

    TRANSACTION = auto()
    """A transaction."""


class HasCursors(Protocol):
    """As much of a connection as a statement needs."""

    def cursor(self) -> Any:
        """Make a cursor."""


class AnyConnection(Protocol):
    """What a statement runs on: a SQLAlchemy connection, or as little of one as it needs."""

    @property
    def connection(self) -> HasCursors:
        """What its cursors come from: the pool's proxy of the driver's connection, or that one itself."""

    @property
    def dialect(self) -> sa.Dialect:
        """The dialect of its engine."""

    def get_execution_options(self) -> Mapping[str, Any]:
        """Return what SQLAlchemy calls so; of these, statements know the observer."""


Moment = datetime | None
"""A time that the caller or the store's clock gave; None is the database's own, at each statement."""


class Now(sa.sql.functions.FunctionElement[datetime]):
    """The time of a statement: the one that is bound, or the database's where that is NULL."""

    name = "now"
    type = TimeColumn()
    inherit_cache = True


@compiles(Now)
def _compiled_now(element: Now, compiler: Any, **options: Any) -> str:
    return _DIALECTS[compiler.dialect.name].current(compiler.process(element.clauses, **options))


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key of any table, by columns."""

    name: str
    table: sa.TableClause
    columns: tuple[str, ...]
    referred: tuple[str | None, str]
    """Schema and name of the table that it refers to."""

    referred_columns: tuple[str, ...]
    on_delete: str
    """NO ACTION, RESTRICT, CASCADE, SET NULL or SET DEFAULT."""


class Dialect:
    """What the operations may ask of a database."""

    drivers: tuple[str, ...]
    """The drivers that we know the behaviour of, by SQLAlchemy's names."""

    purge_pause: float
    """How long a purge rests after a batch, as a part of the batch's time, to let writers in who wait."""

    modifying_cte: bool
    """Whether a WITH may hold an UPDATE, so that an append is one statement and one round trip."""

    tells_time: bool
    """Whether the database has a clock of its own, which decides unless the store was given one."""

    def time(self, moment: Moment) -> Any:
        """Make an aware time what the driver takes."""
        raise NotImplementedError

    def current(self, given: str) -> str:
        """Write the time of a statement in SQL: the one given, or the database's where that is NULL."""
        raise NotImplementedError

    def misformed(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        """Whether a time is stored in a form that does not sort among the others."""
        raise NotImplementedError

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Say when a session expires that was written to now; NULL without a TTL."""
        raise NotImplementedError

    def key_in(self, column: sa.Column[str], chosen: sa.Select[tuple[str]]) -> sa.ColumnElement[bool]:
        """Say that a column's value is one of a query's few, each to be looked up in the column's index."""
        raise NotImplementedError

    def holds(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Say that a text holds another, which is in small letters already; only A to Z have a small form here."""
        raise NotImplementedError

    def insert(self, table: sa.Table) -> Any:
        """Write an INSERT that knows ON CONFLICT, which is no part of SQLAlchemy's common language."""
        raise NotImplementedError

    def join(self, connection: sa.Connection) -> None:
        """Make sure that the caller's transaction has really begun; LangoStoreError if the driver makes none."""
        raise NotImplementedError

    def append_whole(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Undo an append that fails half-way in the caller's transaction, which the caller may commit all the same."""
        raise NotImplementedError

    @contextmanager
    def transaction(self, connection: sa.Connection) -> Iterator[None]:
        """Commit several writes together, or none of them, whatever isolation level the engine has."""
        raise NotImplementedError
        yield

    @contextmanager
    def snapshot(self, connection: sa.Connection) -> Iterator[None]:
        """Let several reads see one moment, whatever isolation level the engine has."""
        raise NotImplementedError
        yield

    def start(self, driver: Any, *, writes: bool) -> Started:
        """Begin single reads, or one append, with as few round trips as the database allows."""
        raise NotImplementedError

    def finish(self, driver: Any, started: Started, *, failed: bool) -> None:
        """End what `start` began, and leave the driver's connection as it was."""
        raise NotImplementedError

    def file(self, connection: sa.Connection) -> str | None:
        """Return the path of the file that the database is; None where it is in memory or a server's."""
        raise NotImplementedError

    def schema(self, connection: sa.Connection) -> str | None:
        """Tell in which schema tables are made, and ours are looked for; None where there are no schemas."""
        raise NotImplementedError

    @contextmanager
    def confined(self, connection: sa.Connection) -> Iterator[None]:
        """See that schema only, within a transaction: no table of ours that stands further down the search path."""
        raise NotImplementedError
        yield

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        """Tell how many bytes tables and their indexes take."""
        raise NotImplementedError

    def free_bytes(self, connection: sa.Connection) -> int | None:
        """Tell how many bytes of the database are free for new rows; None where it does not tell."""
        raise NotImplementedError

    def translate_error(self, error: BaseException) -> LangoStoreError:
        """Make a driver's error one of ours."""
        raise NotImplementedError

    def is_duplicate(self, error: BaseException) -> bool:
        """Whether a driver's error says that a unique value is there already."""
        raise NotImplementedError

    def foreign_keys(self, connection: sa.Connection) -> list[ForeignKey]:
        """List the foreign keys of all tables that may be read, a host's too."""
        raise NotImplementedError

    def is_damage(self, error: BaseException) -> bool:
        """Whether a driver's error says that stored bytes are damaged: other rows may still be read."""
        raise NotImplementedError

    def is_undecodable(self, error: BaseException) -> bool:
        """Whether a driver's error says that a stored text is none."""
        raise NotImplementedError

    @contextmanager
    def bytes_for_bad_text(self, connection: AnyConnection) -> Iterator[None]:
        """Let a stored text that is none come as bytes meanwhile, so that who decodes it can say where it stands."""
        raise NotImplementedError
        yield

    def storage_place(self, table: sa.Table) -> sa.ColumnElement[int] | None:
        """Give the number that a table's rows are stored by, apart from any index; None where there is none."""
        raise NotImplementedError

    @contextmanager
    def migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        """Run a migration in one transaction, alone: of several upgrades at once, one works and the others see it."""
        raise NotImplementedError
        yield

    @contextmanager
    def migration_within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        """Run a migration in the caller's transaction, alone until that ends; what fails leaves nothing behind."""
        raise NotImplementedError
        yield

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Give what is wrong with the database itself or worth changing in its settings, each with a remedy."""
        raise NotImplementedError

    def incompatibility(self, connection: sa.Connection) -> str | None:
        """Say what a host's engine lacks that we rely on, with the line to add; None if nothing."""
        raise NotImplementedError


class SQLite(Dialect):
    """One writer at a time, in this process or another; no server, so that round trips are free."""

    drivers = ("pysqlite", "aiosqlite")
    purge_pause = 0.03  # who waits for the file asks again from time to time, and would hardly find it free otherwise
    modifying_cte = False
    tells_time = False  # whoever opens the file is on its machine

    def time(self, moment: Moment) -> str | None:
        return None if moment is None else encode_time_text(moment)

    def current(self, given: str) -> str:
        return given

    def misformed(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        digits = "[0-9][0-9]"
        form = f"{digits}{digits}-{digits}-{digits}T{digits}:{digits}:{digits}.{digits}{digits}{digits}+00:00"
        text = sa.type_coerce(column, sa.Text)
        return sa.or_(sa.func.typeof(text) != sa.literal("text"), text.op("NOT GLOB")(sa.literal(form)))

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        # SQLite reckons in milliseconds: it adds whole seconds here, and the microseconds are added beside it.
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

    def key_in(self, column: sa.Column[str], chosen: sa.Select[tuple[str]]) -> sa.ColumnElement[bool]:
        return column.in_(chosen)

    def holds(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        return sa.func.instr(sa.func.lower(column), part) > sa.literal_column("0")

    def insert(self, table: sa.Table) -> Any:
        return sqlite.insert(table)

    def join(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        options = connection.get_execution_options()
        alone = driver.isolation_level is None and not driver.in_transaction
        if options.get("isolation_level") == "AUTOCOMMIT" or alone or getattr(driver, "autocommit", None) is True:
            raise LangoStoreError(_NO_TRANSACTION)
        _begin_immediate(connection)

    @contextmanager
    def transaction(self, connection: sa.Connection) -> Iterator[None]:
        with _ensure_transaction(connection):
            driver: Any = connection.connection.driver_connection
            if getattr(driver, "autocommit", None) is False and driver.in_transaction:
                # Python 3.12 on: the driver has begun a deferred transaction, which cannot wait for the write lock
                # once it has read.
                connection.exec_driver_sql("ROLLBACK")
            _begin_immediate(connection)
            yield

    @contextmanager
    def snapshot(self, connection: sa.Connection) -> Iterator[None]:
        with _ensure_transaction(connection.execution_options(**{BEGIN_OPTION: "DEFERRED"})):
            if not connection.connection.in_transaction:
                connection.exec_driver_sql("BEGIN")
            yield

    @contextmanager
    def append_whole(self, connection: sa.Connection) -> Iterator[None]:
        # An append is several statements. Past SQLAlchemy, whose savepoint takes three times as long as the append.
        driver: Any = connection.connection.driver_connection
        cursor: Any = connection.connection.cursor()
        try:
            cursor.execute("SAVEPOINT lango_append")
            try:
                yield
            except BaseException:
                if driver.in_transaction:  # a full disk may have rolled all back already
                    cursor.execute("ROLLBACK TO lango_append")
                    cursor.execute("RELEASE lango_append")
                raise
            cursor.execute("RELEASE lango_append")
        finally:
            cursor.close()

    def start(self, driver: Any, *, writes: bool) -> Started:
        if not writes:  # a single read is its own transaction when none was begun
            return Started.ALONE
        if not driver.in_transaction:
            driver.execute("BEGIN IMMEDIATE")
        return Started.TRANSACTION

    def finish(self, driver: Any, started: Started, *, failed: bool) -> None:
        if started is Started.ALONE:
            return
        try:
            if not failed:
                driver.execute("COMMIT")
        finally:
            driver.rollback()  # nothing to do after a commit; a full disk may have rolled back already

    def file(self, connection: sa.Connection) -> str | None:
        for _, name, path in connection.exec_driver_sql("PRAGMA database_list"):
            if name == "main":
                return path or None
        return None

    def schema(self, connection: sa.Connection) -> None:
        return None

    @contextmanager
    def confined(self, connection: sa.Connection) -> Iterator[None]:
        yield

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        # What each table takes is told only by reading the whole file: this is the file, less its free pages.
        pages: int = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        size: int = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        return pages * size - self.free_bytes(connection)

    def free_bytes(self, connection: sa.Connection) -> int:
        pages: int = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        size: int = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        return pages * size

    def translate_error(self, error: BaseException) -> LangoStoreError:
        code = getattr(error, "sqlite_errorcode", None)
        reason = f"SQLite: {error}"
        match None if code is None else code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return DatabaseBusy(f"{reason}; another connection held the file for too long, try again")
            case sqlite3.SQLITE_FULL:
                return DatabaseUnavailable(f"{reason}; nothing was written: make room, then try again")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return DatabaseUnavailable(f"{reason}; the file or its folder is not writable")
            case sqlite3.SQLITE_CANTOPEN:
                return DatabaseUnavailable(f"{reason}; see that the folder exists and may be written")
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return DatabaseUnavailable(f"{reason}; restore the file from a backup")
            case sqlite3.SQLITE_IOERR:
                return DatabaseUnavailable(f"{reason}; the disk refused")
            case sqlite3.SQLITE_CONSTRAINT if code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                return SessionHeld(None, reason)
            case _:
                return LangoStoreError(reason)

    def is_duplicate(self, error: BaseException) -> bool:
        codes = (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
        return getattr(error, "sqlite_errorcode", None) in codes

    def foreign_keys(self, connection: sa.Connection) -> list[ForeignKey]:
        # The pragma knows what each key does on a delete, wherever it was written, and SQLAlchemy knows names.
        found: list[ForeignKey] = []
        for (_, table), named in sa.inspect(connection).get_multi_foreign_keys().items():
            names = {tuple(each["constrained_columns"]): each["name"] for each in named}
            pragma = sa.text("SELECT * FROM pragma_foreign_key_list(:name) ORDER BY id, seq")
            rows = connection.execute(pragma, {"name": table}).all()
            for _, parts in itertools.groupby(rows, key=lambda row: row.id):
                key = list(parts)
                columns = tuple(row[3] for row in key)
                to = tuple(row.to for row in key)
                found.append(
                    ForeignKey(
                        names.get(columns) or f"({', '.join(columns)})",
                        sa.table(table, *map(sa.column, columns)),
                        columns,
                        (None, key[0].table),
                        to if None not in to else tuple(self._primary_key(connection, key[0].table)),
                        key[0].on_delete,
                    )
                )
        return found

    @staticmethod
    def _primary_key(connection: sa.Connection, table: str) -> list[str]:
        return sa.inspect(connection).get_pk_constraint(table)["constrained_columns"]

    def is_damage(self, error: BaseException) -> bool:
        code = getattr(error, "sqlite_errorcode", None)
        damaged = code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR)
        return damaged or self.is_undecodable(error)

    def is_undecodable(self, error: BaseException) -> bool:
        # The driver says it without a code.
        return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")

    @contextmanager
    def bytes_for_bad_text(self, connection: AnyConnection) -> Iterator[None]:
        driver: Any = getattr(connection.connection, "driver_connection", connection.connection)
        before, driver.text_factory = driver.text_factory, _text_or_bytes
        try:
            yield
        finally:
            driver.text_factory = before

    def storage_place(self, table: sa.Table) -> sa.ColumnElement[int]:
        return sa.literal_column(f"{table.name}.rowid", sa.BigInteger())

    @contextmanager
    def migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # Batch mode drops the old table: with foreign keys on, its messages would go with it. The pragma counts only
        # outside of a transaction. BEGIN IMMEDIATE is the lock.
        driver: Any = connection.connection.dbapi_connection
        (before,) = driver.execute("PRAGMA foreign_keys").fetchone()
        driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with self.transaction(connection):
                yield
                self._refuse_orphans(connection)
        finally:
            driver.execute(f"PRAGMA foreign_keys = {before}")

    @contextmanager
    def migration_within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # Inside a transaction foreign keys cannot be switched off: a revision that makes a table anew is refused then.
        def guard(_: object, __: object, statement: str, *___: object) -> None:
            if re.match(r'\s*DROP TABLE "?lango_session\b', statement) and self._children_have_rows(connection):
                raise LangoStoreError(
                    "this revision makes lango_session anew, which with foreign keys on would delete its messages: "
                    "run `PRAGMA foreign_keys = OFF` before the transaction begins, or give the engine"
                )

        guarded = bool(connection.exec_driver_sql("PRAGMA foreign_keys").scalar())
        if guarded:
            event.listen(connection, "before_cursor_execute", guard)
        try:
            with connection.begin_nested():
                yield
                self._refuse_orphans(connection)
        finally:
            if guarded:
                event.remove(connection, "before_cursor_execute", guard)

    @staticmethod
    def _children_have_rows(connection: sa.Connection) -> bool:
        there = [table for table in _CHILDREN if sa.inspect(connection).has_table(table)]
        return any(connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() for table in there)

    @staticmethod
    def _refuse_orphans(connection: sa.Connection) -> None:
        for table in _OURS:  # a host's tables are the host's affair
            if sa.inspect(connection).has_table(table):
                orphans = connection.exec_driver_sql(f"PRAGMA foreign_key_check({table})").all()
                if orphans:
                    raise LangoStoreError(f"the migration would leave rows without their session: {orphans[:3]}")

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        for (fault,) in connection.exec_driver_sql("PRAGMA integrity_check(20)"):
            if fault != "ok":
                yield f"the file is damaged: {fault}", "restore it from a backup, or `sqlite3 FILE .recover`"
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        if mode not in ("wal", "memory"):
            yield f"journal_mode is {mode}: readers wait for writers", "sqlite3 FILE 'PRAGMA journal_mode = WAL'"

    def incompatibility(self, connection: sa.Connection) -> str | None:
        if sqlite3.sqlite_version_info < (3, 35):
            return f"SQLite is {sqlite3.sqlite_version}, 3.35 is needed for RETURNING: install a newer Python or SQLite"
        if not connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
            return (
                "this engine's connections have foreign keys off, a delete would leave messages behind: "
                "make the engine with lango_store.create_engine(url), or add "
                '`sqlalchemy.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = ON"))`'
            )
        driver: Any = connection.connection.driver_connection
        if getattr(driver, "autocommit", None) is True:  # commit() and rollback() would do nothing
            return (
                "this engine's connections have sqlite3's autocommit=True and make no transaction: "
                'make the engine with connect_args={"autocommit": False}, or without it'
            )
        return None


class PostgreSQL(Dialect):
    """Many writers, row locks, and a network in between: round trips are what costs."""

    drivers = ("psycopg",)
    purge_pause = 0.0  # only rows are locked
    modifying_cte = True
    tells_time = True  # clients are on many machines, whose clocks differ

    def time(self, moment: Moment) -> Moment:
        return moment

    def current(self, given: str) -> str:
        # Not now(), which stands still through a caller's long transaction. Stable, so that indexes serve.
        return f"coalesce({given}, statement_timestamp())"

    def misformed(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        return sa.false()  # a timestamptz has no form

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        return sa.type_coerce(now.op("+")(ttl.op("*")(sa.literal_column("interval '1 second'"))), TimeColumn())

    def key_in(self, column: sa.Column[str], chosen: sa.Select[tuple[str]]) -> sa.ColumnElement[bool]:
        # For IN (SELECT …) the planner hashes the few and reads the whole table.
        return column == sa.any_(sa.func.array(chosen.scalar_subquery()))

    def holds(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        # Other collations than C fold other letters, each its own; SQLite folds A to Z.
        return sa.func.strpos(sa.func.lower(sa.collate(column, "C")), part) > sa.literal_column("0")

    def insert(self, table: sa.Table) -> Any:
        return postgresql.insert(table)

    def join(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        if driver.autocommit:
            raise LangoStoreError(_NO_TRANSACTION)

    @contextmanager
    def transaction(self, connection: sa.Connection) -> Iterator[None]:
        # Our statements take row locks and look again: READ COMMITTED is enough, and fails nobody who waited.
        with self._isolated(connection, _READ_COMMITTED, None), _ensure_transaction(connection):
            yield

    @contextmanager
    def snapshot(self, connection: sa.Connection) -> Iterator[None]:
        # READ COMMITTED shows each statement its own moment.
        with self._isolated(connection, _REPEATABLE_READ, True), _ensure_transaction(connection):
            if getattr(connection.connection.dbapi_connection, "isolation_level", None) != _REPEATABLE_READ:
                try:
                    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                except sa.exc.DBAPIError as error:
                    if getattr(error.orig, "sqlstate", None) != "25001":
                        raise
                    raise LangoStoreError(
                        "a listener of this engine (connect, checkout or engine_connect) runs a query and leaves its "
                        "transaction open, so that several reads cannot see one moment: commit it in the listener, "
                        "or set what is needed in a listener for `begin`"
                    ) from error
            yield

    @staticmethod
    @contextmanager
    def _isolated(connection: sa.Connection, level: int, read_only: bool | None) -> Iterator[None]:
        """Let the driver begin its next transaction at a level; one that a listener has begun stays as it is."""
        # Settings of the driver, sent with its BEGIN: no round trip, and before a host's listener runs its query.
        driver: Any = connection.connection.dbapi_connection
        if driver.pgconn.transaction_status:
            yield
            return
        before = {name: getattr(driver, name) for name in ("autocommit", "isolation_level", "read_only")}
        wanted = {"autocommit": False, "isolation_level": level}
        if read_only is not None:
            wanted["read_only"] = read_only
        try:
            _set(driver, wanted)
            yield
        finally:
            if not driver.closed:
                if driver.pgconn.transaction_status:
                    driver.rollback()
                _set(driver, before)

    def append_whole(self, connection: sa.Connection) -> AbstractContextManager[None]:
        return nullcontext()  # one statement, and after an error the transaction commits nothing

    def start(self, driver: Any, *, writes: bool) -> Started:
        # A transaction around one statement costs three round trips, autocommit one.
        if driver.autocommit:
            return Started.ALONE
        if driver.pgconn.transaction_status:  # begun by a listener, and what it set may end with the transaction
            return Started.TRANSACTION
        driver.autocommit = True
        return Started.SWITCHED

    def finish(self, driver: Any, started: Started, *, failed: bool) -> None:
        if started is Started.ALONE or driver.closed:
            return
        if started is Started.SWITCHED:
            # Left on, the next transaction on this pooled connection could not be rolled back.
            driver.autocommit = False
        elif failed:
            driver.rollback()
        else:
            driver.commit()

    def file(self, connection: sa.Connection) -> None:
        return None

    def schema(self, connection: sa.Connection) -> str | None:
        # A name without a schema is looked for along the whole search path: in a schema that has no tables of ours
        # yet, those of another tenant further down would be found.
        found: str | None = connection.exec_driver_sql("SELECT current_schema()").scalar()
        return found

    @contextmanager
    def confined(self, connection: sa.Connection) -> Iterator[None]:
        before = connection.exec_driver_sql("SHOW search_path").scalar()
        if self.schema(connection) is None:
            raise LangoStoreError(f"search_path is {before}, no such schema is there: CREATE SCHEMA, or correct it")
        connection.exec_driver_sql("SELECT set_config('search_path', quote_ident(current_schema()), true)")
        yield  # after an error the transaction, or the savepoint around, is rolled back, and the setting with it
        self._set_local(connection, "search_path", before)

    @staticmethod
    def _set_local(connection: sa.Connection, name: str, value: object) -> None:
        connection.execute(sa.select(sa.func.set_config(name, str(value), True)))

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        sizes = sa.select(*(sa.func.pg_total_relation_size(sa.cast(name, postgresql.REGCLASS)) for name in tables))
        return sum(connection.execute(sizes).one())

    def free_bytes(self, connection: sa.Connection) -> None:
        return None  # deleted rows are freed later, by a vacuum

    def translate_error(self, error: BaseException) -> LangoStoreError:
        state = getattr(error, "sqlstate", None)
        reason = f"PostgreSQL: {str(error).strip()}"
        if state in ("23503", "23001"):
            return SessionHeld(None, reason)
        if state in ("40001", "40P01", "55P03", "57014"):
            return DatabaseBusy(f"{reason}; try again")
        if state == "25006":
            return DatabaseUnavailable(f"{reason}; this server takes no writes: connect to the primary")
        if state is not None and state[:2] in ("08", "28", "3D", "53", "57"):
            return DatabaseUnavailable(f"{reason}; see that the server runs, has room, and lets this role in")
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if state is None and kinds & {"OperationalError", "InterfaceError"}:
            return DatabaseUnavailable(f"{reason}; see that the server runs and the URL is right")
        if state == "42501":
            return DatabaseUnavailable(f"{reason}; grant it to the role of this URL")
        return LangoStoreError(reason)

    def is_duplicate(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) == "23505"

    def foreign_keys(self, connection: sa.Connection) -> list[ForeignKey]:
        def columns(of: str, numbers: str) -> str:
            return (
                f"ARRAY(SELECT a.attname::text FROM unnest(k.{numbers}) WITH ORDINALITY AS n (number, place) "
                f"JOIN pg_attribute a ON a.attrelid = k.{of} AND a.attnum = n.number ORDER BY place)"
            )

        query = (
            "SELECT k.conname::text, ts.nspname::text, t.relname::text, "
            f"{columns('conrelid', 'conkey')}, rs.nspname::text, r.relname::text, {columns('confrelid', 'confkey')}, "
            "CASE k.confdeltype WHEN 'r' THEN 'RESTRICT' WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' "
            "WHEN 'd' THEN 'SET DEFAULT' ELSE 'NO ACTION' END FROM pg_constraint k "
            "JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace ts ON ts.oid = t.relnamespace "
            "JOIN pg_class r ON r.oid = k.confrelid JOIN pg_namespace rs ON rs.oid = r.relnamespace "
            "WHERE k.contype = 'f' AND k.conparentid = 0 AND has_table_privilege(t.oid, 'SELECT') "
            "AND has_schema_privilege(ts.oid, 'USAGE') ORDER BY 1, 2, 3"
        )
        return [
            ForeignKey(
                name,
                sa.table(table, *map(sa.column, columns), schema=schema),
                tuple(columns),
                (referred_schema, referred_table),
                tuple(referred),
                on_delete,
            )
            for name, schema, table, columns, referred_schema, referred_table, referred, on_delete in (
                connection.exec_driver_sql(query)
            )
        ]

    def is_damage(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) in ("XX001", "XX002")

    def is_undecodable(self, error: BaseException) -> bool:
        return False  # the server checks the encoding of what comes in

    @contextmanager
    def bytes_for_bad_text(self, connection: AnyConnection) -> Iterator[None]:
        yield

    def storage_place(self, table: sa.Table) -> None:
        return None  # where a row lies is no number that could be counted through

    @contextmanager
    def migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # An advisory lock that waits holds a snapshot, which deadlocks with CREATE INDEX CONCURRENTLY: ask and ask
        # again, on a connection of its own that the migration's failure does not touch.
        engine = sa.create_engine(connection.engine.url, creator=connection.engine.pool._creator, poolclass=sa.NullPool)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as keeper:
            self._wait_for_lock(keeper, "pg_try_advisory_lock")
            try:
                with self.transaction(connection):
                    # A migration that waits for a table makes every append wait behind it.
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}")
                    yield
            finally:
                keeper.exec_driver_sql(f"SELECT pg_advisory_unlock({_MIGRATION_LOCK})")

    @contextmanager
    def migration_within(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        # The lock has to last until the caller commits: before that, nobody else sees the tables.
        self._wait_for_lock(connection, "pg_try_advisory_xact_lock")
        before = connection.exec_driver_sql("SHOW lock_timeout").scalar()
        with connection.begin_nested():
            self._set_local(connection, "lock_timeout", int(lock_timeout * 1000))
            yield
            self._set_local(connection, "lock_timeout", before)

    @staticmethod
    def _wait_for_lock(connection: sa.Connection, ask: str) -> None:
        deadline = time.monotonic() + _MIGRATION_PATIENCE
        while not connection.exec_driver_sql(f"SELECT {ask}({_MIGRATION_LOCK})").scalar():
            if time.monotonic() > deadline:
                raise DatabaseBusy("another migration of lango_store runs in this database: wait for it")
            time.sleep(0.05)

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        wanted = {
            "fsync": "a crash of the machine can destroy the database",
            "full_page_writes": "a crash of the machine can destroy the database",
            "synchronous_commit": "a crash can take the last appends",
            "autovacuum": "tables grow without end",
        }
        server: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        ahead = (datetime.now(UTC) - server).total_seconds()
        if abs(ahead) > _CLOCKS_MAY_DIFFER:
            yield (
                f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's",
                "set both by NTP; the server's decides what has expired, unless a store was given a clock",
            )
        for name, risk in wanted.items():
            if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off":
                yield f"{name} is off: {risk}", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"

    def incompatibility(self, connection: sa.Connection) -> str | None:
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding != "UTF8":
            return f"the database's encoding is {encoding}, text would be lost: create it with ENCODING 'UTF8'"
        return None


def _ensure_transaction(connection: sa.Connection) -> sa.RootTransaction:
    """Return the connection's transaction, which a host's listener may have begun."""
    return connection.get_transaction() or connection.begin()


def _begin_immediate(connection: sa.Connection) -> None:
    # A stock driver begins at the first INSERT, but not at a SAVEPOINT, whose release would then commit.
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _part(text: sa.ColumnElement[Any], start: int, length: int) -> sa.ColumnElement[str]:
    """Write a part of a text in SQL, with no value to bind."""
    return sa.func.substr(text, sa.literal_column(str(start)), sa.literal_column(str(length)), type_=sa.Text)


def _set(driver: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if getattr(driver, name) != value:
            setattr(driver, name, value)


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


_DIALECTS = {"sqlite": SQLite(), "postgresql": PostgreSQL()}


def dialect_of(connection: AnyConnection | sa.Engine) -> Dialect:
    """Return the dialect of a connection or an engine; ValueError for a database or driver that is not supported."""
    dialect = _DIALECTS.get(connection.dialect.name)
    if dialect is not None and connection.dialect.driver == "asyncpg":
        raise ValueError(
            "the store's statements cannot run on asyncpg's connections: make this engine with "
            'create_async_engine(url.set(drivername="postgresql+psycopg")), or use AsyncStore(url) beside it'
        )
    if dialect is None or connection.dialect.driver not in dialect.drivers:
        raise ValueError(
            f"{connection.dialect.name}+{connection.dialect.driver} is not supported: "
            "use sqlite or postgresql+psycopg, best through lango_store.create_engine(url)"
        )
    return dialect
