"""What a call of ADK's costs: statements and round trips on PostgreSQL, counted on the wire; long lists in time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import Counts, counted
from frameworks.google_adk.adk_events import WHERE, answered, called, changed, in_a_loop, said
from google.adk.events import Event
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from lango_store import Message, Store
from lango_store.errors import DamagedMessage
from lango_store.integrations.google_adk import LangoSessionService

USAGE = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=5)
EVENTS: dict[str, Event] = {
    "text": said(),
    "a call": called(city="Oslo"),
    "a response": answered(celsius=-3),
    "a change of the session": changed(step=1, cart=None),
    "a change in all scopes": changed(**{"app:version": 1, "user:city": "Oslo", "step": 2, "temp:a": 1}),
    "a cost": said(author="agent", usage_metadata=USAGE),
    "a cost and a change in all scopes": said(
        author="agent", usage_metadata=USAGE, actions={"state_delta": {"app:a": 1, "user:a": 1, "a": 1}}
    ),
}


def counts_of(engine: sa.Engine, folder: Path, call: Coroutine[Any, Any, Any]) -> Counts:
    with counted(engine, folder) as counts:
        asyncio.run(call)
    return counts


@pytest.mark.parametrize("check_stale", [False, True])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_an_append_is_one_statement_and_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, event: Event, check_stale: bool
) -> None:
    with Store(one_connection) as store:
        service = LangoSessionService(store, check_stale=check_stale)
        session: Session = asyncio.run(service.create_session(**WHERE, state={"user:city": "Bergen"}))
        event = event.model_copy(deep=True)
        assert counts_of(one_connection, tmp_path, service.append_event(session, event)) == Counts(1, 1)
        found = asyncio.run(service.get_session(**WHERE, session_id=session.id))
        session.state = {key: value for key, value in session.state.items() if not key.startswith("temp:")}
        assert found == session


@pytest.mark.parametrize(
    "config", [None, {"num_recent_events": 3}, {"num_recent_events": 0}, {"after_timestamp": 5.0}], ids=str
)
@pytest.mark.parametrize("events", [0, 20])
def test_a_session_is_read_in_two_statements(
    one_connection: sa.Engine, tmp_path: Path, config: dict[str, Any] | None, events: int
) -> None:
    with Store(one_connection) as store:
        service = LangoSessionService(store)
        session = asyncio.run(service.create_session(**WHERE, state={"app:a": 1, "user:b": 2, "c": 3}))
        for number in range(events):
            asyncio.run(service.append_event(session, said(timestamp=float(number))))
        chosen = None if config is None else GetSessionConfig(**config)
        read = service.get_session(**WHERE, session_id=session.id, config=chosen)
        assert counts_of(one_connection, tmp_path, read) == (Counts(2, 2) if events else Counts(1, 1))
        gone = service.get_session(**WHERE, session_id="nobody")
        assert counts_of(one_connection, tmp_path, gone) == Counts(1, 1)


def test_no_more_events_are_read_than_are_asked_for(service: LangoSessionService) -> None:
    session = asyncio.run(service.create_session(**WHERE))
    for number in range(10):
        asyncio.run(service.append_event(session, said(str(number))))
    with service.store.engine.begin() as connection:  # who read it would say that it is damaged
        connection.exec_driver_sql("UPDATE lango_message SET extra = '[1]' WHERE seq < 8")
    recent = GetSessionConfig(num_recent_events=3)
    found = asyncio.run(service.get_session(**WHERE, session_id=session.id, config=recent))
    assert found is not None
    assert found.events == session.events[-3:]
    with pytest.raises(DamagedMessage, match=r"message 1 .*extra"):
        asyncio.run(service.get_session(**WHERE, session_id=session.id))


@pytest.mark.parametrize("user", [None, "ann"])
@in_a_loop
async def test_five_thousand_sessions_are_listed_within_a_second(
    service: LangoSessionService, user: str | None
) -> None:
    fill(service.store, 5_000)
    took = []
    for _ in range(3):
        began = perf_counter()
        listed = await service.list_sessions(app_name="weather", user_id=user)
        took.append(perf_counter() - began)
    assert len(listed.sessions) == 5_000
    assert listed.sessions[7].state == {"step": 7, "app:version": 1, "user:city": "Oslo"}
    assert min(took) < 1


def fill(store: Store, number: int) -> None:
    """Make sessions as the service does, all in one transaction."""
    store.set_shared_values("google_adk/weather", {"version": 1})
    store.set_shared_values("google_adk/weather:ann", {"city": "Oslo"})
    with store.engine.begin() as connection:
        inside = store.using(connection)
        for each in range(number):
            key = f"weather:ann:{each:05}"
            message = Message.user("Hello", author="user", extra={"google_adk": {"timestamp": 1e9 + each}})
            inside.append_message(key, message, create=True)
            inside.set_values(key, {"step": each})


def test_a_list_is_two_statements(one_connection: sa.Engine, tmp_path: Path) -> None:
    with Store(one_connection) as store:
        fill(store, 5)
        service = LangoSessionService(store)
        counts = counts_of(one_connection, tmp_path, service.list_sessions(app_name="weather"))
        assert counts == Counts(statements=2, round_trips=4)  # of one moment
