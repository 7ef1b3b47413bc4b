"""The floors: minimal code written by hand over the driver, on our tables and indexes."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy as sa

COLUMNS = "role, author, name, tool_call_id, text, content, tool_calls, created_at"
COUNTS = "last_seq = last_seq + {n}, message_count = message_count + {n}, updated_at = {now}"

RECENT = (
    "SELECT key, agent_id, user_id, title, model, {settings}, {metadata}, {tools}, created_at, updated_at, expires_at, "
    "ttl_seconds, last_seq, message_count, token_count, turn_count, summary_turn, summarized_upto, last_consolidated, "
    "forked_from "
    "FROM lango_session ORDER BY updated_bucket DESC, updated_at DESC, key DESC LIMIT {limit}"
)
LISTED = RECENT.removeprefix("SELECT ").split(" FROM ")[0].replace("{", "").replace("}", "").split(", ")
TEXTS = {"settings": "settings", "metadata": "metadata", "tools": "tools"}
CASTS = {name: f"{name}::text" for name in TEXTS}


def _listed(rows: list[Any]) -> list[dict[str, Any]]:
    found = [dict(zip(LISTED, row, strict=True)) for row in rows]
    for each in found:
        for name in TEXTS:
            each[name] = json.loads(each[name]) if each[name] else None
    return found


def _said(message: dict[str, Any]) -> tuple[str | None, str | None]:
    content = message["content"]
    return (content, None) if isinstance(content, str) else (None, json.dumps(content))


def _loaded(rows: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "seq": seq,
            "role": role,
            "author": author,
            "name": name,
            "tool_call_id": tool_call_id,
            "content": text if content is None else json.loads(content),
            "tool_calls": json.loads(calls) if calls else [],
            "created_at": created_at,
        }
        for seq, role, author, name, tool_call_id, text, content, calls, created_at in rows
    ]


class SqliteFloor:
    """`sqlite3` with `BEGIN IMMEDIATE`, `UPDATE … RETURNING`, `INSERT`, `COMMIT`."""

    def __init__(self, url: str) -> None:
        path = sa.make_url(url).database
        assert path is not None
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self._connection.execute(f"PRAGMA {pragma}")

    def create(self, key: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        self._connection.execute(
            "INSERT INTO lango_session (key, created_at, updated_at) VALUES (?, ?, ?)", (key, now, now)
        )

    def append(self, key: str, message: dict[str, Any]) -> int:
        return self.append_many(key, [message])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        execute = self._connection.execute
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        n = len(messages)
        execute("BEGIN IMMEDIATE")
        try:
            counts = COUNTS.format(n="?", now="?")
            (last,) = execute(
                f"UPDATE lango_session SET {counts} WHERE key = ? RETURNING last_seq", (n, n, now, key)
            ).fetchone()
            self._connection.executemany(
                f"INSERT INTO lango_message (session_key, seq, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        key,
                        last - n + 1 + place,
                        m["role"],
                        m.get("author"),
                        m.get("name"),
                        m.get("tool_call_id"),
                        *_said(m),
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

    def load(self, key: str) -> list[dict[str, Any]]:
        self._connection.execute("SELECT * FROM lango_session WHERE key = ?", (key,)).fetchone()
        query = f"SELECT seq, {COLUMNS} FROM lango_message WHERE session_key = ? ORDER BY seq"
        return _loaded(self._connection.execute(query, (key,)).fetchall())

    def last(self, key: str, n: int) -> list[dict[str, Any]]:
        query = f"SELECT seq, {COLUMNS} FROM lango_message WHERE session_key = ? ORDER BY seq DESC LIMIT ?"
        return _loaded(self._connection.execute(query, (key, n)).fetchall()[::-1])

    def recent(self, n: int) -> list[Any]:
        return _listed(self._connection.execute(RECENT.format(limit="?", **TEXTS), (n,)).fetchall())

    def close(self) -> None:
        self._connection.close()


class PostgresFloor:
    """psycopg with one prepared data-modifying CTE in autocommit."""

    def __init__(self, url: str) -> None:
        given = sa.make_url(url)
        text = given.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(text, autocommit=True)

    def create(self, key: str) -> None:
        now = datetime.now(UTC)
        self._connection.execute(
            "INSERT INTO lango_session (key, created_at, updated_at) VALUES (%s, %s, %s)", (key, now, now)
        )

    def append(self, key: str, message: dict[str, Any]) -> int:
        counts = COUNTS.format(n=1, now="%(now)s")
        calls = message.get("tool_calls")
        text, content = _said(message)
        row = self._connection.execute(
            f"WITH s AS (UPDATE lango_session SET {counts} WHERE key = %(key)s RETURNING last_seq) "
            f"INSERT INTO lango_message (session_key, seq, {COLUMNS}) SELECT %(key)s, last_seq, %(role)s, %(author)s, "
            "%(name)s, %(tool_call_id)s, %(text)s, %(content)s::json, %(tool_calls)s::json, %(now)s FROM s "
            "RETURNING seq",
            {
                "key": key,
                "now": datetime.now(UTC),
                "role": message["role"],
                "author": message.get("author"),
                "name": message.get("name"),
                "tool_call_id": message.get("tool_call_id"),
                "text": text,
                "content": content,
                "tool_calls": json.dumps(calls) if calls else None,
            },
        ).fetchone()
        assert row is not None
        return int(row[0])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        names = ("role", "author", "name", "tool_call_id")
        n = len(messages)
        counts = COUNTS.format(n="%(n)s", now="%(now)s")
        row = self._connection.execute(
            f"WITH s AS (UPDATE lango_session SET {counts} WHERE key = %(key)s RETURNING last_seq), "
            f"i AS (INSERT INTO lango_message (session_key, seq, {COLUMNS}) "
            "SELECT %(key)s, last_seq - %(n)s + place, a, b, c, d, e, f::json, g::json, %(now)s FROM s, unnest("
            "%(role)b::text[], %(author)b::text[], %(name)b::text[], %(tool_call_id)b::text[], %(text)b::text[], "
            "%(content)b::text[], %(tool_calls)b::text[]) WITH ORDINALITY AS u(a, b, c, d, e, f, g, place)) "
            "SELECT last_seq FROM s",
            {
                "key": key,
                "now": datetime.now(UTC),
                "n": n,
                "text": [_said(m)[0] for m in messages],
                "content": [_said(m)[1] for m in messages],
                "tool_calls": [json.dumps(m["tool_calls"]) if "tool_calls" in m else None for m in messages],
            }
            | {name: [m.get(name) for m in messages] for name in names},
        ).fetchone()
        assert row is not None
        return int(row[0])

    def load(self, key: str) -> list[dict[str, Any]]:
        self._connection.execute("SELECT * FROM lango_session WHERE key = %s", (key,)).fetchone()
        return _loaded(self._connection.execute(f"{self._select} ORDER BY seq", (key,)).fetchall())

    def last(self, key: str, n: int) -> list[dict[str, Any]]:
        return _loaded(
            self._connection.execute(f"{self._select} ORDER BY seq DESC LIMIT %s", (key, n)).fetchall()[::-1]
        )

    _select = (
        "SELECT seq, role, author, name, tool_call_id, text, content::text, tool_calls::text, created_at "
        "FROM lango_message WHERE session_key = %s"
    )

    def recent(self, n: int) -> list[Any]:
        return _listed(self._connection.execute(RECENT.format(limit="%s", **CASTS), (n,)).fetchall())

    def close(self) -> None:
        self._connection.close()
