"""Report the tested versions of the frameworks at the end, because workers print nothing and `-q` omits headers."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import pytest
from support import processes
from support.claude_model import model

from lango_store import Store

# Frameworks leave connections to SQLite to the garbage collector, about which Python warns since 3.13.
_UNCLOSED: Final = "Exception ignored while finalizing database connection"


LOADED: Final = (
    "agents",
    "claude_agent_sdk",
    "google.adk.models",
    "google.adk.runners",
    "langgraph.graph",
    "pydantic_ai.models.function",
)
"""The modules that programs of the tests load, which takes one or two seconds."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", f"ignore:{_UNCLOSED}:pytest.PytestUnraisableExceptionWarning")
    processes.load(
        "agents", "claude_agent_sdk", "google.adk.models", "google.adk.runners", "pydantic_ai.models.function"
    )


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


@pytest.fixture
def claude_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let programs that the test starts ask a local model instead of Claude."""
    with model() as url:
        for name, value in (
            ("ANTHROPIC_BASE_URL", url),
            ("ANTHROPIC_API_KEY", "dummy"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("ENABLE_TOOL_SEARCH", "false"),
        ):
            monkeypatch.setenv(name, value)
        yield
