"""Databases of frameworks, opened read-only, and the interface of the modules that read their tables."""

import hashlib
import importlib
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
import sqlite_utils

from lango_store import read_only_engine
from lango_store.errors import MAX_QUOTED, DatabaseUnavailable, InvalidFile
from lango_store.interchange.draft import Part
from lango_store.interchange.moments import moment
from lango_store.interchange.source import database_fault
from lango_store.rows import key_level
from lango_store.rows.storage import database_file, guard
from lango_store.store import Store

Row = dict[str, Any]
Converted = TypeVar("Converted")
DRIVER_ERRORS: Final = (sqlite3.Error, sa.exc.SQLAlchemyError)
"""Errors that say that a database cannot be read, not that one of its rows is damaged."""
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

    `read(after)` yields the pieces that follow the first `after` rows of `table`. If `after` is not 0, the first piece
    has only the last of these rows. `values` are the session's values, `columns` are columns that the framework does
    not know, `notes` say what became of data without a column, and `skipped` what cannot be read. Once reading has set
    `finish`, each transaction calls it. `adopt`, if set, does the whole adoption and returns the state and number of
    checkpoints.
    """

    key: str
    table: str
    read: Callable[[int], Iterator[Piece]] = lambda _: iter(())
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


class Shared(NamedTuple):
    """A scope of shared values in a source."""

    key: str
    values: dict[str, Any]


class Damaged(NamedTuple):
    """A row that should be a session or a scope, and cannot be read."""

    key: str
    reason: str


class Database(NamedTuple):
    """An open database of a framework: the columns of its tables, a function that runs a query, and the connection.

    JSON columns are read as text. `references` returns the tables to which the foreign keys of a table refer, and
    `elsewhere` the columns of the tables in each other schema of PostgreSQL.
    """

    tables: dict[str, set[str]]
    query: Callable[[str, Row], Iterator[Row]]
    connection: Any
    references: Callable[[str], set[str]]
    elsewhere: Callable[[], dict[str, dict[str, set[str]]]]

    def rows(self, query: str, **params: Any) -> Iterator[Row]:
        """Yield the rows of a query with parameters such as `:key`, without loading all of them."""
        return self.query(query, params)

    def named(self, name: str) -> str:
        """Return the name of a table or column in a query."""
        name = name.replace('"', '""')
        return f'"{name if isinstance(self.connection, sqlite3.Connection) else name.replace(":", chr(92) + ":")}"'

    def with_columns(self, *columns: str) -> list[str]:
        """Return the names of the tables that have all of these columns."""
        return [name for name, existing in self.tables.items() if existing.issuperset(columns)]

    def read(
        self, table: str, query: str, after: int, convert: Callable[[Row], Part], **params: Any
    ) -> Iterator[Piece]:
        """Yield the rows of a session as pieces, see `Original.read`."""
        rows = self.rows(f"{query} LIMIT {2**62} OFFSET :offset", **params, offset=max(after - 1, 0))
        return following(table, rows, after, convert)


def following(table: str, rows: Iterator[Row], after: int, convert: Callable[[Row], Part]) -> Iterator[Piece]:
    """Convert rows, which begin with the last one that was adopted before. A row that cannot be read is skipped."""
    for number, row in enumerate(rows, max(after, 1)):
        try:
            piece = Piece(convert(row) if number > after else Part([]), 1, row, _size_of(row))
        except Exception as error:  # a damaged row can make any parser raise anything
            reason = f"table {table}, row {legible(row['id'])} is damaged ({reason_of(error)}): left out"
            piece = Piece(Part([]), 1, row, skipped=[reason])
        yield piece


def converted(
    table: str, rows: Iterable[Row], ids: Sequence[str], convert: Callable[[Row], Iterable[Converted]]
) -> Iterator[Converted | Damaged]:
    """Convert rows with these ids to sessions or scopes. A row that cannot be read becomes `Damaged`."""
    for row in rows:
        try:
            yield from convert(row)
        except DRIVER_ERRORS:
            raise
        except Exception as error:  # as in `following`
            key = ":".join(legible(row[name]) for name in ids)
            where = ", ".join(f"{name} {legible(row[name])}" for name in ids)
            yield Damaged(key, f"table {table}, {where}: the row is damaged ({reason_of(error)}): not adopted")


def reason_of(error: Exception) -> str:
    """Return the text of an error on one line; the following lines of pydantic's errors have content."""
    return legible(str(error).partition("\n")[0] or type(error).__name__)


def legible(value: object) -> str:
    """Return a stored value for a report: at most 200 characters, which can be printed."""
    return str(value)[:MAX_QUOTED].encode("utf-8", "backslashreplace").decode()


def _size_of(row: Row) -> int:
    return sum([len(each) for each in row.values() if isinstance(each, str | bytes)])


class Source(Protocol):
    """A module that reads the tables of a framework."""

    NAME: str

    def tables(self, database: Database) -> list[str]:
        """Return the tables that have sessions, none if the database is not one of the framework."""

    def columns(self, database: Database) -> Mapping[str, Set[str]]:
        """Return the columns that adoption reads, for each table of the framework."""

    def sessions(self, database: Database, tables: Sequence[str], prefix: str) -> Iterator[Original | Damaged]:
        """Yield the sessions in some of the tables, with a prefix before each key."""

    def shared(self, database: Database) -> Iterator[Shared | Damaged]:
        """Yield the scopes of shared values."""


def unread(database: Database, columns: Mapping[str, Set[str]]) -> Iterator[str]:
    """Describe the columns that hold data and are not read, for each table."""
    for table, read in columns.items():
        if names := sorted(database.tables.get(table, set()) - read):
            counts = ", ".join(f"count({database.named(name)}) AS n{number}" for number, name in enumerate(names))
            (row,) = database.rows(f"SELECT {counts} FROM {database.named(table)}")
            found = zip(names, row.values(), strict=True)
            if listed := ", ".join(f"{legible(name)} ({count:,})" for name, count in found if count):
                yield f"table {table}, columns (and numbers of values) {listed}: not adopted"


@contextmanager
def open_source(url: str) -> Iterator[Database]:
    """Open the database of a framework for reading, in one snapshot."""
    engine = read_only_engine(url)
    path = database_file(engine.url)
    try:
        if path is not None:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
                guard(connection, path)
                connection.execute("BEGIN")
                file = sqlite_utils.Database(connection, recursive_triggers=False, execute_plugins=False)
                yield Database(
                    {name: set(file[name].columns_dict) for name in file.table_names()},
                    file.query,
                    connection,
                    lambda name: {key.other_table for key in file.table(name).foreign_keys},
                    dict,
                )
            return
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True, "yield_per": PAGE}
        with engine.connect().execution_options(**options) as opened:
            from psycopg.types.json import set_json_loads  # users of SQLite do not need psycopg

            driver, inspector = opened.connection.driver_connection, sa.inspect(engine)
            set_json_loads(_undecoded, driver)  # the parser may fail for the JSON of one row
            current = inspector.default_schema_name
            others = [name for name in inspector.get_schema_names() if name not in (current, "information_schema")]
            yield Database(
                _columns(inspector, None),
                lambda query, params: map(dict, opened.execute(sa.text(query), params).mappings()),
                driver,
                lambda name: {key["referred_table"] for key in inspector.get_foreign_keys(name)},
                lambda: {name: _columns(inspector, name) for name in others},
            )
    except (sqlite3.Error, UnicodeError) as error:
        fault = f"cannot be read ({database_fault(error)}): give a complete SQLite file"
        raise InvalidFile(path or url, fault) from error
    except sa.exc.DBAPIError as error:
        raise DatabaseUnavailable(f"the source cannot be read: {error.orig}") from error
    finally:
        engine.dispose()


def _undecoded(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode()


def _columns(inspector: sa.Inspector, schema: str | None) -> dict[str, set[str]]:
    listed = inspector.get_multi_columns(schema).items()
    return {table: {each["name"] for each in columns} for (_, table), columns in listed}


def adapter(name: str, extra: str) -> Any:
    """Import a module of `lango_store.integrations`. Raises ValueError if its framework is not installed."""
    try:
        return importlib.import_module(f"lango_store.integrations.{name}")
    except ImportError as error:
        raise ValueError(f"{extra} is not installed: pip install 'lango-store[{extra}]'") from error


def escaped(id: object) -> str:
    """Return an id as one level of a session key, as the adapters do. Raises ValueError if it is damaged."""
    return key_level(text_of(id))


def text_of(id: object) -> str:
    """Return an id as text. Raises ValueError if it is damaged: missing, binary, or not valid UTF-8."""
    if id is None or isinstance(id, bytes):
        raise ValueError(f"an id is {type(id).__name__}, not text")
    str(id).encode()
    return str(id)


def mark_of(values: Mapping[str, Any]) -> str:
    """Return a short digest of the values of a row, or of a session."""
    return hashlib.sha256(repr(sorted(values.items())).encode("utf-8", "surrogatepass")).hexdigest()[:20]


def rest_of(row: Row, known: Set[str]) -> dict[str, Any]:
    """Return the columns of a row that the framework does not know, as an entry of `extra`."""
    if row.keys() <= known:
        return {}
    others = {name: value for name, value in row.items() if name not in known and value is not None}
    texts = {name: value if _is_json(value) else str(value) for name, value in others.items()}
    return {"adopted": texts} if texts else {}


def _is_json(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def time_of(value: Any) -> datetime | None:
    """Return a time from a column: text, seconds since 1970, or a datetime; without a time zone, it is in UTC."""
    try:
        value = datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else value
        return moment(value.isoformat() if isinstance(value, datetime) else value)
    except (ValueError, OverflowError, OSError):
        return None
