"""Imports of modules whose extra is not installed."""

import subprocess
import sys
import tomllib

import pytest
from support.paths import ROOT

MODULES = {
    "lango_store.integrations.claude_agent_sdk": ("claude-agent-sdk", "claude_agent_sdk"),
    "lango_store.integrations.google_adk": ("google-adk", "google.adk"),
    "lango_store.integrations.langchain": ("langchain", "langchain_core"),
    "lango_store.integrations.langgraph": ("langgraph", "langgraph"),
    "lango_store.integrations.nanobot": ("nanobot", "nanobot"),
    "lango_store.integrations.openai_agents": ("openai-agents", "agents"),
    "lango_store.integrations.pydantic_ai": ("pydantic-ai", "pydantic_ai"),
    "lango_store.telemetry": ("otel", "opentelemetry"),
    "lango_store.web": ("web", "starlette"),
}
PROGRAM = """
import importlib, sys, types
sys.modules.update({top: HIDING for _, top in MODULES.values()})
for module, (extra, _) in MODULES.items():
    try:
        importlib.import_module(module)
        print(module, "was imported")
    except ImportError as error:
        print(f"{type(error).__name__} {extra} {error}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("hiding", ["None", "types.ModuleType('another')"], ids=["missing", "hidden"])
def test_import_without_the_extra_names_the_extra(hiding: str) -> None:
    program = PROGRAM.replace("MODULES", repr(MODULES)).replace("HIDING", hiding)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(MODULES)
    for line, (extra, _) in zip(lines, MODULES.values(), strict=True):
        assert line.startswith(f"InstallationIncomplete {extra} ")
        assert f": pip install 'lango-store[{extra}]'" in line


def test_every_extra_with_a_module_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    drivers = {"postgresql", "sqlite", "asyncio"}
    assert {extra for extra, _ in MODULES.values()} == project["optional-dependencies"].keys() - drivers
