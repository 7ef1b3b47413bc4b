"""What the search index of PostgreSQL is made of, in SQL; `{schema}` stands for the schema of the messages."""

from __future__ import annotations

from typing import Final

from lango_store.dialect.entries import GIVEN, SIGNATURE

TABLES: Final = (
    "CREATE TABLE lango_search_state (one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), configuration TEXT NOT NULL, "
    'state TEXT NOT NULL, reason TEXT, filled_key TEXT COLLATE "C", filled_seq BIGINT, '
    'upto_key TEXT COLLATE "C", upto_seq BIGINT)',
    'CREATE TABLE lango_search (session_key TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, '
    "CONSTRAINT pk_lango_search PRIMARY KEY (session_key, seq))",
    # Without an index: a writer only adds to its end, and who takes from it reads it from the beginning.
    'CREATE TABLE lango_search_waiting (session_key TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL)',
)

# The list of what is not sorted in yet is read by every search: a short one. To look at 3,000 messages instead of
# 30,000 is enough for the planner: each is read for it.
INDEX: Final = (
    "CREATE INDEX ix_lango_search_entry ON lango_search "
    "USING gin (lango_search_entry_at(session_key, seq) {operator_class}) WITH (gin_pending_list_limit = 512)",
    "ALTER INDEX ix_lango_search_entry ALTER COLUMN 1 SET STATISTICS 10",
    "ALTER TABLE lango_search ALTER session_key SET STATISTICS 10, ALTER seq SET STATISTICS 10",
)

PARTS: Final = (
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
    f"""
    CREATE FUNCTION lango_search_parts(
      {SIGNATURE}, OUT said text, OUT blocks text, OUT tools text, OUT outputs text
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
        said := content #>> '{{}}';
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
)

# What the index has of a message, which it reads itself, as SQLite's does of its external content: the words are not
# kept a second time. It may be called immutable because a message that changes leaves the index in that transaction,
# and what an index row has is asked for again nowhere but in a search that sees the message as it was indexed.
ENTRY_AT: Final = f"""
CREATE FUNCTION lango_search_entry_at(key text, at bigint) RETURNS {{type}} LANGUAGE plpgsql IMMUTABLE COST 1000
SET search_path = {{schema}}, pg_temp AS $$
BEGIN
  RETURN (
    SELECT lango_search_entry({", ".join(GIVEN)}) FROM lango_message m WHERE m.session_key = key AND m.seq = at
  );
END $$
"""

# With the rights of who made the index: who may write messages need not be granted anything. The names of the
# transition tables are looked up where they stand. To wait costs an append a short row; nothing it does can conflict.
# What was indexed behind the back of a transaction that sees an older moment (REPEATABLE READ) is left to who takes it.
FOLLOW: Final = """
CREATE FUNCTION lango_search_follow() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE
  taken bigint;
BEGIN
  BEGIN
    IF TG_OP <> 'INSERT' AND EXISTS (SELECT 1 FROM lango_search_state WHERE state <> 'detached') THEN
      DELETE FROM lango_search w USING gone g WHERE w.session_key = g.session_key AND w.seq = g.seq;
      GET DIAGNOSTICS taken = ROW_COUNT;
      IF TG_OP = 'DELETE' AND taken < (SELECT count(*) FROM gone WHERE role <> 'record') THEN
        INSERT INTO lango_search_waiting (session_key, seq) SELECT session_key, seq FROM gone WHERE role <> 'record';
      END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
      INSERT INTO lango_search_waiting (session_key, seq)
      SELECT a.session_key, a.seq FROM added a, lango_search_state s WHERE a.role <> 'record' AND s.state <> 'detached';
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

# Of two who take, one waits for the other. A message that is being deleted stays in the queue until that is done: its
# row here could not be seen by who deletes it. What fails for a passing reason, or since nothing may be written, is
# left to the next one; searches read the queue.
TAKE: Final = """
CREATE FUNCTION lango_search_take(most integer) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE
  keys text[];
  seqs bigint[];
BEGIN
  PERFORM 1 FROM lango_search_state WHERE state = 'ready' FOR UPDATE;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  WITH chosen AS MATERIALIZED (
    SELECT ctid AS at, session_key, seq FROM lango_search_waiting LIMIT most
  ), there AS MATERIALIZED (
    SELECT session_key, seq FROM lango_message m
    WHERE (session_key, seq) IN (SELECT session_key, seq FROM chosen) FOR KEY SHARE OF m SKIP LOCKED
  ), taken AS (
    DELETE FROM lango_search_waiting w USING chosen c WHERE w.ctid = c.at AND (
      (c.session_key, c.seq) IN (SELECT session_key, seq FROM there)
      OR NOT EXISTS (SELECT 1 FROM lango_message m WHERE m.session_key = c.session_key AND m.seq = c.seq)
    ) RETURNING w.session_key, w.seq
  ) SELECT array_agg(session_key), array_agg(seq) INTO keys, seqs FROM taken;
  DELETE FROM lango_search w USING unnest(keys, seqs) AS t (key, at)
  WHERE w.session_key = t.key COLLATE "C" AND w.seq = t.at;
  INSERT INTO lango_search (session_key, seq)
  SELECT DISTINCT m.session_key, m.seq FROM unnest(keys, seqs) AS t (key, at)
  JOIN lango_message m ON m.session_key = t.key COLLATE "C" AND m.seq = t.at WHERE m.role <> 'record';
  RETURN coalesce(cardinality(keys), 0);
EXCEPTION WHEN OTHERS THEN
  IF left(SQLSTATE, 2) NOT IN ('25', '40', '53', '55', '57') THEN
    RAISE WARNING 'lango_store: the search index is detached: %', SQLERRM;
    UPDATE lango_search_state SET state = 'detached', reason = SQLERRM;
  END IF;
  RETURN 0;
END $$
"""

TRIGGERS: Final = {
    "lango_search_added": "AFTER INSERT ON lango_message REFERENCING NEW TABLE AS added",
    "lango_search_changed": "AFTER UPDATE ON lango_message REFERENCING OLD TABLE AS gone NEW TABLE AS added",
    "lango_search_removed": "AFTER DELETE ON lango_message REFERENCING OLD TABLE AS gone",
}

FUNCTIONS: Final = tuple(
    f"lango_search_{name}" for name in ("entry", "entry_at", "follow", "json", "parts", "take", "texts")
)

_GIVEN_TYPES: Final = "text, text, text, text, json, json"

DROPPED: Final = (
    "DROP TABLE IF EXISTS lango_search",
    "DROP TABLE IF EXISTS lango_search_waiting",
    "DROP TABLE IF EXISTS lango_search_state",
    "DROP FUNCTION IF EXISTS lango_search_follow()",
    "DROP FUNCTION IF EXISTS lango_search_take(integer)",
    "DROP FUNCTION IF EXISTS lango_search_entry_at(text, bigint)",
    f"DROP FUNCTION IF EXISTS lango_search_entry({_GIVEN_TYPES})",
    "DROP FUNCTION IF EXISTS lango_search_words(regconfig, text, text, text, text)",  # of an earlier form
    f"DROP FUNCTION IF EXISTS lango_search_parts({_GIVEN_TYPES})",
    "DROP FUNCTION IF EXISTS lango_search_texts(jsonb, jsonpath)",
    "DROP FUNCTION IF EXISTS lango_search_json(json)",
)
