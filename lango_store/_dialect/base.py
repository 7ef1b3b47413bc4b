"""What a database is asked for, by methods that name the differences; and what every dialect is written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, Protocol

import sqlalchemy as sa

from lango_store._dialect.search import SearchIndex
from lango_store.errors import LangoStoreError

NO_TRANSACTION: Final = (
    "this connection is in autocommit, so that there is no transaction to take part in: give using() a connection "
    'with .execution_options(isolation_level="READ COMMITTED") ("SERIALIZABLE" on SQLite), '
    "or use the store without using()"
)
"""What a caller is told whose connection is in autocommit."""


class Started(Enum):
    """What `Dialect.start` began, for `Dialect.finish` to end."""

    ALONE = auto()
    """Nothing: each statement commits by itself."""

    SWITCHED = auto()
    """Nothing, after the driver was told to let each statement commit by itself."""

    TRANSACTION = auto()
    """A transaction."""


class AppendMethod(Enum):
    """How a database appends best."""

    STATEMENT = auto()
    """In one statement that does all, and so in one round trip."""

    TRANSACTION = auto()
    """In a short transaction of small statements, where they cost no round trips."""

    PIPELINE = auto()
    """In several statements that are sent together, where one with all would be run in parts."""


class Passing(Enum):
    """Why a call failed that may succeed when it is tried again."""

    UNDONE = auto()
    """Another transaction was in its way, and all of it was undone."""

    REFUSED = auto()
    """Nothing of it was done: the server was not there, or not ready, or somebody held what it needed."""

    LOST = auto()
    """The connection was lost: nobody knows whether it was done."""


class HasCursors(Protocol):
    """As much of a connection as a statement needs."""

    def cursor(self) -> Any:
        """Create a cursor."""


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


@contextmanager
def reflected() -> Iterator[None]:
    """Let SQLAlchemy read what the database says of its tables; LangoStoreError where that is damaged."""
    try:
        yield
    except sa.exc.DBAPIError:
        raise
    except (sa.exc.SQLAlchemyError, ValueError, LookupError, TypeError, AttributeError) as error:
        # What a damaged file says of its tables is read by patterns, which fail in any words.
        raise LangoStoreError(
            f"what the database says of its tables cannot be read: {error}; restore it from a backup"
        ) from error


Moment = datetime | None
"""A time that the caller or the store's clock gave; None is the database's own, at each statement."""


class Dialect(Protocol):
    """What the operations ask of a database. A dialect inherits it, and has no state."""

    name: str  # SQLAlchemy's; it names options, and decides nothing
    drivers: tuple[str, ...]  # whose behaviour is known, by SQLAlchemy's names
    purge_pause: float  # how long a purge rests after a batch, in parts of the batch's time, to let writers in
    batch_rest: float  # seconds to rest between batches of a longer change
    modifying_cte: bool  # whether a WITH may hold an UPDATE, so that several writes are one round trip
    append_method: AppendMethod
    locks_many: bool  # whether one statement may lock the rows of several sessions
    tells_time: bool  # whether its clock decides, unless the store was given one
    asks_time: bool  # whether that clock has to be asked before a statement
    search_index: SearchIndex
    has_replicas: bool  # whether other servers may have copies that are a little behind
    reads_ahead: bool  # whether the driver has all rows of a result in memory before it returns the first

    # Statements

    def time(self, moment: Moment) -> Any:
        """Return an aware time as the driver takes it."""

    def current(self, *, of_transaction: bool = False) -> str:
        """Return the time of a statement in SQL, or of a short transaction's beginning, where `tells_time`."""
        raise LookupError(f"{self.name} has no clock of its own")

    def misformed(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        """Whether a time is stored in a form that does not sort among the others."""

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return when a session that is written to now expires; NULL without a TTL."""

    def later_expiry(self, now: sa.ColumnElement[datetime], session: Any) -> sa.ColumnElement[datetime]:
        """Return when a session expires that is written to now, by its columns: never earlier than it would have."""
        next_expiry = self.next_expiry(now, session.ttl_seconds)
        return sa.case((next_expiry > session.expires_at, next_expiry), else_=session.expires_at)

    def key_in(self, column: sa.Column[str], chosen: sa.Select[tuple[str]]) -> sa.ColumnElement[bool]:
        """Whether a column's value is one of a query's few, each to be looked up in the column's index."""

    def holds(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Whether a text holds another, which is in lower case already; only A to Z have a lower case here."""

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT that knows ON CONFLICT, which SQLAlchemy's common language lacks."""

    # Transactions

    def join(self, connection: sa.Connection) -> None:
        """Make sure that the caller's transaction has really begun; LangoStoreError if the driver makes none."""

    def append_whole(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Undo an append that fails half-way in the caller's transaction, which the caller may commit all the same."""

    def transaction(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Commit several writes together, or none of them, whatever isolation level the engine has."""

    def snapshot(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Let several reads see one moment, whatever isolation level the engine has."""

    def start(self, driver: Any, *, writes: bool) -> Started:
        """Begin single reads, or one append, with as few round trips as the database allows."""

    def finish(self, driver: Any, started: Started, *, failed: bool) -> None:
        """End what `start` began, and leave the driver's connection as it was."""

    def several(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Let several statements of an append, or of another single write, commit together."""
        return nullcontext()  # there is one statement, or a transaction already

    # Migrations, and whatever else changes tables

    def migration(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in a transaction that other migrations wait for, and commit it."""

    def joined_migration(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run migrations in the caller's transaction, which other migrations wait for; an error undoes them alone."""

    def batch(self, connection: sa.Connection, lock_timeout: float) -> AbstractContextManager[None]:
        """Run one batch of work in a transaction of its own."""

    def confined(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Make only our schema visible within a transaction: no table of ours further down the search path."""

    # Errors

    def translate_error(self, error: BaseException) -> LangoStoreError:
        """Return the store's error for a driver's."""

    def passing(self, error: BaseException) -> Passing | None:
        """Return why a driver's error may pass; None for one that would be met again."""

    def is_spent(self, driver: Any, error: BaseException) -> bool:
        """Whether a connection and those that were made with it serve nothing any more, after this error."""

    def is_outgrown(self, error: BaseException) -> bool:
        """Whether a driver's error may say that another dialect is needed by now, so that it is time to look again."""
        return False

    def is_answering(self, driver: Any) -> bool:
        """Whether a statement was left before its answer was read: such a connection cannot even roll back."""
        return False

    def is_undecodable(self, error: BaseException) -> bool:
        """Whether a driver's error says that stored text cannot be decoded."""
        return False

    def bytes_for_bad_text(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Let a stored text that cannot be decoded come as bytes, so that the decoder can say where it is."""
        return nullcontext()

    # The database

    def is_distributed(self, connection: sa.Connection) -> bool:
        """Return whether our tables are parts on several servers."""
        return False

    def undistributed_tables(self, connection: sa.Connection) -> list[str]:
        """List our tables that are on one server, though others of ours are parts on several."""
        return []

    def file(self, connection: sa.Connection) -> str | None:
        """Return the path of the file that the database is; None where it is in memory or a server's."""
        return None

    def schema(self, connection: sa.Connection) -> str | None:
        """Return the schema in which tables are created and looked for; None where there are no schemas."""
        return None

    def has_table(self, connection: sa.Connection, name: str) -> bool:
        """Return whether there is a table of this name, which is quoted where it has to be."""

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        """Return how many bytes tables and their indexes take."""

    def triggers(self, connection: sa.Connection) -> list[tuple[str, str]]:
        """Return the triggers of all tables as pairs of table and name."""

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the database itself or worth changing in its settings, each with a remedy."""

    def incompatibility(self, connection: sa.Connection) -> str | None:
        """Return what a host's engine lacks that the store relies on, with the line to add; None if nothing."""


def ensure_transaction(connection: sa.Connection) -> sa.RootTransaction:
    """Return the connection's transaction, which a host's listener may have begun."""
    return connection.get_transaction() or connection.begin()
