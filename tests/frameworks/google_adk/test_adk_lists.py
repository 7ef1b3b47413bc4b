"""Lists of sessions: each has the state of all levels, and the number of statements does not grow with the sessions."""

from typing import Any

import pytest
from frameworks.google_adk.adk_events import WHERE, changed

from lango_store import Message, Store
from lango_store.integrations.google_adk import LangoSessionService

pytestmark = pytest.mark.anyio


async def listed(service: LangoSessionService, **which: Any) -> list[Any]:
    return (await service.list_sessions(app_name="weather", **which)).sessions


@pytest.mark.one_database
async def test_listed_sessions_have_the_state_and_the_update_time_of_each(
    service: LangoSessionService, store: Store
) -> None:
    for user in ("ann", "bob"):
        for number in range(3):
            state = {"own": number, "user:name": user, "app:last": [user, number]}
            session = await service.create_session(
                app_name="weather", user_id=user, session_id=f"{number}", state=state if number else None
            )
            if number < 2:
                await service.append_event(session, changed(step=number))
    store.append_message("weather:ann:2", Message.user("x" * 70_000))
    store.append_message("weather:bob:2", Message(role="record", content="a record"))  # type: ignore[arg-type]
    await service.create_session(app_name="other", user_id="ann", state={"app:last": "other"})
    for which in ({}, {"user_id": "bob"}):
        sessions = await listed(service, **which)
        assert len(sessions) == (3 if which else 6)
        for session in sessions:
            read = await service.get_session(app_name="weather", user_id=session.user_id, session_id=session.id)
            assert read is not None
            assert (session.state, session.events) == (read.state, [])
            assert session.last_update_time == read.last_update_time


@pytest.mark.parametrize(("number", "statements"), [(1, 4), (1_000, 6), (1_001, 9)])
async def test_list_sends_few_statements(url: str, number: int, statements: int) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        service = LangoSessionService(store)
        await service.create_session(**WHERE, state={"app:a": 1, "user:u": 2, "own": 3})
        with store.transaction() as tx:
            for n in range(1, number):
                tx.create(f"weather:user {n % 7}:{n}", messages=[Message.user("x" * 70_000 if n < 3 else "Hello")])
        sent.clear()
        sessions = await listed(service)
        assert (len(sessions), {session.state["app:a"] for session in sessions}) == (number, {1})
        assert len(sent) == statements
