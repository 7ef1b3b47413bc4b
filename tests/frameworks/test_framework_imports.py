"""The package imports no framework, and an adapter only its own."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("agents", "claude_agent_sdk", "google.adk", "langchain_core", "langgraph", "nanobot", "pydantic_ai")
HELPERS = tuple(f"lango_store.integrations.{name}" for name in ("adapter", "counts", "fields"))
ADAPTERS = {
    "claude_agent_sdk": "claude_agent_sdk",
    "google_adk": "google.adk",
    "langchain": "langchain_core",
    "langgraph": "langgraph.checkpoint.base",  # which imports langchain_core
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
}


def imported(*names: str) -> set[str]:
    """Return the frameworks that a new process has loaded after importing these modules."""
    program = f"import sys, {', '.join(names)}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(FRAMEWORKS) & set(done.stdout.split())


def test_package_imports_no_framework() -> None:
    modules = ("lango_store", "lango_store.cli", "lango_store.schema", "lango_store.interchange")
    assert imported(*modules, *HELPERS) == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_adapter_imports_only_its_framework(adapter: str) -> None:
    assert imported(f"lango_store.integrations.{adapter}") <= imported(ADAPTERS[adapter])
