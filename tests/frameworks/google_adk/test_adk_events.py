"""Conversion of ADK's events: any event is loaded equal, and stored in fields of a message where these exist."""

import asyncio
import base64
import dataclasses
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
import sqlalchemy as sa
from frameworks.google_adk.adk_events import WHERE, answered, called, changed, content, said, stored, texts
from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, field_serializer

from lango_store import Message, ToolCall
from lango_store.errors import DamagedMessage
from lango_store.integrations.google_adk import LangoSessionService

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

text = st.text(st.characters(), max_size=5) | st.sampled_from(["", "\0", "\ud800", "\udfff\ud800", "text"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**301)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=5
)
objects = st.dictionaries(text, values, max_size=3)
maybe = st.none() | text
signed = st.none() | st.binary(max_size=4)
goes_on = st.sampled_from([None, True])
calls = st.builds(types.FunctionCall, id=maybe, name=maybe, args=st.none() | objects, will_continue=goes_on)
responses = st.builds(types.FunctionResponse, id=maybe, name=maybe, response=st.none() | objects, will_continue=goes_on)
parts = (
    st.builds(types.Part, text=text)
    | st.builds(types.Part, text=text, thought=st.booleans(), thought_signature=signed)
    | st.builds(types.Part, inline_data=st.builds(types.Blob, data=st.binary(max_size=9), mime_type=text))
    | st.builds(types.Part, function_call=calls, thought_signature=signed)
    | st.builds(types.Part, function_response=responses)
    | st.just(types.Part())
)
contents = st.builds(
    types.Content, role=st.sampled_from([None, "user", "model", "other"]), parts=st.none() | st.lists(parts, max_size=4)
)
usages = st.builds(
    types.GenerateContentResponseUsageMetadata,
    prompt_token_count=st.none() | st.integers(0, 2**31 - 1),
    candidates_token_count=st.none() | st.integers(-1, 2**31 - 1),
)
actions = st.builds(
    EventActions,
    state_delta=st.dictionaries(text.filter(lambda key: not key.startswith("temp:")), values, max_size=3),
    artifact_delta=st.dictionaries(text, st.integers(0, 9), max_size=2),
    agent_state=st.none() | objects,
    escalate=st.sampled_from([None, True, False]),
)
events = st.builds(
    Event,
    id=st.just("") | st.uuids().map(str),
    author=text,
    invocation_id=text,
    timestamp=st.floats(allow_nan=False, allow_infinity=False) | st.floats(1.6e9, 1.9e9),
    content=st.none() | contents,
    actions=actions,
    usage_metadata=st.none() | usages,
    model_version=maybe,
    custom_metadata=st.none() | objects,
    long_running_tool_ids=st.none() | st.sets(text, max_size=2),
    branch=maybe,
    output=values,
)


def written(events: list[Event]) -> list[str]:
    """Return events as text that distinguishes true, 1 and 1.0."""
    return [repr(event.model_dump(exclude_none=True)) for event in events]


def plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.lists(events, min_size=1, max_size=4, unique_by=lambda event: event.id))
def test_any_event_is_loaded_equal(service: LangoSessionService, batch: list[Event]) -> None:
    async def append() -> tuple[Session, Session | None]:
        session = await service.create_session(**WHERE)
        for event in batch:
            await service.append_event(session, event)
        return session, await service.get_session(**WHERE, session_id=session.id)

    before = written(batch)
    state: dict[str, Any] = {}
    for event in batch:
        state |= event.actions.state_delta
    session, found = asyncio.run(append())
    assert found is not None
    assert written(found.events) == before == written(session.events)
    shared = {key: value for key, value in found.state.items() if key.startswith(("app:", "user:"))}
    assert plain(found.state) == plain(shared | state)  # other sessions share with this one


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.dictionaries(text | text.map("user:{}".format) | text.map("app:{}".format), values, max_size=4))
def test_any_state_is_loaded_equal(service: LangoSessionService, state: dict[str, Any]) -> None:
    session = asyncio.run(service.create_session(**WHERE, state=state))
    assert plain({key: session.state[key] for key in state}) == plain(state)
    users = asyncio.run(service.get_user_state(**WHERE))
    theirs = {key.removeprefix("user:"): value for key, value in state.items() if key.startswith("user:")}
    assert plain({key: users[key] for key in theirs}) == plain(theirs)


# Fields

USAGE = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=120, candidates_token_count=30, total_token_count=150
)
TRANSCRIPT = [
    said("How warm will it be in Oslo tomorrow, and shall I take an umbrella?", timestamp=1795357132.125862),
    Event(
        author="agent",
        invocation_id="i-1",
        content=content(
            types.Part(text="Let me see."),
            types.Part(function_call=types.FunctionCall(id="adk-1", name="forecast", args={"city": "Oslo", "days": 1})),
            types.Part(function_call=types.FunctionCall(id="adk-2", name="rain", args={"city": "Oslo"})),
        ),
        usage_metadata=USAGE,
        timestamp=1795357133.5,
    ),
    Event(
        author="agent",
        invocation_id="i-1",
        content=content(
            types.Part(function_response=types.FunctionResponse(id="adk-1", name="forecast", response={"celsius": -3})),
            types.Part(function_response=types.FunctionResponse(id="adk-2", name="rain", response={"result": None})),
            role="user",
        ),
        actions=EventActions(state_delta={"user:city": "Oslo", "asked": 1}),
        timestamp=1795357134.25,
    ),
    said("It will have -3 degrees and no rain: leave it at home.", author="agent", usage_metadata=USAGE),
    changed(done=True),
]


async def transcript(service: LangoSessionService) -> Session:
    session = await service.create_session(**WHERE, session_id="trip")
    for event in TRANSCRIPT:
        await service.append_event(session, event.model_copy(deep=True))
    return session


async def test_each_value_of_an_event_is_stored_once_in_a_field_of_a_message(service: LangoSessionService) -> None:
    await transcript(service)
    log = service.store.conversation("weather:ann:trip").all_messages()
    assert [message.id for message in log] == [event.id for event in TRANSCRIPT]
    assert [(message.role.value, message.author) for message in log] == [
        ("user", "user"),
        ("model", "agent"),
        ("tool", "agent"),
        ("model", "agent"),
        ("record", "agent"),
    ]
    question, call, answer, told, record = log
    assert question.content == "How warm will it be in Oslo tomorrow, and shall I take an umbrella?"
    assert question.created_at is not None
    assert round(question.created_at.timestamp(), 6) == 1795357132.125862
    assert call.content == "Let me see."
    assert call.tool_calls == [
        ToolCall(id="adk-1", name="forecast", arguments={"city": "Oslo", "days": 1}),
        ToolCall(id="adk-2", name="rain", arguments={"city": "Oslo"}),
    ]
    assert call.tokens == 30
    assert call.extra == {"google_adk": {"invocation_id": "i-1"}}
    assert answer.content is None
    assert answer.tool_calls == [
        ToolCall(id="adk-1", name="forecast", output={"celsius": -3}),
        ToolCall(id="adk-2", name="rain", output={"result": None}),
    ]
    delta = {"user:city": "Oslo", "asked": 1}
    assert answer.extra == {"google_adk": {"invocation_id": "i-1", "actions": {"state_delta": delta}}}
    assert told.content == "It will have -3 degrees and no rain: leave it at home."
    assert record.content == {"invocation_id": "i-1", "actions": {"state_delta": {"done": True}}}
    conversation = service.store.conversation("weather:ann:trip")
    costs = {"prompt_token_count": 120, "candidates_token_count": 30, "total_token_count": 150}
    assert [turn.usage for turn in conversation.turns.list()] == [costs, costs]
    assert conversation.total_usage() == {name: 2 * count for name, count in costs.items()}
    info = conversation.info()
    assert (info.agent_id, info.user_id, info.metadata, info.message_count) == ("weather", "ann", {}, 4)
    assert service.store.conversation("weather:ann:trip").values.get() == {"asked": 1, "done": True}
    assert service.store.shared_values("google_adk/weather:ann").get() == {"city": "Oslo"}


# Messages of other programs


async def test_session_of_another_program_is_read_as_events(service: LangoSessionService) -> None:
    store, key = service.store, "weather:ann:trip"
    asked = ToolCall(id="c", name="forecast", arguments='{"city": "Oslo"}')
    store.create(
        key,
        messages=[
            Message.system("Be brief."),
            Message.user("How warm is it?", id="m-1"),
            Message.assistant("Let me see", tool_calls=[asked]),
            Message.tool("-3", tool_call_id="c", name="forecast"),
            Message.tool(tool_calls=[ToolCall(id="d", name="rain", output={"mm": 0})]),
            Message(role="record", content={"cost": 1}),  # type: ignore[arg-type]
            Message.assistant([{"type": "text", "text": "It has"}, {"type": "text", "text": "-3"}], author="helper"),
            Message.assistant(tool_calls=[ToolCall(id="e", name="odd", arguments="[")]),
        ],
    )
    store.conversation(key).values.set({"n": 1})
    found = await service.get_session(**WHERE, session_id="trip")
    assert found is not None
    assert found.state == {"n": 1}
    shown = [
        (event.author, event.content.model_dump(mode="json", exclude_none=True) if event.content else None)
        for event in found.events
    ]
    forecast, rain = {"id": "c", "name": "forecast"}, {"id": "d", "name": "rain"}
    odd = {"id": "e", "name": "odd", "args": {"arguments": "["}}
    assert shown == [
        ("user", {"role": "user", "parts": [{"text": "Be brief."}]}),
        ("user", {"role": "user", "parts": [{"text": "How warm is it?"}]}),
        (
            "model",
            {
                "role": "model",
                "parts": [{"text": "Let me see"}, {"function_call": forecast | {"args": {"city": "Oslo"}}}],
            },
        ),
        ("user", {"role": "user", "parts": [{"function_response": forecast | {"response": {"result": "-3"}}}]}),
        ("user", {"role": "user", "parts": [{"function_response": rain | {"response": {"mm": 0}}}]}),
        ("helper", {"role": "model", "parts": [{"text": "It has"}, {"text": "-3"}]}),
        ("model", {"role": "model", "parts": [{"function_call": odd}]}),
    ]
    assert [event.id for event in found.events] == ["seq:1", "m-1", "seq:3", "seq:4", "seq:5", "seq:7", "seq:8"]
    await service.append_event(found, said("And now?"))
    assert texts(await service.get_session(**WHERE, session_id="trip"))[-1] == "And now?"
    for number in (1, 3):  # the record is not among them
        recent = await service.get_session(**WHERE, session_id="trip", config=_recent(number))
        assert recent is not None
        assert written(recent.events) == written(found.events[-number:])


PICTURES: Final[dict[str, Any]] = {
    "Anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/4PvvvP8="}},
    "OpenAI": {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/4PvvvP8="}},
    "page": {"type": "file", "mediaType": "image/jpeg", "url": "data:image/jpeg;base64,/9j/4PvvvP8="},
    "LangChain": {"type": "image", "base64": "/9j/4PvvvP8=", "mime_type": "image/jpeg"},
}


@pytest.mark.one_database
@pytest.mark.parametrize("form", PICTURES)
async def test_picture_of_another_program_is_a_picture_of_adk(service: LangoSessionService, form: str) -> None:
    service.store.create("weather:ann:trip", messages=[Message.user([{"type": "text", "text": "See"}, PICTURES[form]])])
    found = await service.get_session(**WHERE, session_id="trip")
    assert found is not None
    (event,) = found.events
    assert event.content is not None
    assert event.content.parts is not None
    text, picture = event.content.parts
    assert (text.text, picture.inline_data and picture.inline_data.mime_type) == ("See", "image/jpeg")
    assert picture.inline_data is not None
    assert picture.inline_data.data == base64.b64decode("/9j/4PvvvP8=")


@pytest.mark.one_database
async def test_picture_of_a_response_of_a_tool_is_sent_to_models(service: LangoSessionService) -> None:
    picture = types.FunctionResponsePart.from_bytes(data=b"\xff\xd8\xff\xe0", mime_type="image/jpeg")
    response = types.FunctionResponse(id="call-1", name="look", response={"seen": 1}, parts=[picture])
    session = await service.create_session(**WHERE, session_id="trip")
    for event in (said("See"), called("look")):
        await service.append_event(session, event)
    await service.append_event(session, Event(author="agent", content=content(types.Part(function_response=response))))
    conversation = service.store.conversation("weather:ann:trip")
    for format in ("anthropic", "openai-responses", "gemini"):
        wanted = "_9j_4A==" if format == "gemini" else "/9j/4A=="  # as ADK has written it
        assert wanted in json.dumps(conversation.history(format=format)[2])
        assert "seen" in json.dumps(conversation.history(format=format)[2])


@pytest.mark.one_database
async def test_call_of_another_program_in_blocks_and_in_tool_calls_is_one_call(service: LangoSessionService) -> None:
    use = {"type": "tool_use", "id": "c", "name": "forecast", "input": {}}
    call = ToolCall(id="c", name="forecast", arguments={})
    answers = [Message.assistant([use], tool_calls=[call]), Message.tool("no station", tool_call_id="c", failed=True)]
    service.store.create("weather:ann:trip", messages=answers)
    found = await service.get_session(**WHERE, session_id="trip")
    assert found is not None
    parts = [part for event in found.events if event.content for part in event.content.parts or []]
    assert [part.function_call.id for part in parts if part.function_call] == ["c"]
    assert [part.function_response.response for part in parts if part.function_response] == [{"error": "no station"}]


def _recent(number: int | None) -> GetSessionConfig | None:
    return None if number is None else GetSessionConfig(num_recent_events=number)


async def test_usage_in_the_store_equals_the_usage_of_the_events(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, session_id="trip")
    for factor in (1, 2):
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=100 * factor,
            candidates_token_count=10 * factor,
            cached_content_token_count=40 * factor,
            thoughts_token_count=5 * factor,
            prompt_tokens_details=[
                types.ModalityTokenCount(modality=types.MediaModality.TEXT, token_count=100 * factor)
            ],
        )
        await service.append_event(session, said("Hello", author="agent", usage_metadata=usage))
    stored = await service.get_session(**WHERE, session_id="trip")
    assert stored is not None
    spent = [event.usage_metadata for event in stored.events if event.usage_metadata]
    (row,) = service.store.usage()
    assert row.turns == len(spent) == 2
    assert row.input_tokens == sum(each.prompt_token_count or 0 for each in spent) == 300
    assert row.output_tokens == sum(each.candidates_token_count or 0 for each in spent)
    assert row.cached_tokens == sum(each.cached_content_token_count or 0 for each in spent)
    assert row.reasoning_tokens == sum(each.thoughts_token_count or 0 for each in spent)


async def test_usage_grouped_by_model_uses_the_model_version_of_the_events(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, session_id="trip")
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10)
    for version in ("gemini-a", "gemini-b", "gemini-a", None):
        event = said("Hello", author="agent", usage_metadata=usage, model_version=version)
        await service.append_event(session, event)
    stored = await service.get_session(**WHERE, session_id="trip")
    assert stored is not None
    assert written(stored.events) == written(session.events)
    rows = service.store.usage(["model"])
    assert [(row.model, row.input_tokens) for row in rows] == [(None, 10), ("gemini-a", 20), ("gemini-b", 10)]


async def test_events_of_a_turn_that_another_program_saved_have_no_usage(service: LangoSessionService) -> None:
    conversation = service.store.open("weather:ann:trip")
    conversation.save_turn([Message.assistant("Hello")], {"input_tokens": 5})
    found = await service.get_session(**WHERE, session_id="trip")
    assert found is not None
    assert (texts(found), found.events[0].usage_metadata) == (["Hello"], None)


async def test_sessions_of_other_programs_are_never_listed(service: LangoSessionService) -> None:
    await service.create_session(**WHERE, session_id="trip")
    long = "weather:ann:" + "/" * 480  # as an id of ADK's it would be too long
    for key in ("weather:1", "weather:", "weather:ann:trip:1", "weather:ann:%3a", "weather:ann:%", long):
        service.store.create(key)
    for listed in (await service.list_sessions(**WHERE), await service.list_sessions(app_name="weather")):
        assert [each.id for each in listed.sessions] == ["trip"]


async def test_adk_reads_messages_as_the_store_edited_popped_or_redacted_them(service: LangoSessionService) -> None:
    session = await transcript(service)
    store, key = service.store, "weather:ann:trip"
    store.conversation(key).edits.delete(2)
    store.conversation(key).pop_message(records=True)
    store.conversation(key).edits.update(1, Message.user("How warm is it?"))
    store.conversation(key).edits.redact(4, reason="a secret")
    found = await service.get_session(**WHERE, session_id="trip")
    assert found is not None
    assert texts(found) == ["How warm is it?", "", "(redacted)"]
    assert [event.id for event in found.events] == [session.events[each].id for each in (0, 2, 3)]
    assert found.events[1] == session.events[2]


async def test_adk_reads_summary_and_later_events_after_compaction(
    service: LangoSessionService,
) -> None:
    session = await transcript(service)
    conversation = service.store.conversation("weather:ann:trip")
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    await service.append_event(session, said("Meanwhile"))
    pending.finish([Message.assistant("We spoke of the weather.")])
    await service.append_event(session, said("Later"))
    told = ["We spoke of the weather.", "Meanwhile", "Later"]
    for number, expected in ((None, told), (2, told[1:]), (3, told), (9, told), (0, [])):
        found = await service.get_session(
            **WHERE, session_id="trip", config=None if number is None else _recent(number)
        )
        assert texts(found) == expected
    assert found is not None
    assert found.state == session.state


async def test_fork_has_separate_events_and_state(service: LangoSessionService) -> None:
    session = await transcript(service)
    service.store.conversation("weather:ann:trip").fork("weather:ann:branch", upto=4)
    branch = await service.get_session(**WHERE, session_id="branch")
    assert branch is not None
    assert (branch.events, branch.state) == (session.events[:4], session.state)
    await service.append_event(branch, changed(done=None))
    assert await stored(service, session) == session
    assert await stored(service, branch) == branch


@pytest.mark.parametrize("extra", ["[]", '{"google_adk": {"timestamp": {}}}'])
async def test_error_of_list_sessions_names_the_damaged_last_event(service: LangoSessionService, extra: str) -> None:
    await transcript(service)
    with service.store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE lango_message SET extra = :extra WHERE seq = 5"), {"extra": extra})
    for call in (service.list_sessions(**WHERE), service.get_session(**WHERE, session_id="trip", config=_recent(0))):
        with pytest.raises(DamagedMessage, match="message 5 of session 'weather:ann:trip'"):
            await call


class Item(BaseModel):
    """A model of an application, with a default and a field that may be None."""

    name: str
    qty: int = 1
    note: str | None = None
    parts: list["Item"] = []


@dataclasses.dataclass
class Ticket:
    number: int
    title: str | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Receipt(BaseModel):
    """A model whose JSON differs from its Python values."""

    model_config = ConfigDict(frozen=True)

    price: Decimal = Decimal("1.50")
    scan: bytes = b"abc"

    @field_serializer("price", when_used="json")
    def _price(self, value: Decimal) -> float:
        return float(value)


TEA = Item(name="tea", parts=[Item(name="cup")])
WHOLE_CUP = {"name": "cup", "qty": 1, "note": None, "parts": []}
WHOLE_TEA = {"name": "tea", "qty": 1, "note": None, "parts": [WHOLE_CUP]}
TICKET: dict[str, Any] = {"number": 1, "title": None, "tags": []}

MODELS: dict[str, Callable[[], BaseModel]] = {
    "application": lambda: TEA,
    "own JSON": Receipt,
    "lone surrogate": lambda: Item(name="\ud800"),
    "confirmation": ToolConfirmation,
    "content": lambda: content(types.Part(text="Hello")),
    "event": said,
}

PLACES: dict[str, tuple[Callable[[Any], Event], Callable[[Event], Any]]] = {
    "output": (lambda value: said(output=value), lambda event: event.output),
    "custom metadata": (
        lambda value: said(custom_metadata={"a": value}),
        lambda event: (event.custom_metadata or {})["a"],
    ),
    "agent state": (
        lambda value: said(actions=EventActions(agent_state={"a": value})),
        lambda event: (event.actions.agent_state or {})["a"],
    ),
    "state": (
        lambda value: said(actions=EventActions(state_delta={"a": value})),
        lambda event: event.actions.state_delta["a"],
    ),
    "confirmation": (
        lambda value: said(actions=EventActions(requested_tool_confirmations={"c": ToolConfirmation(payload=value)})),
        lambda event: event.actions.requested_tool_confirmations["c"].payload,
    ),
    "model response": (
        lambda value: said(actions=EventActions(set_model_response=value)),
        lambda event: event.actions.set_model_response,
    ),
    "arguments": (lambda value: called(a=value), lambda event: (event.get_function_calls()[0].args or {})["a"]),
    "response": (
        lambda value: answered(a=value),
        lambda event: (event.get_function_responses()[0].response or {})["a"],
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("value", "stored_value"),
    [(TEA, WHOLE_TEA), ([TEA], [WHOLE_TEA]), ({"a": TEA}, {"a": WHOLE_TEA}), (Ticket(1), TICKET)],
    ids=["model", "list", "dict", "dataclass"],
)
async def test_model_of_the_application_keeps_its_defaults_and_none(
    service: LangoSessionService, place: str, value: Any, stored_value: Any
) -> None:
    make, read = PLACES[place]
    session = await service.create_session(**WHERE)
    await service.append_event(session, make(value))
    (event,) = (await stored(service, session)).events
    assert read(event) == stored_value


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("model", MODELS)
async def test_model_is_restored_from_the_loaded_value(service: LangoSessionService, place: str, model: str) -> None:
    value = MODELS[model]()
    make, read = PLACES[place]
    session = await service.create_session(**WHERE)
    await service.append_event(session, make(value))
    (event,) = (await stored(service, session)).events
    assert type(value).model_validate(read(event)) == value


@pytest.mark.parametrize("place", PLACES)
async def test_loaded_values_equal_those_of_the_database_session_service(
    service: LangoSessionService, place: str, tmp_path: Path
) -> None:
    make, read = PLACES[place]
    values = [
        TEA,
        [TEA],
        (TEA,),
        {1: TEA},
        Receipt(),
        {Receipt()},
        frozenset([Receipt()]),
        Ticket(1),
        ToolConfirmation(),
    ]
    values += [content(types.Part(text="Hello")), False, 0, "", [], {}, set(), {"a": None}, {"a": set()}, UUID(int=1)]
    adk = DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'adk.db'}")
    async with adk:
        for value in values:
            loaded = []
            for each in (service, adk):
                session = await each.create_session(**WHERE)
                await each.append_event(session, make(value))
                found = await each.get_session(**WHERE, session_id=session.id)
                assert found is not None
                loaded.append(read(found.events[0]))
            assert _without_none(loaded[0]) == _without_none(loaded[1])


def _without_none(value: Any) -> Any:
    """Leave out fields that are None, as `DatabaseSessionService` does in models."""
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else repr(value)


async def test_model_that_is_not_valid_unicode_is_stored_with_base64(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE)
    await service.append_event(session, said(output=Receipt(scan=b"\xff")))
    (event,) = (await stored(service, session)).events
    assert event.output == {"price": "1.50", "scan": "_w=="}


async def test_model_in_the_first_state_keeps_its_defaults_and_none(service: LangoSessionService) -> None:
    session = await service.create_session(**WHERE, state={"a": TEA, "user:b": TEA})
    assert (await stored(service, session)).state == {"a": WHOLE_TEA, "user:b": WHOLE_TEA}


@pytest.mark.parametrize(
    "fields", [{"actions": EventActions(route="")}, {"long_running_tool_ids": set()}, {"partial": False}]
)
async def test_empty_value_of_an_event_is_stored(service: LangoSessionService, fields: dict[str, Any]) -> None:
    session = await service.create_session(**WHERE)
    event = said(**fields)
    await service.append_event(session, event)
    (loaded,) = (await stored(service, session)).events
    assert all(getattr(loaded, name) == value for name, value in fields.items())
