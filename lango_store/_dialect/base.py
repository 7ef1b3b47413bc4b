"""The interface of a dialect: each difference between the databases is an attribute or a method with a name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, Protocol

import sqlalchemy as sa

from lango_store._dialect.search import SearchIndex
from lango_store.errors import LangoStoreError

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
    """Several statements that are sent together, where the database would split a single one into parts."""


class TransientReason(Enum):
    """The reason for a transient error."""

    ROLLED_BACK = auto()
    """Another transaction was in conflict, and this one was rolled back."""

    REFUSED = auto()
    """Nothing was done: the server was away or not ready, or another connection held a lock."""

    LOST = auto()
    """The connection was lost, and it is unknown whether the call was committed."""


class AnyConnection(Protocol):
    """The part of a SQLAlchemy connection that a statement needs."""

    @property
    def connection(self) -> Any:
        """The pool's proxy of the driver's connection, or that connection itself; it creates cursors."""

    @property
    def dialect(self) -> sa.Dialect:
        """The dialect of its engine."""

    def get_execution_options(self) -> Mapping[str, Any]:
        """Return the execution options, of which statements read the observer."""


@contextmanager
def reflected() -> Iterator[None]:
    """Raise LangoStoreError if SQLAlchemy cannot reflect tables because the catalog is damaged."""
    try:
        yield
    except sa.exc.DBAPIError:
        raise
    except (sa.exc.SQLAlchemyError, ValueError, LookupError, TypeError, AttributeError) as error:
        # SQLAlchemy parses the DDL of a damaged file by patterns, which can fail with any of these.
        raise LangoStoreError(f"the definitions of the tables cannot be read: {error}; restore a backup") from error


Moment = datetime | None
"""A time from the caller or the store's clock; None for the database's time at each statement."""


class Dialect(Protocol):
    """The interface between the operations and a database. A dialect inherits it and has no state."""

    name: str  # SQLAlchemy's name
    drivers: tuple[str, ...]  # the supported drivers, by SQLAlchemy's names
    batch_seconds: float = 0.2  # the time that a batch of a long change should take
    batch_rest: float = 0.0  # seconds to rest between such batches, so that other writers get a turn
    modifying_cte: bool = True  # supports UPDATE in a WITH, so that several writes are one round trip
    append_method: AppendMethod = AppendMethod.STATEMENT
    locks_many: bool = True  # one statement can lock the rows of several sessions
    tells_time: bool = True  # its clock decides, unless the store was given one
    asks_time: bool = False  # its clock has to be queried before a statement
    search_index: SearchIndex
    select_triggers: str  # selects the table and the name of each trigger
    has_replicas: bool = True  # other servers may have copies that lag a little
    takes_arrays: bool = False  # rows are inserted as one array for each column
    reads_ahead: bool = True  # the driver loads all rows of a result before it returns the first

    # Statements

    def time(self, moment: Moment) -> Any:
        """Return an aware time as the driver takes it."""

    def current(self, *, of_transaction: bool = False) -> str:
        """Return SQL for the time of a statement, or of the start of a short transaction, if it `tells_time`."""
        raise LookupError(f"{self.name} has no clock")

    def is_malformed_time(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        """Return a condition: a time is stored in a form that does not sort among the others."""
        return sa.false()

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return when a session that is written to now expires; NULL without a TTL."""

    def later_expiry(self, now: sa.ColumnElement[datetime], session: Any) -> sa.ColumnElement[datetime]:
        """Return when a session that is written to now expires, never earlier than before; takes its columns."""
        next_expiry = self.next_expiry(now, session.ttl_seconds)
        return sa.case((next_expiry > session.expires_at, next_expiry), else_=session.expires_at)

    def contains_text(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Return a condition: a text contains a lower-case part; only A to Z are folded."""

    def without_index(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        """Return a column whose index is not to be used, since another condition has a better one."""
        return column

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT that supports ON CONFLICT."""

    # Transactions

    def join(self, connection: sa.Connection) -> None:
        """Check that the caller's transaction has begun; LangoStoreError if the driver begins none."""

    def append_savepoint(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Undo an append that fails half-way in the caller's transaction, which the caller may commit nevertheless."""
        return nullcontext()  # one statement, and after an error the transaction commits nothing

    def transaction(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Commit several writes together, or none of them, at any isolation level of the engine."""

    def snapshot(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Run several reads on one snapshot, at any isolation level of the engine."""

    def start(self, driver: Any, *, writes: bool) -> bool:
        """Begin single reads, or one write, with few round trips; return whether `finish` has something to undo."""

    def finish(self, driver: Any, started: bool, *, failed: bool) -> None:
        """Commit or roll back, and restore the driver's connection after `start`."""

    def time_limit(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[None]:
        """Cancel a statement of the block that takes longer, raise TimeoutError, and keep the transaction."""

    def short_transaction(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Commit several statements of a single write together."""
        return nullcontext()  # there is one statement, or a transaction already

    # Migrations and other changes of tables

    def migration(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in a transaction that other migrations wait for, and commit it."""

    def joined_migration(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in the caller's transaction, which other migrations wait for; an error undoes them alone."""

    def batch(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run one batch of work in a separate transaction."""
        return self.transaction(connection)

    def confined(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Limit a transaction to our schema, so that no table further down the search path is used."""
        return nullcontext()

    # Errors

    def translate_error(self, error: BaseException) -> LangoStoreError:
        """Return the store's error for a driver's."""

    def transient_reason(self, error: BaseException) -> TransientReason | None:
        """Classify a driver's error: the reason if it is transient, None if it is permanent."""

    def is_connection_unusable(self, driver: Any, error: BaseException) -> bool:
        """Return whether this error makes a connection, and all that were made before it, useless."""
        return False

    def needs_new_dialect(self, error: BaseException) -> bool:
        """Return whether an error may mean that the database needs another dialect now."""
        return False

    def has_unread_answer(self, driver: Any) -> bool:
        """Return whether a statement's answer was not read to its end: such a connection cannot even roll back."""
        return False

    def is_undecodable(self, error: BaseException) -> bool:
        """Return whether an error means that a stored text cannot be decoded."""
        return False

    def bytes_for_bad_text(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Return a text that cannot be decoded as bytes, so that the decoder can report its field."""
        return nullcontext()

    # The database

    def is_distributed(self, connection: sa.Connection) -> bool:
        """Return whether our tables are distributed among several servers."""
        return False

    def undistributed_tables(self, connection: sa.Connection) -> list[str]:
        """List those of our tables that are on one server while others are distributed."""
        return []

    def file(self, connection: sa.Connection) -> str | None:
        """Return the path of the database's file; None in memory or on a server."""
        return None

    def schema(self, connection: sa.Connection) -> str | None:
        """Return the schema of the tables; None if the database does not support schemas."""
        return None

    def has_table(self, connection: sa.Connection, name: str) -> bool:
        """Return whether a table exists; its name is quoted where necessary."""

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        """Return the size of tables and their indexes in bytes."""

    def connected_releases(self, connection: sa.Connection) -> dict[str, int]:
        """Count the other connections of this package to the database by release, as far as they can be seen."""
        return {}

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Yield faults of the database, and settings that should be changed, each with a remedy."""

    def incompatibility(self, connection: sa.Connection) -> str | None:
        """Return why a host's engine cannot be used, with the line that fixes it; None if it can be."""


def ensure_transaction(connection: sa.Connection) -> sa.RootTransaction:
    """Return the connection's transaction, which a host's listener may have begun."""
    return connection.get_transaction() or connection.begin()
