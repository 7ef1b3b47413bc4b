"""Databases of frameworks, opened read-only, and the interface of the modules that read their tables."""

import hashlib
import importlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa
import sqlite_utils

from lango_store._engine.engine import database_file, read_only_engine
from lango_store._engine.untrusted_files import guard
from lango_store.errors import DatabaseUnavailable, InvalidFile, quoted
from lango_store.interchange.draft import Part
from lango_store.interchange.moments import moment
from lango_store.interchange.source import database_fault
from lango_store.store import Store

Row = dict[str, Any]
PAGE: Final = 500
CHARACTERS: Final = 1 << 20
"""The numbers of rows and characters after which a transaction ends."""


class Piece(NamedTuple):
    """Rows of a source that are adopted together or not at all: what they become, and their number and size.

    `mark` identifies the last row, and changes with it; it is empty if the piece has no rows. `skipped` says what could
    not be read.
    """

    part: Part
    rows: int = 0
    mark: str = ""
    skipped: Sequence[str] = ()
    size: int = 0


@dataclass
class Found:
    """A session in a source.

    `read(after)` yields the pieces that follow the first `after` rows. If `after` is not 0, the first piece has only
    the last of these rows. `columns` are columns that the framework does not know, `values` the session's values, and
    `notes` say what became of data without a column. `faults` say what cannot be read. Once reading has set `finish`,
    each transaction calls it.
    """

    key: str
    read: Callable[[int], Iterator[Piece]]
    fields: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    forked_from: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    finish: Callable[[Store], None] | None = None


class Table(NamedTuple):
    """The names of a table's columns and indexes, and of the tables that its foreign keys refer to."""

    columns: set[str]
    indexes: set[str]
    parents: set[str]


class Database:
    """An open database of a framework: its tables by name, and queries."""

    def __init__(self, tables: dict[str, Table], query: Callable[[str, Row], Iterator[Row]]) -> None:
        self.tables = tables
        self._query = query

    def rows(self, query: str, **params: Any) -> Iterator[Row]:
        """Yield the rows of a query with parameters such as `:key`, without loading all of them."""
        return self._query(query, params)

    def with_columns(self, *columns: str) -> list[str]:
        """Return the names of the tables that have all of these columns."""
        return [name for name, table in self.tables.items() if table.columns.issuperset(columns)]


class Source(Protocol):
    """A module that reads the tables of a framework."""

    NAME: str

    def recognizes(self, database: Database) -> bool:
        """Return True if the database has the tables of the framework."""

    def sessions(self, database: Database) -> Iterator[Found]:
        """Yield the sessions."""

    def shared(self, database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the scopes of shared values, each with its values."""


@contextmanager
def open_source(url: str) -> Iterator[Database]:
    """Open the database of a framework for reading. PostgreSQL reads one snapshot."""
    engine = read_only_engine(url)
    path = database_file(engine.url)
    try:
        if path is not None:
            with _translated(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
                opened.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
                guard(opened, path)
                file = sqlite_utils.Database(opened, recursive_triggers=False, execute_plugins=False)
                yield Database({name: _table_in_file(file[name]) for name in file.table_names()}, file.query)
            return
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True, "yield_per": PAGE}
        with engine.connect().execution_options(**options) as connection:
            inspector = sa.inspect(connection)
            tables = {name: _table(inspector, name) for name in inspector.get_table_names()}
            yield Database(
                tables, lambda query, params: map(dict, connection.execute(sa.text(query), params).mappings())
            )
    except sa.exc.DBAPIError as error:
        raise DatabaseUnavailable(f"the source cannot be read: {error.orig}") from error
    finally:
        engine.dispose()


def _table_in_file(table: Any) -> Table:
    parents = {each.other_table for each in table.foreign_keys}
    return Table(set(table.columns_dict), {each.name for each in table.indexes}, parents)


def _table(inspector: Any, name: str) -> Table:
    columns, indexes = inspector.get_columns(name), inspector.get_indexes(name)
    parents = {each["referred_table"] for each in inspector.get_foreign_keys(name)}
    return Table({each["name"] for each in columns}, {each["name"] for each in indexes}, parents)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeError) as error:
        raise InvalidFile(path, f"cannot be read ({database_fault(error)}): give a complete SQLite file") from error


def adapter(name: str, extra: str) -> Any:
    """Import a module of `lango_store.integrations`. Raises ValueError if its framework is not installed."""
    try:
        return importlib.import_module(f"lango_store.integrations.{name}")
    except ImportError as error:
        raise ValueError(f"{quoted(extra)} is not installed: pip install 'lango-store[{extra}]'") from error


def mark_of(*values: object) -> str:
    """Return a short digest of the values of a row."""
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()[:20]


def rest_of(row: Row, *known: str) -> dict[str, Any]:
    """Return the columns of a row that a framework does not know, as JSON."""
    others = {name: value for name, value in row.items() if name not in known and value is not None}
    return {name: value if isinstance(value, str | int | float) else str(value) for name, value in others.items()}


def time_of(value: Any) -> datetime | None:
    """Return a time from a column: text, seconds since 1970, or a datetime; without a time zone, it is in UTC."""
    try:
        if isinstance(value, int | float):
            value = datetime.fromtimestamp(value, UTC)
        return moment(value.isoformat() if isinstance(value, datetime) else value)
    except (ValueError, OverflowError, OSError):
        return None
