"""Two other stores, on the same payload and as durable: optional, imported only when asked for.

`pip install openai-agents google-adk asyncpg aiosqlite greenlet`. Their own tables, beside ours, in the same database.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import sqlalchemy as sa


def _asynchronous(url: str) -> sa.URL:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite", database=f"{parsed.database}.peer")
    return parsed.set(drivername="postgresql+psycopg")


def _durable(engine: Any) -> Any:
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine.sync_engine, "connect")
        def settings(driver: Any, _: object) -> None:
            for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                driver.cursor().execute(f"PRAGMA {pragma}")

    return engine


class Peer:
    """An asynchronous store on an event loop of its own."""

    def __init__(self, url: str) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        self._loop = asyncio.new_event_loop()
        self._engine = _durable(create_async_engine(_asynchronous(url)))

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def append(self, key: str, message: dict[str, Any]) -> Any:
        return self.append_many(key, [message])

    def create(self, key: str) -> None:
        raise NotImplementedError

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> Any:
        raise NotImplementedError

    def load(self, key: str) -> list[Any]:
        raise NotImplementedError

    def content(self, found: Any) -> Any:
        """Give the content of a message that was loaded."""
        raise NotImplementedError

    def last(self, key: str, n: int) -> list[Any]:
        return self.load(key)[-n:]

    def recent(self, n: int) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        self._wait(self._engine.dispose())


class OpenAIAgents(Peer):
    """openai-agents: SQLAlchemySession."""

    def _session(self, key: str) -> Any:
        from agents.extensions.memory import SQLAlchemySession

        return SQLAlchemySession(key, engine=self._engine, create_tables=True)

    def create(self, key: str) -> None:
        self._known = {key: self._session(key)}

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> Any:
        self._wait(self._known[key].add_items(messages))

    def load(self, key: str) -> list[Any]:
        return list(self._wait(self._known[key].get_items()))

    def content(self, found: Any) -> Any:
        return found["content"]


class GoogleADK(Peer):
    """google-adk: DatabaseSessionService."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        from google.adk.sessions import DatabaseSessionService

        self._service = DatabaseSessionService(db_engine=self._engine)

    def create(self, key: str) -> None:
        created = self._service.create_session(app_name="bench", user_id="u", session_id=key)
        self._known = {key: self._wait(created)}

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> Any:
        for message in messages:
            self._wait(self._service.append_event(self._known[key], self._event(message)))

    def _event(self, message: dict[str, Any]) -> Any:
        from google.adk.events import Event
        from google.genai import types

        text = message["content"] if isinstance(message["content"], str) else json.dumps(message["content"])
        parts = [types.Part(text=text)]
        for call in message.get("tool_calls", []):
            parts.append(types.Part(function_call=types.FunctionCall(name=call["name"], args=call["arguments"])))
        role = "user" if message["role"] == "user" else "model"
        return Event(author=message["role"], content=types.Content(role=role, parts=parts))

    def load(self, key: str) -> list[Any]:
        found = self._wait(self._service.get_session(app_name="bench", user_id="u", session_id=key))
        return list(found.events)

    def content(self, found: Any) -> Any:
        text = found.content.parts[0].text
        return json.loads(text) if text.startswith("{") else text


def peer_agrees(peer: Peer, messages: list[dict[str, Any]]) -> int:
    """Compare what a peer reads with what it was given; gives how many were compared."""
    peer.create("compared")
    peer.append_many("compared", messages)
    found = [peer.content(each) for each in peer.load("compared")]
    assert found == [message["content"] for message in messages]
    peer.close()
    return len(found)


PEERS = {"openai-agents": OpenAIAgents, "google-adk": GoogleADK}
PEER_WORKS = ("append", "append_1000", "load_1000", "cycle")
