"""The search index of PostgreSQL: a table with the tsvector of each message, and a GIN index on it."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect.search import (
    MESSAGE,
    PARTS,
    SIMPLE,
    STATE,
    TABLES,
    TRIGGERS,
    IndexState,
    Matches,
    Place,
    SearchIndex,
    read_messages,
)
from lango_store._values.search_query import Term, Terms, distinct_words

_MAX_READ: Final = 1_000
_MAX_WORDS: Final = 20_000
_DAMAGE: Final = ("XX000", "XX001", "XX002", "58P01", "42P01", "42703", "42704")

_CREATE: Final = (
    "CREATE TABLE lango_search_state (configuration TEXT PRIMARY KEY, complete BOOLEAN NOT NULL)",
    "CREATE TABLE lango_search_queue (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    'session_key TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL)',
    'CREATE TABLE lango_search (session_key TEXT COLLATE "C", seq BIGINT, entry TSVECTOR NOT NULL, '
    "PRIMARY KEY (session_key, seq))",
    # Every search reads the entries that are not sorted in yet: a short list.
    "CREATE INDEX ix_lango_search_entry ON lango_search USING gin (entry) WITH (gin_pending_list_limit = 512)",
    # With the rights of the owner, so that writing needs no grant: an application must not fail because an index is
    # created. All names are qualified, since the search path is the caller's.
    """
    CREATE FUNCTION {schema}.lango_search_enqueue() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
      INSERT INTO {schema}.lango_search_queue (session_key, seq)
      SELECT session_key, seq FROM changed WHERE TG_OP = 'UPDATE' OR role <> 'record';
      RETURN NULL;
    END $$
    """,
)
_EVENTS: Final = ("INSERT ON {} REFERENCING NEW", "UPDATE ON {} REFERENCING NEW", "DELETE ON {} REFERENCING OLD")

_IN_SCHEMA: Final = "relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
_NAMES: Final = (
    f"SELECT relname::text FROM pg_class WHERE {_IN_SCHEMA} AND starts_with(relname::text, 'lango_search') "
    "UNION ALL SELECT tgname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
    f"WHERE relname = 'lango_message' AND {_IN_SCHEMA} AND tgenabled IN ('O', 'A')"
)
_MAY_WRITE: Final = (
    "SELECT current_setting('transaction_read_only') = 'off' AND bool_and(has_table_privilege(name, 'DELETE')) "
    f"FROM unnest(ARRAY{[*TABLES]}) AS name"
)

_QUERY: Final = "to_tsquery(CAST(:configuration AS regconfig), {})"
_ENTRY: Final = " || ".join(
    f"setweight(to_tsvector(CAST(:configuration AS regconfig), {part}), '{weight}')"
    for part, weight in zip(PARTS, "ABCD", strict=True)
)
_PLACES: Final = "CAST(:keys AS text[]), CAST(:seqs AS bigint[])"
_ENTRIES: Final = (
    f"SELECT session_key, seq, {_ENTRY} AS entry "
    f"FROM unnest({_PLACES}, {', '.join(f'CAST(:{part} AS text[])' for part in PARTS)}) "
    f"AS message (session_key, seq, {', '.join(PARTS)})"
)
_MATCHES: Final = f"""
SELECT session_key, seq, ts_rank(entry, {_QUERY.format(":wanted")}) AS rank FROM (
  SELECT session_key, seq, entry FROM lango_search i WHERE NOT EXISTS (
    SELECT FROM lango_search_queue q WHERE q.session_key = i.session_key AND q.seq = i.seq
  ) UNION ALL {_ENTRIES}
) entries WHERE entry @@ {_QUERY.format(":wanted")} AND NOT entry @@ {_QUERY.format(":unwanted")}
"""
_AT_PLACES: Final = f'(session_key, seq) IN (SELECT key COLLATE "C", at FROM unnest({_PLACES}) AS place (key, at))'

# PostgreSQL's parser takes words with these between them for hosts, paths, compounds and signed numbers.
_JOINING: Final = re.compile("[-/.@&<+_]")
_AS_SPACES: Final = str.maketrans(string.punctuation, " " * len(string.punctuation))


class Gin(SearchIndex):
    """A GIN index."""

    place = place_of_message = "session_key, seq"
    entries = "lango_search"
    reads_queue = True

    def names(self, connection: sa.Connection) -> set[str]:
        return set(connection.exec_driver_sql(_NAMES).scalars())

    def configurations(self, connection: sa.Connection) -> Sequence[str]:
        query = "SELECT cfgname::text FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) ORDER BY 1"
        return connection.exec_driver_sql(query).scalars().all()

    def objects(self, connection: sa.Connection, configuration: str) -> Iterator[str]:
        schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
        for statement in _CREATE:
            yield statement.replace("{schema}", schema)
        for name, event in zip(TRIGGERS, _EVENTS, strict=True):
            run = f"FOR EACH STATEMENT EXECUTE FUNCTION {schema}.lango_search_enqueue()"
            yield f"CREATE TRIGGER {name} AFTER {event.format('lango_message')} TABLE AS changed {run}"

    def drop(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS lango_search_enqueue() CASCADE")  # and its triggers
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {', '.join(TABLES)}")

    def drain(self, connection: sa.Connection, limit: int, only: Place | None = None) -> int:
        if not connection.exec_driver_sql(_MAY_WRITE).scalar_one():
            return 0
        # One at a time: another one might read a message before it changes, and write that entry after ours.
        connection.exec_driver_sql("SELECT FROM lango_search_state FOR UPDATE")
        chosen = "" if only is None else "WHERE session_key = :key AND seq = :seq"
        newest = f"SELECT id FROM lango_search_queue {chosen} ORDER BY id DESC LIMIT :limit"
        taken = sa.text(f"DELETE FROM lango_search_queue WHERE id IN ({newest}) RETURNING session_key, seq")
        its = {} if only is None else {"key": only[0], "seq": only[1]}
        places = [(key, seq) for key, seq in connection.execute(taken, {"limit": limit, **its})]
        # Messages are read after the queue: of a change that is not seen here, the row is still in the queue.
        connection.execute(sa.text(f"DELETE FROM lango_search WHERE {_AT_PLACES}"), _arrays(places))
        values = {"configuration": connection.execute(sa.select(STATE.c.configuration)).scalar_one()}
        values |= self._texts(connection, places)
        connection.execute(sa.text(f"INSERT INTO lango_search (session_key, seq, entry) {_ENTRIES}"), values)
        return len(places)

    def is_damage(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) in _DAMAGE

    def bytes_on_disk(self, connection: sa.Connection) -> int:
        sizes = " + ".join(f"pg_total_relation_size('{name}')" for name in TABLES)
        return int(connection.exec_driver_sql(f"SELECT {sizes}").scalar_one())

    def matches(self, connection: sa.Connection, state: IndexState, terms: Terms) -> Matches:
        newest = f"SELECT session_key, seq FROM lango_search_queue ORDER BY id DESC LIMIT {_MAX_READ}"
        places = [(key, seq) for key, seq in connection.exec_driver_sql(newest)]
        values = {"configuration": state.configuration, **self._texts(connection, places)}
        values["wanted"] = " & ".join(map(_phrase, terms.wanted))
        values["unwanted"] = " | ".join(map(_phrase, terms.unwanted))
        columns = (sa.column(name, MESSAGE.c[name].type) for name in ("session_key", "seq"))
        query = sa.text(_MATCHES).bindparams(**values).columns(*columns, sa.column("rank", sa.Float()))
        found = query.cte("found").prefix_with("MATERIALIZED")
        # Each message is looked up by itself: the planner expects that next to no message has both the key and the seq.
        names = ("session_key", "seq", "role", "author", "created_at")
        same = (MESSAGE.c.session_key == found.c.session_key, MESSAGE.c.seq == found.c.seq)
        message = sa.select(*(MESSAGE.c[name] for name in names)).where(*same).offset(0).lateral("message")
        unread = self.queued(connection) - _MAX_READ if len(places) == _MAX_READ else 0
        return Matches(found.join(message, sa.true()), message, found.c.rank, unread)

    def at(self, places: Sequence[Place]) -> sa.TextClause:
        return sa.text(_AT_PLACES).bindparams(**_arrays(places))

    def inflected(
        self, connection: sa.Connection, state: IndexState, terms: Terms, texts: Sequence[str]
    ) -> frozenset[str]:
        if state.configuration == SIMPLE:
            return frozenset()
        matching = f"to_tsvector(CAST(:configuration AS regconfig), word) @@ {_QUERY.format(':wanted')}"
        query = sa.text(f"SELECT word FROM unnest(CAST(:words AS text[])) AS word WHERE {matching}")
        single = (Term(word) for term in terms.wanted for word in _words(term))
        values: dict[str, Any] = {"configuration": state.configuration, "wanted": " | ".join(map(_phrase, single))}
        values["words"] = sorted(distinct_words(texts))[:_MAX_WORDS]
        return frozenset(connection.execute(query, values).scalars())

    def _texts(self, connection: sa.Connection, places: Sequence[Place]) -> dict[str, Any]:
        """Return the messages at some places as arrays for `_ENTRIES`, as far as they exist and are no records."""
        columns = (MESSAGE.c.session_key, MESSAGE.c.seq)
        messages = read_messages(connection, self.at(places), *columns) if places else ()
        rows = [(*place, *texts) for place, role, texts in messages if role != "record"]
        parts = {name: [_JOINING.sub(" ", row[2 + n]) for row in rows] for n, name in enumerate(PARTS)}
        return {**_arrays([row[:2] for row in rows]), **parts}


def _arrays(places: Sequence[Place]) -> dict[str, Any]:
    return {"keys": [key for key, _ in places], "seqs": [seq for _, seq in places]}


def _words(term: Term) -> list[str]:
    return term.words.translate(_AS_SPACES).split()


def _phrase(term: Term) -> str:
    """Write a term in the language of to_tsquery."""
    words = " <-> ".join(f"'{word}'" for word in _words(term))
    return f"({words}:*)" if term.prefix else f"({words})"
