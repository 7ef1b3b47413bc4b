"""Report the tested versions of the frameworks at the end, because workers print nothing and `-q` omits headers."""

import importlib.util
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import pytest

from lango_store import Store

if importlib.util.find_spec("opentelemetry") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old releases warn about this Python version when imported
        importlib.import_module("opentelemetry.context")

FRAMEWORKS: Final = (
    "claude-agent-sdk",
    "openai-agents",
    "google-adk",
    "langchain-core",
    "langgraph",
    "pydantic-ai-slim",
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line("tested with " + ", ".join(map(_named, FRAMEWORKS)))


def _named(framework: str) -> str:
    try:
        return f"{framework} {version(framework)}"
    except PackageNotFoundError:
        return f"no {framework}"


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of coroutine tests, unless they choose another."""
    return "asyncio"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened
