"""The search index of PostgreSQL: the words of each message as a `tsvector` in a table of its own, under a GIN index.

Triggers of the messages' table keep it, one call a statement, so that every writer does. What fails in them is caught
there, in the server and in the writer's own transaction: the index is detached, and the write goes on.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from lango_store.dialect.search import PARTS, STATE, IndexState, Matching, SearchIndex
from lango_store.tables import Base
from lango_store.words import Term, Terms

_MESSAGE: Final = Base.metadata.tables["lango_message"]
_PLACE: Final[tuple[sa.ColumnElement[Any], ...]] = (_MESSAGE.c.session_key, _MESSAGE.c.seq)
_LONGEST_PART: Final = 100_000
_LONGEST_PART_OF_MANY: Final = 18_000

# A word is letters and digits, as it is for SQLite: with these between them PostgreSQL's parser would see hosts, paths,
# compounds and signed numbers. No others, since translate() looks for each of them in each place of a text.
_JOINING: Final = "-/.@&<+_"
_SPACES: Final = " " * len(_JOINING)
_AS_SPACES: Final = str.maketrans(string.punctuation, " " * len(string.punctuation))


def _plain(text: str) -> str:
    return f"translate({text}, '{_JOINING}', '{_SPACES}')"


_TABLES: Final = (
    "CREATE TABLE lango_search_state (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), configuration TEXT NOT NULL, "
    'state TEXT NOT NULL, reason TEXT, filled_key TEXT COLLATE "C", filled_seq BIGINT, '
    'upto_key TEXT COLLATE "C", upto_seq BIGINT)',
    'CREATE TABLE lango_search (session_key TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, words TSVECTOR NOT NULL, '
    "CONSTRAINT pk_lango_search PRIMARY KEY (session_key, seq))",
    "CREATE INDEX ix_lango_search_words ON lango_search USING gin (words)",
)

_FUNCTIONS: Final = (
    # What jsonb cannot hold has no letters: NUL, and halves of surrogate pairs. Escaped backslashes are written
    # another way first, so that what looks like an escape behind one is none.
    r"""
    CREATE FUNCTION lango_search_json(given json) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
    DECLARE
      plain text := given::text;
    BEGIN
      IF strpos(plain, '\u') > 0 THEN
        plain := replace(replace(plain, '\\', '\u005c'), '\u0000', ' ');
        plain := regexp_replace(plain, '\\u[dD][89abABcdefCDEF][0-9a-fA-F][0-9a-fA-F]', ' ', 'g');
      END IF;
      RETURN plain::jsonb;
    EXCEPTION WHEN OTHERS THEN
      RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION lango_search_texts(found jsonb, path jsonpath) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
      SELECT string_agg(each #>> '{}', chr(10)) FROM jsonb_path_query(found, path, '{}', true) AS each
    $$
    """,
    """
    CREATE FUNCTION lango_search_parts(
      said_by text, tool text, answers text, whole text, given json, given_calls json,
      OUT said text, OUT blocks text, OUT tools text, OUT outputs text
    ) LANGUAGE plpgsql IMMUTABLE AS $$
    DECLARE
      is_output boolean := answers IS NOT NULL OR said_by IN ('tool', 'function');
      content jsonb := lango_search_json(given);
      calls jsonb := lango_search_json(given_calls);
    BEGIN
      IF is_output THEN
        tools := tool;
        outputs := coalesce(whole, lango_search_texts(content, 'strict $.** ? (@.type() == "string")'));
      ELSIF whole IS NOT NULL THEN
        said := whole;
      ELSIF jsonb_typeof(content) = 'string' THEN
        said := content #>> '{}';
      ELSE
        blocks := lango_search_texts(content, 'strict $.**.text ? (@.type() == "string")');
      END IF;
      IF calls IS NOT NULL THEN
        tools := concat_ws(chr(10), tools, lango_search_texts(calls, '$[*].name ? (@.type() == "string")'));
        outputs := concat_ws(
          chr(10), outputs,
          lango_search_texts(calls, 'strict $[*] ? (exists (@.output)).output.** ? (@.type() == "string")')
        );
      END IF;
    END $$
    """,
    # A tsvector has room for 1 MB, and a word takes at most about twice its place in the text.
    f"""
    CREATE FUNCTION lango_search_words(
      configuration regconfig, said text, blocks text, tools text, outputs text
    ) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE AS $$
    DECLARE
      words tsvector;
      bytes bigint := octet_length(concat(said, blocks, tools, outputs));
      longest integer := CASE WHEN bytes > 300000 THEN {_LONGEST_PART_OF_MANY} ELSE {_LONGEST_PART} END;
    BEGIN
      IF bytes > {_LONGEST_PART} THEN
        said := left(said, longest);
        blocks := left(blocks, longest);
        tools := left(tools, longest);
        outputs := left(outputs, longest);
      END IF;
      words := setweight(to_tsvector(configuration, {_plain("coalesce(said, '')")}), 'A');
      IF blocks <> '' THEN
        words := words || setweight(to_tsvector(configuration, {_plain("blocks")}), 'B');
      END IF;
      IF tools <> '' THEN
        words := words || setweight(to_tsvector(configuration, {_plain("tools")}), 'C');
      END IF;
      IF outputs <> '' THEN
        words := words || setweight(to_tsvector(configuration, {_plain("outputs")}), 'D');
      END IF;
      RETURN words;
    END $$
    """,
)

_IN_SCHEMA: Final = "c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
_CALL: Final = "lango_search_parts({0}.role, {0}.name, {0}.tool_call_id, {0}.text, {0}.content, {0}.tool_calls)"
_WORDS: Final = "lango_search_words({0}::regconfig, part.said, part.blocks, part.tools, part.outputs)"

# With the rights of who made the index: who may write messages need not be granted anything. The names of the
# transition tables are looked up where they stand.
_FOLLOW: Final = f"""
CREATE FUNCTION lango_search_follow() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {{schema}}, pg_temp AS $$
DECLARE
  configured text;
  at text;
BEGIN
  BEGIN
    SELECT configuration, state INTO STRICT configured, at FROM lango_search_state;
    IF at = 'detached' THEN
      RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
      DELETE FROM lango_search w USING gone g WHERE w.session_key = g.session_key AND w.seq = g.seq;
    END IF;
    IF TG_OP <> 'DELETE' THEN
      INSERT INTO lango_search (session_key, seq, words)
      SELECT a.session_key, a.seq, {_WORDS.format("configured")}
      FROM added a, LATERAL {_CALL.format("a")} part WHERE a.role <> 'record'
      ON CONFLICT (session_key, seq) DO UPDATE SET words = excluded.words;
    END IF;
  EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'lango_store: the search index is detached: %', SQLERRM;
    BEGIN
      UPDATE lango_search_state SET state = 'detached', reason = SQLERRM;
    EXCEPTION WHEN OTHERS THEN
      NULL;
    END;
  END;
  RETURN NULL;
END $$
"""

_TRIGGERS: Final = {
    "lango_search_added": "AFTER INSERT ON lango_message REFERENCING NEW TABLE AS added",
    "lango_search_changed": "AFTER UPDATE ON lango_message REFERENCING OLD TABLE AS gone NEW TABLE AS added",
    "lango_search_removed": "AFTER DELETE ON lango_message REFERENCING OLD TABLE AS gone",
}

_DROPPED: Final = (
    "DROP TABLE IF EXISTS lango_search",
    "DROP TABLE IF EXISTS lango_search_state",
    "DROP FUNCTION IF EXISTS lango_search_follow()",
    "DROP FUNCTION IF EXISTS lango_search_words(regconfig, text, text, text, text)",
    "DROP FUNCTION IF EXISTS lango_search_parts(text, text, text, text, json, json)",
    "DROP FUNCTION IF EXISTS lango_search_texts(jsonb, jsonpath)",
    "DROP FUNCTION IF EXISTS lango_search_json(json)",
)


class Tsvector(SearchIndex):
    """A table of tsvectors."""

    tables = ("lango_search", "lango_search_state")

    def state(self, connection: sa.Connection) -> IndexState | None:
        if not self._is_there(connection, "lango_search_state"):
            return None
        found = connection.execute(sa.select(STATE)).first()
        if found is None:
            return IndexState("simple", "detached", "its state is gone")
        state = IndexState(*found)
        if state.state != "detached" and (gone := self._gone(connection)):
            return IndexState(state.configuration, "detached", f"{', '.join(gone)} is gone")
        return state

    @staticmethod
    def _is_there(connection: sa.Connection, name: str) -> bool:
        query = f"SELECT 1 FROM pg_class c WHERE c.relname = :name AND {_IN_SCHEMA}"
        return connection.execute(sa.text(query), {"name": name}).first() is not None

    def _triggers(self, connection: sa.Connection) -> set[str]:
        query = (
            "SELECT tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            f"WHERE c.relname = 'lango_message' AND {_IN_SCHEMA} AND t.tgenabled IN ('O', 'A')"
        )
        return set(connection.exec_driver_sql(query).scalars())

    def _gone(self, connection: sa.Connection) -> list[str]:
        tables = [name for name in ("lango_search", "ix_lango_search_words") if not self._is_there(connection, name)]
        return tables + sorted(_TRIGGERS.keys() - self._triggers(connection))

    def refuse_configuration(self, connection: sa.Connection, configuration: str) -> None:
        known = connection.exec_driver_sql(
            "SELECT cfgname::text FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) "
            "ORDER BY cfgname = 'simple' DESC, 1"
        )
        if configuration not in (names := known.scalars().all()):
            raise ValueError(f"configuration={configuration!r}: this database has {', '.join(names)}")

    def create(self, connection: sa.Connection, configuration: str) -> None:
        schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        quoted = connection.dialect.identifier_preparer.quote_identifier(schema)
        for statement in (*_TABLES, *_FUNCTIONS, _FOLLOW.replace("{schema}", quoted)):
            connection.execute(_literally(statement))
        for name, when in _TRIGGERS.items():
            does = "FOR EACH STATEMENT EXECUTE FUNCTION lango_search_follow()"
            connection.exec_driver_sql(f"CREATE TRIGGER {name} {when} {does}")
        connection.execute(sa.insert(STATE).values(configuration=configuration, state="filling"))
        connection.exec_driver_sql(
            "UPDATE lango_search_state SET upto_key = m.session_key, upto_seq = m.seq FROM "
            "(SELECT session_key, seq FROM lango_message ORDER BY session_key DESC, seq DESC LIMIT 1) m"
        )

    def drop(self, connection: sa.Connection) -> None:
        if self._is_there(connection, "lango_message"):
            for name in _TRIGGERS:
                connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON lango_message")
        for statement in _DROPPED:
            connection.exec_driver_sql(statement)

    def follows(self, connection: sa.Connection) -> bool:
        return not _TRIGGERS.keys().isdisjoint(self._triggers(connection))

    def detach(self, connection: sa.Connection, reason: str) -> None:
        connection.execute(sa.update(STATE).values(state="detached", reason=reason))

    def waiting(self, connection: sa.Connection) -> int:
        query = (
            "SELECT count(*) FROM lango_message m, lango_search_state s "
            "WHERE s.state = 'filling' AND m.role <> 'record' AND (s.filled_key IS NULL OR "
            "(m.session_key, m.seq) > (s.filled_key, s.filled_seq)) "
            "AND NOT EXISTS (SELECT 1 FROM lango_search w WHERE w.session_key = m.session_key AND w.seq = m.seq)"
        )
        return int(connection.exec_driver_sql(query).scalar_one())

    def indexed(self, connection: sa.Connection) -> int:
        return int(connection.exec_driver_sql("SELECT count(*) FROM lango_search").scalar_one())

    def fill(self, connection: sa.Connection, most: int) -> int:
        # The row of the state is locked: of two who fill, one waits. The messages are locked against being deleted
        # meanwhile: who deletes one waits, and then takes its words away too. The walk ends where the table ended when
        # the index was made: what came later is indexed by its writers.
        place = "SELECT configuration, filled_key, filled_seq, state FROM lango_search_state FOR UPDATE"
        configuration, key, seq, state = connection.exec_driver_sql(place).one()
        if state != "filling":
            return 0
        behind = "" if key is None else "AND (session_key, seq) > (:key, :seq) "
        query = (
            "WITH a AS MATERIALIZED (SELECT * FROM lango_message WHERE (session_key, seq) <= "
            f"(SELECT upto_key, upto_seq FROM lango_search_state) {behind}"
            "ORDER BY session_key, seq LIMIT :most FOR KEY SHARE), "
            "written AS (INSERT INTO lango_search (session_key, seq, words) "
            f"SELECT a.session_key, a.seq, {_WORDS.format('CAST(:configuration AS text)')} "
            f"FROM a, LATERAL {_CALL.format('a')} part WHERE a.role <> 'record' "
            "ON CONFLICT (session_key, seq) DO NOTHING) "
            "SELECT session_key, seq, count(*) OVER () FROM a ORDER BY session_key DESC, seq DESC LIMIT 1"
        )
        values = {"configuration": configuration, "most": most, "key": key, "seq": seq}
        last = connection.execute(_with_values(query), values).first()
        if last is None:
            # What waits in the list of the GIN index is read by every search, and the planner knows no such table yet.
            connection.exec_driver_sql("SELECT gin_clean_pending_list('ix_lango_search_words')")
            connection.exec_driver_sql("ANALYZE lango_search")
            connection.execute(sa.update(STATE).values(state="ready"))
            return 0
        moved = "UPDATE lango_search_state SET filled_key = :key, filled_seq = :seq"
        connection.execute(sa.text(moved), {"key": last[0], "seq": last[1]})
        return int(last[2])

    def is_behind(self, connection: sa.Connection) -> bool:
        return False  # each write is in the index when it is there itself

    def may_be_to_blame(self, error: BaseException) -> bool:
        return False  # what fails in a trigger is caught there

    def tidy(self, connection: sa.Connection) -> None:
        """Do nothing: the row goes at once, and its place with the next vacuum, like those of messages."""

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        return int(connection.exec_driver_sql("SELECT pg_total_relation_size('lango_search')").scalar_one())

    def matching(self, found: IndexState, terms: Terms) -> Matching:
        source = sa.table("lango_search", sa.column("session_key"), sa.column("seq"), sa.column("words"))
        of_message = sa.and_(source.c.session_key == _MESSAGE.c.session_key, source.c.seq == _MESSAGE.c.seq)
        wanted, query = _queries(found, terms)
        says_something = sa.func.numnode(wanted) > 0  # of words that a language leaves out, nothing is left
        condition = sa.and_(source.c.words.op("@@", is_comparison=True)(query), says_something)
        return Matching(
            source, _PLACE, of_message, condition, sa.func.ts_rank(source.c.words, wanted, type_=sa.Float())
        )

    def marked(
        self,
        connection: sa.Connection,
        found: IndexState,
        terms: Terms,
        places: Sequence[tuple[Any, ...]],
        marks: tuple[str, str],
    ) -> dict[tuple[Any, ...], list[tuple[str, str]]]:
        given = (_MESSAGE.c[name] for name in ("role", "name", "tool_call_id", "text", "content", "tool_calls"))
        parts = sa.func.lango_search_parts(*given).table_valued(*PARTS).lateral("part")
        options = f"HighlightAll=true, StartSel={marks[0]}, StopSel={marks[1]}"
        columns: list[sa.ColumnElement[str]] = []
        for name in PARTS:
            text = sa.func.left(parts.c[name], _LONGEST_PART)
            plain = sa.func.translate(text, _JOINING, _SPACES)
            columns += [text, sa.func.ts_headline(_regconfig(found), plain, _queries(found, terms)[0], options)]
        query = sa.select(*_PLACE, *columns).join_from(_MESSAGE, parts, sa.true()).where(sa.tuple_(*_PLACE).in_(places))
        marked: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
        for key, seq, *texts in connection.execute(query):
            pairs = zip(texts[::2], texts[1::2], strict=True)
            marked[key, seq] = [(text, shown) for text, shown in pairs if text]
        return marked

    def differences(self, connection: sa.Connection, found: IndexState) -> Iterator[str]:
        compared = (
            "SELECT count(*) FILTER (WHERE w.words IS NULL), count(*) FILTER (WHERE m.seq IS NULL), "
            f"count(*) FILTER (WHERE w.words <> {_WORDS.format(':configuration')}) "
            f"FROM (SELECT * FROM lango_message WHERE role <> 'record') m CROSS JOIN LATERAL {_CALL.format('m')} part "
            "FULL JOIN lango_search w ON w.session_key = m.session_key AND w.seq = m.seq"
        )
        values = {"configuration": found.configuration}
        missing, left, other = connection.execute(_with_values(compared), values).one()
        for number, what in (
            (missing, "are not indexed"),
            (left, "are indexed and not there"),
            (other, "have other words"),
        ):
            if number:
                yield f"{number:,} messages {what}"


def _regconfig(found: IndexState) -> sa.ColumnElement[Any]:
    return sa.cast(found.configuration, postgresql.REGCONFIG)


def _queries(found: IndexState, terms: Terms) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]]:
    """Write terms as tsqueries: what is wanted, and that without what is unwanted."""
    wanted = functools.reduce(_and, (_phrase(found, term) for term in terms.wanted))
    without = (sa.func.tsquery_not(_phrase(found, term), type_=postgresql.TSQUERY) for term in terms.unwanted)
    return wanted, functools.reduce(_and, without, wanted)


def _and(one: sa.ColumnElement[Any], other: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return sa.func.tsquery_and(one, other, type_=postgresql.TSQUERY)


def _phrase(found: IndexState, term: Term) -> sa.ColumnElement[Any]:
    words = term.words.translate(_AS_SPACES).split()
    whole, begun = (words[:-1], words[-1]) if term.prefix else (words, None)
    phrase = sa.func.phraseto_tsquery(_regconfig(found), " ".join(whole), type_=postgresql.TSQUERY)
    if begun is None:
        return phrase
    prefix = sa.func.to_tsquery(_regconfig(found), f"'{begun}':*", type_=postgresql.TSQUERY)
    return sa.func.tsquery_phrase(phrase, prefix, type_=postgresql.TSQUERY) if whole else prefix


def _literally(statement: str) -> sa.TextClause:
    """Return a statement in which a colon is a colon."""
    return sa.text(statement.replace(":", r"\:"))


def _with_values(statement: str) -> sa.TextClause:
    """Return a statement in which `::` casts, and whose `:names` are values."""
    return sa.text(statement.replace("::", r"\:\:"))
