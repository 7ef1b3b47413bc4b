"""The contenders of `--peers`: two floors, our store, and other stores, each by its public API.

The other stores are optional, and use separate tables. Each gets the same
messages, converts them inside the measured time, and returns the values that its users get.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks.contenders import CONTENDERS, AsyncOurs, Ours
from benchmarks.peers.contender import Comparable, Said, own_file, said_by_dict
from benchmarks.peers.google_adk import AdkService, said_by_event
from benchmarks.peers.langchain_postgres import ChatHistory, said_by_langchain
from benchmarks.peers.langgraph import postgres_saver, sqlite_saver
from benchmarks.peers.openai_agents import EngineSessions, FileSessions
from benchmarks.peers.strands import SessionFiles, said_by_strands
from benchmarks.strict import async_strict_floor, strict_floor
from lango_store import schema


def _own_database(url: str, whose: str) -> str:
    """Return the URL of a side's database, with our tables: on SQLite it has its own file."""
    if url.startswith("sqlite"):
        url = f"sqlite:///{own_file(url, whose)}"
        schema.upgrade(url)
    return url


def _floor(url: str) -> Comparable:
    return CONTENDERS["floor"](_own_database(url, "floor"))


async def _async_ours(url: str) -> AsyncOurs:
    return AsyncOurs(_own_database(url, "async"))


def _said_by_tuple(row: Any) -> Said:
    return row[5], [(call["name"], call["arguments"]) for call in row[6] or ()]


def _said_by_message(message: Any) -> Said:
    return message.content, [(call.name, call.arguments) for call in message.tool_calls or ()]


@dataclass(frozen=True)
class Side:
    """A contender: its constructor, the type that its loads return, how to read that type, and its packages.

    `can` names methods that not all stores have. `is_async` means that `make` and the methods are coroutines.
    """

    make: Callable[[str], Any]
    returns: str
    said: Callable[[Any], Said] = said_by_dict
    databases: tuple[str, ...] = ("SQLite", "PostgreSQL")
    packages: dict[str, str] = field(default_factory=dict)
    can: tuple[str, ...] = ("append", "append_many")
    is_async: bool = False

    @property
    def floor(self) -> str:
        """The floor with which the side is compared."""
        return ASYNC_FLOOR if self.is_async else FLOOR

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for module, package in self.packages.items() if not _installed(module)]


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is not installed
        return False


_AWAITED = {"aiosqlite": "aiosqlite", "asyncpg": "asyncpg", "greenlet": "greenlet"}

_ALL = ("append", "append_many", "recent", "pool")

FLOOR = "strict floor"
OURS = "lango_store"
ASYNC_FLOOR = "strict floor, async"
ASYNC_OURS = "lango_store, AsyncStore"
SIDES = {
    FLOOR: Side(strict_floor, "tuples", _said_by_tuple, can=_ALL),
    "floor": Side(_floor, "dicts"),
    OURS: Side(Ours, "Message", _said_by_message, can=_ALL),
    ASYNC_FLOOR: Side(async_strict_floor, "tuples", _said_by_tuple, can=_ALL, is_async=True),
    ASYNC_OURS: Side(_async_ours, "Message", _said_by_message, can=_ALL, is_async=True),
    "openai-agents SQLiteSession": Side(
        FileSessions, "dicts", databases=("SQLite",), packages={"agents": "openai-agents"}
    ),
    "openai-agents SQLAlchemySession": Side(EngineSessions, "dicts", packages={"agents": "openai-agents"} | _AWAITED),
    "google-adk": Side(
        AdkService, "Event", said_by_event, packages={"google.adk": "google-adk"} | _AWAITED, can=("append",)
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
    "strands FileSessionManager": Side(
        SessionFiles,
        "dicts",
        said_by_strands,
        databases=("SQLite",),
        packages={"strands.session": "strands-agents"},
    ),
}
FLOORS = (FLOOR, "floor", ASYNC_FLOOR)
