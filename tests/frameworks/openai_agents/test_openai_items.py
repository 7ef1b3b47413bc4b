"""Conversion of items: any item is loaded equal, and stored in fields of a message where these exist."""

import asyncio
import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lango_store import InvalidMessage, Message, MessageRole, Store, ToolCall
from lango_store.integrations.fields import same_json
from lango_store.integrations.openai_agents import LangoSession
from lango_store.interchange.openai_items import items_of, messages_of

from .responses import ANSWER_OSLO, ANSWER_ROME, EXCHANGE, OTHERS, QUESTION, REASONING, Item

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**301)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["\x00", "\ud800", "user", "text"])
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["type", "role", "content", "call_id", "name", "arguments", "input", "output", "id", "status"])
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "text", "input_image"]), "text": scalars},
    optional={"annotations": json_values},
)
values = (
    json_values
    | st.lists(blocks, max_size=2)
    | st.sampled_from(
        ["user", "assistant", "tool", "record", "message", "function_call", "function_call_output", "custom_tool_call"]
    )
)
strange = st.dictionaries(names | st.text(max_size=3), values, max_size=7)


def said_by(role: str) -> st.SearchStrategy[Item]:
    content = st.text(st.characters(), max_size=10) | st.lists(blocks, max_size=2)
    return st.fixed_dictionaries(
        {"role": st.just(role), "content": content}, optional={"id": json_values, "x": json_values}
    )


def of_type(kind: str, body: str) -> st.SearchStrategy[Item]:
    fields = {"type": st.just(kind), "call_id": st.text(st.characters(), max_size=4), body: values}
    return st.fixed_dictionaries(fields, optional={"name": st.text(max_size=3), "id": json_values, "status": scalars})


items = st.lists(
    said_by("user")
    | said_by("assistant")
    | of_type("function_call", "arguments")
    | of_type("function_call_output", "output")
    | of_type("custom_tool_call", "input")
    | of_type("custom_tool_call_output", "output")
    | strange
    | json_values,
    max_size=6,
)


def read(messages: list[Message]) -> list[Item]:
    return [item for message in messages for item in items_of(message)]


@given(items)
def test_items_are_equal_after_conversion_to_messages_and_back(given_items: list[Item]) -> None:
    assert same_json(read(messages_of(given_items)), given_items)


@settings(max_examples=15)
@given(given_items=items)
def test_any_items_are_loaded_equal(url: str, given_items: list[Item]) -> None:
    async def main() -> None:
        async with LangoSession("k", url) as session:
            await session.clear_session()
            await session.add_items(given_items)
            assert same_json(await session.get_items(), given_items)
            for item in reversed(given_items):
                assert same_json(await session.pop_item(), item)

    asyncio.run(main())


async def test_all_kinds_of_items_are_loaded_in_order(url: str) -> None:
    both = [*EXCHANGE, *OTHERS]
    async with LangoSession("k", url) as session:
        await session.add_items(both)
        assert same_json(await session.get_items(), both)
        for limit in range(1, len(both) + 2):
            assert same_json(await session.get_items(limit), both[-limit:])
        for count in range(len(both) - 1, -1, -1):
            assert same_json(await session.pop_item(), both[count])
            assert same_json(await session.get_items(), both[:count])
        assert await session.pop_item() is None


def test_items_are_stored_in_fields_of_messages() -> None:
    question, reasoning, calls, oslo, rome, said = messages_of(EXCHANGE)
    assert (question.role, question.content, question.extra) == (MessageRole.USER, QUESTION["content"], {})
    assert (reasoning.role, reasoning.content) == (MessageRole.RECORD, REASONING)
    assert calls.role is MessageRole.ASSISTANT
    assert [(call.id, call.name, call.arguments) for call in calls.tool_calls] == [
        ("call_1", "get_weather", '{"city":"Oslo"}'),
        ("call_2", "get_weather", '{"city":"Rome"}'),
    ]
    for answer, item in ((oslo, ANSWER_OSLO), (rome, ANSWER_ROME)):
        assert answer.role is MessageRole.TOOL
        assert [(call.id, call.name, call.output) for call in answer.tool_calls] == [
            (item["call_id"], "get_weather", item["output"])
        ]
        assert answer.tool_call_id == item["call_id"]
    assert (said.role, said.content) == (MessageRole.ASSISTANT, "Oslo -3, Rome 17.")


@pytest.mark.parametrize("item", OTHERS, ids=repr)
def test_no_text_of_an_item_is_stored_twice(item: Item) -> None:
    (message,) = messages_of([item])
    fields = message.model_dump(mode="json", exclude={"role", "name", "author"})
    assert len(json.dumps(fields)) < len(json.dumps(item)) + 150


# Items that are not JSON


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": float("nan")},
        {"role": "user", "content": [{"text": float("inf")}]},
        {"role": "user", "content": Odd()},
        {"role": "user", "content": {1, 2}},
        {("a",): 1},
    ],
)
async def test_item_that_is_not_json_is_refused_with_its_number_and_nothing_is_written(url: str, item: Item) -> None:
    async with LangoSession("k", url) as session:
        with pytest.raises(InvalidMessage, match=r"items\[1\]"):
            await session.add_items([QUESTION, item])
        assert await session.get_items() == []
        assert not session.store.exists("k")


def test_tuples_in_items_become_lists_and_keys_become_text() -> None:
    item: Any = {"role": "user", "content": ({"type": "input_text", "text": "a", "n": (1, 2)},), 1: True}
    assert read(messages_of([item])) == [json.loads(json.dumps(item))]


# Messages of other programs


def asked(*calls: ToolCall, content: Any = None) -> Message:
    return Message.assistant(content, tool_calls=list(calls))


def user_texts(*texts: str) -> Item:
    return {"role": "user", "content": [{"type": "input_text", "text": text} for text in texts]}


def user_block(block: dict[str, Any]) -> Item:
    return {"role": "user", "content": [block]}


IMAGE: Final = "data:image/png;base64,iVBORw0="
FOREIGN: dict[str, tuple[Message, list[Item]]] = {
    "text": (Message.user("hi"), [{"role": "user", "content": "hi"}]),
    "system": (Message.system("Be brief."), [{"role": "system", "content": "Be brief."}]),
    "model": (Message(role=MessageRole.MODEL, content="hi"), [{"role": "assistant", "content": "hi"}]),
    "nothing": (Message.assistant(), [{"role": "assistant", "content": ""}]),
    "blocks": (Message.user([{"type": "text", "text": "a"}, {"text": "b"}]), [user_texts("a", "b")]),
    "an image": (
        Message.user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": IMAGE}}]),
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": IMAGE, "detail": "auto"},
                ],
            }
        ],
    ),
    "an image of Anthropic": (
        Message.user(
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}}],
        ),
        [user_block({"type": "input_image", "image_url": IMAGE, "detail": "auto"})],
    ),
    "an image of Gemini": (
        Message.user([{"inline_data": {"mime_type": "image/png", "data": "iVBORw0"}}]),
        [user_block({"type": "input_image", "image_url": IMAGE, "detail": "auto"})],
    ),
    "a PDF of a page": (
        Message.user(
            [
                {
                    "type": "file",
                    "mediaType": "application/pdf",
                    "url": "data:application/pdf;base64,JVBERg==",
                    "filename": "a.pdf",
                }
            ],
        ),
        [user_block({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="})],
    ),
    "a call in blocks and in tool_calls": (
        asked(
            ToolCall(id="1", name="f", arguments={"a": 1}),
            content=[
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        ),
        [
            {"role": "assistant", "content": "Look:"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
        ],
    ),
    "thinking of another provider": (
        Message.assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hi."}]),
        [{"role": "assistant", "content": "Hi."}],
    ),
    "a refusal": (
        Message.assistant([{"type": "refusal", "refusal": "No."}]),
        [{"role": "assistant", "content": "No."}],
    ),
    "JSON": (Message.assistant({"a": 1}), [{"role": "assistant", "content": '{"a": 1}'}]),
    "calls": (
        asked(ToolCall(id="1", name="f", arguments={"a": 1}), ToolCall(id="2", name="g"), content="Look:"),
        [
            {"role": "assistant", "content": "Look:"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        ],
    ),
    "calls with their answers": (
        asked(ToolCall(id="1", name="f", arguments="{}", output={"b": 2}), ToolCall(id="2", name="g", output=None)),
        [
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": '{"b": 2}'},
            {"type": "function_call_output", "call_id": "2", "output": "null"},
        ],
    ),
    "a custom call": (
        asked(ToolCall(id="1", name="grep", arguments="a", extra={"type": "custom"})),
        [{"type": "custom_tool_call", "call_id": "1", "name": "grep", "input": "a"}],
    ),
    "an answer": (
        Message.tool("17", tool_call_id="1", name="f"),
        [{"type": "function_call_output", "call_id": "1", "output": "17"}],
    ),
    "an answer of an older API": (
        Message(role=MessageRole.FUNCTION, content=[{"type": "text", "text": "17"}], tool_call_id="1"),
        [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "17"}]}],
    ),
    "an answer that repeats its call": (
        Message.tool("17", tool_calls=[ToolCall(id="1", name="f", arguments="{}")]),
        [{"type": "function_call_output", "call_id": "1", "output": "17"}],
    ),
    "answers": (
        Message.tool(
            tool_calls=[ToolCall(id="1", name="f", output="a"), ToolCall(id="2", name="g", output=[1])],
        ),
        [
            {"type": "function_call_output", "call_id": "1", "output": "a"},
            {"type": "function_call_output", "call_id": "2", "output": "[1]"},
        ],
    ),
}


calls = st.builds(
    lambda id, fields: ToolCall(id=id, name="f", **fields),
    st.sampled_from("123"),
    st.dictionaries(st.sampled_from(["arguments", "output"]), json_values, max_size=2),
)
foreign = st.builds(
    Message,
    role=st.sampled_from(MessageRole).filter(lambda role: role is not MessageRole.RECORD),
    content=json_values | st.lists(blocks, max_size=2),
    tool_calls=st.lists(calls, max_size=3),
    tool_call_id=st.none() | st.sampled_from("123"),
)


@given(foreign)
def test_items_of_any_message_are_stored_unchanged(message: Message) -> None:
    found = items_of(message)
    assert found
    assert same_json(read(messages_of(found)), found)


@pytest.mark.parametrize("case", FOREIGN)
def test_message_of_another_program_is_read_and_popped_as_items(url: str, case: str) -> None:
    message, expected = FOREIGN[case]
    record = Message(role=MessageRole.RECORD, content="a mode", author="somebody")
    with Store(url) as store:
        store.conversation("k").append_messages([record, message, record], create=True)

        async def main() -> None:
            session = LangoSession("k", store)
            assert same_json(await session.get_items(), expected)
            for limit in range(1, len(expected)):
                assert same_json(await session.get_items(limit), expected[-limit:])
            for left in range(len(expected) - 1, -1, -1):
                assert same_json(await session.pop_item(), expected[left])
                assert same_json(await session.get_items(), expected[:left])
            assert await session.pop_item() is None

        asyncio.run(main())
        assert store.conversation("k").info().record_count == 2
