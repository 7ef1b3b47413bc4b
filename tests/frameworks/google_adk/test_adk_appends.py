"""The contract of ADK's session services: appends and times."""

import time
import warnings
from datetime import UTC, datetime, timedelta

import pytest
from frameworks.google_adk.adk_events import WHERE, changed, said, stored, texts
from google.adk.events import EventActions
from google.adk.sessions import Session
from google.genai import types

from lango_store.errors import InvalidMessage
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.testing import Clock

pytestmark = pytest.mark.anyio

# Appends


async def test_partial_event_writes_nothing(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    event = said(author="agent", partial=True, actions=EventActions(state_delta={"a": 1, "temp:b": 1}))
    assert await service.append_event(session, event) is event
    assert (session.events, session.state) == ([], {})
    assert await stored(service, session) == session


async def test_repeated_event_is_stored_once(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    usage = types.GenerateContentResponseUsageMetadata(total_token_count=5)
    for event in (said(), changed(step=1, **{"user:u": 1}), said(author="agent", usage_metadata=usage)):
        await service.append_event(session, event)
        await service.append_event(session, event)
        again = await stored(service, session)
        await service.append_event(again, event.model_copy(deep=True))
        assert again == session
        assert await stored(service, session) == session
    key = f"weather:ann:{session.id}"
    assert service.store.conversation(key).total_usage() == {"total_token_count": 5}
    # A retry after a lost acknowledgement adds the event to the session in hand.
    late = await stored(service, session, num_recent_events=0)
    await service.append_event(late, session.events[0])
    assert late.events == session.events[:1]


async def test_repeated_event_does_not_set_state_again(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    first = changed(step=1)
    await service.append_event(session, first)
    await service.append_event(session, changed(step=2))
    await service.append_event(await stored(service, session), first)
    assert (await stored(service, session)).state == {"step": 2}


async def test_different_event_with_stored_id_is_refused(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    usage = types.GenerateContentResponseUsageMetadata(total_token_count=5)
    one, other = (said(text, id="same", timestamp=1000.0) for text in ("one", "two"))
    paid = one.model_copy(update={"usage_metadata": usage})
    for first, others in ((one, (other, paid)), (paid.model_copy(update={"id": "paid"}), (other, one))):
        await service.append_event(session, first)
        for event in others:
            with pytest.raises(InvalidMessage, match=r"event\.id"):
                await service.append_event(session, event.model_copy(update={"id": first.id}))
    assert (await stored(service, session)).events == session.events == [one, paid.model_copy(update={"id": "paid"})]


async def test_error_for_an_event_without_author_names_the_field(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    event = said()
    event.author = None  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's
        with pytest.raises(InvalidMessage, match="author"):
            await service.append_event(session, event)
    assert session.events == []


async def test_append_to_expired_session_starts_a_new_session(url: str, clock: Clock) -> None:
    async with LangoSessionService(url, clock=clock, default_ttl=timedelta(hours=1)) as service:
        session = await service.create_session(**WHERE, session_id="trip", state={"old": 1, "user:kept": 2})
        await service.append_event(session, said("old"))
        clock.move(hours=2)
        assert await service.get_session(**WHERE, session_id="trip") is None
        assert (await service.list_sessions(**WHERE)).sessions == []
        await service.append_event(session, said("new"))
        found = await service.get_session(**WHERE, session_id="trip")
        assert found is not None
        assert texts(found) == ["new"]
        assert found.state == {"user:kept": 2}
        clock.move(hours=2)
        made = await service.create_session(**WHERE, session_id="trip", state={"newer": 1})
        assert made.state == {"newer": 1, "user:kept": 2}
        assert made.events == []
        assert await stored(service, made) == made


# Times

TIMES = [
    0.0,
    -1.5,
    0.1 + 0.2,
    1795357132.125862,
    1795357132.1258622,
    1795357132.1258624,
    datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp(),  # 2:30 in Oslo, and an hour later 2:30 again
    datetime(2026, 10, 25, 1, 30, tzinfo=UTC).timestamp(),
    1e11,
    1e18,
    -1e18,
    5e-324,
]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Oslo", "America/St_Johns"])
async def test_event_time_is_exact_in_the_hour_repeated_by_daylight_saving(
    service: LangoSessionService, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        session = await service.create_session(**WHERE)
        for timestamp in TIMES:
            await service.append_event(session, said(timestamp=timestamp))
            assert session.last_update_time == timestamp
            assert (await stored(service, session, num_recent_events=0)).last_update_time == timestamp
            (listed,) = (await service.list_sessions(**WHERE)).sessions
            assert listed.last_update_time == timestamp
            since = await stored(service, session, after_timestamp=timestamp)
            assert [each.timestamp for each in since.events] == [each for each in seen(session) if each >= timestamp]
        assert seen(await stored(service, session)) == TIMES
    time.tzset()


def seen(session: Session) -> list[float]:
    return [event.timestamp for event in session.events]


async def test_session_without_events_has_creation_time_as_update_time(url: str, clock: Clock) -> None:
    async with LangoSessionService(url, clock=clock) as service:
        made = await service.create_session(**WHERE)
        assert made.last_update_time == clock().timestamp()
        clock.move(hours=1)
        assert await stored(service, made) == made


async def test_listed_sessions_have_no_events_and_are_ordered_by_update_time(
    service: LangoSessionService,
) -> None:
    for user, id, timestamp in [("bob", "1", 30.0), ("ann", "2", 20.5), ("ann", "3", 20.25), ("ann", "1", 30.0)]:
        session = await service.create_session(app_name="weather", user_id=user, session_id=id, state={"n": id})
        await service.append_event(session, said(timestamp=timestamp))
    await service.create_session(app_name="news", user_id="ann", session_id="9")
    listed = (await service.list_sessions(app_name="weather")).sessions
    assert [(each.user_id, each.id) for each in listed] == [("ann", "3"), ("ann", "2"), ("ann", "1"), ("bob", "1")]
    assert all(each.events == [] and each.state == {"n": each.id} for each in listed)
    assert [each.id for each in (await service.list_sessions(**WHERE)).sessions] == ["3", "2", "1"]
    assert (await service.list_sessions(app_name="weather", user_id="nobody")).sessions == []
    assert (await service.list_sessions(app_name="weathe")).sessions == []


async def test_events_with_equal_timestamps_keep_append_order(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    for number in range(20):
        await service.append_event(session, said(str(number), timestamp=1000.0, id=f"{(number * 7) % 20:02}"))
    assert texts(await stored(service, session)) == [str(number) for number in range(20)]
    assert texts(await stored(service, session, num_recent_events=3)) == ["17", "18", "19"]
