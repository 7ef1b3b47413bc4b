"""Fixtures for the OpenAI Agents adapter on both databases, without network access."""

import agents
import pytest

agents.set_tracing_disabled(True)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/")
