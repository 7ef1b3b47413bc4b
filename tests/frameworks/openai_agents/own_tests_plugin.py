"""A pytest plugin that replaces the framework's own classes with `LangoSession`; see `own_tests`.

With `OWN_TESTS_URL` all sessions are in that database, with a key prefix for each file or engine.
"""

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any, Final

import agents
import agents.extensions.memory.sqlalchemy_session as theirs
import pytest
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
