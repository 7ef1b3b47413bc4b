"""The contenders of `--peers`: two floors, our store, and other stores, each by its public API.

The other stores are optional, and use separate tables. Each gets the same
messages, converts them inside the measured time, and returns the values that its users get.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.peers.contender import Comparable, Said, own_file, said_by_dict
from benchmarks.peers.google_adk import AdkService, said_by_event
from benchmarks.peers.langchain_postgres import ChatHistory, said_by_langchain
from benchmarks.peers.langgraph import postgres_saver, sqlite_saver
from benchmarks.peers.openai_agents import EngineSessions, FileSessions
from benchmarks.strict import strict_floor
from lango_store import schema


def _floor(url: str) -> Comparable:
    if url.startswith("sqlite"):
        url = f"sqlite:///{own_file(url, 'floor')}"
        schema.upgrade(url)
    return CONTENDERS["floor"](url)


def _said_by_tuple(row: Any) -> Said:
    return row[5], [(call["name"], call["arguments"]) for call in row[6] or ()]


def _said_by_message(message: Any) -> Said:
    return message.content, [(call.name, call.arguments) for call in message.tool_calls or ()]


@dataclass(frozen=True)
class Side:
    """A contender: its constructor, the type that its loads return, how to read that type, and its packages.

    `batches` is False if it appends only one message per call.
    """

    make: Callable[[str], Comparable]
    returns: str
    said: Callable[[Any], Said] = said_by_dict
    databases: tuple[str, ...] = ("SQLite", "PostgreSQL")
    packages: dict[str, str] = field(default_factory=dict)
    batches: bool = True

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for module, package in self.packages.items() if not _installed(module)]


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is not installed
        return False


_AWAITED = {"aiosqlite": "aiosqlite", "asyncpg": "asyncpg", "greenlet": "greenlet"}

FLOOR = "strict floor"
OURS = "lango_store"
SIDES = {
    FLOOR: Side(strict_floor, "tuples", _said_by_tuple),
    "floor": Side(_floor, "dicts"),
    OURS: Side(CONTENDERS[OURS], "Message", _said_by_message),
    "agents.SQLiteSession": Side(FileSessions, "dicts", databases=("SQLite",), packages={"agents": "openai-agents"}),
    "agents.SQLAlchemySession": Side(EngineSessions, "dicts", packages={"agents": "openai-agents"} | _AWAITED),
    "google-adk": Side(
        AdkService, "Event", said_by_event, packages={"google.adk": "google-adk"} | _AWAITED, batches=False
    ),
    "langgraph SqliteSaver": Side(
        sqlite_saver,
        "dicts",
        databases=("SQLite",),
        packages={"langgraph.checkpoint.sqlite": "langgraph-checkpoint-sqlite"},
    ),
    "langgraph PostgresSaver": Side(
        postgres_saver,
        "dicts",
        databases=("PostgreSQL",),
        packages={"langgraph.checkpoint.postgres": "langgraph-checkpoint-postgres"},
    ),
    "langchain-postgres": Side(
        ChatHistory,
        "BaseMessage",
        said_by_langchain,
        databases=("PostgreSQL",),
        packages={"langchain_postgres": "langchain-postgres"},
    ),
}
FLOORS = (FLOOR, "floor")
