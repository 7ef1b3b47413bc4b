"""Parts of messages on pages: calls without ids, calls in blocks, refusals, thoughts and pictures."""

import asyncio
import json
from typing import Any

import pytest

from lango_store import AsyncStore, Message, Store, ToolCall
from lango_store.ui import agui, agui_messages, aisdk, aisdk_messages

pytestmark = pytest.mark.one_database

PNG = "iVBORw0KGgo="
PICTURES: dict[str, dict[str, Any]] = {
    "aisdk": {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"},
    "agui": {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}},
    "openai": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    "gemini": {"inline_data": {"mime_type": "image/png", "data": PNG}},
    "langchain": {"type": "image", "base64": PNG, "mime_type": "image/png"},
    "mcp": {"type": "image", "data": PNG, "mimeType": "image/png"},
    "pydantic-ai": {"kind": "binary", "data": PNG, "media_type": "image/png"},
}


def tools(messages: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [
        (part["toolCallId"], part.get("output", part.get("errorText")))
        for message in messages
        for part in message["parts"]
        if "toolCallId" in part
    ]


@pytest.mark.parametrize("form", PICTURES)
def test_picture_of_each_form_is_shown_on_both_pages(store: Store, form: str) -> None:
    session = store.open(messages=[Message.user([{"type": "text", "text": "See"}, PICTURES[form]])]).get()
    assert aisdk_messages(session)[0]["parts"][1] == PICTURES["aisdk"]
    assert agui_messages(session)[0]["content"][1] == PICTURES["agui"]


def test_results_of_calls_with_equal_or_empty_ids_are_shown_with_their_calls(store: Store) -> None:
    def asked(*names: str, id: str = "") -> Message:
        return Message.assistant(tool_calls=[ToolCall(id=id, name=name) for name in names])

    log = [Message.user("q"), asked("a", "b"), Message.tool("2", name="b"), Message.tool("1", name="a")]
    log += [asked("a", id="call_0"), Message.tool("3", tool_call_id="call_0"), asked("a", id="call_0")]
    log += [Message.tool("4", tool_call_id="call_0", failed=True)]
    conversation = store.open()
    with conversation.turn("t") as turn:
        turn.append_messages(log)
    shown = tools(aisdk_messages(conversation.get()))
    assert [output for _, output in shown] == ["1", "2", "3", "4"]
    assert len({id for id, _ in shown}) == 4
    assert all(id for id, _ in shown)
    calls = [call["id"] for each in agui_messages(conversation.get()) for call in each.get("toolCalls", ())]
    results = {
        each["toolCallId"]: each["content"] for each in agui_messages(conversation.get()) if "toolCallId" in each
    }
    assert [results[call] for call in calls] == ["1", "2", "3", "4"]


def test_stream_has_the_ids_of_the_stored_messages(url: str) -> None:
    async def streamed() -> tuple[str, list[dict[str, Any]]]:
        async with AsyncStore(url) as store:
            chat = await store.open("k")
            await chat.append_message(Message.user("q"))
            calls = [ToolCall(id="", name="add"), ToolCall(id="", name="add")]
            async with chat.turn("t") as turn:
                for number in range(2):
                    await turn.append(Message.assistant(tool_calls=calls))
                    await turn.append(Message.tool(f"{number}", name="add"))
                await turn.append(Message.assistant("done"))
            return "".join([frame async for frame in aisdk(chat, "t")]), aisdk_messages(await chat.get())

    stream, stored = asyncio.run(streamed())
    shown = tools(stored)
    assert [output for _, output in shown] == ["0", None, "1", None]
    for id, output in shown:
        assert f'"toolCallId": "{id}"' in stream
        assert output is None or f'"toolCallId": "{id}", "output": "{output}"' in stream


def test_calls_and_results_in_blocks_are_shown_and_no_message_is_empty(store: Store) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    found = [{"type": "tool_result", "tool_use_id": "t1", "content": "rain", "is_error": True}]
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    hits = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "a"}]}
    refusal = {"type": "refusal", "refusal": "No."}
    log = [Message.user("q"), Message.assistant([use]), Message.user(found), Message.assistant([search, hits, refusal])]
    session = store.open(messages=log).get()
    shown = aisdk_messages(session)
    assert tools(shown) == [("t1", "rain"), ("s1", [{"title": "a"}])]
    assert all(message["parts"] for message in shown)
    assert shown[-1]["parts"][-1] == {"type": "text", "text": "No.", "state": "done"}
    assert shown[-1]["parts"][-2]["providerExecuted"] is True
    result, answer = (each for each in agui_messages(session) if each["role"] == "tool")
    assert (result["toolCallId"], result["metadata"]) == ("t1", {"failed": True})
    assert answer["toolCallId"] == "s1"


def test_thoughts_of_each_provider_are_shown(store: Store) -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look it up"}]}
    gemini = {"text": "Look it up", "thought": True}
    for thought in (summary, gemini, {"type": "thinking", "thinking": "Look it up", "signature": "c2ln"}):
        session = store.open(messages=[Message.assistant([thought, {"type": "text", "text": "a"}])]).get()
        assert aisdk_messages(session)[0]["parts"][1] == {"type": "reasoning", "text": "Look it up", "state": "done"}
        assert agui_messages(session)[0] == {"id": "seq-1-reasoning-0", "role": "reasoning", "content": "Look it up"}


def test_part_that_a_page_cannot_show_is_named(store: Store) -> None:
    compaction = {"type": "compaction", "encrypted_content": "eHg="}
    shown = aisdk_messages(store.open(messages=[Message.assistant([compaction, {"type": "text", "text": "a"}])]).get())
    assert [part["type"] for part in shown[0]["parts"]] == ["step-start", "text"]
    assert [(repair.seq, repair.kind) for repair in shown.repairs] == [(1, "content")]


def test_agui_keeps_the_order_of_reasoning_texts_and_calls(url: str) -> None:
    def thinking(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": "c2ln"}

    def use(id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "look", "input": {}}

    texts = [{"type": "text", "text": text} for text in ("I look.", "And again.")]
    blocks = [thinking("one"), texts[0], use("a"), thinking("two"), use("b"), texts[1]]

    async def streamed() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with AsyncStore(url) as store:
            chat = await store.open("k")
            async with chat.turn("t") as turn:
                frames = agui(chat, "t")
                received = [await anext(frames)]
                await turn.append(Message.assistant(blocks))
                await turn.append_messages([Message.tool(f"saw {id}", tool_call_id=id) for id in "ab"])
            received += [frame async for frame in frames]
            lines = "".join(received).split("\n")
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
            return events, agui_messages(await chat.get())

    events, stored = asyncio.run(streamed())
    shown = [[each["content"]] if "content" in each else [] for each in stored]
    for said, each in zip(shown, stored, strict=True):
        said += [call["id"] for call in each.get("toolCalls", ())]
    assert shown == [["one"], ["I look.", "a"], ["saw a"], ["two"], ["b"], ["saw b"], ["And again."]]
    ids = [each["id"] for each in stored]
    assert len(set(ids)) == len(ids)
    streamed_parts = [(each.get("delta") or each.get("content"), each.get("messageId")) for each in events]
    for each in stored:
        assert "content" not in each or (each["content"], each["id"]) in streamed_parts
    parents = {each["toolCallId"]: each["parentMessageId"] for each in events if "parentMessageId" in each}
    assert parents == {call["id"]: each["id"] for each in stored for call in each.get("toolCalls", ())}


def test_result_of_a_call_that_the_message_of_the_stream_lacks_is_not_sent(url: str) -> None:
    async def streamed() -> str:
        async with AsyncStore(url) as store:
            chat = await store.open("k")
            async with chat.turn("t") as turn:
                await turn.append(Message.assistant(tool_calls=[ToolCall(id="own", name="look")]))
                asked = Message.assistant(tool_calls=[ToolCall(id="of another writer", name="look")])
                await chat.append_messages([asked, Message.tool("rain", tool_call_id="of another writer")])
                await turn.append(Message.tool("sun", tool_call_id="own"))
            return "".join([frame async for frame in aisdk(chat, "t")])

    stream = asyncio.run(streamed())
    assert '"toolCallId": "own", "output": "sun"' in stream
    assert "of another writer" not in stream


def test_approval_is_asked_for_the_call_at_its_position_in_tool_calls(store: Store) -> None:
    blocks: list[Any] = [{"type": "tool_use", "id": id, "name": "pay", "input": {}} for id in ("b", "a")]
    calls = [ToolCall(id=id, name="pay", arguments={}) for id in ("a", "b")]
    conversation = store.open("k", messages=[Message.assistant(blocks, tool_calls=calls)])
    conversation.suspensions.create(calls=[(1, 0)], reason="Pay?")
    shown = aisdk_messages(conversation.get(), conversation.suspensions.list())
    states = {part["toolCallId"]: part["state"] for part in shown[0]["parts"] if "toolCallId" in part}
    assert states == {"a": "approval-requested", "b": "input-available"}


@pytest.mark.parametrize("answer", [{"approved": False, "reason": "too much"}, {"approved": False, "reason": None}])
def test_approval_has_the_reason_of_the_answer_or_why_it_was_given(store: Store, answer: dict[str, Any]) -> None:
    conversation = store.open("k", messages=[Message.assistant(tool_calls=[ToolCall(id="a", name="pay")])])
    suspension = conversation.suspensions.create(calls=[(1, 0)])
    conversation.suspensions.answer(suspension.id, answer, by="ann", why="not needed")
    (shown,) = aisdk_messages(conversation.get(), conversation.suspensions.list())
    why = answer["reason"] or "not needed"
    assert shown["parts"][-1]["approval"] == {"id": suspension.id, "approved": False, "reason": why}


def test_calls_of_a_provider_without_ids_have_different_ids(store: Store) -> None:
    search = {"type": "server_tool_use", "id": "", "name": "web_search", "input": {}}
    log = [Message.assistant([search, search], tool_calls=[ToolCall(id="", name="look")])]
    session = store.open(messages=log).get()
    assert len({id for id, _ in tools(aisdk_messages(session))}) == 3
    (answer,) = agui_messages(session)
    assert len({call["id"] for call in answer["toolCalls"]}) == 3


@pytest.mark.parametrize("has_id", [True, False])
def test_call_in_blocks_without_an_id_is_that_of_tool_calls(store: Store, has_id: bool) -> None:
    block = {"function_call": {"name": "look", "args": {"at": "sea"}}}
    call = ToolCall(id="c1" if has_id else "", name="look", arguments={"at": "sea"})
    session = store.open(messages=[Message.assistant([block], tool_calls=[call])]).get()
    assert len(tools(aisdk_messages(session))) == 1


def test_page_shows_the_content_and_not_what_the_model_received(store: Store) -> None:
    session = store.open(messages=[Message.user("Hello", sent="Hello (today is Monday)")]).get()
    assert aisdk_messages(session)[0]["parts"] == [{"type": "text", "text": "Hello"}]
    assert agui_messages(session)[0]["content"] == "Hello"


@pytest.mark.parametrize("first_fails", [True, False])
def test_second_result_takes_the_place_of_the_first(store: Store, first_fails: bool) -> None:
    results = [
        Message.tool(text, tool_call_id="c1", failed=failed)
        for text, failed in (("first", first_fails), ("second", not first_fails))
    ]
    call = ToolCall(id="c1", name="look")
    page = aisdk_messages(store.open(messages=[Message.assistant(tool_calls=[call]), *results]).get())
    part = page[0]["parts"][-1]
    assert tools(page) == [("c1", "second")]
    assert ("output" in part, "errorText" in part) == (first_fails, not first_fails)
