"""Fixtures for the pydantic-ai adapter on both databases, without network access."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version
from typing import Any, TypeVar

import pytest
from pydantic_ai import models

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

models.ALLOW_MODEL_REQUESTS = False

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


def pytest_report_header() -> str:
    return f"pydantic-ai {version('pydantic-ai-slim')}"


@pytest.fixture
def conversations(store: Store) -> Iterator[LangoConversationStore]:
    made = LangoConversationStore(store)
    yield made
    asyncio.run(made.close())
