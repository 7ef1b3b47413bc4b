"""The contract of ADK's session services: state."""

from datetime import UTC, datetime
from typing import Any

import pytest
from frameworks.google_adk.adk_events import WHERE, changed, said, stored
from google.adk.events import Event, EventActions

from lango_store import Store
from lango_store.errors import InvalidMessage
from lango_store.integrations.google_adk import LangoSessionService

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]


KEYS = ["", "app:", "user:", "a:b", "%", "%25", "a/b", "\0", "\ud800", "user:\0%", "å", "_adk", "app:user:a", "temp"]


async def test_state_key_can_be_any_text(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, state={key: number for number, key in enumerate(KEYS)})
    assert session.state == {key: number for number, key in enumerate(KEYS)}
    delta = {key: [number] for number, key in enumerate(KEYS)}
    await service.append_event(session, Event(author="agent", actions=EventActions(state_delta=delta)))
    assert (await stored(service, session)).state == delta


async def test_temporary_state_is_only_in_memory(service: LangoSessionService, store: Store) -> None:
    session = await service.create_session(**WHERE, state={"temp:at_first": "secret"})
    event = said(actions=EventActions(state_delta={"temp:answer": "secret", "kept": 1}))
    await service.append_event(session, event)
    assert session.state == {"temp:answer": "secret", "kept": 1}
    assert event.actions.state_delta == {"kept": 1}
    found = await stored(service, session)
    assert found.state == {"kept": 1}
    assert found.events == [event]
    with store.engine.connect() as connection:
        for table in ("lango_session", "lango_message", "lango_turn", "lango_value"):
            assert "secret" not in str(connection.exec_driver_sql(f"SELECT * FROM {table}").all())


class Unknown:
    def __str__(self) -> str:
        return "an unknown"


async def test_state_value_that_is_not_json_becomes_text_with_a_warning(
    service: LangoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    session = await service.create_session(**WHERE, state={"first": Unknown()})
    assert (await stored(service, session)).state == {"first": "an unknown"}
    assert "type Unknown is not JSON" in caplog.text
    caplog.clear()
    delta = {"a": Unknown(), "user:b": [float("nan")], "c": 1, "when": datetime(2026, 1, 1, tzinfo=UTC), "t": (1, {2})}
    event = said(actions=EventActions(state_delta=delta))
    await service.append_event(session, event)
    assert session.state["a"] is delta["a"]
    found = await stored(service, session)
    expected = {"a": "an unknown", "user:b": ["nan"], "c": 1, "when": "2026-01-01T00:00:00Z", "t": [1, [2]]}
    assert found.state == {"first": "an unknown"} | expected
    assert found.events[0].actions.state_delta == expected
    assert "type Unknown is not JSON" in caplog.text
    assert "type float is not JSON" in caplog.text


async def test_too_deeply_nested_state_is_refused_before_writing(
    service: LangoSessionService,
) -> None:
    session = await service.create_session(**WHERE)
    deep: list[Any] = []
    for _ in range(250):
        deep = [deep]
    with pytest.raises(InvalidMessage):
        await service.append_event(session, changed(deep=deep))
    assert session.events == []
    assert (await stored(service, session)).events == []


async def test_secret_state_is_only_in_memory(service: LangoSessionService, store: Store) -> None:
    session = await service.create_session(**WHERE, state={"secret:key": "hunter2", "kept": 0})
    await service.append_event(session, said(actions=EventActions(state_delta={"secret:key": "hunter3", "kept": 1})))
    assert (await stored(service, session)).state == {"kept": 1}
    with store.engine.connect() as connection:
        for table in ("lango_session", "lango_message", "lango_turn", "lango_value"):
            assert "hunter" not in str(connection.exec_driver_sql(f"SELECT * FROM {table}").all())
