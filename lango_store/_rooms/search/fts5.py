"""The search index on SQLite: an FTS5 table with the searchable texts of each message, keyed by the message's rowid.

FTS5 stores a copy of the texts. Without the copy it would need the old text of a message to remove the message, and
the old text no longer exists when the queue is drained.
"""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from lango_store._engine.sqlite_library import library_version
from lango_store._rooms.search.index import MESSAGE, QUEUE, TABLES, TRIGGERS, Matches, SearchIndex, read_messages
from lango_store._rooms.search.query import SearchQuery, Term, indexed

_SHADOWS: Final = tuple(f"lango_search_{each}" for each in ("data", "idx", "content", "docsize", "config"))
_SECURE_DELETE: Final = (3, 42)
_DAMAGE: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT)
_STEPS: Final = 1_000  # instructions of SQLite's virtual machine, which take some microseconds

_EVENTS: Final = (
    ("new", "INSERT ON lango_message WHEN new.role <> 'record'"),
    ("new", "UPDATE OF role, name, tool_call_id, text, content, tool_calls ON lango_message"),
    ("old", "DELETE ON lango_message WHEN old.role <> 'record'"),
)
_MATCHES: Final = f"""
SELECT rowid AS id, -bm25(lango_search, 8.0, 1.0) AS rank FROM lango_search
WHERE lango_search MATCH :words AND rowid NOT IN (SELECT id FROM {QUEUE})
"""
_ROWID: Final[sa.ColumnElement[int]] = sa.literal_column("lango_message.rowid", sa.BigInteger())


class Fts5(SearchIndex):
    """The FTS5 index and the queue that feeds it."""

    tables = (*TABLES, *_SHADOWS)
    id_columns, message_id_columns, entries = "id", "rowid", "lango_search_docsize"
    # With (session_key, seq) IN (VALUES …), SQLite would read all messages.
    is_one_of = (
        "lango_message.rowid IN (SELECT m.rowid FROM json_each(:keys) AS wanted CROSS JOIN lango_message AS m "
        "ON m.session_key = json_extract(wanted.value, '$[0]') AND m.seq = json_extract(wanted.value, '$[1]'))"
    )
    select_names = "SELECT name FROM sqlite_master WHERE name GLOB 'lango_search*'"
    select_drainable = f"SELECT EXISTS (SELECT 1 FROM {QUEUE}) AND NOT query_only FROM pragma_query_only"

    def obstacle(self, connection: sa.Connection) -> str | None:
        if connection.exec_driver_sql("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").first() is not None:
            return None
        return (
            "this SQLite library has no FTS5, which the search index needs: use a Python whose SQLite has FTS5, "
            "or `pip install 'lango-store[sqlite]'` and a URL sqlite+pysqlite3:///file"
        )

    def fault(self, connection: sa.Connection) -> str | None:
        if (obstacle := self.obstacle(connection)) is not None:
            return f"{obstacle}, or run `lango-store search disable`"
        return super().fault(connection)

    def create_queue(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"CREATE TABLE {QUEUE} (id INTEGER PRIMARY KEY)")
        for name, (row, event) in zip(TRIGGERS, _EVENTS, strict=True):
            queued = f"INSERT INTO {QUEUE} (id) VALUES ({row}.rowid) ON CONFLICT DO NOTHING"
            connection.exec_driver_sql(f"CREATE TRIGGER {name} AFTER {event} BEGIN {queued}; END")

    def create_entries(self, connection: sa.Connection) -> None:
        tokenize = "tokenize='unicode61 remove_diacritics 2'"
        connection.exec_driver_sql(f"CREATE VIRTUAL TABLE lango_search USING fts5(text, tools, {tokenize})")
        if library_version(connection) >= _SECURE_DELETE:
            connection.exec_driver_sql("INSERT INTO lango_search (lango_search, rank) VALUES ('secure-delete', 1)")

    def drop(self, connection: sa.Connection) -> None:
        for name in TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
        try:
            with connection.begin_nested():
                connection.exec_driver_sql("DROP TABLE IF EXISTS lango_search")
        except sa.exc.DBAPIError:
            # FTS5 opens its table to drop it, which fails if the table is damaged or this build has no FTS5. In that
            # case the table is removed from the schema, and its shadow tables are dropped like other tables.
            connection.exec_driver_sql("PRAGMA writable_schema = ON")
            try:
                connection.exec_driver_sql("DELETE FROM sqlite_master WHERE name = 'lango_search'")
            finally:
                connection.exec_driver_sql("PRAGMA writable_schema = RESET")
        for name in (*_SHADOWS, QUEUE):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")

    def drain(self, connection: sa.Connection, limit: int) -> int:
        newest = f"SELECT id FROM {QUEUE} ORDER BY id DESC LIMIT ?"
        ids = connection.exec_driver_sql(newest, (limit,)).scalars().all()
        for table, column in ((QUEUE, "id"), ("lango_search", "rowid")):
            deleted = f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
            connection.exec_driver_sql(deleted, (json.dumps(list(ids)),))
        messages = read_messages(connection, sa.select(_ROWID).select_from(MESSAGE).where(_ROWID.in_(ids)))
        rows = [(rowid, *indexed(*texts)) for (rowid,), role, texts in messages if role != "record"]
        if rows:
            connection.exec_driver_sql("INSERT INTO lango_search (rowid, text, tools) VALUES (?, ?, ?)", rows)
        return len(ids)

    def purge(self, connection: sa.Connection) -> None:
        if library_version(connection) < _SECURE_DELETE:  # deleted words stay until segments are merged
            connection.exec_driver_sql("INSERT INTO lango_search (lango_search) VALUES ('optimize')")

    def is_damage(self, error: BaseException) -> bool:
        # FTS5 reports damage with one of three error codes of SQLite.
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in _DAMAGE

    @contextmanager
    def time_limit(self, connection: sa.Connection, seconds: float) -> Iterator[None]:
        if connection.dialect.driver == "aiosqlite":  # only the driver's own thread could set a handler
            yield
            return
        driver: Any = connection.connection.driver_connection
        deadline = time.monotonic() + seconds
        driver.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            yield
        except sa.exc.DBAPIError as error:
            if getattr(error.orig, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
                raise
            raise TimeoutError from error
        finally:
            driver.set_progress_handler(None, 0)

    def matches(self, query: SearchQuery) -> Matches:
        # Adjacent words bind tighter than NOT.
        words = " NOT ".join([" ".join(map(_phrase, query.wanted)), *map(_phrase, query.unwanted)])
        hits = sa.text(_MATCHES).bindparams(words=words)
        columns = sa.column("id", sa.BigInteger()), sa.column("rank", sa.Float())
        # Materialized, because otherwise the planner may query FTS5 once for each row of another table.
        matches = hits.columns(*columns).cte("found").prefix_with("MATERIALIZED")
        return Matches(matches.join(MESSAGE, matches.c.id == _ROWID), MESSAGE, matches.c.rank)


def _phrase(term: Term) -> str:
    """Format a term in FTS5's query syntax."""
    quoted = term.words.replace('"', '""')
    return f'"{quoted}" *' if term.prefix else f'"{quoted}"'
