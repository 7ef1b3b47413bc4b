"""The contenders: each has the same methods and runs in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import orm
from sqlmodel import col

from benchmarks.floors import PostgresFloor, SqliteFloor
from lango_store import AsyncStore, Message, Store
from lango_store._engine.engine import create_engine
from lango_store.tables import MessageRow, SessionRow

FILL_SESSIONS = {
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 100000) "
    "INSERT INTO {table} (key, agent_id, title, settings, created_at, updated_at) "
    "SELECT 'list:' || n, 'agent', 'A title', '{{\"thinking\":\"high\"}}', t, t FROM (SELECT n, "
    "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 1750000000 + n, 'unixepoch') AS t FROM c) WHERE true "
    "ON CONFLICT DO NOTHING",
    "postgresql": "INSERT INTO {table} (key, agent_id, title, settings, created_at, updated_at) "
    "SELECT 'list:' || n, 'agent', 'A title', '{{\"thinking\":\"high\"}}', t, t FROM (SELECT n, "
    "to_timestamp(1750000000 + n) AS t FROM generate_series(1, 100000) AS n) AS x ON CONFLICT DO NOTHING",
}
"""Statements that insert 100,000 sessions into a table, unless they are stored."""


def fill_sessions(url: str) -> None:
    """Make sure that the store has 100,000 sessions."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(FILL_SESSIONS[engine.dialect.name].format(table="lango_session"))
    engine.dispose()


class Contender(Protocol):
    """The methods of every contender."""

    def create(self, key: str) -> Any: ...
    def append(self, key: str, message: dict[str, Any]) -> Any: ...
    def append_many(self, key: str, messages: list[dict[str, Any]]) -> Any: ...
    def load(self, key: str) -> list[Any]: ...
    def last(self, key: str, n: int) -> list[Any]: ...
    def recent(self, n: int) -> list[Any]: ...
    def close(self) -> None: ...


def value(message: dict[str, Any]) -> Message:
    """Create a `Message` from a dict, as an application would."""
    return Message(**message)


class Ours:
    """lango_store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.store = Store(url)

    def create(self, key: str) -> None:
        self.store.create(key)

    def append(self, key: str, message: dict[str, Any]) -> int:
        return self.store.append_message(key, value(message)).seq

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        return self.store.conversation(key).append_messages([value(message) for message in messages])[-1].seq

    def load(self, key: str) -> list[Message]:
        return self.store.get(key).messages

    def last(self, key: str, n: int) -> list[Message]:
        return self.store.conversation(key).messages(last=n)

    def recent(self, n: int) -> list[Any]:
        return self.store.list_sessions(limit=n).items

    def fill(self) -> None:
        fill_sessions(self._url)

    def pool(self, _: int) -> Ours:
        return self  # a store has 16 connections

    def close(self) -> None:
        self.store.close()


class AsyncOurs:
    """lango_store's `AsyncStore`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.store = AsyncStore(url)

    async def create(self, key: str) -> None:
        await self.store.create(key)

    async def append(self, key: str, message: dict[str, Any]) -> int:
        return (await self.store.append_message(key, value(message))).seq

    async def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        stored = await self.store.conversation(key).append_messages([value(message) for message in messages])
        return stored[-1].seq

    async def load(self, key: str) -> list[Message]:
        return (await self.store.get(key)).messages

    async def last(self, key: str, n: int) -> list[Message]:
        return await self.store.conversation(key).messages(last=n)

    async def recent(self, n: int) -> list[Any]:
        return (await self.store.list_sessions(limit=n)).items

    async def fill(self) -> None:
        fill_sessions(self._url)

    async def pool(self, _: int) -> AsyncOurs:
        return self

    async def close(self) -> None:
        await self.store.close()


class NaiveOrm:
    """The same tables, used as in tutorials: `session.add`, `commit`."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url)

    def create(self, key: str) -> None:
        now = datetime.now(UTC)
        with orm.Session(self._engine) as session:
            session.add(SessionRow(key=key, created_at=now, updated_at=now))
            session.commit()

    def append(self, key: str, message: dict[str, Any]) -> int:
        return self.append_many(key, [message])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> int:
        now = datetime.now(UTC)
        with orm.Session(self._engine) as session:
            found = session.get_one(SessionRow, key, with_for_update=True)
            for message in messages:
                found.last_seq += 1
                content = message["content"]
                column = "text" if isinstance(content, str) else "content"
                rest = {name: each for name, each in message.items() if name != "content"} | {column: content}
                session.add(MessageRow(session_key=key, seq=found.last_seq, created_at=now, **rest))
            found.message_count += len(messages)
            found.updated_at = now
            last = found.last_seq
            session.commit()
        return last

    def load(self, key: str) -> list[Any]:
        with orm.Session(self._engine) as session:
            option = orm.selectinload(SessionRow.messages)  # type: ignore[arg-type]
            return list(session.get_one(SessionRow, key, options=[option]).messages)

    def last(self, key: str, n: int) -> list[Any]:
        query = sa.select(MessageRow).where(col(MessageRow.session_key) == key)
        with orm.Session(self._engine) as session:
            return list(session.scalars(query.order_by(col(MessageRow.seq).desc()).limit(n)))[::-1]

    def recent(self, n: int) -> list[Any]:
        newest = (SessionRow.updated_bucket, SessionRow.updated_at, SessionRow.key)
        query = sa.select(SessionRow).order_by(*(col(each).desc() for each in newest))
        with orm.Session(self._engine) as session:
            return list(session.scalars(query.limit(n)))

    def close(self) -> None:
        self._engine.dispose()


def floor(url: str) -> Contender:
    """Return the floor of a database."""
    return SqliteFloor(url) if url.startswith("sqlite") else PostgresFloor(url)


CONTENDERS: dict[str, Callable[[str], Contender]] = {"floor": floor, "lango_store": Ours, "orm": NaiveOrm}
