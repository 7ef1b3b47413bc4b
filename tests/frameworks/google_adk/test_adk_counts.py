"""What a call of ADK's costs: statements and round trips on PostgreSQL, counted on the wire; long lists in time."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest
from frameworks.google_adk.adk_events import WHERE, in_a_loop, said
from google.adk.sessions.base_session_service import GetSessionConfig

from lango_store import Message, Store
from lango_store.errors import DamagedMessage
from lango_store.integrations.google_adk import LangoSessionService


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
