"""The search index of PostgreSQL: a GIN index over what the messages say, which it does not keep a second time.

A writer adds a new message's place to `lango_search_waiting`, and nothing else: to take a text apart costs more than to
append it. Who searches has what waits indexed first, many in one transaction, and reads from the messages themselves
what still waits then: a search finds everything, also where nothing can be written. A message that is changed or
deleted leaves `lango_search` at once. Triggers of the messages' table see to it, so that every writer does. What fails
in them is caught there, in the server and in the writer's own transaction: the index is detached, the write goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from lango_store.dialect import gin_objects
from lango_store.dialect.entries import GIVEN, MESSAGE, RANKED_BYTES, Entries, entry_of
from lango_store.dialect.lexemes import Lexemes
from lango_store.dialect.search import PARTS, STATE, TRIGRAM, IndexState, Matching, SearchIndex
from lango_store.dialect.trigrams import Trigrams
from lango_store.words import Terms

_INDEXED: Final = sa.table("lango_search", sa.column("session_key", MESSAGE.c.session_key.type), sa.column("seq"))
_WAITING: Final = sa.table("lango_search_waiting", *(sa.column(each.name, each.type) for each in _INDEXED.c))
_RELATIONS: Final = ("lango_search", "lango_search_waiting", "ix_lango_search_entry")
_NEEDED: Final = frozenset((*_RELATIONS, *gin_objects.FUNCTIONS, *gin_objects.TRIGGERS))
_TIDIED: Final = 10_000
_TRIED: Final = 200
_CODES_OF_DAMAGE: Final = ("XX000", "XX001", "XX002", "58P01")

_IN_SCHEMA: Final = "c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"


class Gin(SearchIndex):
    """A GIN index over an expression."""

    tables = ("lango_search", "lango_search_state", "lango_search_waiting")
    reads_what_waits = True

    def state(self, connection: sa.Connection) -> IndexState | None:
        there = self._names(connection)
        if "lango_search_state" not in there:
            return None
        is_known = "EXISTS (SELECT 1 FROM pg_ts_config WHERE cfgname = configuration AND pg_ts_config_is_visible(oid))"
        found = connection.execute(sa.select(STATE, sa.literal_column(is_known, sa.Boolean()))).first()
        if found is None:
            return IndexState("simple", "detached", "its state is gone")
        configuration, state, reason, configured = found
        if state != "detached":
            if "lango_search_waiting" not in there:
                reason = "an earlier version made it, in another form"
            elif gone := _NEEDED - there:
                reason = f"{', '.join(sorted(gone))} is gone"
            elif not configured and configuration != TRIGRAM:
                reason = f"the text search configuration {configuration!r} is gone"
        return IndexState(configuration, state if reason is None else "detached", reason)

    @staticmethod
    def _names(connection: sa.Connection) -> set[str]:
        query = (
            f"SELECT relname::text FROM pg_class c WHERE {_IN_SCHEMA} AND relname = ANY(:relations) "
            "UNION ALL SELECT proname::text FROM pg_proc WHERE proname = ANY(:functions) AND pronamespace = "
            "(SELECT oid FROM pg_namespace WHERE nspname = current_schema()) "
            "UNION ALL SELECT tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            f"WHERE c.relname = 'lango_message' AND {_IN_SCHEMA} AND t.tgenabled IN ('O', 'A')"
        )
        relations = [*_RELATIONS, "lango_search_state", "lango_message"]
        values = {"relations": relations, "functions": list(gin_objects.FUNCTIONS)}
        return set(connection.execute(_with_values(query), values).scalars())

    def refuse_configuration(self, connection: sa.Connection, configuration: str) -> None:
        _entries(configuration).refuse(connection)

    def create(self, connection: sa.Connection, configuration: str) -> None:
        entries = _entries(configuration)
        schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
        entry_at = gin_objects.ENTRY_AT.replace("{type}", entries.type)
        index, *tuned = gin_objects.INDEX
        for statement in (
            *gin_objects.TABLES,
            *gin_objects.PARTS,
            entries.function(connection),
            *(each.replace("{schema}", schema) for each in (entry_at, gin_objects.FOLLOW, gin_objects.TAKE)),
            index.replace("{operator_class}", entries.operator_class(connection)),
            *tuned,
        ):
            connection.execute(_literally(statement))
        for name, when in gin_objects.TRIGGERS.items():
            does = "FOR EACH STATEMENT EXECUTE FUNCTION lango_search_follow()"
            connection.exec_driver_sql(f"CREATE TRIGGER {name} {when} {does}")
        connection.execute(sa.insert(STATE).values(configuration=configuration, state="filling"))
        connection.exec_driver_sql(
            "UPDATE lango_search_state SET upto_key = m.session_key, upto_seq = m.seq FROM "
            "(SELECT session_key, seq FROM lango_message ORDER BY session_key DESC, seq DESC LIMIT 1) m"
        )

    def drop(self, connection: sa.Connection) -> None:
        if "lango_message" in self._names(connection):
            for name in gin_objects.TRIGGERS:
                connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON lango_message")
        for statement in gin_objects.DROPPED:
            connection.exec_driver_sql(statement)

    def follows(self, connection: sa.Connection) -> bool:
        return not gin_objects.TRIGGERS.keys().isdisjoint(self._names(connection))

    def detach(self, connection: sa.Connection, reason: str) -> None:
        connection.execute(sa.update(STATE).values(state="detached", reason=reason))

    def waiting(self, connection: sa.Connection) -> int:
        # Of what is not filled yet only where it is not: the planner might read all messages to find that out.
        query = "SELECT session_key, seq FROM lango_search_waiting"
        if connection.exec_driver_sql("SELECT state FROM lango_search_state").scalar_one() == "filling":
            query += (
                " UNION SELECT m.session_key, m.seq FROM lango_message m, lango_search_state s "
                "WHERE m.role <> 'record' AND (m.session_key, m.seq) <= (s.upto_key, s.upto_seq) "
                "AND (s.filled_key IS NULL OR (m.session_key, m.seq) > (s.filled_key, s.filled_seq))"
            )
        counted = f"SELECT count(DISTINCT (session_key, seq)) FROM ({query}) waiting"
        return int(connection.exec_driver_sql(counted).scalar_one())

    def indexed(self, connection: sa.Connection) -> int:
        query = sa.select(sa.func.count()).select_from(_INDEXED).where(~sa.exists().where(*_same(_WAITING, _INDEXED)))
        return connection.execute(query).scalar_one()

    def is_behind(self, connection: sa.Connection) -> bool:
        return connection.exec_driver_sql("SELECT 1 FROM lango_search_waiting LIMIT 1").first() is not None

    def may_be_to_blame(self, error: BaseException) -> bool:
        return False  # what fails in a trigger is caught there

    def is_damage(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) in _CODES_OF_DAMAGE

    def fill(self, connection: sa.Connection, most: int) -> int:
        state = "SELECT state FROM lango_search_state"
        if connection.exec_driver_sql(state).scalar_one() != "filling":
            return self._take(connection, most)
        # The row of the state is locked: of two who fill, one waits. The messages are locked against being deleted
        # meanwhile: who deletes one waits, and then takes it out of the index too. The walk ends where the table ended
        # when the index was made: what came later waits in the queue.
        place = "SELECT filled_key, filled_seq, state FROM lango_search_state FOR UPDATE"
        key, seq, state = connection.exec_driver_sql(place).one()
        if state != "filling":
            return self._take(connection, most)
        behind = "" if key is None else "AND (session_key, seq) > (:key, :seq) "
        query = (
            "WITH a AS MATERIALIZED (SELECT session_key, seq, role FROM lango_message WHERE (session_key, seq) <= "
            f"(SELECT upto_key, upto_seq FROM lango_search_state) {behind}"
            "ORDER BY session_key, seq LIMIT :most FOR KEY SHARE), "
            "written AS (INSERT INTO lango_search (session_key, seq) "
            "SELECT session_key, seq FROM a WHERE role <> 'record' ON CONFLICT (session_key, seq) DO NOTHING) "
            "SELECT session_key, seq, count(*) OVER () FROM a ORDER BY session_key DESC, seq DESC LIMIT 1"
        )
        last = connection.execute(sa.text(query), {"most": most, "key": key, "seq": seq}).first()
        if last is None:
            # What is not sorted in yet is read by every search, and the planner knows no such table yet.
            connection.exec_driver_sql("SELECT gin_clean_pending_list('ix_lango_search_entry')")
            connection.exec_driver_sql("ANALYZE lango_search")
            connection.execute(sa.update(STATE).values(state="ready"))
            return 0
        moved = "UPDATE lango_search_state SET filled_key = :key, filled_seq = :seq"
        connection.execute(sa.text(moved), {"key": last[0], "seq": last[1]})
        return int(last[2])

    @staticmethod
    def _take(connection: sa.Connection, most: int) -> int:
        return int(connection.execute(sa.select(sa.func.lango_search_take(most))).scalar_one())

    def tidy(self, connection: sa.Connection) -> None:
        # Words of deleted messages are in no table. Who appends and never searches would have all of it wait.
        self._take(connection, _TIDIED)

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{name}')" for name in ("lango_search", "lango_search_waiting"))
        return int(connection.exec_driver_sql(f"SELECT {sizes}").scalar_one())

    def matching(self, found: IndexState, terms: Terms) -> Matching:
        entries = _entries(found.configuration)
        message = _messages(entries, terms)
        matches = entries.matches(entry_of(message), terms)
        if entries.are_proposed_exactly(terms):
            matches = sa.or_(sa.not_(message.c.waits), matches)
        is_no_record = sa.type_coerce(message.c.role, sa.Text()) != "record"
        rank = sa.case((_read_before(message) < RANKED_BYTES, entries.rank(message, terms)), else_=0.0)
        return Matching(message, message, _place(message), sa.and_(is_no_record, matches), rank)

    def run(self, connection: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any]) -> list[Any]:
        # To compile it takes longer than to run it, up to seconds, and thousands of messages that the planner expects
        # are enough for that.
        with _set(connection, "jit", "off"):
            return super().run(connection, query, values)

    def marked(
        self,
        connection: sa.Connection,
        found: IndexState,
        terms: Terms,
        places: Sequence[tuple[Any, ...]],
        marks: tuple[str, str],
    ) -> dict[tuple[Any, ...], list[tuple[str, str]]]:
        entries = _entries(found.configuration)
        parts = sa.func.lango_search_parts(*(MESSAGE.c[name] for name in GIVEN)).table_valued(*PARTS).lateral("part")
        columns = [each for name in PARTS for each in entries.marked(parts.c[name], terms, marks)]
        place = _place(MESSAGE)
        query = sa.select(*place, *columns).join_from(MESSAGE, parts, sa.true()).where(sa.tuple_(*place).in_(places))
        marked: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
        for key, seq, *texts in connection.execute(query):
            pairs = zip(texts[::2], texts[1::2], strict=True)
            marked[key, seq] = [(text, shown) for text, shown in pairs if text]
        return marked

    def differences(self, connection: sa.Connection, found: IndexState) -> Iterator[str]:
        compared = (
            "SELECT count(*) FILTER (WHERE w.seq IS NULL AND q.seq IS NULL), count(*) FILTER (WHERE m.seq IS NULL) "
            "FROM (SELECT session_key, seq FROM lango_message WHERE role <> 'record') m "
            "FULL JOIN lango_search w ON w.session_key = m.session_key AND w.seq = m.seq "
            "LEFT JOIN (SELECT DISTINCT session_key, seq FROM lango_search_waiting) q "
            "ON q.session_key = m.session_key AND q.seq = m.seq"
        )
        missing, left = connection.exec_driver_sql(compared).one()
        for number, what in ((missing, "are not indexed"), (left, "are indexed and not there")):
            if number:
                yield f"{number:,} messages {what}"
        if missed := self._missed(connection, _entries(found.configuration)):
            yield f"{missed} of {_TRIED} messages or fewer that were tried are not found by their own words"

    @staticmethod
    def _missed(connection: sa.Connection, entries: Entries) -> int:
        """Count those of some messages that the index does not find by their own words."""
        entry = f"lango_search_entry({', '.join(f'm.{name}' for name in GIVEN)})"
        is_found = entries.finds_itself("lango_search_entry_at(w.session_key, w.seq)", entry)
        # The index is asked for each, and its answer is looked through; by its place the index would not be asked.
        tried = (
            "SELECT count(*) FROM (SELECT session_key, seq FROM lango_search WHERE (session_key, seq) NOT IN "
            f"(SELECT session_key, seq FROM lango_search_waiting) ORDER BY random() LIMIT {_TRIED}) t "
            "JOIN lango_message m ON m.session_key = t.session_key AND m.seq = t.seq "
            f"WHERE {entries.says_something(entry)} AND NOT EXISTS (SELECT 1 FROM "
            f"(SELECT w.session_key, w.seq FROM lango_search w WHERE {is_found} OFFSET 0) f "
            "WHERE f.session_key = m.session_key AND f.seq = m.seq)"
        )
        with _set(connection, "enable_seqscan", "off"):  # few messages would be read instead of the index
            return int(connection.execute(_literally(tried)).scalar_one())


@contextmanager
def _set(connection: sa.Connection, name: str, value: str) -> Iterator[None]:
    """Set something for the transaction, and set it back unless that is over."""
    changed = sa.select(sa.func.current_setting(name), sa.func.set_config(name, value, True))
    before, _ = connection.execute(changed).one()
    yield
    if before != value:
        connection.execute(sa.select(sa.func.set_config(name, before, True)))


def _entries(configuration: str) -> Entries:
    return Trigrams() if configuration == TRIGRAM else Lexemes(configuration)


def _place(message: sa.FromClause) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    return message.c.session_key, message.c.seq


def _messages(entries: Entries, terms: Terms) -> sa.Subquery:
    """Return the messages that the index proposes, and all that wait for it."""
    waits = sa.exists().where(*_same(_WAITING, _INDEXED))
    entry = sa.func.lango_search_entry_at(*_place(_INDEXED))
    indexed = sa.select(_INDEXED, sa.false().label("waits")).where(entries.proposed(entry, terms), ~waits)
    waiting = sa.select(_WAITING, sa.true().label("waits")).distinct()
    proposed = sa.union_all(indexed, waiting).subquery("proposed")
    # Each is looked up by itself: the planner takes two columns for two conditions, expects next to no message, and
    # then reads all sessions for each of thousands.
    asked = (MESSAGE.c[name] for name in ("author", "created_at", *GIVEN))
    message = sa.select(*asked).where(*_same(MESSAGE, proposed)).offset(0).lateral("of_place")
    return sa.select(proposed, message).join_from(proposed, message, sa.true()).subquery("message")


def _same(one: sa.FromClause, other: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    return [mine == theirs for mine, theirs in zip(_place(one), _place(other), strict=True)]


def _read_before(message: sa.FromClause) -> sa.ColumnElement[Any]:
    """Return how many bytes the messages have that are newer."""
    sizes = (sa.func.coalesce(sa.func.pg_column_size(message.c[each]), 0) for each in ("text", "content", "tool_calls"))
    key, seq = _place(message)
    newer = sa.func.sum(sum(sizes, sa.literal(0))).over(
        order_by=(message.c.created_at.desc(), key, seq.desc()), rows=(None, -1)
    )
    return sa.func.coalesce(newer, 0)


def _literally(statement: str) -> sa.TextClause:
    """Return a statement in which a colon is a colon."""
    return sa.text(statement.replace(":", r"\:"))


def _with_values(statement: str) -> sa.TextClause:
    """Return a statement in which `::` casts, and whose `:names` are values."""
    return sa.text(statement.replace("::", r"\:\:"))
