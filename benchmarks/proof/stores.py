"""The stores that can be tested, and their packages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from benchmarks.proof.adapter import Adapter

BOTH = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Named:
    """A store: the module and the name of its adapter, its package and its databases."""

    module: str
    name: str
    package: str
    databases: tuple[str, ...] = BOTH

    @property
    def path(self) -> str:
        return f"benchmarks.proof.{self.module}"

    def load(self) -> type[Adapter]:
        """Import the adapter."""
        return getattr(import_module(self.path), self.name)  # type: ignore[no-any-return]

    def version(self) -> str | None:
        """Return the installed version; None if the package is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


OURS = ("lango_store", "lango_store-async")
STORES = {
    "lango_store": Named("ours", "Lango", "lango-store"),
    "lango_store-async": Named("ours", "AsyncLango", "lango-store"),
    "agents-sqlite": Named("peers.openai_agents", "FileSession", "openai-agents", ("sqlite",)),
    "agents-sqlalchemy": Named("peers.openai_agents", "EngineSession", "openai-agents"),
    "adk": Named("peers.google_adk", "Service", "google-adk"),
    "langgraph-sqlite": Named("peers.langgraph", "SqliteThreads", "langgraph-checkpoint-sqlite", ("sqlite",)),
    "langgraph-postgres": Named(
        "peers.langgraph_postgres", "PostgresThreads", "langgraph-checkpoint-postgres", ("postgresql",)
    ),
    "langchain-postgres": Named("peers.langchain_postgres", "History", "langchain-postgres", ("postgresql",)),
}
