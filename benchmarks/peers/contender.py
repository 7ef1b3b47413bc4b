"""The interface of all compared stores, and an event loop and engine for asynchronous ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

import sqlalchemy as sa

Said = tuple[str, list[tuple[str, Any]]]
"""The content of a message: its text, and the name and arguments of each tool call."""


def said_by_dict(message: dict[str, Any]) -> Said:
    """Read a message that is a dict."""
    return message["content"], [(call["name"], call["arguments"]) for call in message.get("tool_calls") or ()]


class Comparable(Protocol):
    """The methods that every store has in some form; those of an asynchronous store return coroutines."""

    def create(self, key: str) -> Any: ...
    def append(self, key: str, message: dict[str, Any]) -> Any: ...
    def append_many(self, key: str, messages: list[dict[str, Any]]) -> Any: ...
    def load(self, key: str) -> Any: ...
    def last(self, key: str, n: int) -> Any: ...
    def close(self) -> Any: ...


class Blocking:
    """A store whose calls block, with the methods of an asynchronous one, so that a measurement is written once."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)

        async def call(*arguments: Any) -> Any:
            return method(*arguments)

        setattr(self, name, call)
        return call

    async def pool(self, size: int) -> Blocking:
        return Blocking(self.store.pool(size))


class Awaited:
    """An asynchronous store with its own event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        self._loop.close()


class OverEngine(Awaited):
    """A store over an asynchronous engine, on SQLite with a file of that name."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        from sqlalchemy.ext.asyncio import create_async_engine

        self.engine = create_async_engine(_asynchronous(url, name))
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine.sync_engine, "connect", _durable)

    def close(self) -> None:
        self.wait(self.engine.dispose())
        super().close()


def _asynchronous(url: str, name: str) -> sa.URL:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite", database=own_file(url, name))
    return parsed.set(drivername="postgresql+asyncpg")


def own_file(url: str, whose: str) -> str:
    """Return the path of a file in the database's folder: SQLite has one writer per file, so each store has its own."""
    return f"{sa.make_url(url).database}.{whose}"


def _durable(driver: Any, _: object) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        driver.cursor().execute(f"PRAGMA {pragma}")
