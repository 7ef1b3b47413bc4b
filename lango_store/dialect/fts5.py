"""The search index of SQLite: FTS5 over the messages' texts, which it does not keep a second time.

A write touches FTS5 only where it takes away what is indexed. A new message is a number in `lango_search_waiting`,
and whoever searches indexes those first, many in one transaction: an index that is damaged costs no append, and FTS5
writes large segments instead of one per message. A message is indexed, then, or waits, never both. The view
`lango_search_text` shows those that are indexed, with the very words that FTS5 needs to forget them.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect.search import PARTS, SIMPLE, STATE, TRIGRAM, IndexState, Matching, SearchIndex
from lango_store.tables import Base
from lango_store.words import Term, Terms, marked_literally

_MESSAGE: Final = Base.metadata.tables["lango_message"]
_TOKENIZERS: Final = {SIMPLE: "unicode61 remove_diacritics 2", TRIGRAM: "trigram"}
_SHADOWS: Final = ("lango_search_data", "lango_search_idx", "lango_search_docsize", "lango_search_config")
_FORGETS_AT_ONCE: Final = (3, 42)
_TRIED: Final = 200
_CODES_OF_DAMAGE: Final = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT)

_COLUMNS: Final = ", ".join(PARTS)
_IS_OUTPUT: Final = "(m.tool_call_id IS NOT NULL OR m.role IN ('tool', 'function'))"


def _json(column: str) -> str:
    # A damaged file may hold anything: what is not JSON has no words. A NUL would end the text it stands in; escaped
    # backslashes are written another way first, so that what looks like an escape behind one is none.
    plain = rf"replace(replace({column}, '\\', '\u005c'), '\u0000', ' ')"
    return f"CASE WHEN json_valid({column}) THEN {plain} ELSE 'null' END"


_CONTENT: Final = _json("m.content")
_CALLS: Final = _json("m.tool_calls")

_TEXT: Final = f"""
CREATE VIEW lango_search_text AS
SELECT m.rowid AS id,
  CASE
    WHEN {_IS_OUTPUT} THEN NULL
    WHEN m.text IS NOT NULL THEN m.text
    WHEN json_type({_CONTENT}) = 'text' THEN json_extract({_CONTENT}, '$')
  END AS said,
  CASE WHEN NOT {_IS_OUTPUT} AND m.content IS NOT NULL THEN
    (SELECT group_concat(t.atom, char(10)) FROM json_tree({_CONTENT}) t WHERE t.key = 'text' AND t.type = 'text')
  END AS blocks,
  CASE WHEN {_IS_OUTPUT} OR m.tool_calls IS NOT NULL THEN
    trim(coalesce(CASE WHEN {_IS_OUTPUT} THEN m.name END, '') || char(10) || coalesce(
      (SELECT group_concat(json_extract(c.value, '$.name'), char(10)) FROM json_each({_CALLS}) c
      WHERE c.type = 'object' AND json_type(c.value, '$.name') = 'text'), ''), char(10))
  END AS tools,
  CASE WHEN {_IS_OUTPUT} OR m.tool_calls IS NOT NULL THEN
    trim(coalesce(CASE WHEN {_IS_OUTPUT} THEN coalesce(
      m.text, (SELECT group_concat(t.atom, char(10)) FROM json_tree({_CONTENT}) t WHERE t.type = 'text')
    ) END, '') || char(10) || coalesce(
      (SELECT group_concat(t.atom, char(10)) FROM json_each({_CALLS}) c, json_tree(c.value, '$.output') t
      WHERE c.type = 'object' AND t.type = 'text'), ''), char(10))
  END AS outputs
FROM lango_message m
WHERE m.role <> 'record' AND NOT EXISTS (SELECT 1 FROM lango_search_waiting w WHERE w.id = m.rowid)
"""

_FORGET: Final = (
    f"INSERT INTO lango_search (lango_search, rowid, {_COLUMNS}) "
    f"SELECT 'delete', id, {_COLUMNS} FROM lango_search_text WHERE id = old.rowid"
)
_TRIGGERS: Final = {
    "lango_search_added": "AFTER INSERT ON lango_message WHEN new.role <> 'record' BEGIN "
    "INSERT OR IGNORE INTO lango_search_waiting (id) VALUES (new.rowid); END",
    "lango_search_removed": f"BEFORE DELETE ON lango_message BEGIN {_FORGET}; "
    "DELETE FROM lango_search_waiting WHERE id = old.rowid; END",
    "lango_search_changed": "BEFORE UPDATE OF role, name, tool_call_id, text, content, tool_calls ON lango_message "
    f"BEGIN {_FORGET}; INSERT OR IGNORE INTO lango_search_waiting (id) VALUES (old.rowid); END",
}

# FTS5 writes a marked text anew for each place: 10,000 of them in a megabyte took a second.
_MARKED_BY_FTS5: Final = 20_000
_MARKED: Final = sa.text(
    "SELECT rowid, "
    + ", ".join(
        f"CASE WHEN length({part}) > {_MARKED_BY_FTS5} THEN {part} ELSE highlight(lango_search, {n}, :start, :stop) END"
        for n, part in enumerate(PARTS)
    )
    + " "
    "FROM lango_search WHERE lango_search MATCH :words AND rowid IN (SELECT value FROM json_each(:ids))"
)


class Fts5(SearchIndex):
    """FTS5 with external content."""

    tables = ("lango_search", "lango_search_state", "lango_search_waiting", *_SHADOWS)
    reads_what_waits = False

    def state(self, connection: sa.Connection) -> IndexState | None:
        there = self._names(connection)
        if "lango_search_state" not in there:
            return None
        found = connection.execute(sa.select(STATE)).first()
        if found is None:
            return IndexState(SIMPLE, "detached", "its state is gone")
        state = IndexState(*found)
        if state.state != "detached" and (gone := {*_TRIGGERS, "lango_search_text", "lango_search"} - there):
            # A table that is made anew loses its triggers.
            return IndexState(state.configuration, "detached", f"{', '.join(sorted(gone))} is gone")
        return state

    @staticmethod
    def _names(connection: sa.Connection) -> set[str]:
        names = "SELECT name FROM sqlite_master WHERE name LIKE 'lango|_search%' ESCAPE '|'"
        return set(connection.exec_driver_sql(names).scalars())

    def refuse_configuration(self, connection: sa.Connection, configuration: str) -> None:
        if configuration not in _TOKENIZERS:
            raise ValueError(f"configuration={configuration!r}: SQLite has {', '.join(_TOKENIZERS)}")

    def create(self, connection: sa.Connection, configuration: str) -> None:
        tokenizer = _TOKENIZERS[configuration]
        for statement in (
            "CREATE TABLE lango_search_state (configuration TEXT NOT NULL, state TEXT NOT NULL, reason TEXT, "
            "filled INTEGER NOT NULL DEFAULT 0, upto INTEGER NOT NULL DEFAULT 0)",
            "CREATE TABLE lango_search_waiting (id INTEGER PRIMARY KEY)",
            "INSERT INTO lango_search_waiting (id) SELECT rowid FROM lango_message WHERE role <> 'record'",
            _TEXT,
            f"CREATE VIRTUAL TABLE lango_search USING fts5({_COLUMNS}, content='lango_search_text', "
            f"content_rowid='id', tokenize='{tokenizer}')",
            *(f"CREATE TRIGGER {name} {does}" for name, does in _TRIGGERS.items()),
        ):
            connection.exec_driver_sql(statement)
        if sqlite3.sqlite_version_info >= _FORGETS_AT_ONCE:
            connection.exec_driver_sql("INSERT INTO lango_search (lango_search, rank) VALUES ('secure-delete', 1)")
        connection.execute(sa.insert(STATE).values(configuration=configuration, state="filling"))
        upto = "(SELECT coalesce(max(id), 0) FROM lango_search_waiting)"
        connection.exec_driver_sql(f"UPDATE lango_search_state SET upto = {upto}")

    def drop(self, connection: sa.Connection) -> None:
        for name in _TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
        self._drop_fts(connection)
        connection.exec_driver_sql("DROP VIEW IF EXISTS lango_search_text")
        connection.exec_driver_sql("DROP TABLE IF EXISTS lango_search_waiting")
        connection.exec_driver_sql("DROP TABLE IF EXISTS lango_search_state")

    @staticmethod
    def _drop_fts(connection: sa.Connection) -> None:
        try:
            with connection.begin_nested():
                connection.exec_driver_sql("DROP TABLE IF EXISTS lango_search")
        except sa.exc.DBAPIError:
            # To drop its table FTS5 has to open it. Where it cannot, because of damage or since it is not there at
            # all, the table is taken out of the schema, and what it kept is dropped like any other.
            connection.exec_driver_sql("PRAGMA writable_schema = ON")
            try:
                connection.exec_driver_sql("DELETE FROM sqlite_master WHERE name = 'lango_search'")
            finally:
                connection.exec_driver_sql("PRAGMA writable_schema = RESET")
        for name in _SHADOWS:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")

    def follows(self, connection: sa.Connection) -> bool:
        return not _TRIGGERS.keys().isdisjoint(self._names(connection))

    def detach(self, connection: sa.Connection, reason: str) -> None:
        for name in _TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
        if "lango_search_state" in self._names(connection):
            connection.execute(sa.update(STATE).values(state="detached", reason=reason))

    @contextmanager
    def laid_aside(self, connection: sa.Connection) -> Iterator[None]:
        """Let a migration rename the messages' table, which SQLite refuses while a view or a trigger names it.

        A table that was made anew has other rowids, so that the index is detached then.
        """
        there = self._names(connection)
        if "lango_search_text" not in there:
            yield
            return
        page = self._root_page(connection)
        for name in _TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
        connection.exec_driver_sql("DROP VIEW lango_search_text")
        yield
        found = self._root_page(connection)
        if found is None:  # the schema was taken away, and the index goes with it
            return
        connection.exec_driver_sql(_TEXT)
        if found == page:
            for name in _TRIGGERS.keys() & there:
                connection.exec_driver_sql(f"CREATE TRIGGER {name} {_TRIGGERS[name]}")
        else:
            self.detach(connection, "a migration made the messages' table anew")

    @staticmethod
    def _root_page(connection: sa.Connection) -> int | None:
        query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = 'lango_message'"
        found: int | None = connection.exec_driver_sql(query).scalar()
        return found

    def waiting(self, connection: sa.Connection) -> int:
        return _number(connection, "SELECT count(*) FROM lango_search_waiting")

    def indexed(self, connection: sa.Connection) -> int:
        return _number(connection, "SELECT count(*) FROM lango_search_docsize")

    def is_behind(self, connection: sa.Connection) -> bool:
        return connection.exec_driver_sql("SELECT 1 FROM lango_search_waiting LIMIT 1").first() is not None

    def may_be_to_blame(self, error: BaseException) -> bool:
        # What FTS5 finds damaged is called an error, a damage or a violated constraint, which no constraint's code is.
        code = getattr(error, "sqlite_errorcode", None)
        return code is not None and (code & 0xFF in _CODES_OF_DAMAGE or code == sqlite3.SQLITE_CONSTRAINT)

    def is_damage(self, error: BaseException) -> bool:
        return self.may_be_to_blame(error)

    def fill(self, connection: sa.Connection, most: int) -> int:
        # What was there before is walked through once; what comes in meanwhile, also in a place that is free again,
        # waits for who searches.
        filling = "s.state = 'filling'"
        ahead = f"SELECT w.id FROM lango_search_waiting w, lango_search_state s WHERE NOT {filling} OR "
        first = f"{ahead} w.id > s.filled AND w.id <= s.upto ORDER BY w.id LIMIT {most:d}"
        ids = connection.exec_driver_sql(first).scalars().all()
        if not ids:
            connection.execute(sa.update(STATE).where(STATE.c.state == "filling").values(state="ready"))
            return 0
        connection.exec_driver_sql(
            "UPDATE lango_search_state AS s SET filled = ? WHERE s.state = 'filling'", (ids[-1],)
        )
        chosen = {"ids": json.dumps(list(ids))}
        which = "IN (SELECT value FROM json_each(:ids))"
        connection.execute(sa.text(f"DELETE FROM lango_search_waiting WHERE id {which}"), chosen)
        texts = f"SELECT id, {_COLUMNS} FROM lango_search_text WHERE id {which}"
        connection.execute(sa.text(f"INSERT INTO lango_search (rowid, {_COLUMNS}) {texts}"), chosen)
        return len(ids)

    def tidy(self, connection: sa.Connection) -> None:
        if sqlite3.sqlite_version_info < _FORGETS_AT_ONCE:
            # A word stands in its segment until that is merged with the one that says it is gone.
            connection.exec_driver_sql("INSERT INTO lango_search (lango_search) VALUES ('optimize')")

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        # What pages a table takes is told only by reading the whole file: this is what stands in them.
        blocks = _number(connection, "SELECT coalesce(sum(length(block)), 0) FROM lango_search_data")
        return blocks + 16 * self.indexed(connection)

    def matching(self, found: IndexState, terms: Terms) -> Matching:
        # Chosen before anything else is looked at: the planner thinks that FTS5 is asked for one row at a time.
        rank = sa.literal_column("-bm25(lango_search, 8.0, 4.0, 2.0, 1.0)", sa.Float())
        columns = sa.literal_column("rowid", sa.BigInteger()).label("id"), rank.label("rank")
        match = sa.text("lango_search MATCH :words").bindparams(words=_expression(terms))
        matches = sa.select(*columns).select_from(sa.table("lango_search")).where(match)
        source = matches.cte("found").prefix_with("MATERIALIZED")
        rowid: sa.ColumnElement[int] = sa.literal_column("lango_message.rowid", sa.BigInteger())
        messages = source.join(_MESSAGE, source.c.id == rowid)
        return Matching(messages, _MESSAGE, [source.c.id], sa.true(), source.c.rank)

    def marked(
        self,
        connection: sa.Connection,
        found: IndexState,
        terms: Terms,
        places: Sequence[tuple[Any, ...]],
        marks: tuple[str, str],
    ) -> dict[tuple[Any, ...], list[tuple[str, str]]]:
        values = {
            "words": _expression(terms),
            "ids": json.dumps([id_ for (id_,) in places]),
            "start": marks[0],
            "stop": marks[1],
        }
        marked: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
        for id_, *parts in connection.execute(_MARKED, values):
            texts = [_readable(part) for part in parts if part]
            marked[(id_,)] = [(text.replace(marks[0], "").replace(marks[1], ""), text) for text in texts]
            for number, (text, with_marks) in enumerate(marked[(id_,)]):
                if len(with_marks) > _MARKED_BY_FTS5 and text == with_marks:
                    again = marked_literally(text, terms, marks, within_words=found.configuration == TRIGRAM)
                    marked[(id_,)][number] = (text, again)
        return marked

    def differences(self, connection: sa.Connection, found: IndexState) -> Iterator[str]:
        there = _number(connection, "SELECT count(*) FROM lango_search_text")
        indexed = self.indexed(connection)
        if there != indexed:
            yield f"{indexed:,} messages are indexed, {there:,} should be"
        said = "SELECT id, substr(said, 1, 60) FROM lango_search_text WHERE said IS NOT NULL"
        some = f"{said} ORDER BY random() LIMIT {_TRIED}"
        asked = "SELECT 1 FROM lango_search WHERE lango_search MATCH :words AND rowid = :id"
        missed = 0
        for id_, text in connection.exec_driver_sql(some).all():
            words = re.findall(r"[0-9A-Za-z]{3,}", text) if isinstance(text, str) else []
            if words:
                values = {"words": _phrase(Term(words[0])), "id": id_}
                missed += connection.execute(sa.text(asked), values).first() is None
        if missed:
            yield f"{missed} of {_TRIED} messages or fewer that were tried are not found by their own words"


def _readable(text: str | bytes) -> str:
    """Return a text; of what is not UTF-8, such as half of a surrogate pair, a mark that there was something."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def _number(connection: sa.Connection, query: str) -> int:
    return int(connection.exec_driver_sql(query).scalar_one())


def _expression(terms: Terms) -> str:
    """Write terms as FTS5 does: words beside each other are all wanted, and bind closer than NOT."""
    return " NOT ".join([" ".join(map(_phrase, terms.wanted)), *map(_phrase, terms.unwanted)])


def _phrase(term: Term) -> str:
    quoted = term.words.replace('"', '""')
    return f'"{quoted}" *' if term.prefix else f'"{quoted}"'
