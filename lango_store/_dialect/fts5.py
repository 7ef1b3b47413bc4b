"""The search index of SQLite: an FTS5 table with the searchable texts of each message, by the message's rowid.

It keeps a copy of the texts: without one FTS5 needs the old text of a message to remove it, and when the queue is
drained the old text is gone.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

import sqlalchemy as sa

from lango_store._dialect.search import (
    MESSAGE,
    PARTS,
    QUEUE,
    SIMPLE,
    STATE,
    TABLES,
    TRIGGERS,
    TRIGRAM,
    IndexState,
    Matches,
    Place,
    SearchIndex,
    read_messages,
)
from lango_store._values.search_query import Term, Terms

_TOKENIZERS: Final = {SIMPLE: "unicode61 remove_diacritics 2", TRIGRAM: "trigram"}
_SHADOWS: Final = tuple(f"lango_search_{each}" for each in ("data", "idx", "content", "docsize", "config"))
_SECURE_DELETE: Final = (3, 42)
_DAMAGE: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT)

_COLUMNS: Final = ", ".join(PARTS)
_EVENTS: Final = (
    ("new", "INSERT ON lango_message WHEN new.role <> 'record'"),
    ("new", "UPDATE OF role, name, tool_call_id, text, content, tool_calls ON lango_message"),
    ("old", "DELETE ON lango_message WHEN old.role <> 'record'"),
)
_AT_PLACES: Final = (
    "lango_message.rowid IN (SELECT m.rowid FROM json_each(:places) AS place CROSS JOIN lango_message AS m "
    "ON m.session_key = json_extract(place.value, '$[0]') AND m.seq = json_extract(place.value, '$[1]'))"
)
_ROWID: Final[sa.ColumnElement[int]] = sa.literal_column("lango_message.rowid", sa.BigInteger())


class Fts5(SearchIndex):
    """FTS5."""

    tables = (*TABLES, *_SHADOWS)
    place, place_of_message, entries = "id", "rowid", "lango_search_docsize"
    reads_queue = False

    def names(self, connection: sa.Connection) -> set[str]:
        return set(connection.exec_driver_sql("SELECT name FROM sqlite_master").scalars())

    def configurations(self, connection: sa.Connection) -> Sequence[str]:
        return list(_TOKENIZERS)

    def objects(self, connection: sa.Connection, configuration: str) -> Iterator[str]:
        yield "CREATE TABLE lango_search_state (configuration TEXT NOT NULL, complete INTEGER NOT NULL)"
        yield "CREATE TABLE lango_search_queue (id INTEGER PRIMARY KEY)"
        yield f"CREATE VIRTUAL TABLE lango_search USING fts5({_COLUMNS}, tokenize='{_TOKENIZERS[configuration]}')"
        if sqlite3.sqlite_version_info >= _SECURE_DELETE:
            yield "INSERT INTO lango_search (lango_search, rank) VALUES ('secure-delete', 1)"
        for name, (row, event) in zip(TRIGGERS, _EVENTS, strict=True):
            queued = f"INSERT INTO lango_search_queue (id) VALUES ({row}.rowid) ON CONFLICT DO NOTHING"
            yield f"CREATE TRIGGER {name} AFTER {event} BEGIN {queued}; END"

    def drop(self, connection: sa.Connection) -> None:
        for name in TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
        try:
            with connection.begin_nested():
                connection.exec_driver_sql("DROP TABLE IF EXISTS lango_search")
        except sa.exc.DBAPIError:
            # FTS5 opens its table to drop it. If it cannot, because of damage or since this build has no FTS5, the
            # table is removed from the schema, and its shadow tables are dropped like any others.
            connection.exec_driver_sql("PRAGMA writable_schema = ON")
            try:
                connection.exec_driver_sql("DELETE FROM sqlite_master WHERE name = 'lango_search'")
            finally:
                connection.exec_driver_sql("PRAGMA writable_schema = RESET")
        for name in (*_SHADOWS, QUEUE.name, STATE.name):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")

    def drain(self, connection: sa.Connection, limit: int, only: Place | None = None) -> int:
        id_: sa.ColumnElement[int] = sa.literal_column("id", sa.BigInteger())
        newest = sa.select(id_).select_from(QUEUE).order_by(id_.desc()).limit(limit)
        if only is not None:
            newest = newest.where(id_.in_(sa.select(_ROWID).select_from(MESSAGE).where(self.at([only]))))
        ids = connection.execute(newest).scalars().all()
        for table, column in ((QUEUE.name, "id"), ("lango_search", "rowid")):
            deleted = f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
            connection.exec_driver_sql(deleted, (json.dumps(list(ids)),))
        messages = read_messages(connection, _ROWID.in_(ids), _ROWID)
        rows = [(rowid, *texts) for (rowid,), role, texts in messages if role != "record"]
        if rows:
            inserted = f"INSERT INTO lango_search (rowid, {_COLUMNS}) VALUES (?, ?, ?, ?, ?)"
            connection.exec_driver_sql(inserted, rows)
        return len(ids)

    def purge(self, connection: sa.Connection) -> None:
        if sqlite3.sqlite_version_info < _SECURE_DELETE:  # a word stays until its segment is merged with newer ones
            connection.exec_driver_sql("INSERT INTO lango_search (lango_search) VALUES ('optimize')")

    def is_damage(self, error: BaseException) -> bool:
        # FTS5 reports damage as an error, as a corruption, or as a violated constraint.
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in _DAMAGE

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        # The pages of a table are known only by reading the whole file: this is the size of what is in them.
        blocks = "SELECT total(length(block)) FROM lango_search_data"
        texts = "SELECT total(length(c0) + length(c1) + length(c2) + length(c3)) FROM lango_search_content"
        return sum(int(connection.exec_driver_sql(query).scalar_one()) for query in (blocks, texts))

    def matches(self, connection: sa.Connection, state: IndexState, terms: Terms) -> Matches:
        # Materialized: the planner takes FTS5 for a table that is asked for one row at a time.
        rank = sa.literal_column("-bm25(lango_search, 8.0, 4.0, 2.0, 1.0)", sa.Float()).label("rank")
        hits = sa.select(sa.literal_column("rowid", sa.BigInteger()).label("id"), rank)
        match = sa.text("lango_search MATCH :words AND rowid NOT IN (SELECT id FROM lango_search_queue)")
        hits = hits.select_from(sa.table("lango_search")).where(match.bindparams(words=_expression(terms)))
        found = hits.cte("found").prefix_with("MATERIALIZED")
        return Matches(found.join(MESSAGE, found.c.id == _ROWID), MESSAGE, found.c.rank, self.queued(connection))

    def at(self, places: Sequence[Place]) -> sa.TextClause:
        # For (session_key, seq) IN (VALUES …) SQLite reads all messages.
        return sa.text(_AT_PLACES).bindparams(places=json.dumps(places))


def _expression(terms: Terms) -> str:
    """Write terms in FTS5's language, in which NOT binds less than the words next to each other."""
    return " NOT ".join([" ".join(map(_phrase, terms.wanted)), *map(_phrase, terms.unwanted)])


def _phrase(term: Term) -> str:
    quoted = term.words.replace('"', '""')
    return f'"{quoted}" *' if term.prefix else f'"{quoted}"'
