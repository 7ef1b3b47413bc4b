"""The `Dialect` interface: one attribute or method for each difference between the databases."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, Protocol

import sqlalchemy as sa

from lango_store.errors import DamagedDatabase, LangoStoreError

NO_TRANSACTION: Final = (
    "this connection is in autocommit and has no transaction to take part in: give using() a connection "
    'with .execution_options(isolation_level="READ COMMITTED") ("SERIALIZABLE" on SQLite), '
    "or use the store without using()"
)
"""The error for a caller whose connection is in autocommit."""


class AppendMethod(Enum):
    """The fastest way to append on a database."""

    STATEMENT = auto()
    """One statement, which is one round trip."""

    TRANSACTION = auto()
    """A short transaction of small statements, where a statement costs no round trip."""

    PIPELINE = auto()
    """Several statements sent in one pipeline, for a database that would split a single statement."""


class TransientReason(Enum):
    """The reason for a transient error."""

    ROLLED_BACK = auto()
    """This transaction was rolled back because it conflicted with another one."""

    REFUSED = auto()
    """Nothing was done: the server was not reachable or not ready, a lock was held, or a statement took too long."""

    LOST = auto()
    """The connection was lost, and it is unknown whether the call was committed."""


class AnyConnection(Protocol):
    """The part of a SQLAlchemy connection that `Statement` needs."""

    @property
    def connection(self) -> Any:
        """The object that creates cursors: the pool's proxy, or the driver's connection itself."""

    @property
    def dialect(self) -> sa.Dialect:
        """SQLAlchemy's dialect object of the engine."""

    def get_execution_options(self) -> Mapping[str, Any]:
        """Return the execution options; statements read the observer from them."""


@contextmanager
def reflected() -> Iterator[None]:
    """Raise `LangoStoreError` if SQLAlchemy cannot reflect the tables of a damaged database."""
    try:
        yield
    except sa.exc.DBAPIError:
        raise
    except (sa.exc.SQLAlchemyError, ValueError, LookupError, TypeError, AttributeError) as error:
        # SQLAlchemy parses DDL with regular expressions, which can raise any of these for a damaged file.
        raise DamagedDatabase(f"the definitions of the tables cannot be read: {error}; restore a backup") from error


Moment = datetime | None
"""A time from the caller or the store's clock; None to use the database's clock in each statement."""


class Dialect(Protocol):
    """The interface between the operations and a database. Dialects inherit from it and hold no state."""

    name: str  # SQLAlchemy's name
    drivers: tuple[str, ...]  # the supported drivers, by SQLAlchemy's names
    batch_seconds: float = 0.2  # the intended duration of one batch of a long change
    batch_rest: float = 0.0  # seconds to rest between batches, so that other writers get a turn
    modifying_cte: bool = True  # supports UPDATE in a WITH clause, which saves round trips
    append_method: AppendMethod = AppendMethod.STATEMENT
    locks_many: bool = True  # one statement can lock the rows of several sessions
    tells_time: bool = True  # times come from the database's clock, unless the store has a `clock`
    asks_time: bool = False  # the database's clock has to be queried before each statement
    generates_columns: bool = True  # an index of a generated column is only written if the column's value changes
    select_triggers: str  # selects the table and the name of each trigger
    has_replicas: bool = True  # supports replicas, which may lag behind the primary
    takes_arrays: bool = False  # rows are inserted as one array per column
    leaves_dead_rows: bool = True  # deleted rows stay in the files of the tables until a vacuum
    reads_ahead: bool = True  # the driver loads all rows of a result before it returns the first

    # Statements

    def time(self, moment: Moment) -> Any:
        """Encode an aware time for the driver."""

    def current(self, *, of_transaction: bool = False) -> str:
        """Return SQL for the time of the statement, or with `of_transaction` for the start of the transaction."""
        raise LookupError(f"{self.name} has no clock")

    def is_malformed_time(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        """Return a condition that matches times in a form that does not sort correctly."""
        return sa.false()

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return the new expiry of a session after a write: `now` plus the TTL, or NULL without a TTL."""

    def later_expiry(self, now: sa.ColumnElement[datetime], session: Any) -> sa.ColumnElement[datetime]:
        """Return the expiry of a session that is written to now; a write never moves the expiry backward."""
        next_expiry = self.next_expiry(now, session.ttl_seconds)
        return sa.case((next_expiry > session.expires_at, next_expiry), else_=session.expires_at)

    def contains_text(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Match texts that contain `part`, which is in lower case; ignore the case of the letters A to Z only."""

    def without_index(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        """Return a column whose index is not used, because another condition has a better index."""
        return column

    def day_of(self, column: sa.ColumnElement[datetime], *, minute: bool = False) -> sa.ColumnElement[str]:
        """Return the day of a time in UTC as text, such as 2026-11-21, or its minute, such as 2026-11-21T08:30."""

    def text_member(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[str | None]:
        """Return a member of a JSON object as text; NULL if there is none."""

    def texts_of_list(self, texts: sa.BindParameter[str]) -> sa.Select[tuple[str]]:
        """Return a query of the texts in a bound JSON list."""

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT that supports ON CONFLICT."""

    # Transactions

    def join(self, connection: sa.Connection) -> None:
        """Ensure that the caller's transaction has begun; raise `LangoStoreError` in autocommit mode."""

    def append_savepoint(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """If appends take several statements, undo an append that fails in the caller's transaction."""
        return nullcontext()  # an append is one statement, and after an error PostgreSQL commits nothing

    def transaction(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Run a block in one transaction: all of its writes are committed or none, at any isolation level."""

    def unsynced_transaction(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Run a block in one transaction whose commit does not wait for the disk: a power failure can undo it."""

    def snapshot(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Run the reads of a block on one snapshot, at any isolation level of the engine."""

    def start(self, driver: Any, *, writes: bool) -> bool:
        """Prepare the driver's connection for single reads or one write with few round trips.

        Returns True if `finish` has to end a transaction or restore the connection.
        """

    def finish(self, driver: Any, started: bool, *, failed: bool) -> None:
        """Commit or roll back, and restore the driver's connection after `start`."""

    def short_transaction(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Commit the statements of a single write together."""
        return nullcontext()  # a write is one statement, or a transaction has begun already

    # Migrations and other changes of tables

    def switch_off_foreign_keys(self, connection: sa.Connection) -> None:
        """Switch off foreign keys on SQLite, so that a migration may drop and recreate a table that has children."""
        return

    def migration(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in one transaction and commit it; other migrations wait until it ends."""

    def joined_migration(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in the caller's transaction; an error undoes the migrations and nothing else."""

    def batch(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run one batch of work in a separate transaction."""
        return self.transaction(connection)

    def confined(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Restrict the search path to our schema, so that tables of other schemas are never used."""
        return nullcontext()

    # Errors

    def translate_error(self, error: BaseException) -> LangoStoreError:
        """Return the `LangoStoreError` for a driver's error."""

    def transient_reason(self, error: BaseException) -> TransientReason | None:
        """Classify a driver's error: the reason if it is transient, None if it is permanent."""

    def is_connection_unusable(self, driver: Any, error: BaseException) -> bool:
        """Return True if, after this error, this connection and every older one in the pool must be discarded."""
        return False

    def needs_new_dialect(self, error: BaseException) -> bool:
        """Return True if the tables may have been distributed, which requires another dialect."""
        return False

    def has_unread_answer(self, driver: Any) -> bool:
        """Return True if a statement's answer was not read completely, so that the connection cannot even roll back."""
        return False

    def is_undecodable(self, error: BaseException) -> bool:
        """Return True if the error means that a stored text cannot be decoded."""
        return False

    def bytes_for_bad_text(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Return text that is not valid UTF-8 in the form of bytes, so that the decoder can name the damaged field."""
        return nullcontext()

    # The database

    def is_distributed(self, connection: sa.Connection) -> bool:
        """Return True if our tables are distributed among several servers."""
        return False

    def undistributed_tables(self, connection: sa.Connection) -> list[str]:
        """List our tables that are not distributed although other ones are."""
        return []

    def file(self, connection: sa.Connection) -> str | None:
        """Return the path of the database file; None for a database in memory or on a server."""
        return None

    def schema(self, connection: sa.Connection) -> str | None:
        """Return the schema of the tables; None if the database does not support schemas."""
        return None

    def has_table(self, connection: sa.Connection, name: str) -> bool:
        """Return True if a table exists; the caller has quoted its name if necessary."""

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        """Return the size of tables and their indexes in bytes; on SQLite, of all data in the file."""

    def connected_releases(self, connection: sa.Connection) -> dict[str, int]:
        """Count the visible connections of this package, except this one, by release of the package."""
        return {}

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Yield risky settings, each with a remedy."""

    def slow_driver(self) -> tuple[str, str] | None:
        """Return what makes this installation's driver slow and the remedy; None if nothing does."""
        return None

    def damage(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Yield faults of the database itself, each with a remedy."""
        yield from ()

    def incompatibility(self, connection: sa.Connection) -> str | None:
        """Return the reason why an application's engine cannot be used, with a remedy; None if it can be used."""


def ensure_transaction(connection: sa.Connection) -> sa.RootTransaction:
    """Return the connection's transaction; begin one unless a listener of the application has begun it."""
    return connection.get_transaction() or connection.begin()
