"""The dialect for PostgreSQL: a server with many writers and row locks, where each round trip costs time."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store._dialect.base import (
    NO_TRANSACTION,
    AnyConnection,
    Dialect,
    Moment,
    TransientReason,
    ensure_transaction,
)
from lango_store._engine.engine import RELEASE
from lango_store._rows.columns import TimeColumn
from lango_store.errors import (
    DatabaseBusy,
    DatabaseError,
    DatabaseUnavailable,
    LangoStoreError,
    MigrationRefused,
    NotPermitted,
    SessionHeld,
    UniqueViolation,
    UnsupportedDatabase,
)

# READ COMMITTED is enough, because our statements lock rows and read them again. This text replaces the driver's own
# BEGIN, which would wait for the server's answer in a pipeline.
BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
READ_COMMITTED: Final = 2  # psycopg's number of the level
REPEATABLE_READ: Final = 3
_ACTIVE: Final = 1
_TRANSACTION_TIMEOUTS: Final = ("25P03", "25P04")  # idle_in_transaction_session_timeout, transaction_timeout
_READ_ONLY: Final = "25006"
_PREPARED_ELSEWHERE: Final = ("42P05", "26000")  # a prepared statement already exists, or does not exist
_NOT_SUPPORTED: Final = "0A000"
_OPTIONS_REFUSED: Final = ("unsupported startup parameter", "command-line options")  # by PgBouncer, by RDS Proxy
_LOCK: Final = 0x6C616E676F  # "lango"
_MIGRATION_TIMEOUT: Final = 60.0  # seconds to wait for another migration

_CREATORS: Final = """
SELECT quote_ident(n.nspname), CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END
FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE n.nspname = ANY (current_schemas(false)) AND a.privilege_type = 'CREATE' AND NOT coalesce(r.rolsuper, false)
AND a.grantee <> n.nspowner AND a.grantee <> (SELECT relowner FROM pg_class WHERE oid = to_regclass('lango_session'))
ORDER BY 1, 2
"""

_CHANGED_COLLATION: Final = """
SELECT quote_ident(datname), datcollversion, pg_database_collation_actual_version(oid) FROM pg_database
WHERE datname = current_database() AND datcollversion <> pg_database_collation_actual_version(oid)
"""


def _text(value: str) -> sa.ColumnElement[str]:
    """Bind a text as TEXT: another role can define a function or an operator of VARCHAR, which would run instead."""
    return sa.cast(sa.literal(value), sa.Text)


class PostgreSQL(Dialect):
    """Many writers, row locks and a network: round trips are the main cost."""

    name = "postgresql"
    drivers = ("psycopg",)
    takes_arrays = True  # three times as fast as one statement per row in a pipeline
    select_triggers = (
        "SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "JOIN pg_proc p ON p.oid = t.tgfoid WHERE NOT t.tgisinternal "
        "AND p.pronamespace <> 'pg_catalog'::regnamespace "  # excludes the triggers of Citus
        "AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
    )

    def time(self, moment: Moment) -> Moment:
        return moment

    def needs_new_dialect(self, error: BaseException) -> bool:
        # Distributed tables refuse some expressions of our statements before anything is written.
        return getattr(error, "sqlstate", None) == _NOT_SUPPORTED

    def is_distributed(self, connection: sa.Connection) -> bool:
        if not self.has_citus(connection):
            return False
        query = "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('lango_session'))"
        return bool(connection.exec_driver_sql(query).scalar())

    def has_citus(self, connection: sa.Connection) -> bool:
        """Return True if the Citus extension is installed in this database."""
        return self.has_table(connection, "pg_catalog.pg_dist_partition")

    def reject_worker(self, connection: sa.Connection) -> None:
        """Raise `LangoStoreError` on a Citus worker; the error names the coordinator."""
        if not self.has_citus(connection):
            return
        query = (
            "SELECT coalesce(n.nodename || ':' || n.nodeport, 'that one') FROM pg_dist_local_group l "
            "LEFT JOIN pg_dist_node n ON n.groupid = 0 WHERE l.groupid <> 0"
        )
        if coordinator := connection.exec_driver_sql(query).scalar():
            raise MigrationRefused(
                "this server is a worker of a Citus cluster, and schemas are changed on the coordinator: "
                f"give the URL of {coordinator}"
            )

    def current(self, *, of_transaction: bool = False) -> str:
        # now() would not change during a caller's long transaction. Unlike clock_timestamp(), both functions are
        # stable, so that indexes can be used.
        return "transaction_timestamp()" if of_transaction else "statement_timestamp()"

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        seconds = sa.cast(ttl, sa.Double)  # a bound NULL has no type
        return sa.type_coerce(now.op("+")(seconds.op("*")(sa.literal_column("interval '1 second'"))), TimeColumn())

    def contains_text(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        # Collations fold different letters; C folds only A to Z, like SQLite.
        return sa.func.strpos(sa.func.lower(sa.collate(column, "C")), part) > sa.literal_column("0")

    def day_of(self, column: sa.ColumnElement[datetime], *, minute: bool = False) -> sa.ColumnElement[str]:
        in_utc = sa.func.timezone(_text("UTC"), column)
        return sa.func.to_char(in_utc, _text('YYYY-MM-DD"T"HH24:MI' if minute else "YYYY-MM-DD"), type_=sa.Text)

    def text_member(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[str | None]:
        # ->> fails for JSON with a NUL or a lone surrogate in any of its texts.
        text = sa.cast(column, sa.Text)
        member = sa.cast(text, postgresql.JSON).op("->>", return_type=sa.Text())(_text(name))
        return sa.case((text.op("~*")(_text(r"\\u(0000|d[89a-f])")), sa.null()), else_=member)

    def texts_of_list(self, texts: sa.BindParameter[str]) -> sa.Select[tuple[str]]:
        return sa.select(sa.func.json_array_elements_text(sa.cast(texts, postgresql.JSON)))

    def insert(self, table: sa.Table) -> Any:
        return postgresql.insert(table)

    def join(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        if driver.autocommit:
            raise UnsupportedDatabase(NO_TRANSACTION)

    @contextmanager
    def transaction(self, connection: sa.Connection) -> Iterator[None]:
        # A stricter level than READ COMMITTED would make writers fail after they waited for a lock.
        with isolated(connection, READ_COMMITTED), ensure_transaction(connection):
            yield

    @contextmanager
    def unsynced_transaction(self, connection: sa.Connection) -> Iterator[None]:
        with self.transaction(connection):
            set_config(connection, "synchronous_commit", "off")
            yield

    @contextmanager
    def snapshot(self, connection: sa.Connection) -> Iterator[None]:
        # In READ COMMITTED each statement has a different snapshot.
        with isolated(connection, REPEATABLE_READ, read_only=True), ensure_transaction(connection):
            if getattr(connection.connection.dbapi_connection, "isolation_level", None) != REPEATABLE_READ:
                try:
                    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                except sa.exc.DBAPIError as error:
                    if getattr(error.orig, "sqlstate", None) != "25001":
                        raise
                    raise UnsupportedDatabase(
                        "a listener of this engine (connect, checkout or engine_connect) runs a query and leaves its "
                        "transaction open, so that several reads cannot see one moment: commit it in the listener, "
                        "or set what is needed in a listener for `begin`"
                    ) from error
            yield

    def start(self, driver: Any, *, writes: bool) -> bool:
        # A transaction with one statement costs three round trips, autocommit costs one. A transaction that a
        # listener has begun stays open, because settings made in it may end with it.
        if driver.autocommit or driver.pgconn.transaction_status:
            return False
        driver.autocommit = True
        return True

    def finish(self, driver: Any, started: bool, *, failed: bool) -> None:
        if driver.closed:
            return
        if started:  # the connection returns to the pool, and the next transaction must be able to roll back
            driver.autocommit = False
        elif failed and not driver.autocommit:
            driver.rollback()
        elif not driver.autocommit:
            driver.commit()

    @contextmanager
    def short_transaction(self, connection: AnyConnection) -> Iterator[None]:
        driver: Any = getattr(connection.connection, "dbapi_connection", connection.connection)
        if not driver.autocommit or driver.pgconn.transaction_status:
            yield
            return
        driver.execute(BEGIN)
        try:
            yield
            driver.execute("COMMIT")
        finally:
            end(driver)

    @contextmanager
    def migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        with self.batch(connection, lock_timeout):
            self._wait_for_lock(connection)
            yield

    @contextmanager
    def batch(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        with self.transaction(connection), without_timeouts(connection):
            # While a migration waits for a table lock, all appends wait behind it.
            self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
            set_config(connection, "statement_timeout", 0)  # the application's limit is meant for ordinary calls
            yield

    @contextmanager
    def joined_migration(self, connection: sa.Connection, lock_timeout: float) -> Iterator[None]:
        self._wait_for_lock(connection)
        before = connection.exec_driver_sql("SHOW lock_timeout").scalar()
        with connection.begin_nested():
            self._set_lock_timeout(connection, f"{lock_timeout * 1000:.0f}ms")
            yield
            self._set_lock_timeout(connection, before)

    def _wait_for_lock(self, connection: sa.Connection) -> None:
        # The lock is held until the transaction ends, since others see its changes only then. The lock is
        # polled, because a statement that waits for a lock would hold a snapshot.
        self.reject_worker(connection)
        deadline = time.monotonic() + _MIGRATION_TIMEOUT
        driver: Any = connection.connection.driver_connection
        with driver_settings(driver, prepare_threshold=None):  # a prepared statement would keep its snapshot
            while not connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar():
                if time.monotonic() > deadline:
                    raise DatabaseBusy("another migration of lango_store has run for a minute: try again after it")
                time.sleep(0.05)

    def _set_lock_timeout(self, connection: sa.Connection, timeout: object) -> None:
        """Limit how long the statements of this transaction wait for a lock."""
        set_config(connection, "lock_timeout", timeout)

    def schema(self, connection: sa.Connection) -> str | None:
        # Unqualified names are looked up in all schemas of the search path, and one may hold another tenant's tables.
        schema: str | None = connection.exec_driver_sql("SELECT current_schema()").scalar()
        return schema

    def has_table(self, connection: sa.Connection, name: str) -> bool:
        # SQLAlchemy's own check takes ten times as long on a new connection.
        return connection.exec_driver_sql("SELECT to_regclass(%s)", (name,)).scalar() is not None

    @contextmanager
    def confined(self, connection: sa.Connection) -> Iterator[None]:
        before = connection.exec_driver_sql("SHOW search_path").scalar()
        if self.schema(connection) is None:
            raise MigrationRefused(f"no schema of search_path ({before}) exists: CREATE SCHEMA, or correct search_path")
        connection.exec_driver_sql("SELECT set_config('search_path', quote_ident(current_schema()), true)")
        yield  # an error rolls back the transaction or savepoint, which restores the setting
        set_config(connection, "search_path", before)

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        sizes = sa.select(*(sa.func.pg_total_relation_size(sa.cast(name, postgresql.REGCLASS)) for name in tables))
        return sum(connection.execute(sizes).one())

    def translate_error(self, error: Any) -> LangoStoreError:
        state = getattr(error, "sqlstate", None)
        # Only the primary message: the other parts (DETAIL, CONTEXT) may quote a row.
        reason = f"PostgreSQL: {primary_message(error)}"
        if state in ("23503", "23001"):
            return SessionHeld(None, f"foreign key {error.diag.constraint_name} of {error.diag.table_name}")
        if state in ("40001", "40P01", "55P03", "57014"):
            return DatabaseBusy(f"{reason}; try again")
        if self.needs_new_dialect(error):
            return DatabaseBusy(f"{reason}; its tables may have been changed or distributed just now: try again")
        if state == _READ_ONLY:
            return DatabaseUnavailable(
                f"{reason}; this server takes no writes: try again. The next call opens a new connection; if the "
                "URL has several hosts and target_session_attrs=read-write, it is to the host that takes writes"
            )
        if state in _TRANSACTION_TIMEOUTS:
            return DatabaseUnavailable(f"{reason}; the server closed the connection and rolled back: try again")
        if state is not None and state[:2] in ("08", "28", "3D", "53", "57"):
            return DatabaseUnavailable(f"{reason}; check that the server runs, has room, and admits this role")
        if state is None and _kinds(error) & {"OperationalError", "InterfaceError"}:
            if any(text in reason for text in _OPTIONS_REFUSED):
                return DatabaseUnavailable(
                    f"{reason}; a connection pooler accepts no `options` and no `statement_timeout` in the URL: use "
                    "ALTER ROLE … SET instead. `serve` and read-only engines need the URL of the server itself"
                )
            return DatabaseUnavailable(f"{reason}; check that the server runs and the URL is right")
        if state == "42501":
            if error.diag.source_function == "ExecWithCheckOptions":  # the message text may be translated
                return NotPermitted(f"{reason}; nothing was written")
            return NotPermitted(
                f"{reason}; to change the schema or the search index use the URL of the role that owns the tables; "
                "grant other rights to the role of this URL"
            )
        if state in _PREPARED_ELSEWHERE:
            return DatabaseError(
                f"{reason}; a connection pooler, such as PgBouncer before 1.24, gives the connection to several "
                "clients: add ?prepare_threshold=none to the URL"
            )
        return UniqueViolation(reason) if state == "23505" else DatabaseError(reason)

    def has_unread_answer(self, driver: Any) -> bool:
        return bool(driver.pgconn.transaction_status == _ACTIVE)

    def is_connection_unusable(self, driver: Any, error: BaseException) -> bool:
        # A demoted primary keeps its clients connected, and would refuse all their writes.
        return bool(driver.closed) or getattr(error, "sqlstate", None) == _READ_ONLY or _is_outdated_statement(error)

    def transient_reason(self, error: BaseException) -> TransientReason | None:
        state = getattr(error, "sqlstate", None)
        if state in ("40001", "40P01", *_TRANSACTION_TIMEOUTS) or _is_outdated_statement(error):
            return TransientReason.ROLLED_BACK
        if state in ("55P03", "57014", "53300", "57P03", _READ_ONLY) or self.needs_new_dialect(error):
            return TransientReason.REFUSED
        if isinstance(error, OSError):  # from a connection that may have sent the statement
            return TransientReason.LOST
        kinds = _kinds(error)
        if state is None and kinds & {"OperationalError", "InterfaceError"}:
            # psycopg's errors have no SQLSTATE if the connection could not be established or was lost.
            never_connected = getattr(error, "pgconn", None) is not None or "ConnectionTimeout" in kinds
            return TransientReason.REFUSED if never_connected else TransientReason.LOST
        return (
            TransientReason.LOST if state is not None and (state[:2] == "08" or state in ("57P01", "57P02")) else None
        )

    def connected_releases(self, connection: sa.Connection) -> dict[str, int]:
        query = (
            "SELECT substr(application_name, length(%s) + 1), count(*) FROM pg_stat_activity WHERE "
            "datname = current_database() AND pid <> pg_backend_pid() AND starts_with(application_name, %s) "
            "GROUP BY application_name ORDER BY application_name"
        )
        return {row[0]: row[1] for row in connection.exec_driver_sql(query, (RELEASE, RELEASE))}

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        wanted = {
            "fsync": "a crash of the machine can destroy the database",
            "full_page_writes": "a crash of the machine can destroy the database",
            "synchronous_commit": "a crash can lose the last appends",
            "autovacuum": "tables grow without limit",
        }
        for name, risk in wanted.items():
            if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off":
                yield f"{name} is off: {risk}", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
        if slow := self.slow_driver():
            yield slow
        for schema, role in connection.exec_driver_sql(_CREATORS):
            yield (
                f"{role} may create in schema {schema}: functions and operators there are called by name",
                f"REVOKE CREATE ON SCHEMA {schema} FROM {role};",
            )
        # Not a risk for the store's own indexes, which sort by code point.
        for database, recorded, actual in connection.exec_driver_sql(_CHANGED_COLLATION):
            yield (
                f"the collation library has changed from version {recorded} to {actual}: indexes on text in other "
                "tables may miss rows",
                f"REINDEX DATABASE {database}; ALTER DATABASE {database} REFRESH COLLATION VERSION;",
            )

    def slow_driver(self) -> tuple[str, str] | None:
        import psycopg  # already imported by the engine; users of SQLite do not need it

        if psycopg.pq.__impl__ != "python":
            return None
        return (
            f"psycopg {psycopg.__version__} runs without compiled code: loads take more than twice as long",
            "pip install 'lango-store[postgresql]'",
        )

    def incompatibility(self, connection: sa.Connection) -> str | None:
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding != "UTF8":
            return f"the database's encoding is {encoding}, text would be lost: create it with ENCODING 'UTF8'"
        server: Any = connection.connection.driver_connection.pgconn  # type: ignore[union-attr]
        for name, needed in (("DateStyle", "ISO"), ("client_encoding", "UTF8")):  # known without a round trip
            value = server.parameter_status(name.encode()).decode()
            if not value.upper().startswith(needed):  # PgBouncer reports what the client sent, such as utf8
                return (
                    f"this engine's connections have {name} {value}, so stored values cannot be read: make the engine "
                    f"with lango_store.create_engine(url), or run ALTER ROLE … SET {name} = '{needed}'"
                )
        return None


# Settings of psycopg's connections, for a block


@contextmanager
def isolated(connection: sa.Connection, level: int, *, read_only: bool | None = None) -> Iterator[None]:
    """Set the isolation level of the driver's next transaction, unless a listener has begun one already."""
    # The driver sends its settings with BEGIN: this costs no round trip, and precedes queries of the application.
    driver: Any = connection.connection.dbapi_connection
    if driver.pgconn.transaction_status:
        yield
        return
    settings = {} if read_only is None else {"read_only": read_only}
    with driver_settings(driver, autocommit=False, isolation_level=level, **settings):
        try:
            yield
        finally:
            if not driver.closed and driver.pgconn.transaction_status:
                driver.rollback()


@contextmanager
def without_timeouts(connection: sa.Connection) -> Iterator[None]:
    """Wait for answers without a timeout during a long change, and prepare no statements."""
    # Behind a connection pooler, a prepared statement may belong to a different connection of the server.
    driver: Any = connection.connection.driver_connection
    timeout = {"answer_timeout": None} if hasattr(driver, "answer_timeout") else {}  # only with `statement_timeout`
    with driver_settings(driver, prepare_threshold=None, **timeout):
        yield


@contextmanager
def driver_settings(driver: Any, **settings: Any) -> Iterator[None]:
    """Change settings of the driver for a block; on a closed or interrupted connection, they are not restored."""
    before = {name: getattr(driver, name) for name in settings}
    changes = {name: value for name, value in settings.items() if value != before[name]}
    for name, value in changes.items():
        setattr(driver, name, value)
    try:
        yield
    finally:
        if not driver.closed and driver.pgconn.transaction_status != _ACTIVE:
            for name in changes:
                setattr(driver, name, before[name])


def set_config(connection: sa.Connection, name: str, value: object) -> None:
    """Change a setting of the server for this transaction."""
    connection.execute(sa.select(sa.func.pg_catalog.set_config(name, str(value), True)))


def end(driver: Any) -> None:
    """Roll back a transaction that was not committed; close a connection with an interrupted pipeline.

    A connection with an interrupted statement cannot roll back; the pool discards it.
    """
    if driver.closed:
        return
    if driver.pgconn.pipeline_status:  # interrupted: answers are pending and cannot be matched to statements
        driver.pgconn.finish()
    elif driver.pgconn.transaction_status != _ACTIVE:
        driver.rollback()  # nothing to do after a commit


# Positions in the write-ahead log


def write_position(connection: AnyConnection) -> int:
    """Return the server's current write position; all earlier commits are before it."""
    # The insert position: with synchronous_commit off, the flushed position may lack the last commit.
    return _query_position(connection, "pg_current_wal_insert_lsn()")


def replay_position(connection: AnyConnection) -> int:
    """Return the position up to which a replica has replayed the write-ahead log; on a primary, its end."""
    driver: Any = getattr(connection.connection, "dbapi_connection", connection.connection)
    with driver_settings(driver, autocommit=True):  # in a transaction, the query would fix the snapshot too early
        return _query_position(
            connection,
            "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END",
        )


def _query_position(connection: AnyConnection, expression: str) -> int:
    with connection.connection.cursor() as cursor:
        return int(cursor.execute(f"SELECT ({expression} - '0/0')::bigint").fetchone()[0])


def primary_message(error: BaseException) -> str:
    """Return the primary message of a server's error, or the text of an error from the driver itself."""
    primary: str | None = getattr(getattr(error, "diag", None), "message_primary", None)
    return primary or str(error).strip()


def _is_outdated_statement(error: BaseException) -> bool:
    """Return True if a migration has changed a column's type or collation since the statement was prepared."""
    diagnosis = getattr(error, "diag", None)  # the message text may be translated
    return getattr(diagnosis, "source_function", None) == "RevalidateCachedQuery"


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
