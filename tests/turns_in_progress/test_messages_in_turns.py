"""Messages that are written under the lease of a turn belong to the turn, whatever their id."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from lango_store import AsyncConversation, AsyncStore, Conflict, LeaseLost, Message, Store, ToolCall
from lango_store.ui import aisdk, aisdk_messages

CALL = ToolCall(id="c1", name="pay", arguments={})


def test_messages_of_in_turn_are_part_of_the_saved_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(Message.user("a"))
        store.in_turn(turn).append_message("k", Message.assistant("b"))
        conversation.append_message(Message.user("of another writer"))
        written = store.in_turn(turn).append_message("k", Message.assistant("c", id="mine"))
        store.in_turn(turn).open("other").append_message(Message.user("d"))
    assert turn.stored is not None
    assert [each.content for each in turn.messages] == ["a", "b", "c"]
    assert [each.turn_no for each in conversation.messages()] == [1, 1, None, 1]
    assert [each._taken_by for each in conversation.messages()] == ["t", "t", None, "t"]
    assert written == conversation.messages()[-1].model_copy(update={"turn_no": None})
    assert store.conversation("other").messages()[0].turn_no is None


def test_next_attempt_has_the_messages_of_in_turn(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    store.in_turn(turn).append_message("k", Message.user("a", id="mine"))
    turn.abandon()
    with conversation.turn("t") as turn:
        assert [each.content for each in turn.messages] == ["a"]
        turn.append(Message.assistant("b"))
    assert [each.content for each in turn.messages] == ["a", "b"]
    assert [each.turn_no for each in conversation.messages()] == [1, 1]


def test_turn_saved_under_a_lease_keeps_its_number(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        inner = store.in_turn(turn).conversation("k").save_turn([Message.assistant("a")], {"output_tokens": 4})
    assert [(each.turn_no, each._taken_by) for each in conversation.messages()] == [(inner.turn_no, "t")]


def test_replaced_end_of_the_log_is_part_of_the_turn(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("a", id="q1"), Message.assistant("b")])
    with conversation.turn("t", flush=timedelta(0)) as turn:
        turn.append(Message.user("c"))
        turn.write("dr")
        turn.append_messages([Message.user("A", id="q1"), Message.assistant("B")], replace_after=0)
        assert (turn.draft_text, conversation.drafts.list()) == ("", [])
        assert [each.content for each in turn.messages] == ["A", "B"]
        turn.append(Message.user("c"))
        turn.append_messages([], replace_after=turn.messages[1].seq)
    assert turn.stored is not None
    assert [each.content for each in turn.stored.messages] == ["A", "B"]
    assert [(each.id, each.turn_no) for each in conversation.messages()] == [("q1", 1), (turn.stored.messages[1].id, 1)]


def test_replacement_by_a_turn_without_its_lease_is_refused(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("a")])
    turn = conversation.turn("t").begin()
    conversation.turns.release()
    with pytest.raises(LeaseLost):
        turn.append_messages([], replace_after=0)
    assert [each.content for each in conversation.messages()] == ["a"]


def test_answer_of_in_turn_ends_the_draft(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t", flush=timedelta(0)) as turn:
        adapter = store.in_turn(turn)
        turn.write("One")
        adapter.append_message("other", Message.assistant("of another session"), create=True)
        adapter.append_message("k", Message.tool("of a call", tool_call_id="c1"))
        assert turn.draft_text == conversation.drafts.list()[0].text == "One"
        adapter.append_message("k", Message.assistant("One.", id="mine"))
        assert turn.draft_text == ""
        assert conversation.drafts.list() == []
        turn.write("Two")
        assert conversation.drafts.list()[0].text == "Two"
        adapter.conversation("k").save_turn([Message.assistant("Two.")])
        assert turn.interrupt() is None
        assert conversation.drafts.list() == []
    assert [each.content for each in conversation.messages()] == ["of a call", "One.", "Two."]


def test_refused_answer_of_in_turn_keeps_the_draft(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t", flush=timedelta(0)) as turn:
        turn.write("One")
        with pytest.raises(Conflict):
            store.in_turn(turn).append_message("k", Message.assistant("One."), after=7)
        assert turn.draft_text == conversation.drafts.list()[0].text == "One"


def test_members_of_a_turn_are_equal_to_and_dumped_as_other_messages(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        message = turn.append(Message.assistant("a", id="mine", extra={"large": "x" * 100_000}))
    (read,) = conversation.messages()
    assert read._taken_by == "t"
    assert read == message.model_copy(update={"turn_no": 1})
    assert read == Message.model_validate_json(read.model_dump_json())
    assert "taken_by" not in f"{read!r} {read.model_dump()} {read.model_dump_json()}"


def parts(frames: list[str]) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in "".join(frames).split("\n") if line.startswith("data: {")]
    return [json.loads(each) for each in data]


def text_of(chunks: list[dict[str, Any]]) -> str:
    """Return the text that a client has at the end: `reset-step` takes back the text of the open step."""
    steps = [""]
    for chunk in chunks:
        match chunk["type"]:
            case "text-delta":
                steps[-1] += chunk["delta"]
            case "finish-step":
                steps.append("")
            case "reset-step":
                steps[-1] = ""
    return "".join(steps)


async def streamed(conversation: AsyncConversation, turn_id: str, **options: Any) -> list[dict[str, Any]]:
    return parts([frame async for frame in aisdk(conversation, turn_id, **options)])


def test_stream_and_reload_show_the_messages_of_the_turn_and_no_other(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k", messages=[Message.user("q")])
            live = asyncio.create_task(streamed(conversation, "t", retry=timedelta(seconds=30)))
            async with conversation.turn("t", flush=timedelta(0)) as turn:
                adapter = store.in_turn(turn).conversation("k")
                await turn.write("One.")
                await adapter.save_turn([Message.assistant("One.", tool_calls=[CALL])], {"output_tokens": 4})
                await adapter.append_message(Message.tool("paid", tool_call_id="c1"))
                await conversation.append_message(Message.assistant("of another writer", id="x"))
                await adapter.append_message(Message.assistant("Two.", id="mine"))
                turn.usage = {"output_tokens": 1}
            chunks, again = await live, await streamed(conversation, "t")
            for each in (chunks, again):
                assert text_of(each) == "One.Two."
                assert [chunk["output"] for chunk in each if chunk["type"] == "tool-output-available"] == ["paid"]
                assert each[-1]["messageMetadata"] == {"usage": {"output_tokens": 5}}
                assert sum(chunk["type"] == "finish-step" for chunk in each) == 2
            _, answer, other = aisdk_messages(await store.get("k"))
            assert answer["id"] == chunks[0]["messageId"]
            shown = [part.get("text", part.get("output")) for part in answer["parts"] if part["type"] != "step-start"]
            assert shown == ["One.", "paid", "Two."]
            assert other["id"] == "x"

    asyncio.run(work())


def test_turn_after_an_approval_continues_the_ui_message(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("q", id="q1")])
    with conversation.turn("t") as turn:
        turn.append(Message.assistant(tool_calls=[CALL]))
    with conversation.turn("after") as turn:
        turn.append(Message.tool("paid", tool_call_id="c1"))
        turn.append(Message.assistant("Paid."))
        in_progress = aisdk_messages(conversation.get())
    question, answer = aisdk_messages(conversation.get())
    assert question["id"] == "q1"
    assert [part["type"] for part in answer["parts"]] == ["step-start", "tool-pay", "step-start", "text"]
    assert answer["id"] == in_progress[1]["id"]
    assert len(in_progress) == 2  # the stream of the turn repeats the UI message that it continues


def test_turn_after_another_question_is_a_ui_message_of_its_own(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(Message.assistant(tool_calls=[CALL]))
    with conversation.turn("after") as turn:
        turn.append(Message.user("And?"))
        turn.append(Message.tool("paid", tool_call_id="c1"))
        turn.append(Message.assistant("Paid."))
    assert [each["role"] for each in aisdk_messages(conversation.get())] == ["assistant", "user", "assistant"]


def test_stream_of_a_turn_of_save_turn_can_continue_after_each_frame(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            await conversation.save_turn([Message.assistant("One.", id="a"), Message.assistant("Two.")], id="t")
            frames = [frame async for frame in aisdk(conversation, "t")]
            assert text_of(parts(frames)) == "One.Two."
            (first, *_) = [n for n, frame in enumerate(frames) if "finish-step" in frame]
            id = frames[first].split("\n")[0].removeprefix("id: ")
            assert text_of(await streamed(conversation, "t", after=id)) == "Two."

    asyncio.run(work())


def test_calls_of_a_continued_ui_message_have_different_ids(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(Message.assistant(tool_calls=[CALL]))
    with conversation.turn("after") as turn:
        turn.append(Message.tool("paid", tool_call_id="c1"))
        turn.append(Message.assistant("Again.", tool_calls=[CALL]))
    (answer,) = aisdk_messages(conversation.get())
    assert len({part["toolCallId"] for part in answer["parts"] if "toolCallId" in part}) == 2
