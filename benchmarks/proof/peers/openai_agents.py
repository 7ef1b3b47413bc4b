"""openai-agents: `SQLiteSession` and `SQLAlchemySession`. It stores items of a session without ids."""

import asyncio
from typing import Any

import sqlalchemy as sa
from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.proof.adapter import Adapter


class FileSession(Adapter):
    """`SQLiteSession`, one object as long as its session is used."""

    can = frozenset({"batch"})

    def __init__(self, url: str) -> None:
        self._file = sa.make_url(url).database
        self._loop = asyncio.new_event_loop()
        self._session: Any = None

    def _new(self, key: str) -> Any:
        return SQLiteSession(key, self._file)

    def _of(self, key: str) -> Any:
        if self._session is None or self._session.session_id != key:
            self._session = self._new(key)
        return self._session

    def append(self, key: str, texts: list[str]) -> None:
        items = [{"role": "user", "content": text} for text in texts]
        self._loop.run_until_complete(self._of(key).add_items(items))

    def read(self, key: str) -> list[str]:
        return [item["content"] for item in self._loop.run_until_complete(self._of(key).get_items())]


class EngineSession(FileSession):
    """`SQLAlchemySession` over the drivers of its documentation, aiosqlite and asyncpg."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parsed = sa.make_url(url)
        driver = {"sqlite": "sqlite+aiosqlite"}.get(parsed.get_backend_name(), "postgresql+asyncpg")
        self._engine = create_async_engine(parsed.set(drivername=driver))

    def _new(self, key: str) -> Any:
        return SQLAlchemySession(key, engine=self._engine, create_tables=True)
