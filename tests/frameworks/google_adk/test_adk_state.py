"""What ADK asks of every session service of state, in the words of its base class and its repository."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from frameworks.google_adk.adk_events import WHERE, changed, in_a_loop, said, stored
from google.adk.events import Event, EventActions

from lango_store import Store
from lango_store.errors import InvalidMessage
from lango_store.integrations.google_adk import LangoSessionService


@in_a_loop
async def test_state_is_of_the_app_of_the_user_or_of_the_session(service: LangoSessionService) -> None:
    one = await service.create_session(**WHERE, state={"app:a": 1, "user:u": 2, "s": 3})
    same_user = await service.create_session(**WHERE, state={"s": 4})
    other_user = await service.create_session(app_name="weather", user_id="bob")
    other_app = await service.create_session(app_name="news", user_id="ann")
    assert same_user.state == {"app:a": 1, "user:u": 2, "s": 4}
    assert other_user.state == {"app:a": 1}
    assert other_app.state == {}
    await service.append_event(other_user, changed(**{"app:a": 5, "user:u": 6, "s": 7}))
    assert (await stored(service, one)).state == {"app:a": 5, "user:u": 2, "s": 3}
    assert (await stored(service, other_user)).state == {"app:a": 5, "user:u": 6, "s": 7}
    listed = await service.list_sessions(app_name="weather")
    assert {each.id: each.state for each in listed.sessions} == {
        one.id: {"app:a": 5, "user:u": 2, "s": 3},
        same_user.id: {"app:a": 5, "user:u": 2, "s": 4},
        other_user.id: {"app:a": 5, "user:u": 6, "s": 7},
    }


@in_a_loop
async def test_a_delta_replaces_a_dict_and_keeps_none_and_false(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, state={"cart": {"a": 1}, "n": 1, "f": True, "kept": [0]})
    await service.append_event(session, changed(cart={"b": 2}, n=None, f=False))
    assert session.state == {"cart": {"b": 2}, "n": None, "f": False, "kept": [0]}
    assert await stored(service, session) == session


KEYS = ["", "app:", "user:", "a:b", "%", "%25", "a/b", "\0", "\ud800", "user:\0%", "å", "_adk", "app:user:a", "temp"]


@in_a_loop
async def test_a_key_of_the_state_may_be_any_text(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, state={key: number for number, key in enumerate(KEYS)})
    assert session.state == {key: number for number, key in enumerate(KEYS)}
    delta = {key: [number] for number, key in enumerate(KEYS)}
    await service.append_event(session, Event(author="agent", actions=EventActions(state_delta=delta)))
    assert (await stored(service, session)).state == delta


@in_a_loop
async def test_what_is_temporary_is_in_memory_for_the_next_agent_and_nowhere_else(
    service: LangoSessionService, opened: Store
) -> None:
    session = await service.create_session(**WHERE, state={"temp:at_first": "secret"})
    event = said(actions=EventActions(state_delta={"temp:answer": "secret", "kept": 1}))
    await service.append_event(session, event)
    assert session.state == {"temp:answer": "secret", "kept": 1}
    assert event.actions.state_delta == {"kept": 1}
    found = await stored(service, session)
    assert found.state == {"kept": 1}
    assert found.events == [event]
    with opened.engine.connect() as connection:
        for table in ("lango_session", "lango_message", "lango_turn", "lango_value"):
            assert "secret" not in str(connection.exec_driver_sql(f"SELECT * FROM {table}").all())


class Unknown:
    def __str__(self) -> str:
        return "an unknown"


@in_a_loop
async def test_a_value_that_is_no_json_becomes_its_text_with_a_warning(
    service: LangoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    session = await service.create_session(**WHERE, state={"first": Unknown()})
    assert (await stored(service, session)).state == {"first": "an unknown"}
    assert "Unknown is no JSON" in caplog.text
    caplog.clear()
    delta = {"a": Unknown(), "user:b": [float("nan")], "c": 1, "when": datetime(2026, 1, 1, tzinfo=UTC), "t": (1, {2})}
    event = said(actions=EventActions(state_delta=delta))
    await service.append_event(session, event)
    assert session.state["a"] is delta["a"]
    found = await stored(service, session)
    expected = {"a": "an unknown", "user:b": ["nan"], "c": 1, "when": "2026-01-01T00:00:00Z", "t": [1, [2]]}
    assert found.state == {"first": "an unknown"} | expected
    assert found.events[0].actions.state_delta == expected
    assert "Unknown is no JSON" in caplog.text
    assert "float is no JSON" in caplog.text


@in_a_loop
async def test_what_is_nested_deeper_than_json_may_be_is_refused_and_nothing_is_written(
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


@in_a_loop
async def test_the_state_of_a_user_is_read_without_a_session(service: LangoSessionService) -> None:
    assert await service.get_user_state(**WHERE) == {}
    session = await service.create_session(**WHERE, state={"user:city": "Oslo", "app:a": 1, "s": 2})
    await service.append_event(session, changed(**{"user:": None}))
    assert await service.get_user_state(**WHERE) == {"city": "Oslo", "": None}
    assert await service.get_user_state(app_name="weather", user_id="bob") == {}
    assert await service.get_user_state(app_name="news", user_id="ann") == {}
    await service.delete_session(**WHERE, session_id=session.id)
    assert await service.get_user_state(**WHERE) == {"city": "Oslo", "": None}
