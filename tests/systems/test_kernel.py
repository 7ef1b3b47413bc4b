"""Scenarios of kernel's session interface: ids, appends, defensive copies, clear."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lango_store import Message, MessageRole, Store, ToolCall


def test_new_session_key_is_a_uuid7(store: Store) -> None:
    first, second = store.open(), store.open()
    assert uuid.UUID(first.key).version == 7
    assert first.key != second.key


def test_messages_are_returned_in_append_order(store: Store) -> None:
    session = store.open()
    for role in (MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL):
        session.append_message(Message(role=role, content=role.value))
    assert [m.content for m in session.messages()] == ["system", "user", "assistant", "tool"]


def test_messages_are_a_defensive_copy(store: Store) -> None:
    session = store.open()
    call = ToolCall(id="c", name="search", arguments='{"q": "x"}')
    session.append_message(Message(role=MessageRole.ASSISTANT, content=[{"type": "text"}], tool_calls=[call]))
    copied = session.messages()
    copied[0].tool_calls[0].name = "changed"
    copied[0].tool_calls.clear()
    copied[0].content.append("changed")
    copied.clear()
    (stored,) = session.messages()
    assert stored.tool_calls == [call]
    assert stored.content == [{"type": "text"}]


def test_changing_an_appended_message_does_not_change_the_store(store: Store) -> None:
    session = store.open()
    mine = Message(role=MessageRole.USER, content={"parts": ["x"]})
    session.append_message(mine)
    mine.content["parts"].append("changed")
    assert session.messages()[0].content == {"parts": ["x"]}


def test_clear_empties_session_and_keeps_its_key(store: Store) -> None:
    session = store.open()
    session.append_message(Message(role=MessageRole.USER, content="x"))
    session.clear()
    assert session.messages() == []
    session.append_message(Message(role=MessageRole.USER, content="y"))
    assert [m.content for m in session.messages()] == ["y"]


@pytest.mark.parametrize("content", ["text", None, 3, [{"type": "image_url", "image_url": {"url": "x"}}], {"a": [1]}])
def test_content_can_be_any_json(store: Store, content: Any) -> None:
    session = store.open()
    session.append_message(Message(role=MessageRole.USER, content=content))
    assert session.messages()[0].content == content


def test_json_of_a_message_has_no_unset_tool_fields(store: Store) -> None:
    assert json.loads(Message(role=MessageRole.USER, content="x").model_dump_json()) == {"role": "user", "content": "x"}


def test_tool_call_json_is_flat(store: Store) -> None:
    session = store.open()
    call = ToolCall(id="call_1", name="search", arguments='{"q":"x"}')
    session.append_message(Message(role=MessageRole.ASSISTANT, content="", tool_calls=[call]))
    session.append_message(Message(role=MessageRole.TOOL, content="found", tool_call_id="call_1"))
    asked, answered = (
        json.loads(m.model_dump_json(include={"role", "content", "tool_calls", "tool_call_id"}))
        for m in session.messages()
    )
    assert asked == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "name": "search", "arguments": '{"q":"x"}'}],
    }
    assert answered == {"role": "tool", "content": "found", "tool_call_id": "call_1"}


def test_concurrent_appends_lose_no_message(store: Store) -> None:
    session = store.open()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: session.append_message(Message(role=MessageRole.USER, content=n)), range(80)))
        reads = list(pool.map(lambda _: len(session.messages()), range(8)))
    assert reads == [80] * 8
    assert sorted(m.content for m in session.messages()) == list(range(80))
