"""Fixtures for the Claude Agent SDK adapter, under asyncio and trio."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import anyio
import pytest

from lango_store import Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore
from lango_store.testing import Clock

R = TypeVar("R")

Run = Callable[[Callable[[], Coroutine[Any, Any, R]]], R]


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function under an event loop: `loop(main)`."""

    def run(main: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return anyio.run(main, backend=request.param)

    return run


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def sessions(store: Store) -> LangoSessionStore:
    return LangoSessionStore(store)
