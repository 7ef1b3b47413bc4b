"""A database file of lango that is only read."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from lango_store.errors import InvalidFile
from lango_store.interchange.moments import nanoseconds
from lango_store.interchange.source import Source, first_bytes

Row = dict[str, Any]

_MAGIC: Final = b"SQLite format 3\0"
_NEEDED: Final = {"sessions": {"id", "key"}, "messages": {"id", "role", "content", "timestamp", "session_messages"}}


def recognises(path: Path) -> bool:
    """Return whether a file is lango's, by its first bytes and its tables; a damaged database may be."""
    if first_bytes(path, len(_MAGIC)) != _MAGIC:
        return False
    if Path(f"{path}-wal").exists():  # the tables may be there only
        return True
    try:
        with closing(sqlite3.connect(_untouched(path), uri=True)) as connection:
            found = connection.execute("SELECT 1 FROM pragma_table_info('messages') WHERE name = 'session_messages'")
            return found.fetchone() is not None
    except sqlite3.Error:
        return True


def _untouched(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


class Database:
    """A database file that is read and never changed: no lock, no journal, no new file in its folder.

    If it has a journal, a copy of both is read. The order of the messages is in a temporary table, which SQLite stores
    elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        beside = [Path(f"{path}{ending}") for ending in ("-wal", "-journal")]
        journals = [each for each in beside if each.is_file() and each.stat().st_size]
        self._sources = [Source(each) for each in (path, *journals)]
        uri = f"{self._copy().as_uri()}?mode=rw" if journals else _untouched(path)
        with self._our_errors():
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._connection.close)
            self._connection.text_factory = _text
            self._connection.create_function("instant", 1, _instant, deterministic=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._check_tables()
            self._connection.execute(
                "CREATE TEMP TABLE place AS "
                "SELECT session_messages AS session, instant(timestamp) AS instant, rowid AS row FROM messages"
            )
            self._connection.execute("CREATE INDEX temp.place_order ON place (session, instant, row)")

    def _check_tables(self) -> None:
        for table, needed in _NEEDED.items():
            found = {row["name"] for row in self.rows(f"PRAGMA table_info({table})")}
            if not needed <= found:
                missing = ", ".join(sorted(needed - found))
                raise InvalidFile(self._path, f"is not a database of lango, {table} lacks {missing}: give lango.db")

    def rows(self, query: str, *values: Any) -> Iterator[Row]:
        """Yield the rows of a query; `InvalidFile` if the file is damaged, or was written to since it was found."""
        with self._our_errors():
            cursor = self._connection.execute(query, values)
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield {name: _plain(value) for name, value in zip(names, row, strict=True)}
        for source in self._sources:
            source.check()

    def messages(self, session: Any) -> Iterator[Row]:
        """Yield the messages of a session by instant, then by row."""
        query = (
            "SELECT messages.* FROM place JOIN messages ON messages.rowid = row WHERE session = ? ORDER BY instant, row"
        )
        return self.rows(query, session)

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:
            raise InvalidFile(
                self._path, f"cannot be read as lango's database ({error}): give one that is whole and not encrypted"
            ) from error

    def _copy(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="lango-store-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for source in self._sources:
            copy = folder / f"copy{source.path.name.removeprefix(self._path.name)}"
            with source.reading() as file, copy.open("wb") as to:
                shutil.copyfileobj(file, to)
        return folder / "copy"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")  # what is not UTF-8 comes as lone surrogates, which JSON can hold


def _plain(value: Any) -> Any:
    """Return a value of SQLite as one of JSON."""
    if isinstance(value, bytes):
        return _text(value)
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def _instant(timestamp: Any) -> str:
    """Return a text that sorts by the instant; what is not a time comes last."""
    count = nanoseconds(_plain(timestamp))
    return "~" if count is None else f"{count + 10**21:030d}"
