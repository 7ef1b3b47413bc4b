"""Databases of frameworks, opened read-only, and the interface of the modules that read their tables."""

import hashlib
import importlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa
import sqlite_utils

from lango_store._engine.engine import database_file, read_only_engine
from lango_store._engine.untrusted_files import guard
from lango_store.errors import DatabaseUnavailable, InvalidFile
from lango_store.interchange.draft import Part
from lango_store.interchange.moments import moment
from lango_store.interchange.source import database_fault
from lango_store.store import Store

Row = dict[str, Any]
PAGE: Final = 1000
CHARACTERS: Final = 1 << 20
"""The numbers of rows and characters after which a transaction ends."""


class Piece(NamedTuple):
    """Rows of a source that are adopted together or not at all: what they become, their number and size.

    `skipped` says what could not be read.
    """

    part: Part
    rows: int = 0
    last: Row | None = None
    size: int = 0
    skipped: Sequence[str] = ()


@dataclass
class Original:
    """A session in a source.

    `read(after)` yields the pieces that follow the first `after` rows. If `after` is not 0, the first piece has only
    the last of these rows. `values` are the session's values, `columns` are columns that the framework does not know,
    `notes` say what became of data without a column, and `skipped` what cannot be read. Once reading has set `finish`,
    each transaction calls it. `adopt`, if set, does the whole adoption and returns the state and number of checkpoints.
    """

    key: str
    read: Callable[[int], Iterator[Piece]]
    fields: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    forked_from: str | None = None
    values: Mapping[str, Any] | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    finish: Callable[[Store], None] = lambda _: None
    adopt: Callable[..., tuple[Any, int]] | None = None


class Database(NamedTuple):
    """An open database of a framework: the columns of its tables, a function that runs a query, and the connection."""

    tables: dict[str, set[str]]
    query: Callable[[str, Row], Iterator[Row]]
    connection: Any

    def rows(self, query: str, **params: Any) -> Iterator[Row]:
        """Yield the rows of a query with parameters such as `:key`, without loading all of them."""
        return self.query(query, params)

    def with_columns(self, *columns: str) -> list[str]:
        """Return the names of the tables that have all of these columns."""
        return [name for name, existing in self.tables.items() if existing.issuperset(columns)]

    def read(self, query: str, after: int, convert: Callable[[Row], Part], **params: Any) -> Iterator[Piece]:
        """Yield the rows of a session as pieces, see `Original.read`."""
        rows = self.rows(f"{query} LIMIT {2**62} OFFSET :offset", **params, offset=max(after - 1, 0))
        return following(rows, after, convert)


def following(rows: Iterator[Row], after: int, convert: Callable[[Row], Part]) -> Iterator[Piece]:
    """Convert rows, which begin with the last one that was adopted before. A row that cannot be read is skipped."""
    for number, row in enumerate(rows, max(after, 1)):
        try:
            piece = Piece(convert(row) if number > after else Part([]), 1, row, _size_of(row))
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError, EOFError) as error:
            reason = str(error).partition("\n")[0]  # the following lines of pydantic's errors have content
            piece = Piece(Part([]), 1, row, skipped=[f"row {row['id']} is damaged ({reason}): left out"])
        yield piece


def _size_of(row: Row) -> int:
    kinds = (str, bytes, dict)
    return sum([len(str(each) if type(each) is dict else each) for each in row.values() if isinstance(each, kinds)])


class Source(Protocol):
    """A module that reads the tables of a framework."""

    NAME: str

    def columns(self, database: Database) -> Mapping[str, Set[str]]:
        """Return the columns that adoption reads, for each table of the framework."""

    def recognizes(self, database: Database) -> bool:
        """Return True if the database has the tables of the framework."""

    def sessions(self, database: Database) -> Iterator[Original]:
        """Yield the sessions."""

    def shared(self, database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the scopes of shared values, each with its values."""


def unread(database: Database, columns: Mapping[str, Set[str]]) -> Iterator[str]:
    """Describe the columns that hold data and are not read, for each table."""
    for table, read in columns.items():
        if names := sorted(database.tables.get(table, set()) - read):
            counts = ", ".join(f'count("{name}") AS "{name}"' for name in names)
            (row,) = database.rows(f'SELECT {counts} FROM "{table}"')
            if listed := ", ".join(f"{name} ({count:,})" for name, count in row.items() if count):
                yield f"table {table}, columns (and numbers of values) {listed}: not adopted"


@contextmanager
def open_source(url: str) -> Iterator[Database]:
    """Open the database of a framework for reading. PostgreSQL reads one snapshot."""
    engine = read_only_engine(url)
    path = database_file(engine.url)
    try:
        if path is not None:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
                guard(connection, path)
                file = sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)
                yield Database(
                    {name: set(file[name].columns_dict) for name in file.table_names()}, file.query, connection
                )
            return
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True, "yield_per": PAGE}
        with engine.connect().execution_options(**options) as opened:
            columns = sa.inspect(opened).get_multi_columns()
            yield Database(
                {table: {each["name"] for each in listed} for (_, table), listed in columns.items()},
                lambda query, params: map(dict, opened.execute(sa.text(query), params).mappings()),
                opened.connection.driver_connection,
            )
    except (sqlite3.Error, UnicodeError) as error:
        fault = f"cannot be read ({database_fault(error)}): give a complete SQLite file"
        raise InvalidFile(path or url, fault) from error
    except sa.exc.DBAPIError as error:
        raise DatabaseUnavailable(f"the source cannot be read: {error.orig}") from error
    finally:
        engine.dispose()


def adapter(name: str, extra: str) -> Any:
    """Import a module of `lango_store.integrations`. Raises ValueError if its framework is not installed."""
    try:
        return importlib.import_module(f"lango_store.integrations.{name}")
    except ImportError as error:
        raise ValueError(f"{extra} is not installed: pip install 'lango-store[{extra}]'") from error


def escaped(id: object) -> str:
    """Return an id as one level of a session key, as the adapters do."""
    return str(id).replace("%", "%25").replace("/", "%2F")


def mark_of(values: Mapping[str, Any]) -> str:
    """Return a short digest of the values of a row, or of a session."""
    return hashlib.sha256(repr(sorted(values.items())).encode("utf-8", "surrogatepass")).hexdigest()[:20]


def rest_of(row: Row, known: Set[str]) -> dict[str, Any]:
    """Return the columns of a row that the framework does not know, as an entry of `extra`."""
    if row.keys() <= known:
        return {}
    others = {name: value for name, value in row.items() if name not in known and value is not None}
    texts = {name: value if isinstance(value, str | int | float) else str(value) for name, value in others.items()}
    return {"adopted": texts} if texts else {}


def time_of(value: Any) -> datetime | None:
    """Return a time from a column: text, seconds since 1970, or a datetime; without a time zone, it is in UTC."""
    try:
        value = datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else value
        return moment(value.isoformat() if isinstance(value, datetime) else value)
    except (ValueError, OverflowError, OSError):
        return None
