"""Prompts: `as_prompt` and `close_calls` of `lango_store.window`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.factories import message

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.window import (
    answers,
    as_prompt,
    close_calls,
    prompt,
)

pytestmark = pytest.mark.one_database


def test_prompt_holds_only_fields_that_a_model_needs() -> None:
    asked = message(
        None,
        role=MessageRole.MODEL,
        author="planner",
        tokens=7,
        id="m1",
        seq=2,
        extra={"timestamp": "now"},
        tool_calls=[
            ToolCall(id="c1", name="weather", arguments={"city": "Tromsø"}, extra={"signature": "s"}),
            ToolCall(id="c2", name="clock", arguments='{"zone": "CET"}'),
            ToolCall(id="c3", name="dice"),
            ToolCall(id="c4", name="sum", arguments=[]),
        ],
    )
    answered = message([{"type": "text", "text": "-3"}], role=MessageRole.FUNCTION, tool_call_id="c1", name="weather")
    question = message("hi")
    assert [list(entry) for entry in as_prompt([asked, answered, question])] == [
        ["role", "content", "tool_calls"],
        ["role", "content", "tool_call_id", "name"],
        ["role", "content"],
    ]
    assert as_prompt([question, asked, answered]) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Troms\\u00f8"}'},
                    "signature": "s",
                },
                {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}},
                {"id": "c3", "type": "function", "function": {"name": "dice", "arguments": "{}"}},
                {"id": "c4", "type": "function", "function": {"name": "sum", "arguments": "[]"}},
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "-3"}], "tool_call_id": "c1", "name": "weather"},
    ]
    assert as_prompt([asked], nested=False)[0]["tool_calls"] == [
        {"id": "c1", "name": "weather", "arguments": {"city": "Tromsø"}},
        {"id": "c2", "name": "clock", "arguments": '{"zone": "CET"}'},
        {"id": "c3", "name": "dice"},
        {"id": "c4", "name": "sum", "arguments": []},
    ]


def test_each_tool_output_becomes_a_separate_message() -> None:
    outputs = [
        ToolCall(id="c1", name="weather", output={"city": "Tromsø"}),
        ToolCall(id="c2", name="", output="as it is"),
        ToolCall(id="c3", name="dice", output=None),
        ToolCall(id="c4", name="dice"),
    ]
    combined = message("five", role=MessageRole.TOOL, tool_call_id="c5", name="sum", tool_calls=outputs[:1])
    assert as_prompt([message("a summary", role=MessageRole.TOOL, tool_calls=outputs)]) == [
        {"role": "tool", "content": '{"city": "Tromsø"}', "tool_call_id": "c1", "name": "weather"},
        {"role": "tool", "content": "as it is", "tool_call_id": "c2"},
        {"role": "tool", "content": "null", "tool_call_id": "c3", "name": "dice"},
    ]
    assert as_prompt([combined], nested=False) == [
        {"role": "tool", "content": "five", "tool_call_id": "c5", "name": "sum"},
        {"role": "tool", "content": {"city": "Tromsø"}, "tool_call_id": "c1", "name": "weather"},
    ]
    assert len(as_prompt([combined.model_copy(update={"tool_call_id": "c1"})])) == 1


def test_tool_outputs_of_an_assistant_message_follow_that_message() -> None:
    calls = [ToolCall(id="c1", name="dice", arguments={}, output=6), ToolCall(id="c2", name="dice", arguments={})]
    assert as_prompt([message("", role=MessageRole.ASSISTANT, tool_calls=calls)], nested=False) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "name": "dice", "arguments": {}},
                {"id": "c2", "name": "dice", "arguments": {}},
            ],
        },
        {"role": "tool", "content": 6, "tool_call_id": "c1", "name": "dice"},
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ids = st.sampled_from(["c1", "c2", "c3"])
tool_calls = st.builds(
    lambda call_id, name, given: ToolCall(id=call_id, name=name, **given),
    ids | st.just(""),
    st.sampled_from(["", "n"]),
    st.fixed_dictionaries({}, optional={"arguments": json_values, "output": json_values}),
)
any_message = st.builds(
    Message,
    role=st.sampled_from(MessageRole),
    content=json_values,
    name=st.none() | st.sampled_from(["", "n"]),
    tool_call_id=st.none() | ids | st.just(""),
    tool_calls=st.lists(tool_calls, max_size=3),
    extra=st.dictionaries(st.text(), json_values, max_size=2),
)


def change_in_place(value: Any) -> None:
    """Change every list and dict inside a value in place."""
    for inner in list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []:
        change_in_place(inner)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")


@pytest.mark.slow
@given(conversation=st.lists(any_message, max_size=5), nested=st.booleans())
def test_prompt_shares_no_objects_with_the_messages(conversation: list[Message], nested: bool) -> None:
    before = [each.model_dump() for each in conversation]
    change_in_place(as_prompt(conversation, nested=nested))
    assert [each.model_dump() for each in conversation] == before


@pytest.mark.slow
@given(conversation=st.lists(any_message, max_size=5), nested=st.booleans())
def test_prompt_contains_only_fields_of_chat_apis_and_every_tool_result(
    conversation: list[Message], nested: bool
) -> None:
    prompt = as_prompt(conversation, nested=nested)
    order = ["role", "content", "tool_calls", "tool_call_id", "name"]
    for entry in prompt:
        assert list(entry) == [key for key in order if key in entry]
        assert set(entry) >= {"role", "content"}
        assert all(entry[key] for key in entry if key not in ("role", "content"))
        assert type(entry["role"]) is str
        assert MessageRole(entry["role"]).canonical == entry["role"]
        for call in entry.get("tool_calls", []):
            assert "output" not in call
            assert not nested or isinstance(call["function"]["arguments"], str)
    non_records = [each for each in conversation if each.role is not MessageRole.RECORD]
    outputs = [call.output for each in non_records for call in each.tool_calls if call.answered]
    tool_contents = [entry["content"] for entry in prompt if entry["role"] == "tool"]
    for output in outputs:
        tool_contents.remove(
            output if isinstance(output, str) or not nested else json.dumps(output, ensure_ascii=False)
        )
    answered_ids = [call_id for each in conversation for call_id in answers(each)]
    assert set(answered_ids) <= {entry.get("tool_call_id") for entry in prompt}


def asked(*ids: str) -> Message:
    return message(role=MessageRole.ASSISTANT, tool_calls=[ToolCall(id=id, name="f") for id in ids])


def closed_in(*talk: Message) -> list[str | None]:
    return [each.tool_call_id for each in close_calls(talk) if each.extra == {"failed": True}]


def test_close_calls_adds_a_result_for_each_call_that_has_none() -> None:
    def result(id: str | None) -> Message:
        return message("done", role=MessageRole.TOOL, tool_call_id=id)

    closed = close_calls([asked("a", "b"), result("b"), message("later")])
    assert [each.tool_call_id for each in closed] == [None, "a", "b", None]
    again = close_calls([asked("a"), asked("a"), result("a")])
    assert [each.role for each in again] == ["assistant", "tool", "assistant", "tool"]
    assert closed_in(asked("a", "b"), result("b"), message("later")) == ["a"]
    assert closed_in(asked("a", "a"), result("a")) == ["a"]
    assert closed_in(asked("a"), result("x")) == ["a"]
    assert closed_in(asked("a"), message("meanwhile"), result("a")) == []
    assert closed_in(asked("a", "b"), result(None)) == ["b"]
    assert closed_in(asked("", ""), result("x")) == [None]
    outputs = [ToolCall(id=id, name="f", output=1) for id in ("a", "b")]
    assert closed_in(asked("a", "b", "c"), message(role=MessageRole.FUNCTION, tool_calls=outputs)) == ["c"]
    assert closed_in(message(role=MessageRole.MODEL, tool_calls=outputs)) == []


def has_one_order(message: Message) -> bool:
    """Return True if results of the calls of a message, and its own results, have one place that is right.

    The results of several assistant messages have none in one message. No provider gives an id, or a name, to only some
    of the calls of a message.
    """
    calls = message.tool_calls
    is_result = message.role.canonical is MessageRole.TOOL
    is_uniform = len({(bool(call.id), bool(call.name)) for call in calls}) < 2
    return is_uniform and (not is_result or len(calls) + bool(message.tool_call_id) <= 1)


def test_results_with_one_id_answer_the_calls_in_their_order() -> None:
    calls = [ToolCall(id="call_0", name="pay")] * 3
    results = [Message.tool(text, tool_call_id="call_0", name="pay") for text in ("first", "second", "third", "fourth")]
    closed = close_calls([Message.assistant(tool_calls=calls), *results])
    assert [each.content for each in closed[1:]] == ["first", "second", "third"]


def test_results_with_one_id_answer_the_calls_of_their_tools() -> None:
    asking = Message.assistant(tool_calls=[ToolCall(id="call_0", name=name) for name in ("pay", "mail")])
    closed = close_calls([asking, *[Message.tool(name, tool_call_id="call_0", name=name) for name in ("mail", "pay")]])
    assert [each.content for each in closed[1:]] == ["pay", "mail"]


def test_calls_with_one_id_and_one_name_keep_their_arguments() -> None:
    both = [ToolCall(id="call_0", name="pay", arguments={"euros": euros}) for euros in (1, 2)]
    (asking, *_) = close_calls([Message.assistant(tool_calls=both)])
    assert asking.tool_calls == both
    assert prompt([asking.model_copy(update={"seq": 1})], nested=False)[0]["tool_calls"] == [
        {"id": each.id, "name": each.name, "arguments": each.arguments} for each in both
    ]


@pytest.mark.slow
@given(conversation=st.lists(any_message.filter(has_one_order), max_size=6))
def test_close_calls_changes_only_results_and_is_idempotent(conversation: list[Message]) -> None:
    closed = close_calls(conversation)
    assert close_calls(closed) == closed
    assert without_results(closed) == without_results(conversation)
    results = 0
    for position, each in enumerate(closed):
        asked = each.tool_calls if each.role.canonical is MessageRole.ASSISTANT else []
        following = closed[position + 1 : position + 1 + len(asked)]
        assert [one.role.canonical for one in following] == [MessageRole.TOOL for _ in asked]
        results += len(following)
    assert results == sum(each.role.canonical is MessageRole.TOOL for each in closed)


def without_results(messages: list[Message]) -> list[tuple[MessageRole, Any]]:
    left_out = (MessageRole.TOOL, MessageRole.RECORD)
    return [(each.role, each.content) for each in messages if each.role.canonical not in left_out]
