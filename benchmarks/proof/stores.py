"""The stores that can be tested: the module and the name of an adapter, its packages and its databases."""

from importlib import import_module
from typing import NamedTuple

from benchmarks.proof.adapter import Adapter

TITLES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


class Named(NamedTuple):
    """A store. `load` imports its adapter."""

    module: str
    name: str
    packages: str
    databases: tuple[str, ...] = ("sqlite", "postgresql")

    def load(self) -> type[Adapter]:
        return getattr(import_module(self.module), self.name)  # type: ignore[no-any-return]


_OURS, _PEERS = "benchmarks.proof.ours", "benchmarks.proof.peers"
_SAVERS = "langgraph langgraph-checkpoint-sqlite langgraph-checkpoint-postgres"
STORES = {
    "lango_store": Named(_OURS, "Lango", "lango-store"),
    "lango_store-async": Named(_OURS, "AsyncLango", "lango-store"),
    "agents-sqlite": Named(f"{_PEERS}.openai_agents", "FileSession", "openai-agents", ("sqlite",)),
    "agents-sqlalchemy": Named(f"{_PEERS}.openai_agents", "EngineSession", "openai-agents"),
    "adk": Named(f"{_PEERS}.google_adk", "Service", "google-adk"),
    "langgraph": Named(f"{_PEERS}.langgraph", "Threads", _SAVERS),
    "langchain": Named(f"{_PEERS}.langchain_postgres", "History", "langchain-postgres", ("postgresql",)),
}
