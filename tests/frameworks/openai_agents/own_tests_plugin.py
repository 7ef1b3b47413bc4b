"""A pytest plugin that replaces the framework's own classes; see `own_tests`.

`LangoSession` replaces them. With `OWN_TESTS_URL` all sessions are in that database, with a key prefix for each file or
engine. If it is the address of a Conversations API, `OpenAIConversationsSession` replaces them.
"""

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any, Final

import agents
import agents.extensions.memory.sqlalchemy_session as theirs
import httpx2
import pytest
from agents import OpenAIConversationsSession
from openai import AsyncOpenAI
from sqlalchemy.ext.asyncio import AsyncEngine

from lango_store.integrations.openai_agents import LangoSession

_URL: Final = os.environ["OWN_TESTS_URL"]


def _apart(place: object) -> str:
    return f"{os.environ['PYTEST_CURRENT_TEST']} {place}:"[-400:]


class OfSQLAlchemy(LangoSession):
    """Replaces `SQLAlchemySession`."""

    def __init__(self, session_id: str, url: Any = None, *, engine: AsyncEngine | None = None, **options: Any) -> None:
        if not _URL:
            super().__init__(session_id, url, engine=engine, **options)
            return
        place = url if engine is None else engine.url
        if ":memory:" in str(place):
            place = id(self if engine is None else engine)
        options |= {"prefix": _apart(place), "engine_kwargs": None}
        super().__init__(session_id, _URL, **options)
        if engine is not None:
            self._engine = engine


class OfSQLite(LangoSession):
    """Replaces `SQLiteSession`, whose `close` is not a coroutine."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", **options: Any) -> None:
        if _URL:
            super().__init__(session_id, _URL, prefix=_apart(db_path), **options)
        else:
            super().__init__(session_id, f"sqlite:///{db_path}", create_tables=True, **options)

    def close(self) -> None:  # type: ignore[override]
        closing = threading.Thread(target=asyncio.run, args=(super().close(),))
        closing.start()
        closing.join()


class _Sent(dict[str, Any]):
    """An item as it was sent, without what the API adds: fields, and a part for a text. Their tests compare items.

    `pop_item` of older releases reads the id of an item that `get_items` has returned.
    """

    def __init__(self, item: dict[str, Any]) -> None:
        super().__init__((name, item[name]) for name in item["sent"])
        if item.get("is_text"):
            self["content"] = item["content"][0]["text"]
        self._id = item["id"]

    def __missing__(self, name: str) -> Any:
        if name == "id":
            return self._id
        raise KeyError(name)


class OfConversations(OpenAIConversationsSession):
    """Replaces both: sessions with the same id in the same file or engine have the same conversation."""

    session_id = ""
    _session_id: str | None

    def __init__(
        self,
        session_id: str,
        place: Any = ":memory:",
        *,
        engine: AsyncEngine | None = None,
        create_tables: bool = False,
        **options: Any,
    ) -> None:
        if engine is not None:
            place = engine.url
        if ":memory:" in str(place):
            place = id(self if engine is None else engine)
        # Some tests use a session in several event loops, which cannot share connections.
        connections = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
        super().__init__(openai_client=AsyncOpenAI(base_url=_URL, http_client=connections), **options)
        self.session_id = session_id
        self._place = {"Idempotency-Key": f"{_apart(place)}{session_id}".encode().hex()}

    async def _get_session_id(self) -> str:
        if self._session_id is None:
            created = await self._openai_client.conversations.create(items=[], extra_headers=self._place)
            self._session_id = created.id
        return self._session_id

    async def add_items(self, items: list[Any]) -> None:
        texts = [{"is_text": True} if isinstance(item.get("content"), str) else {} for item in items]
        marked: Any = [{**item, "sent": list(item), **text} for item, text in zip(items, texts, strict=True)]
        await super().add_items(marked)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        items: list[Any] = await super().get_items(limit)
        return [_Sent(item) for item in items]

    async def pop_item(self) -> Any:
        item: Any = await super().pop_item()
        return item if item is None or isinstance(item, _Sent) else _Sent(item)

    async def clear_session(self) -> None:
        await self._get_session_id()
        await super().clear_session()

    @classmethod
    def from_url(cls, session_id: str, *, url: str, **options: Any) -> "OfConversations":
        return cls(session_id, url, **options)

    def close(self) -> None:
        pass


if _URL.startswith("http"):
    agents.SQLiteSession = OfConversations  # type: ignore[misc, assignment]
    theirs.SQLAlchemySession = OfConversations  # type: ignore[misc, assignment]
else:
    agents.SQLiteSession = OfSQLite  # type: ignore[misc, assignment]
    theirs.SQLAlchemySession = OfSQLAlchemy  # type: ignore[misc, assignment]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "asyncio: run in an event loop")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**given))
    return True
