"""The strict floors: separate tables, tuples returned, texts unchanged, tool calls through `json.loads`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

import psycopg
import sqlalchemy as sa

from benchmarks.contenders import FILL_SESSIONS

COLUMNS = "role, author, name, tool_call_id, text, tool_calls, created_at"

# With an index for lists of sessions by time, as any store has. Keys on PostgreSQL are compared by bytes.
TABLES = (
    "CREATE TABLE IF NOT EXISTS strict_session (key {key} PRIMARY KEY, last_seq BIGINT NOT NULL DEFAULT 0, "
    "message_count BIGINT NOT NULL DEFAULT 0, created_at {time} NOT NULL, updated_at {time} NOT NULL, agent_id TEXT, "
    "user_id TEXT, title TEXT, model TEXT, settings {json}, metadata {json}, tools {json}, expires_at {time}, "
    "turn_count BIGINT NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS strict_session_updated_at ON strict_session (updated_at, key)",
    "CREATE TABLE IF NOT EXISTS strict_message ("
    "session_key {key} NOT NULL REFERENCES strict_session ON DELETE CASCADE, seq BIGINT NOT NULL, role TEXT NOT NULL, "
    "author TEXT, name TEXT, tool_call_id TEXT, text TEXT NOT NULL, tool_calls {json}, created_at {time} NOT NULL, "
    "PRIMARY KEY (session_key, seq))",
)


RECENT = (
    "SELECT key, agent_id, user_id, title, model, settings{as_text}, metadata{as_text}, tools{as_text}, created_at, "
    "updated_at, expires_at, last_seq, message_count, turn_count FROM strict_session "
    "ORDER BY updated_at DESC, key DESC LIMIT {limit}"
)


def _listed(rows: list[Any]) -> list[Any]:
    """Return tuples of the columns of `RECENT`, with parsed JSON."""
    return [(*row[:5], *(None if each is None else json.loads(each) for each in row[5:8]), *row[8:]) for row in rows]


class Pool:
    """A few stores of one connection each, shared by many threads."""

    def __init__(self, make: Callable[[], Any], size: int) -> None:
        self._free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(size):
            self._free.put(make())

    def append(self, key: str, message: dict[str, Any]) -> int:
        store = self._free.get()
        try:
            return int(store.append(key, message))
        finally:
            self._free.put(store)


def _tuples(rows: list[Any]) -> list[Any]:
    """Return tuples of seq, the columns from role to tool_calls (parsed), and created_at."""
    return [row if row[6] is None else (*row[:6], json.loads(row[6]), row[7]) for row in rows]


class StrictSqlite:
    """`sqlite3` with `BEGIN IMMEDIATE`, `UPDATE … RETURNING`, `INSERT`, `COMMIT`.

    It has its own file: in a shared file, a checkpoint would write the pages of both stores.
    """

    def __init__(self, url: str) -> None:
        self._url = url
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

    def fill(self) -> None:
        self._connection.execute(FILL_SESSIONS["sqlite"].format(table="strict_session"))

    def recent(self, n: int) -> list[Any]:
        return _listed(self._connection.execute(RECENT.format(as_text="", limit="?"), (n,)).fetchall())

    def pool(self, size: int) -> Pool:
        return Pool(lambda: StrictSqlite(self._url), size)

    def close(self) -> None:
        self._connection.close()


_CREATE = "INSERT INTO strict_session (key, created_at, updated_at) VALUES (%s, %s, %s)"
_APPEND = (
    "WITH s AS (UPDATE strict_session SET last_seq = last_seq + 1, message_count = message_count + 1, "
    f"updated_at = %(now)s WHERE key = %(key)s RETURNING last_seq) INSERT INTO strict_message "
    f"(session_key, seq, {COLUMNS}) SELECT %(key)s, last_seq, %(role)s, %(author)s, %(name)s, "
    "%(tool_call_id)s, %(text)s, %(tool_calls)s::json, %(now)s FROM s RETURNING seq"
)
_APPEND_MANY = (
    "WITH s AS (UPDATE strict_session SET last_seq = last_seq + %(n)s, message_count = message_count + %(n)s, "
    "updated_at = %(now)s WHERE key = %(key)s RETURNING last_seq), "
    f"i AS (INSERT INTO strict_message (session_key, seq, {COLUMNS}) "
    "SELECT %(key)s, last_seq - %(n)s + place, a, b, c, d, e, f::json, %(now)s FROM s, unnest("
    "%(role)b::text[], %(author)b::text[], %(name)b::text[], %(tool_call_id)b::text[], %(content)b::text[], "
    "%(tool_calls)b::text[]) WITH ORDINALITY AS u(a, b, c, d, e, f, place)) SELECT last_seq FROM s"
)
_SESSION = "SELECT * FROM strict_session WHERE key = %s"
_SELECT = (
    "SELECT seq, role, author, name, tool_call_id, text, tool_calls::text, created_at "
    "FROM strict_message WHERE session_key = %s"
)
_LOAD = f"{_SELECT} ORDER BY seq"
_LAST = f"{_SELECT} ORDER BY seq DESC LIMIT %s"
_RECENT = RECENT.format(as_text="::text", limit="%s")


def _one(key: str, message: dict[str, Any]) -> dict[str, Any]:
    return {
        "key": key,
        "now": datetime.now(UTC),
        "role": message["role"],
        "author": message.get("author"),
        "name": message.get("name"),
        "tool_call_id": message.get("tool_call_id"),
        "text": message["content"],
        "tool_calls": json.dumps(message["tool_calls"]) if "tool_calls" in message else None,
    }


def _many(key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "key": key,
        "now": datetime.now(UTC),
        "n": len(messages),
        "tool_calls": [json.dumps(m["tool_calls"]) if "tool_calls" in m else None for m in messages],
    } | {each: [m.get(each) for m in messages] for each in ("role", "author", "name", "tool_call_id", "content")}


def _plain(url: str) -> str:
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class StrictPostgres:
    """psycopg with one prepared data-modifying CTE in autocommit."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(_plain(url), autocommit=True)
        with self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(1)")  # other processes create the tables too
            for statement in TABLES:
                self._connection.execute(statement.format(key='TEXT COLLATE "C"', time="TIMESTAMPTZ", json="JSON"))

    def create(self, key: str) -> None:
        now = datetime.now(UTC)
        self._connection.execute(_CREATE, (key, now, now))

    def append(self, key: str, message: dict[str, Any]) -> int:
        row = self._connection.execute(_APPEND, _one(key, message)).fetchone()
        assert row is not None
        return int(row[0])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        row = self._connection.execute(_APPEND_MANY, _many(key, messages)).fetchone()
        assert row is not None
        return int(row[0])

    def load(self, key: str) -> list[Any]:
        self._connection.execute(_SESSION, (key,)).fetchone()
        return _tuples(self._connection.execute(_LOAD, (key,)).fetchall())

    def last(self, key: str, n: int) -> list[Any]:
        return _tuples(self._connection.execute(_LAST, (key, n)).fetchall()[::-1])

    def fill(self) -> None:
        self._connection.execute(FILL_SESSIONS["postgresql"].format(table="strict_session"))

    def recent(self, n: int) -> list[Any]:
        return _listed(self._connection.execute(_RECENT, (n,)).fetchall())

    def pool(self, size: int) -> Pool:
        return Pool(lambda: StrictPostgres(self._url), size)

    def close(self) -> None:
        self._connection.close()


class AsyncStrictPostgres:
    """`StrictPostgres` over psycopg's asynchronous connection; it uses the same tables, but other sessions."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection) -> None:
        self._url = url
        self._connection = connection

    @classmethod
    async def connect(cls, url: str) -> AsyncStrictPostgres:
        """Open a connection to a database with the tables."""
        return cls(url, await psycopg.AsyncConnection.connect(_plain(url), autocommit=True))

    async def create(self, key: str) -> None:
        now = datetime.now(UTC)
        await self._connection.execute(_CREATE, (key, now, now))

    async def append(self, key: str, message: dict[str, Any]) -> int:
        row = await (await self._connection.execute(_APPEND, _one(key, message))).fetchone()
        assert row is not None
        return int(row[0])

    async def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        row = await (await self._connection.execute(_APPEND_MANY, _many(key, messages))).fetchone()
        assert row is not None
        return int(row[0])

    async def load(self, key: str) -> list[Any]:
        await (await self._connection.execute(_SESSION, (key,))).fetchone()
        return _tuples(await (await self._connection.execute(_LOAD, (key,))).fetchall())

    async def last(self, key: str, n: int) -> list[Any]:
        return _tuples((await (await self._connection.execute(_LAST, (key, n))).fetchall())[::-1])

    async def fill(self) -> None:
        await self._connection.execute(FILL_SESSIONS["postgresql"].format(table="strict_session"))

    async def recent(self, n: int) -> list[Any]:
        return _listed(await (await self._connection.execute(_RECENT, (n,))).fetchall())

    async def pool(self, size: int) -> AsyncPool:
        pool = AsyncPool()
        for _ in range(size):
            pool.free.put_nowait(await AsyncStrictPostgres.connect(self._url))
        return pool

    async def close(self) -> None:
        await self._connection.close()


class InThreads:
    """A store whose calls run in the threads of the event loop."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*arguments: Any) -> Any:
            return await asyncio.to_thread(method, *arguments)

        setattr(self, name, call)
        return call

    async def pool(self, size: int) -> InThreads:
        return InThreads(self._store.pool(size))


class AsyncPool:
    """A few asynchronous stores of one connection each, shared by many tasks."""

    def __init__(self) -> None:
        self.free: asyncio.Queue[AsyncStrictPostgres] = asyncio.Queue()

    async def append(self, key: str, message: dict[str, Any]) -> int:
        store = await self.free.get()
        try:
            return await store.append(key, message)
        finally:
            self.free.put_nowait(store)


def strict_floor(url: str) -> StrictSqlite | StrictPostgres:
    """Return the strict floor of a database."""
    return StrictSqlite(url) if url.startswith("sqlite") else StrictPostgres(url)


async def async_strict_floor(url: str) -> InThreads | AsyncStrictPostgres:
    """Return the strict floor for an event loop: `asyncio.to_thread` on SQLite, psycopg's async connection."""
    if url.startswith("sqlite"):
        return InThreads(StrictSqlite(f"{url}.async"))
    StrictPostgres(url).close()
    return await AsyncStrictPostgres.connect(url)
