"""Which versions of the frameworks were tested: here, as workers print nothing, and `-q` leaves headers out."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import pytest

FRAMEWORKS: Final = ("claude-agent-sdk", "openai-agents", "google-adk", "pydantic-ai-slim")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line("tested with " + ", ".join(map(_named, FRAMEWORKS)))


def _named(framework: str) -> str:
    try:
        return f"{framework} {version(framework)}"
    except PackageNotFoundError:
        return f"no {framework}"
