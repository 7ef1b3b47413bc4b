"""What ADK asks of every session service, in the words of its base class and its repository."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import Clock
from frameworks.google_adk.adk_events import WHERE, answered, called, changed, content, in_a_loop, said, texts
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from lango_store import Store
from lango_store.errors import InvalidKey, InvalidMessage
from lango_store.integrations.google_adk import LangoSessionService


async def stored(service: LangoSessionService, session: Session, **config: Any) -> Session:
    found = await service.get_session(
        app_name=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
        config=GetSessionConfig(**config) if config else None,
    )
    assert found is not None
    return found


# Ids


@in_a_loop
async def test_a_session_is_found_by_its_ids_and_by_no_others(service: LangoSessionService) -> None:
    made = await service.create_session(**WHERE, session_id="trip", state={"city": "Oslo"})
    assert (made.id, made.app_name, made.user_id, made.state, made.events) == (
        "trip",
        "weather",
        "ann",
        {"city": "Oslo"},
        [],
    )
    assert await stored(service, made) == made
    for other in ({"app_name": "news"}, {"user_id": "bob"}, {"session_id": "other"}):
        assert await service.get_session(**{**WHERE, "session_id": "trip", **other}) is None


@in_a_loop
async def test_ids_are_stripped_on_create_read_and_delete(service: LangoSessionService) -> None:
    made = await service.create_session(**WHERE, session_id="  trip\n")
    assert made.id == "trip"
    assert await service.get_session(**WHERE, session_id=" trip ") == made
    await service.delete_session(**WHERE, session_id="\ttrip ")
    assert await service.get_session(**WHERE, session_id="trip") is None


@pytest.mark.parametrize("blank", [None, "", "   "])
@in_a_loop
async def test_a_blank_id_is_generated(service: LangoSessionService, blank: str | None) -> None:
    one, other = [await service.create_session(**WHERE, session_id=blank) for _ in range(2)]
    assert one.id.strip()
    assert one.id != other.id


@in_a_loop
async def test_an_id_that_is_taken_is_an_error_and_changes_nothing(service: LangoSessionService) -> None:
    made = await service.create_session(**WHERE, session_id="trip", state={"a": 1, "user:b": 2})
    await service.append_event(made, said())
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHERE, session_id=" trip ", state={"a": 2, "user:b": 3})
    assert await stored(service, made) == made


@in_a_loop
async def test_two_users_may_have_one_session_id_and_never_see_each_others_events(
    service: LangoSessionService,
) -> None:
    anns = await service.create_session(**WHERE, session_id="trip")
    bobs = await service.create_session(app_name="weather", user_id="bob", session_id="trip")
    await service.append_event(anns, said("I am Ann"))
    await service.append_event(bobs, said("I am Bob"))
    assert texts(await stored(service, anns)) == ["I am Ann"]
    assert texts(await stored(service, bobs)) == ["I am Bob"]
    await service.delete_session(**WHERE, session_id="trip")
    assert texts(await stored(service, bobs)) == ["I am Bob"]


@in_a_loop
async def test_no_two_triples_of_ids_meet_whatever_text_they_are(service: LangoSessionService) -> None:
    triples = [
        ("a", "b:c", "d"),
        ("a:b", "c", "d"),
        ("a", "b", "c:d"),
        ("a%3Ab", "c", "d"),
        ("", "", "d"),
        ("", "d", "d"),
    ]
    triples += [("a/b", "\0", "\ud800"), ("a", "/", "%2F")]
    for number, (app, user, id) in enumerate(triples):
        made = await service.create_session(app_name=app, user_id=user, session_id=id, state={"number": number})
        assert (made.app_name, made.user_id, made.id) == (app, user, id)
    for number, (app, user, id) in enumerate(triples):
        found = await service.get_session(app_name=app, user_id=user, session_id=id)
        assert found is not None
        assert found.state == {"number": number}
        listed = await service.list_sessions(app_name=app, user_id=user)
        assert [(each.app_name, each.user_id, each.id) for each in listed.sessions] == [(app, user, id)]


@in_a_loop
async def test_ids_that_make_no_key_name_the_longest(service: LangoSessionService) -> None:
    with pytest.raises(InvalidKey, match="user_id alone 600 of them"):
        await service.create_session(app_name="weather", user_id="u" * 600, session_id="trip")


@in_a_loop
async def test_a_session_that_is_deleted_takes_no_event(service: LangoSessionService) -> None:
    made = await service.create_session(**WHERE, session_id="trip", state={"a": 1})
    await service.delete_session(**WHERE, session_id="trip")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(made, said())
    assert made.events == []
    assert await service.get_session(**WHERE, session_id="trip") is None
    await service.delete_session(**WHERE, session_id="trip")
    assert (await service.create_session(**WHERE, session_id="trip")).state == {}


# What is read is what was written


def credential() -> AuthCredential:
    return AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="key")


BLOB = types.Blob(data=bytes(range(256)), mime_type="image/png")
EVENTS: dict[str, Callable[[], Event]] = {
    "text": said,
    "an agent's text": lambda: said("It rains", author="agent"),
    "no text": lambda: said(""),
    "a call": lambda: called(city="Oslo", days=None),
    "a call without arguments": called,
    "a response": lambda: answered(celsius=-3, wind=None),
    "text, a call and text": lambda: Event(
        author="agent",
        content=content(
            types.Part(text="Let me see"),
            types.Part(function_call=types.FunctionCall(name="f", args={"a": 1.0}), thought_signature=b"\xff\0"),
            types.Part(text="done"),
        ),
    ),
    "calls and responses in one": lambda: Event(
        author="agent",
        content=content(
            types.Part(function_response=types.FunctionResponse(id="1", name="f", response={"ok": True})),
            types.Part(function_call=types.FunctionCall(id="2", name="g")),
            types.Part(function_response=types.FunctionResponse(name="h", response={})),
        ),
    ),
    "thoughts": lambda: Event(
        author="agent",
        content=content(types.Part(text="hm", thought=True), types.Part(text="Yes", thought_signature=b"\1")),
    ),
    "bytes in parts": lambda: Event(
        author="user",
        content=content(
            types.Part(inline_data=BLOB),
            types.Part(file_data=types.FileData(file_uri="gs://a/b", mime_type="text/plain")),
            role="user",
        ),
    ),
    "bytes in grounding metadata": lambda: said(
        author="agent",
        grounding_metadata=types.GroundingMetadata(
            search_entry_point=types.SearchEntryPoint(rendered_content="<b>", sdk_blob=b"\0\xff"),
            web_search_queries=["weather"],
        ),
    ),
    "code": lambda: Event(
        author="agent",
        content=content(
            types.Part(executable_code=types.ExecutableCode(code="1/0", language=types.Language.PYTHON)),
            types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_FAILED)),
        ),
    ),
    "tool confirmations": lambda: Event(
        author="agent",
        actions=EventActions(
            requested_tool_confirmations={"c": ToolConfirmation(hint="sure?", confirmed=False, payload={"n": None})}
        ),
    ),
    "sets": lambda: Event(
        author="agent",
        content=content(types.Part(function_call=types.FunctionCall(id="b", name="f"))),
        long_running_tool_ids={"b", "a"},
    ),
    "custom metadata": lambda: said(custom_metadata={"a": None, "b": [1, 1.0, True, {"c": "\0"}], "d": "\ud800"}),
    "actions": lambda: Event(
        author="agent",
        actions=EventActions(
            skip_summarization=False,
            state_delta={"a": None, "b": False, "c": {"d": []}},
            artifact_delta={"f.txt": 0},
            transfer_to_agent="other",
            escalate=True,
            end_of_agent=True,
            agent_state={"step": 1, "none": None},
            rewind_before_invocation_id="i-0",
        ),
    ),
    "a compaction": lambda: Event.model_validate(
        {
            "author": "user",
            "actions": {
                "compaction": {
                    "start_timestamp": 1.5,
                    "end_timestamp": 2.25,
                    "compacted_content": {"role": "model", "parts": [{"text": "summary"}]},
                }
            },
        }
    ),
    "what it cost": lambda: said(
        author="agent",
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=7, candidates_token_count=5, total_token_count=12, cached_content_token_count=0
        ),
    ),
    "a cost that says nothing": lambda: said(usage_metadata=types.GenerateContentResponseUsageMetadata()),
    "a cost of nothing said": lambda: Event(
        author="agent", usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=3)
    ),
    "an error": lambda: Event(author="agent", error_code="429", error_message="Too many", turn_complete=True),
    "a content without parts": lambda: Event(author="agent", content=types.Content(role="model")),
    "a content of no parts": lambda: Event(author="agent", content=types.Content(role="model", parts=[])),
    "a content without a role": lambda: Event(author="agent", content=types.Content(parts=[types.Part(text="a")])),
    "a content of another role": lambda: Event(
        author="agent", content=types.Content(role="critic", parts=[types.Part(text="a")])
    ),
    "an empty part": lambda: Event(author="agent", content=content(types.Part())),
    "branches": lambda: said(branch="a.b", isolation_scope="s", finish_reason=types.FinishReason.STOP, partial=False),
    "nothing": lambda: Event(),
    "an author that no column holds": lambda: said(author="a\0b"),
    "an id that no index holds": lambda: said(id="x" * 600),
    "an id with a NUL": lambda: said(id="a\0b"),
    "an id with half a pair": lambda: said(id="\ud800"),
}


@pytest.mark.parametrize("make", EVENTS.values(), ids=EVENTS.keys())
@in_a_loop
async def test_every_field_of_an_event_comes_back(service: LangoSessionService, make: Callable[[], Event]) -> None:
    session = await service.create_session(**WHERE)
    event = make()
    before = event.model_copy(deep=True)
    assert await service.append_event(session, event) is event
    assert event == before
    assert session.events == [event]
    assert await stored(service, session) == session
    await service.append_event(session, event)
    assert await stored(service, session) == session


@in_a_loop
async def test_what_is_read_equals_the_session_in_hand_after_each_append(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, state={"user:city": "Oslo", "app:version": 2, "step": 0})
    for make in EVENTS.values():
        await service.append_event(session, make())
        assert await stored(service, session) == session
    assert len(session.events) == len(EVENTS)


@in_a_loop
async def test_events_are_chosen_by_number_and_by_time(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    for number in range(5):
        await service.append_event(session, said(str(number), timestamp=1000.25 + number))
    chosen: list[tuple[dict[str, Any], list[str]]] = [
        ({"num_recent_events": 0}, []),
        ({"num_recent_events": 2}, ["3", "4"]),
        ({"num_recent_events": 9}, ["0", "1", "2", "3", "4"]),
        ({"after_timestamp": 1002.25}, ["2", "3", "4"]),  # inclusive
        ({"after_timestamp": 1002.2500001}, ["3", "4"]),
        ({"after_timestamp": 1009.0}, []),
        ({"after_timestamp": 0.0}, ["0", "1", "2", "3", "4"]),
        ({"after_timestamp": 1001.25, "num_recent_events": 2}, ["3", "4"]),
        ({"after_timestamp": 1003.25, "num_recent_events": 4}, ["3", "4"]),
        ({"after_timestamp": 1001.25, "num_recent_events": 0}, []),
    ]
    for config, expected in chosen:
        found = await stored(service, session, **config)
        assert texts(found) == expected, config
        assert found.last_update_time == 1004.25
    assert session.last_update_time == 1004.25


# State


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
def test_a_time_is_exact_to_the_float_over_a_repeated_hour_too(
    service: LangoSessionService, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        times_come_back(service)
    finally:
        monkeypatch.undo()
        time.tzset()


@in_a_loop
async def times_come_back(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    for timestamp in TIMES:
        await service.append_event(session, said(timestamp=timestamp))
        assert session.last_update_time == timestamp
        found = await stored(service, session)
        assert found.last_update_time == timestamp
        assert (await stored(service, session, num_recent_events=0)).last_update_time == timestamp
        (listed,) = (await service.list_sessions(**WHERE)).sessions
        assert listed.last_update_time == timestamp
        since = await stored(service, session, after_timestamp=timestamp)
        assert [each.timestamp for each in since.events] == [
            each.timestamp for each in session.events if each.timestamp >= timestamp
        ]
    assert [event.timestamp for event in found.events] == TIMES


@in_a_loop
async def test_a_session_without_events_was_updated_when_it_was_made(url: str, clock: Clock) -> None:
    async with LangoSessionService(url, clock=clock) as service:
        made = await service.create_session(**WHERE)
        assert made.last_update_time == clock().timestamp()
        clock.move(hours=1)
        assert await stored(service, made) == made


@in_a_loop
async def test_sessions_are_listed_without_events_the_one_updated_last_at_the_end(
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


@in_a_loop
async def test_events_of_one_time_keep_the_order_of_their_appends(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    for number in range(20):
        await service.append_event(session, said(str(number), timestamp=1000.0, id=f"{(number * 7) % 20:02}"))
    assert texts(await stored(service, session)) == [str(number) for number in range(20)]
    assert texts(await stored(service, session, num_recent_events=3)) == ["17", "18", "19"]


# Appends


@in_a_loop
async def test_a_partial_event_writes_nothing(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    event = said(author="agent", partial=True, actions=EventActions(state_delta={"a": 1, "temp:b": 1}))
    assert await service.append_event(session, event) is event
    assert (session.events, session.state) == ([], {})
    assert await stored(service, session) == session


@in_a_loop
async def test_the_same_event_again_is_stored_once(service: LangoSessionService) -> None:
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
    # A retry of somebody who did not hear that it was stored has it in hand afterwards.
    late = await stored(service, session, num_recent_events=0)
    await service.append_event(late, session.events[0])
    assert late.events == session.events[:1]


@in_a_loop
async def test_the_same_event_again_sets_no_state_again(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    first = changed(step=1)
    await service.append_event(session, first)
    await service.append_event(session, changed(step=2))
    await service.append_event(await stored(service, session), first)
    assert (await stored(service, session)).state == {"step": 2}


@in_a_loop
async def test_another_event_with_an_id_that_is_taken_is_kept_beside_it(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    for text in ("one", "two", "two", "one"):
        await service.append_event(session, said(text, id="same", timestamp=1000.0))
    found = await stored(service, session)
    assert [(event.id, event.content) for event in found.events] == [
        ("same", said("one").content),
        ("same", said("two").content),
    ]


@in_a_loop
async def test_an_event_that_cost_something_is_another_than_one_that_did_not(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    free = said("one", author="agent", id="same", timestamp=1000.0)
    usage = types.GenerateContentResponseUsageMetadata(total_token_count=5)
    dear = free.model_copy(update={"usage_metadata": usage})
    for event in (dear, free, dear, free):
        await service.append_event(session, event)
    assert (await stored(service, session)).events == [dear, free]


@in_a_loop
async def test_an_event_that_lost_its_author_is_refused_by_name(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    event = said()
    event.author = None  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's
        with pytest.raises(InvalidMessage, match="author"):
            await service.append_event(session, event)
    assert session.events == []


@in_a_loop
async def test_a_session_that_has_expired_is_not_there_and_begins_anew(url: str, clock: Clock) -> None:
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
