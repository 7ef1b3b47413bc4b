"""The search index on PostgreSQL: a table with the tsvector of each message, and a GIN index on that table."""

import string
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

from lango_store._rooms.search.index import (
    MESSAGE,
    QUEUE,
    REBUILD,
    TABLES,
    TRIGGERS,
    Matches,
    SearchIndex,
    read_messages,
)
from lango_store._rooms.search.query import SearchQuery, Term, indexed

_DAMAGE: Final = ("XX000", "XX001", "XX002", "58P01", "42P01", "42703", "42704")
_CANCELED: Final = "57014"

_CREATE_QUEUE: Final = (
    f"CREATE TABLE {QUEUE} (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    'session_key TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL)'
)
# The function runs with the rights of its owner, so that applications need no grant on the queue and do not fail when
# an index is created. Its search path begins with PostgreSQL's own operators, and then has the schema of the table,
# which may have been renamed. An operator of that schema is never used, because the types of all operands fit exactly.
# Dynamic SQL would be planned at each call.
_BODY: Final = """
BEGIN
  PERFORM set_config('search_path', 'pg_catalog, ' || quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
  -- The owner of a queue can attach triggers to it, which run with the rights of this function.
  IF (SELECT pg_get_userbyid(relowner) <> current_user FROM pg_class
      WHERE oid = 'lango_search_queue'::regclass::oid) THEN
    RAISE insufficient_privilege USING MESSAGE =
      'lango_search_queue has another owner than lango_search_enqueue(): run `lango-store search rebuild`';
  END IF;
  INSERT INTO lango_search_queue (session_key, seq)
  SELECT session_key, seq FROM changed WHERE TG_OP = 'UPDATE' OR role <> 'record';
  RETURN NULL;
END
"""
_CREATE_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION lango_search_enqueue() RETURNS trigger LANGUAGE plpgsql "
    f"SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body${_BODY}$body$",
    "REVOKE EXECUTE ON FUNCTION lango_search_enqueue() FROM PUBLIC",  # triggers of other tables could misuse it
)
_CREATE_TRIGGERS: Final = tuple(
    f"CREATE TRIGGER {name} AFTER {event} ON lango_message REFERENCING {rows} TABLE AS changed "
    "FOR EACH STATEMENT EXECUTE FUNCTION lango_search_enqueue()"
    for name, event, rows in zip(TRIGGERS, ("INSERT", "UPDATE", "DELETE"), ("NEW", "NEW", "OLD"), strict=True)
)
_CREATE_ENTRIES: Final = (
    'CREATE TABLE lango_search (session_key TEXT COLLATE "C", seq BIGINT, entry TSVECTOR NOT NULL, '
    "PRIMARY KEY (session_key, seq))",
    # Every search reads the whole pending list of the index, so that list is limited to 512 kB.
    "CREATE INDEX ix_lango_search_entry ON lango_search USING gin (entry) WITH (gin_pending_list_limit = 512)",
)

_IN_SCHEMA: Final = "relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
_IS_WRITABLE: Final = "current_setting('default_transaction_read_only') = 'off' AND NOT pg_is_in_recovery()"
_IS_FOREIGN: Final = "pronamespace <> relnamespace OR proowner <> relowner"
_IS_OUTDATED: Final = (
    f"(prosrc <> $body${_BODY}$body$ OR NOT prosecdef "
    "OR proconfig[1] IS DISTINCT FROM 'search_path=pg_catalog, pg_temp')"
)
# The queue has the schema and the owner that the function of the triggers must have.
_FAULTS: Final = f"""
SELECT bool_or({_IS_FOREIGN}), bool_or({_IS_OUTDATED})
FROM pg_class JOIN pg_trigger ON starts_with(tgname::text, 'lango_search') JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE relname = '{QUEUE}' AND {_IN_SCHEMA}
AND tgrelid = (SELECT oid FROM pg_class WHERE relname = 'lango_message' AND {_IN_SCHEMA})
"""
_REPLACEABLE: Final = f"""
SELECT EXISTS (
SELECT FROM pg_class JOIN pg_proc ON pronamespace = relnamespace AND proname = 'lango_search_enqueue'
WHERE relname = '{QUEUE}' AND {_IN_SCHEMA} AND NOT ({_IS_FOREIGN}) AND {_IS_OUTDATED} AND {_IS_WRITABLE}
AND pg_has_role(proowner, 'USAGE') AND has_schema_privilege(pronamespace, 'CREATE'))
"""
_INSERT: Final = """
INSERT INTO lango_search (session_key, seq, entry)
SELECT key, seq, pg_catalog.setweight(pg_catalog.to_tsvector('simple', text), 'A')
|| pg_catalog.setweight(pg_catalog.to_tsvector('simple', tools), 'D')
FROM unnest(CAST(:keys AS text[]), CAST(:seqs AS bigint[]), CAST(:texts AS text[]), CAST(:tools AS text[]))
AS message (key, seq, text, tools)
"""
_MATCHES: Final = f"""
SELECT session_key, seq, pg_catalog.ts_rank(entry, pg_catalog.to_tsquery('simple', :wanted)) AS rank FROM lango_search i
WHERE NOT EXISTS (SELECT FROM {QUEUE} q WHERE q.session_key = i.session_key AND q.seq = i.seq)
AND entry @@ pg_catalog.to_tsquery('simple', :wanted) AND NOT entry @@ pg_catalog.to_tsquery('simple', :unwanted)
"""

# Replaces punctuation, with which PostgreSQL's parser would read some words as hosts, paths, compounds or numbers.
_AS_SPACES: Final = str.maketrans(string.punctuation, " " * len(string.punctuation))


class Gin(SearchIndex):
    """The tsvector table with its GIN index, and the queue that feeds it."""

    id_columns = message_id_columns = "session_key, seq"
    entries = "lango_search"
    is_one_of = (
        '(session_key, seq) IN (SELECT (wanted ->> 0) COLLATE "C", CAST(wanted ->> 1 AS bigint) '
        "FROM json_array_elements(CAST(:keys AS json)) AS wanted)"
    )
    select_names = (
        f"SELECT relname::text FROM pg_class WHERE {_IN_SCHEMA} AND starts_with(relname::text, 'lango_search') "
        "UNION ALL SELECT tgname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
        "WHERE starts_with(tgname::text, 'lango_search') AND relname = 'lango_message' "
        f"AND {_IN_SCHEMA} AND tgenabled IN ('O', 'A')"
    )
    select_drainable = (
        f"SELECT {_IS_WRITABLE} AND EXISTS (SELECT FROM {QUEUE}) AND bool_and(has_table_privilege(name, 'DELETE')) "
        f"FROM (VALUES {', '.join(f'({name!r})' for name in TABLES)}) AS names (name)"
    )

    def create_queue(self, connection: sa.Connection) -> None:
        for statement in (_CREATE_QUEUE, *_CREATE_FUNCTION, *_CREATE_TRIGGERS):
            connection.exec_driver_sql(statement)

    def create_entries(self, connection: sa.Connection) -> None:
        for statement in _CREATE_ENTRIES:
            connection.exec_driver_sql(statement)

    def drop(self, connection: sa.Connection) -> None:
        for name in TRIGGERS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name} ON lango_message")
        connection.exec_driver_sql("DROP FUNCTION IF EXISTS lango_search_enqueue() CASCADE")  # and triggers of copies
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {', '.join(TABLES)}")

    def fault(self, connection: sa.Connection) -> str | None:
        if (missing := super().fault(connection)) is not None:
            return missing
        is_foreign, is_outdated = connection.exec_driver_sql(_FAULTS).one()
        if is_foreign:
            return f"the function of its triggers has another schema or owner than {QUEUE}: {REBUILD}"
        return "lango_search_enqueue() is outdated: run `lango-store db upgrade` as its owner" if is_outdated else None

    def has_outdated_function(self, connection: sa.Connection) -> bool:
        return bool(connection.exec_driver_sql(_REPLACEABLE).scalar_one())

    def replace_function(self, connection: sa.Connection) -> None:
        for statement in _CREATE_FUNCTION:
            connection.exec_driver_sql(statement)

    def drain(self, connection: sa.Connection, limit: int) -> int:
        # Only one transaction drains at a time. Two could index the same message, and the older text could win.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock('lango_search'::regclass::oid::bigint)")
        newest = f"SELECT id FROM {QUEUE} ORDER BY id DESC LIMIT :limit"
        taken = sa.text(f"DELETE FROM {QUEUE} WHERE id IN ({newest}) RETURNING session_key, seq")
        keys = [(key, seq) for key, seq in connection.execute(taken, {"limit": limit})]
        # Messages are read after the queue: a change that commits in between still has its row in the queue.
        connection.execute(sa.delete(sa.table("lango_search")).where(self.one_of(keys)))
        chosen = sa.select(MESSAGE.c.session_key, MESSAGE.c.seq).where(self.one_of(keys))
        rows = [
            (key, seq, *(text.translate(_AS_SPACES) for text in indexed(*texts)))
            for (key, seq), role, texts in read_messages(connection, chosen)
            if role != "record"
        ]
        if rows:
            columns = map(list, zip(*rows, strict=True))
            connection.execute(sa.text(_INSERT), dict(zip(("keys", "seqs", "texts", "tools"), columns, strict=True)))
        return len(keys)

    def vacuum_queue(self, connection: sa.Connection) -> None:
        # Otherwise, each count of the queue reads the pages of the indexed changes until an autovacuum.
        schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
        connection.rollback()
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"VACUUM {schema}.{QUEUE}")

    def is_damage(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) in _DAMAGE

    @contextmanager
    def time_limit(self, connection: sa.Connection, seconds: float) -> Iterator[None]:
        # The custom plan fits the values of this call: if most rows match, it does not use the search index, whose
        # scan cannot always be canceled.
        names, functions = ("statement_timeout", "plan_cache_mode"), sa.func.pg_catalog

        def configure(*values: str) -> None:
            settings = (functions.set_config(name, value, True) for name, value in zip(names, values, strict=True))
            connection.execute(sa.select(*settings))

        before = connection.execute(sa.select(*map(functions.current_setting, names))).one()
        try:
            with connection.begin_nested():
                configure(f"{max(1, seconds * 1000):.0f}ms", "force_custom_plan")
                yield
                configure(*before)
        except sa.exc.DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != _CANCELED:
                raise
            raise TimeoutError from error

    def matches(self, query: SearchQuery) -> Matches:
        wanted, unwanted = " & ".join(map(_phrase, query.wanted)), " | ".join(map(_phrase, query.unwanted))
        columns = (sa.column(name, MESSAGE.c[name].type) for name in ("session_key", "seq"))
        hits = sa.text(_MATCHES).bindparams(wanted=wanted, unwanted=unwanted)
        matches = hits.columns(*columns, sa.column("rank", sa.Float())).cte("found").prefix_with("MATERIALIZED")
        # The lateral join looks up each message separately. With an ordinary join the planner underestimates how many
        # messages have both the key and the seq.
        names = ("session_key", "seq", "role", "author", "model", "created_at")
        same = (MESSAGE.c.session_key == matches.c.session_key, MESSAGE.c.seq == matches.c.seq)
        message = sa.select(*(MESSAGE.c[name] for name in names)).where(*same).offset(0).lateral("message")
        return Matches(matches.join(message, sa.true()), message, matches.c.rank)


def _phrase(term: Term) -> str:
    """Format a term in the syntax of to_tsquery()."""
    words = " <-> ".join(f"'{word}'" for word in term.words.translate(_AS_SPACES).split())
    return f"({words}:*)" if term.prefix else f"({words})"
