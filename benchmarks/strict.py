"""The strict floors: separate tables, tuples returned, texts unchanged, tool calls through `json.loads`."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy as sa

COLUMNS = "role, author, name, tool_call_id, text, tool_calls, created_at"

# With an index for lists of sessions by time, as any store has. Keys on PostgreSQL are compared by bytes.
TABLES = (
    "CREATE TABLE IF NOT EXISTS strict_session (key {key} PRIMARY KEY, last_seq BIGINT NOT NULL DEFAULT 0, "
    "message_count BIGINT NOT NULL DEFAULT 0, created_at {time} NOT NULL, updated_at {time} NOT NULL)",
    "CREATE INDEX IF NOT EXISTS strict_session_updated_at ON strict_session (updated_at, key)",
    "CREATE TABLE IF NOT EXISTS strict_message ("
    "session_key {key} NOT NULL REFERENCES strict_session ON DELETE CASCADE, seq BIGINT NOT NULL, role TEXT NOT NULL, "
    "author TEXT, name TEXT, tool_call_id TEXT, text TEXT NOT NULL, tool_calls {json}, created_at {time} NOT NULL, "
    "PRIMARY KEY (session_key, seq))",
)


def _tuples(rows: list[Any]) -> list[Any]:
    """Return tuples of seq, the columns from role to tool_calls (parsed), and created_at."""
    return [row if row[6] is None else (*row[:6], json.loads(row[6]), row[7]) for row in rows]


class StrictSqlite:
    """`sqlite3` with `BEGIN IMMEDIATE`, `UPDATE … RETURNING`, `INSERT`, `COMMIT`.

    It has its own file: in a shared file, a checkpoint would write the pages of both stores.
    """

    def __init__(self, url: str) -> None:
        path = f"{sa.make_url(url).database}.strict"
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        for statement in TABLES:
            self._connection.execute(statement.format(key="TEXT", time="TEXT", json="TEXT"))

    def create(self, key: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        self._connection.execute(
            "INSERT INTO strict_session (key, created_at, updated_at) VALUES (?, ?, ?)", (key, now, now)
        )

    def append(self, key: str, message: dict[str, Any]) -> int:
        return self.append_many(key, [message])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        execute = self._connection.execute
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        n = len(messages)
        execute("BEGIN IMMEDIATE")
        try:
            (last,) = execute(
                "UPDATE strict_session SET last_seq = last_seq + ?, message_count = message_count + ?, updated_at = ? "
                "WHERE key = ? RETURNING last_seq",
                (n, n, now, key),
            ).fetchone()
            self._connection.executemany(
                f"INSERT INTO strict_message (session_key, seq, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        key,
                        last - n + 1 + place,
                        m["role"],
                        m.get("author"),
                        m.get("name"),
                        m.get("tool_call_id"),
                        m["content"],
                        json.dumps(m["tool_calls"]) if "tool_calls" in m else None,
                        now,
                    )
                    for place, m in enumerate(messages)
                ],
            )
        except BaseException:
            execute("ROLLBACK")
            raise
        execute("COMMIT")
        return int(last)

    def load(self, key: str) -> list[Any]:
        self._connection.execute("SELECT * FROM strict_session WHERE key = ?", (key,)).fetchone()
        query = f"SELECT seq, {COLUMNS} FROM strict_message WHERE session_key = ? ORDER BY seq"
        return _tuples(self._connection.execute(query, (key,)).fetchall())

    def last(self, key: str, n: int) -> list[Any]:
        query = f"SELECT seq, {COLUMNS} FROM strict_message WHERE session_key = ? ORDER BY seq DESC LIMIT ?"
        return _tuples(self._connection.execute(query, (key, n)).fetchall()[::-1])

    def close(self) -> None:
        self._connection.close()


class StrictPostgres:
    """psycopg with one prepared data-modifying CTE in autocommit."""

    def __init__(self, url: str) -> None:
        given = sa.make_url(url)
        text = given.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(text, autocommit=True)
        for statement in TABLES:
            self._connection.execute(statement.format(key='TEXT COLLATE "C"', time="TIMESTAMPTZ", json="JSON"))

    def create(self, key: str) -> None:
        now = datetime.now(UTC)
        self._connection.execute(
            "INSERT INTO strict_session (key, created_at, updated_at) VALUES (%s, %s, %s)", (key, now, now)
        )

    def append(self, key: str, message: dict[str, Any]) -> int:
        row = self._connection.execute(
            "WITH s AS (UPDATE strict_session SET last_seq = last_seq + 1, message_count = message_count + 1, "
            f"updated_at = %(now)s WHERE key = %(key)s RETURNING last_seq) INSERT INTO strict_message "
            f"(session_key, seq, {COLUMNS}) SELECT %(key)s, last_seq, %(role)s, %(author)s, %(name)s, "
            "%(tool_call_id)s, %(text)s, %(tool_calls)s::json, %(now)s FROM s RETURNING seq",
            {
                "key": key,
                "now": datetime.now(UTC),
                "role": message["role"],
                "author": message.get("author"),
                "name": message.get("name"),
                "tool_call_id": message.get("tool_call_id"),
                "text": message["content"],
                "tool_calls": json.dumps(message["tool_calls"]) if "tool_calls" in message else None,
            },
        ).fetchone()
        assert row is not None
        return int(row[0])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        row = self._connection.execute(
            "WITH s AS (UPDATE strict_session SET last_seq = last_seq + %(n)s, message_count = message_count + %(n)s, "
            "updated_at = %(now)s WHERE key = %(key)s RETURNING last_seq), "
            f"i AS (INSERT INTO strict_message (session_key, seq, {COLUMNS}) "
            "SELECT %(key)s, last_seq - %(n)s + place, a, b, c, d, e, f::json, %(now)s FROM s, unnest("
            "%(role)b::text[], %(author)b::text[], %(name)b::text[], %(tool_call_id)b::text[], %(content)b::text[], "
            "%(tool_calls)b::text[]) WITH ORDINALITY AS u(a, b, c, d, e, f, place)) SELECT last_seq FROM s",
            {
                "key": key,
                "now": datetime.now(UTC),
                "n": len(messages),
                "tool_calls": [json.dumps(m["tool_calls"]) if "tool_calls" in m else None for m in messages],
            }
            | {each: [m.get(each) for m in messages] for each in ("role", "author", "name", "tool_call_id", "content")},
        ).fetchone()
        assert row is not None
        return int(row[0])

    def load(self, key: str) -> list[Any]:
        self._connection.execute("SELECT * FROM strict_session WHERE key = %s", (key,)).fetchone()
        return _tuples(self._connection.execute(f"{self._select} ORDER BY seq", (key,)).fetchall())

    def last(self, key: str, n: int) -> list[Any]:
        query = f"{self._select} ORDER BY seq DESC LIMIT %s"
        return _tuples(self._connection.execute(query, (key, n)).fetchall()[::-1])

    _select = (
        "SELECT seq, role, author, name, tool_call_id, text, tool_calls::text, created_at "
        "FROM strict_message WHERE session_key = %s"
    )

    def close(self) -> None:
        self._connection.close()


def strict_floor(url: str) -> StrictSqlite | StrictPostgres:
    """Return the strict floor of a database."""
    return StrictSqlite(url) if url.startswith("sqlite") else StrictPostgres(url)
