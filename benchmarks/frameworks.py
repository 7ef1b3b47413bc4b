"""`python -m benchmarks.frameworks`: the processor time of an append and a load, against the frameworks' stores.

All stores of a framework run in turns in one process, threads and event loop included, and each gets the same items.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from benchmarks.peers.claude_agent_sdk import BareEntries, Entries
from benchmarks.peers.contender import Awaited, Comparable, OverEngine
from benchmarks.peers.openai_agents import EngineSessions, FileSessions
from benchmarks.turns import databases

LENGTH: Final = 1_000
KEY: Final = "session"

Item = dict[str, Any]


# OpenAI Agents


class LangoSessions(Awaited):
    """`LangoSession`, one object per conversation."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._sessions: dict[str, Any] = {}

    def create(self, key: str) -> None:
        from lango_store.integrations.openai_agents import LangoSession

        self._sessions[key] = LangoSession(key, self._url)

    def append(self, key: str, message: Item) -> None:
        self.append_many(key, [message])

    def append_many(self, key: str, messages: list[Item]) -> None:
        self.wait(self._sessions[key].add_items(messages))

    def load(self, key: str) -> list[Any]:
        return list(self.wait(self._sessions[key].get_items()))

    def last(self, key: str, n: int) -> list[Any]:
        return list(self.wait(self._sessions[key].get_items(n)))

    def close(self) -> None:
        for session in self._sessions.values():
            self.wait(session.close())
        super().close()


def responses(length: int) -> list[Item]:
    """Make items of turns with a tool call each, of about 700 bytes on average."""
    found: list[Item] = []
    for turn in range(length // 4):
        call = {"type": "function_call", "call_id": f"call_{turn:020}", "name": "get_weather", "status": "completed"}
        block = {"type": "output_text", "text": "cold and windy. " * 60, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{turn:040}", "type": "message", "role": "assistant", "status": "completed"}
        found += [
            {"role": "user", "content": f"{turn}: " + "how is the weather in Oslo today? " * 20},
            call | {"id": f"fc_{turn:040}", "arguments": '{"city":"Oslo"}'},
            {"type": "function_call_output", "call_id": call["call_id"], "output": '{"celsius": -3} ' * 20},
            said | {"content": [block]},
        ]
    return found


# Google ADK


class Events(Awaited):
    """A session service; the session object lives as long as its conversation, as in a runner."""

    service: Any

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[str, Any] = {}

    def create(self, key: str) -> None:
        self._sessions[key] = self.wait(self.service.create_session(app_name="bench", user_id="u", session_id=key))

    def append(self, key: str, message: Any) -> None:
        event = message.model_copy(update={"id": uuid4().hex})  # an event with the same id would be stored only once
        self.append_many(key, [event])

    def append_many(self, key: str, messages: list[Any]) -> None:
        for event in messages:
            self.wait(self.service.append_event(self._sessions[key], event))

    def load(self, key: str) -> list[Any]:
        return self._events(key, None)

    def last(self, key: str, n: int) -> list[Any]:
        from google.adk.sessions.base_session_service import GetSessionConfig

        return self._events(key, GetSessionConfig(num_recent_events=n))

    def _events(self, key: str, config: Any) -> list[Any]:
        found = self.service.get_session(app_name="bench", user_id="u", session_id=key, config=config)
        return list(self.wait(found).events)

    def close(self) -> None:
        self.wait(self.service.close())
        super().close()


class LangoEvents(Events):
    """`LangoSessionService`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        from lango_store.integrations.google_adk import LangoSessionService

        self.service = LangoSessionService(url)


class DatabaseEvents(Events):
    """`DatabaseSessionService`, over an engine that commits as durably as ours."""

    def __init__(self, url: str) -> None:
        super().__init__()
        from google.adk.sessions import DatabaseSessionService

        self._over = OverEngine(url, "adk")
        self.service = DatabaseSessionService(db_engine=self._over.engine)

    def close(self) -> None:
        self.wait(self._over.engine.dispose())
        super().close()


def adk_events(length: int) -> list[Any]:
    """Make events of turns with a tool call each, as long as OpenAI's items."""
    from google.adk.events import Event

    found: list[Any] = []
    for turn in range(length // 4):
        call = {"id": f"adk-{turn:032}", "name": "get_weather"}
        usage = {"prompt_token_count": 700, "candidates_token_count": 200, "total_token_count": 900}
        asked = {"text": f"{turn}: " + "how is the weather in Oslo today? " * 20}
        answer = {"function_response": call | {"response": {"report": '{"celsius": -3} ' * 20}}}
        for author, role, part in (
            ("user", "user", asked),
            ("agent", "model", {"function_call": call | {"args": {"city": "Oslo"}}}),
            ("agent", "user", answer),
            ("agent", "model", {"text": "cold and windy. " * 60}),
        ):
            event: dict[str, Any] = {"author": author, "content": {"role": role, "parts": [part]}}
            if role == "model":
                event["usage_metadata"] = usage
            found.append(Event.model_validate(event | {"invocation_id": f"e-{turn:036}"}))
    return found


# Claude Agent SDK


class LangoEntries(Entries):
    """`LangoSessionStore`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        from lango_store.integrations.claude_agent_sdk import LangoSessionStore

        self.store = LangoSessionStore(url)

    def close(self) -> None:
        self.wait(self.store.close())
        super().close()


def transcript(length: int) -> list[Item]:
    """Make entries of turns with a tool call each, with the fields that the CLI writes, as long as OpenAI's items."""
    found: list[Item] = []
    usage = {"input_tokens": 700, "output_tokens": 200, "cache_read_input_tokens": 0, "service_tier": "standard"}
    for turn in range(length // 4):
        call = {"type": "tool_use", "id": f"toolu_{turn:020}", "name": "get_weather", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": '{"celsius": -3} ' * 20}
        asked = f"{turn}: " + "how is the weather in Oslo today? " * 20
        for place, (role, content) in enumerate(
            (
                ("user", asked),
                ("assistant", [call]),
                ("user", [result]),
                ("assistant", [{"type": "text", "text": "cold and windy. " * 60}]),
            )
        ):
            message: Item = {"role": role, "content": content}
            if role == "assistant":
                message |= {
                    "id": f"msg_{turn:020}{place}",
                    "model": "claude",
                    "stop_reason": "end_turn",
                    "usage": usage,
                }
            found.append(
                {
                    "parentUuid": found[-1]["uuid"] if found else None,
                    "isSidechain": False,
                    "type": role,
                    "message": message,
                    "uuid": str(uuid4()),
                    "timestamp": "2026-11-22T14:17:46.601Z",
                    "cwd": "/srv/shop",
                    "sessionId": KEY,
                    "version": "2.1.330",
                    "gitBranch": "main",
                }
            )
    return found


Make = Callable[[str], Comparable]

FRAMEWORKS: Final[dict[str, tuple[str, Callable[[int], list[Item]], dict[str, dict[str, Make]]]]] = {
    "openai-agents": (
        "agents",
        responses,
        {
            "SQLite": {"ours": LangoSessions, "SQLAlchemySession": EngineSessions, "SQLiteSession": FileSessions},
            "PostgreSQL": {"ours": LangoSessions, "SQLAlchemySession": EngineSessions},
        },
    ),
    "google-adk": (
        "google.adk",
        adk_events,
        {
            "SQLite": {"ours": LangoEvents, "DatabaseSessionService": DatabaseEvents},
            "PostgreSQL": {"ours": LangoEvents, "DatabaseSessionService": DatabaseEvents},
        },
    ),
    "claude-agent-sdk": (
        "claude_agent_sdk",
        transcript,
        {"PostgreSQL": {"ours": LangoEntries, "rows of JSON": BareEntries}},
    ),
}
"""By its extra: what each framework is imported as, its items, and who keeps them on which database, ours first."""


def measured(make: Callable[[int], list[Item]], stores: dict[str, Comparable], rounds: int) -> dict[str, list[float]]:
    """Return the medians of an append and of a load in seconds of the processor, for each store."""
    items = make(LENGTH)
    appends: dict[str, list[float]] = {name: [] for name in stores}
    loads: dict[str, list[float]] = {name: [] for name in stores}
    for name, store in stores.items():
        store.create(KEY)
        store.append_many(KEY, items)
        if store.load(KEY) != items:
            raise RuntimeError(f"{name} gives back something else")
    for number in range(rounds):
        for name, store in stores.items():
            appends[name].append(_spent(store.append, KEY, items[number % 4]))
    for _ in range(rounds // 5):
        for name, store in stores.items():
            gc.collect()
            loads[name].append(_spent(store.load, KEY))
    return {name: [statistics.median(appends[name]), statistics.median(loads[name])] for name in stores}


def installed(package: str) -> bool:
    """Return whether a package and its parent can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _spent(work: Callable[..., Any], *words: Any) -> float:
    start = time.process_time()
    work(*words)
    return time.process_time() - start


def main() -> None:
    """Print a table for each framework and database."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frameworks", description=__doc__)
    parser.add_argument("framework", nargs="*", choices=[*FRAMEWORKS, []], default=[], help="all if none is named")
    parser.add_argument("--rounds", type=int, default=60, help="appends; a fifth of that are loads")
    options = parser.parse_args()
    console = Console()
    for framework in options.framework or FRAMEWORKS:
        package, make, sides = FRAMEWORKS[framework]
        if not installed(package):
            console.print(
                f"{framework} is not measured: pip install 'lango-store[{framework}]'", soft_wrap=True, markup=False
            )
            continue
        with databases([name.lower() for name in sides]) as urls:
            for database, url in urls.items():
                stores = {name: side(url) for name, side in sides[database].items()}
                found = measured(make, stores, options.rounds)
                for store in stores.values():
                    store.close()
                console.print(_table(f"{framework} on {database}", found))


def _table(title: str, found: dict[str, list[float]]) -> Table:
    table = Table("", "append", "load", "ours, append", "ours, load", title=title)
    ours = found["ours"]
    for name, (append, load) in found.items():
        table.add_row(name, f"{append * 1e6:,.0f} µs", f"{load * 1e3:.1f} ms", *_ratios(ours, append, load))
    return table


def _ratios(ours: list[float], append: float, load: float) -> list[str]:
    return [f"{ours[0] / append:.2f}", f"{ours[1] / load:.2f}"]


if __name__ == "__main__":
    main()
