"""What a database is asked for, by methods that name the differences; and what every dialect is written with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, Protocol

import sqlalchemy as sa

from lango_store._dialect.distribution import Distribution
from lango_store._dialect.migrations import Migrations
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

    name: str
    """What SQLAlchemy calls it, also where it names options after it; nothing is decided by that."""

    drivers: tuple[str, ...]
    """The drivers that we know the behaviour of, by SQLAlchemy's names."""

    purge_pause: float
    """How long a purge rests after a batch, as a part of the batch's time, to let waiting writers in."""

    modifying_cte: bool
    """Whether a WITH may hold an UPDATE, so that several writes are one statement and one round trip."""

    append_method: AppendMethod
    """How messages are appended."""

    locks_many: bool
    """Whether one statement may lock the rows of several sessions."""

    tells_time: bool
    """Whether the database has a clock of its own, which decides unless the store was given one."""

    asks_time: bool
    """Whether that clock has to be asked before a statement, which cannot do it itself."""

    migrations: Migrations
    """What its migrations are run with."""

    search_index: SearchIndex
    """The search index, made or not."""

    distribution: Distribution | None
    """How the tables are spread over several servers, if they are; None where that cannot be."""

    has_replicas: bool
    """Whether other servers may have copies that are a little behind."""

    reads_ahead: bool
    """Whether the driver has all rows of a result in memory before it gives the first."""

    def written(self, connection: AnyConnection) -> int:
        """Return up to where the server has written: what was committed before is in front of that."""
        raise NotImplementedError

    def replayed(self, connection: AnyConnection) -> int:
        """Return up to where a replica shows what another server has written."""
        raise NotImplementedError

    def time(self, moment: Moment) -> Any:
        """Return an aware time as the driver takes it."""
        raise NotImplementedError

    def is_outgrown(self, error: BaseException) -> bool:
        """Whether a driver's error may say that another dialect is needed by now, so that it is time to look again."""
        return False

    def is_distributed(self, connection: sa.Connection) -> bool:
        """Return whether our tables are parts on several servers."""
        return False

    def current(self, *, of_transaction: bool = False) -> str:
        """Return the time of a statement in SQL, or of a short transaction's beginning, where `tells_time`."""
        raise NotImplementedError

    def misformed(self, column: sa.Column[Any]) -> sa.ColumnElement[bool]:
        """Whether a time is stored in a form that does not sort among the others."""
        raise NotImplementedError

    def next_expiry(self, now: sa.ColumnElement[datetime], ttl: sa.ColumnElement[Any]) -> sa.ColumnElement[datetime]:
        """Return when a session that is written to now expires; NULL without a TTL."""
        raise NotImplementedError

    def later_expiry(self, now: sa.ColumnElement[datetime], session: Any) -> sa.ColumnElement[datetime]:
        """Return when a session expires that is written to now, by its columns: never earlier than it would have."""
        next_expiry = self.next_expiry(now, session.ttl_seconds)
        return sa.case((next_expiry > session.expires_at, next_expiry), else_=session.expires_at)

    def key_in(self, column: sa.Column[str], chosen: sa.Select[tuple[str]]) -> sa.ColumnElement[bool]:
        """Whether a column's value is one of a query's few, each to be looked up in the column's index."""
        raise NotImplementedError

    def holds(self, column: sa.Column[Any], part: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Whether a text holds another, which is in lower case already; only A to Z have a lower case here."""
        raise NotImplementedError

    def insert(self, table: sa.Table) -> Any:
        """Return an INSERT that knows ON CONFLICT, which SQLAlchemy's common language lacks."""
        raise NotImplementedError

    def join(self, connection: sa.Connection) -> None:
        """Make sure that the caller's transaction has really begun; LangoStoreError if the driver makes none."""
        raise NotImplementedError

    def append_whole(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Undo an append that fails half-way in the caller's transaction, which the caller may commit all the same."""
        raise NotImplementedError

    def transaction(self, connection: sa.Connection) -> AbstractContextManager[None]:
        """Commit several writes together, or none of them, whatever isolation level the engine has."""
        raise NotImplementedError

    @contextmanager
    def snapshot(self, connection: sa.Connection) -> Iterator[None]:
        """Let several reads see one moment, whatever isolation level the engine has."""
        raise NotImplementedError
        yield

    def start(self, driver: Any, *, writes: bool) -> Started:
        """Begin single reads, or one append, with as few round trips as the database allows."""
        raise NotImplementedError

    def several(self, connection: AnyConnection) -> AbstractContextManager[None]:
        """Let several statements of an append, or of another single write, commit together."""
        return nullcontext()  # there is one statement, or a transaction already

    def together(self, driver: Any) -> AbstractContextManager[None]:
        """Send the statements of a block and a commit, and then wait for all of them; for `AppendMethod.PIPELINE`."""
        raise NotImplementedError

    def finish(self, driver: Any, started: Started, *, failed: bool) -> None:
        """End what `start` began, and leave the driver's connection as it was."""
        raise NotImplementedError

    def file(self, connection: sa.Connection) -> str | None:
        """Return the path of the file that the database is; None where it is in memory or a server's."""
        raise NotImplementedError

    def schema(self, connection: sa.Connection) -> str | None:
        """Return the schema in which tables are created and looked for; None where there are no schemas."""
        raise NotImplementedError

    def has_table(self, connection: sa.Connection, name: str) -> bool:
        """Return whether there is a table of this name, which is quoted where it has to be."""
        raise NotImplementedError

    @contextmanager
    def confined(self, connection: sa.Connection) -> Iterator[None]:
        """Make only that schema visible within a transaction: no table of ours further down the search path."""
        raise NotImplementedError
        yield

    def bytes_on_disk(self, connection: sa.Connection, tables: Sequence[str]) -> int:
        """Return how many bytes tables and their indexes take."""
        raise NotImplementedError

    def translate_error(self, error: BaseException) -> LangoStoreError:
        """Return the store's error for a driver's."""
        raise NotImplementedError

    def is_answering(self, driver: Any) -> bool:
        """Whether a statement was left before its answer was read: such a connection cannot even roll back."""
        return False

    def is_spent(self, driver: Any, error: BaseException) -> bool:
        """Whether a connection and those that were made with it serve nothing any more, after this error."""
        raise NotImplementedError

    def passing(self, error: BaseException) -> Passing | None:
        """Return why a driver's error may pass; None for one that would be met again."""
        raise NotImplementedError

    def is_duplicate(self, error: BaseException) -> bool:
        """Whether a driver's error says that a unique value is stored already."""
        raise NotImplementedError

    def foreign_keys(self, connection: sa.Connection) -> list[ForeignKey]:
        """List the foreign keys of all tables that may be read, a host's too."""
        raise NotImplementedError

    def is_undecodable(self, error: BaseException) -> bool:
        """Whether a driver's error says that stored text cannot be decoded."""
        raise NotImplementedError

    @contextmanager
    def bytes_for_bad_text(self, connection: AnyConnection) -> Iterator[None]:
        """Let a stored text that cannot be decoded come as bytes, so that the decoder can say where it is."""
        raise NotImplementedError
        yield

    def triggers(self, connection: sa.Connection) -> list[tuple[str, str]]:
        """Return the triggers of all tables as pairs of table and name."""
        raise NotImplementedError

    def health_warnings(self, connection: sa.Connection) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the database itself or worth changing in its settings, each with a remedy."""
        raise NotImplementedError

    def incompatibility(self, connection: sa.Connection) -> str | None:
        """Return what a host's engine lacks that the store relies on, with the line to add; None if nothing."""
        raise NotImplementedError


def ensure_transaction(connection: sa.Connection) -> sa.RootTransaction:
    """Return the connection's transaction, which a host's listener may have begun."""
    return connection.get_transaction() or connection.begin()
