"""Conversion of pydantic-ai's messages: any message is loaded equal, and stored in typed fields where these exist."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from frameworks.pydantic_ai.talking import weather_agent
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from lango_store import InvalidMessage, Message, MessageRole, Store, window
from lango_store.integrations.fields import same_json
from lango_store.integrations.pydantic_ai import LangoConversationStore
from lango_store.integrations.pydantic_ai.items import messages_of, model_messages

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

_numbers = itertools.count()

any_text = st.text(st.characters(), max_size=6) | st.sampled_from(
    ["\0", "\ud800", "a\udfff", "\ufffd", "é\U0001f600", ""]
)
any_name = st.text(max_size=6)  # the framework writes half a surrogate pair in a name as U+FFFD
scalars = (
    any_text
    | st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**40, -(10**400), 2**53, 0, 1, 1.0, -0.0])
    | st.floats(allow_nan=False, allow_infinity=False)
)
any_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_name, inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(any_name, any_json, max_size=3)
binary = st.builds(BinaryContent, data=st.binary(max_size=6), media_type=st.sampled_from(["image/png", "audio/wav"]))
prompts = any_text | st.lists(any_text | binary | st.builds(ImageUrl, url=st.just("http://x/y.png")), max_size=3)

request_parts: st.SearchStrategy[Any] = st.one_of(
    st.builds(UserPromptPart, content=prompts),
    st.builds(SystemPromptPart, content=any_text),
    st.builds(ToolReturnPart, tool_name=any_text, content=any_json, tool_call_id=any_text, metadata=any_json),
)
response_parts: st.SearchStrategy[Any] = st.one_of(
    st.builds(TextPart, content=any_text, id=st.none() | any_text, provider_details=st.none() | objects),
    st.builds(ThinkingPart, content=any_text, signature=st.none() | any_text),
    st.builds(ToolCallPart, tool_name=any_text, args=st.none() | any_text | objects, tool_call_id=any_text),
    st.builds(NativeToolCallPart, tool_name=any_text, args=st.none() | objects, tool_call_id=st.sampled_from("ab")),
    st.builds(NativeToolReturnPart, tool_name=any_text, content=any_json, tool_call_id=st.sampled_from("ab")),
    st.builds(FilePart, content=binary),
)
usages = st.builds(
    RequestUsage,
    input_tokens=st.integers(0, 9),
    output_tokens=st.integers(0, 2**54),
    details=st.dictionaries(any_name, st.integers(0, 9), max_size=2),
)
requests = st.builds(
    ModelRequest,
    parts=st.lists(request_parts, max_size=4),
    instructions=st.none() | any_text,
    metadata=st.none() | objects,
    run_id=st.none() | any_text,
)
responses = st.builds(
    ModelResponse,
    parts=st.lists(response_parts, max_size=5),
    usage=usages,
    model_name=st.none() | any_text,
    provider_details=st.none() | objects,
)


@given(st.lists(requests | responses, min_size=1, max_size=4))
def test_message_is_rebuilt_from_stored_fields(messages: list[ModelMessage]) -> None:
    stored = messages_of(messages, ["id"] * len(messages))
    assert {each.id for each in stored} == {"id"}
    assert same_json(as_items(model_messages("c", stored)), as_items(messages))


def test_any_message_is_loaded_equal(url: str) -> None:
    with Store(url) as store:

        @given(st.lists(requests | responses, min_size=1, max_size=3))
        def test(messages: list[ModelMessage]) -> None:
            async def main() -> None:
                conversations = LangoConversationStore(store)
                saved = Conversation(conversation_id=f"c{next(_numbers)}", messages=messages)
                await conversations.save(saved)
                loaded = await conversations.load(saved.conversation_id)
                await conversations.close()
                assert loaded is not None
                assert same_json(as_items(loaded.messages), as_items(saved.messages))

            asyncio.run(main())

        test()


def as_items(messages: list[ModelMessage]) -> Any:
    """Return messages as the framework dumps them after loading, so that its conversions apply to both sides."""
    items = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return ModelMessagesTypeAdapter.dump_python(ModelMessagesTypeAdapter.validate_python(items), mode="json")


parts: dict[str, ModelMessage] = {
    "a question": ModelRequest(parts=[UserPromptPart("hi")]),
    "instructions": ModelRequest(parts=[], instructions="Be brief."),
    "a system prompt and a question": ModelRequest(parts=[SystemPromptPart("Be brief."), UserPromptPart("hi")]),
    "two system prompts": ModelRequest(parts=[SystemPromptPart("a"), SystemPromptPart("b")]),
    "two questions": ModelRequest(parts=[UserPromptPart("a"), UserPromptPart("b")]),
    "a picture": ModelRequest(
        parts=[UserPromptPart(["see", BinaryContent(b"\xff\x00", media_type="image/png"), ImageUrl("http://x/y.png")])]
    ),
    "a marked text": ModelRequest(parts=[UserPromptPart([TextContent("a", metadata={"b": 1}), CachePoint()])]),
    "a question of lists": ModelRequest(parts=[UserPromptPart([]), UserPromptPart(["a"])]),
    "a tool's answers": ModelRequest(
        parts=[ToolReturnPart("t", {"a": 1}, "1"), ToolReturnPart("t", None, "2"), UserPromptPart("and?")]
    ),
    "a picture from a tool": ModelRequest(
        parts=[ToolReturnPart("t", BinaryContent(b"\xff\x00", media_type="image/png"), "1")]
    ),
    "a failed tool": ModelRequest(parts=[ToolReturnPart("t", "no", "1", outcome="failed")]),
    "nothing": ModelResponse(parts=[]),
    "texts and thoughts": ModelResponse(parts=[ThinkingPart("hm", signature="s"), TextPart("a"), TextPart("b")]),
    "calls": ModelResponse(parts=[TextPart("a"), ToolCallPart("t", '{"a": 1', "1"), ToolCallPart("t", None, "2")]),
    "a tool of the provider": ModelResponse(
        parts=[
            NativeToolCallPart("search", {"q": "x"}, "1"),
            NativeToolCallPart("search", {"q": "y"}, "2"),
            NativeToolReturnPart("search", ["x"], "1"),
            NativeToolReturnPart("search", ["y"], "2"),
            TextPart("found"),
        ]
    ),
    "an answer without its call": ModelResponse(parts=[NativeToolReturnPart("search", ["x"], "1")]),
    "a compaction and a file": ModelResponse(
        parts=[CompactionPart("c"), FilePart(BinaryContent(b"\xff", media_type="image/png"))]
    ),
}


@pytest.mark.parametrize("message", parts.values(), ids=parts.keys())
def test_each_kind_of_part_is_converted_back_equal(message: ModelMessage) -> None:
    assert same_json(as_items(model_messages("c", messages_of([message], ["id"]))), as_items([message]))


def test_message_is_stored_in_typed_fields(store: Store, conversations: LangoConversationStore) -> None:
    result = asyncio.run(weather_agent().run("Oslo?", conversation=Conversation(conversation_id="c")))
    asyncio.run(conversations.save(result))
    question, call, answer, reply = store.conversation("c").messages()
    assert [message.role for message in (question, call, answer, reply)] == ["user", "assistant", "tool", "assistant"]
    assert (question.content, reply.content) == ("Oslo?", "It is -3 degrees.")
    assert (call.tool_calls[0].name, call.tool_calls[0].arguments) == ("get_weather", {"city": "Oslo"})
    assert answer.tool_calls[0].id == call.tool_calls[0].id
    assert answer.tool_calls[0].output == {"city": "Oslo", "celsius": -3}
    assert (call.tokens, reply.tokens) == (1, 2)
    assert call.created_at == result.all_messages()[1].timestamp
    assert store.conversation("c").info().token_count == 3


def test_tuple_and_nan_in_a_tool_return_are_stored_as_list_and_null(
    conversations: LangoConversationStore,
) -> None:
    message = ModelRequest(parts=[ToolReturnPart("t", {"a": (1, float("nan"))}, "1")])
    asyncio.run(conversations.save(Conversation(conversation_id="c", messages=[message])))
    loaded = asyncio.run(conversations.load("c"))
    assert loaded is not None
    content: Any = loaded.messages[0].parts[0]
    assert content.content == {"a": [1, None]}


def test_save_with_an_invalid_message_writes_nothing(store: Store, conversations: LangoConversationStore) -> None:
    deep: Any = 1
    for _ in range(250):
        deep = [deep]
    talk = Conversation(
        conversation_id="c",
        messages=[ModelRequest(parts=[UserPromptPart("hi")]), ModelRequest(parts=[ToolReturnPart("t", deep, "1")])],
    )
    with pytest.raises(InvalidMessage, match="tool_calls"):
        asyncio.run(conversations.save(talk))
    assert not store.exists("c")


def test_request_parts_are_stored_with_matching_roles() -> None:
    def role(*given: Any) -> MessageRole:
        return messages_of([ModelRequest(parts=list(given))], ["id"])[0].role

    assert role(SystemPromptPart("a")) is MessageRole.SYSTEM
    assert role(SystemPromptPart("a"), UserPromptPart("b")) is MessageRole.USER
    assert role(ToolReturnPart("t", 1, "1"), UserPromptPart("b")) is MessageRole.TOOL
    assert role() is MessageRole.USER


def test_pictures_and_speech_of_answers_and_data_next_to_pictures_of_tools_reach_models() -> None:
    picture = BinaryContent(b"\xff\xd8\xff\xe0", media_type="image/jpeg")
    found: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("Draw")]),
        ModelResponse(parts=[FilePart(picture), ToolCallPart("look", {}, tool_call_id="c")]),
        ModelRequest(parts=[ToolReturnPart("look", [{"seen": 1}, picture], tool_call_id="c")]),
    ]
    speech = {"part_kind": "speech", "speaker": "assistant", "transcript": "I have seen it."}
    stored = messages_of(found, ["1", "2", "3"])
    stored.append(Message.assistant(extra={"pydantic_ai": {"item": {}, "parts": [speech]}}))
    _, answer, results, spoken = window.prompt(stored, "gemini")
    assert answer["parts"][0] == {"inline_data": {"mime_type": "image/jpeg", "data": "/9j/4A=="}}
    assert "seen" in json.dumps(results)
    assert spoken["parts"] == [{"text": "I have seen it."}]
    assert [block["type"] for block in window.prompt(stored, "anthropic")[2]["content"][0]["content"]] == [
        *("text", "image"),
    ]
