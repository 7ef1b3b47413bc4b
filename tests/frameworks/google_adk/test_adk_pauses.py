"""A resumable workflow that pauses 100 times: each pause repeats all outputs of its tools, which are stored once."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frameworks.google_adk.adk_events import WHERE, answered, called, stored
from google.adk.events import Event, EventActions
from google.adk.sessions import InMemorySessionService
from support.databases import MakeDatabase
from support.paths import ROOT

from lango_store import Store
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.integrations.google_adk.events import event_json

PAUSES = 100
LARGE = 4_096

LOAD = """
import asyncio, sys, tracemalloc, warnings
warnings.simplefilter("ignore")
from lango_store.integrations.google_adk import LangoSessionService

async def load():
    async with LangoSessionService(sys.argv[1]) as service:
        async def get(id):
            return await service.get_session(app_name="weather", user_id="ann", session_id=id)

        await get("small")
        tracemalloc.start()
        session = await get("large")
        print(len(session.events), tracemalloc.get_traced_memory()[1])

asyncio.run(load())
"""
"""Loads a session after another one; prints its number of events and the peak of memory."""


def output(number: int) -> str:
    """Return 12,000 characters without repetitions."""
    return "".join(hashlib.sha256(f"{number} {part}".encode()).hexdigest() for part in range(188))[:12_000]


def workflow() -> Iterator[Event]:
    """Yield the events of each step: a call, a pause with the state of the workflow, and the result of the call."""
    outputs: list[str] = []
    for number in range(PAUSES):
        call = called("fetch", id=f"call-{number}", page=number)
        call.long_running_tool_ids = {f"call-{number}"}
        yield call
        state = {"step": number, "outputs": [*outputs]}
        yield Event(author="workflow", invocation_id="i-1", actions=EventActions(agent_state=state))
        yield answered("fetch", id=f"call-{number}", result=output(number))
        outputs.append(output(number))


def without_large_strings(value: Any, large: set[str]) -> Any:
    """Return JSON with empty strings in place of large ones, which are added to `large`."""
    if isinstance(value, dict):
        return {name: without_large_strings(item, large) for name, item in value.items()}
    if isinstance(value, list):
        return [without_large_strings(item, large) for item in value]
    if isinstance(value, str) and len(value) >= LARGE:
        large.add(value)
        return ""
    return value


def unique_bytes(events: list[Event]) -> int:
    """Return the bytes of the distinct large strings, and of the JSON of the events without them."""
    large: set[str] = set()
    rest = [json.dumps(without_large_strings(event_json(event), large)) for event in events]
    return sum(map(len, large)) + sum(map(len, rest))


async def run_workflow(store: Store, events: list[Event]) -> list[Event]:
    """Append the events to both services, and return those of ADK's service after comparing them with ours."""
    ours, theirs = LangoSessionService(store), InMemorySessionService()
    small = await ours.create_session(**WHERE, session_id="small")
    await ours.append_event(small, answered(result="short"))
    session, expected = [await each.create_session(**WHERE, session_id="large") for each in (ours, theirs)]
    for event in events:
        await ours.append_event(session, event.model_copy(deep=True))
        await theirs.append_event(expected, event.model_copy(deep=True))
    found = await theirs.get_session(**WHERE, session_id="large")
    assert found is not None
    assert (await stored(ours, session)).events == found.events
    assert session.events == found.events
    return found.events


def test_paused_workflow_with_repeated_data_takes_little_disk_space_and_memory(
    make_sqlite: MakeDatabase,
) -> None:
    url = make_sqlite()
    path = Path(url.removeprefix("sqlite:///"))
    empty = path.stat().st_size  # each table and index without rows has a page
    with Store(url) as store:
        events = asyncio.run(run_workflow(store, list(workflow())))
        stats = store.stats()
    unique = unique_bytes(events)
    assert sum(len(event.model_dump_json(exclude_defaults=True)) for event in events) > 40 * unique
    assert (stats.payload_bytes, stats.saved_bytes) == (PAUSES * 12_000, sum(range(PAUSES)) * 12_000)
    assert path.stat().st_size - empty < 1.3 * unique
    done = subprocess.run([sys.executable, "-c", LOAD, url], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    number, peak = map(int, done.stdout.split())
    assert number == 3 * PAUSES
    assert peak < 3 * unique


def test_paused_workflow_has_the_events_of_the_in_memory_service(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        asyncio.run(run_workflow(store, list(workflow())))
        assert store.stats().payload_bytes == PAUSES * 12_000
