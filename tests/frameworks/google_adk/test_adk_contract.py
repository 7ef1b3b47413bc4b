"""The contract of ADK's session services: ids and events."""

from collections.abc import Callable

import pytest
from frameworks.google_adk.adk_events import WHERE, answered, called, content, said, stored
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

from lango_store import LangoStoreError
from lango_store.integrations.google_adk import LangoSessionService

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

# Ids


async def test_ids_are_stripped_of_whitespace_on_create_read_and_delete(service: LangoSessionService) -> None:
    made = await service.create_session(**WHERE, session_id="  trip\n")
    assert made.id == "trip"
    assert await service.get_session(**WHERE, session_id=" trip ") == made
    await service.delete_session(**WHERE, session_id="\ttrip ")
    assert await service.get_session(**WHERE, session_id="trip") is None


@pytest.mark.parametrize("blank", [None, "", "   "])
async def test_blank_session_id_is_replaced_by_a_generated_id(service: LangoSessionService, blank: str | None) -> None:
    one, other = [await service.create_session(**WHERE, session_id=blank) for _ in range(2)]
    assert one.id.strip()
    assert one.id != other.id


async def test_different_app_user_and_session_ids_map_to_different_keys(service: LangoSessionService) -> None:
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


async def test_append_to_deleted_session_is_refused(service: LangoSessionService) -> None:
    made = await service.create_session(**WHERE, session_id="trip", state={"a": 1})
    await service.delete_session(**WHERE, session_id="trip")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(made, said())
    assert made.events == []
    assert await service.get_session(**WHERE, session_id="trip") is None
    await service.delete_session(**WHERE, session_id="trip")
    assert (await service.create_session(**WHERE, session_id="trip")).state == {}


# Loaded events


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
}


@pytest.mark.parametrize("make", EVENTS.values(), ids=EVENTS.keys())
async def test_every_field_of_an_event_is_stored_and_loaded(
    service: LangoSessionService, make: Callable[[], Event]
) -> None:
    session = await service.create_session(**WHERE)
    event = make()
    before = event.model_copy(deep=True)
    assert await service.append_event(session, event) is event
    assert event == before
    assert session.events == [event]
    assert await stored(service, session) == session
    await service.append_event(session, event)
    assert await stored(service, session) == session


@pytest.mark.parametrize("id", ["x" * 600, "a\0b", "\ud800"])
async def test_event_id_that_is_too_long_or_has_nul_or_surrogate_is_refused(
    service: LangoSessionService, id: str
) -> None:
    session = await service.create_session(**WHERE)
    with pytest.raises(LangoStoreError, match="id"):
        await service.append_event(session, said(id=id))
    assert (await stored(service, session)).events == session.events == []
