"""`lango_store.ui`: requests and messages of the AI SDK. Tests in a browser read the streams with its own reader."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from support.asgi import Request
from support.factories import message

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, LeaseLost, Message, Store, ToolCall
from lango_store.testing import Clock
from lango_store.ui import aisdk, aisdk_messages, from_aisdk
from lango_store.web import Chat, chat

Work = Callable[[AsyncStore, Chat], Coroutine[Any, Any, None]]
AT_ONCE = timedelta(0)


@pytest.fixture
def served(url: str, clock: Clock) -> Callable[[Work], None]:
    """Return a function that runs a coroutine function with a store and a stream."""

    def run(work: Work) -> None:
        async def start() -> None:
            async with AsyncStore(url, clock=clock) as store:
                await work(store, chat(store, answer, user=lambda request: "ann", background=True))

        asyncio.run(start())

    return run


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    """Answer nothing: these tests answer themselves."""


def chunks(frames: list[str]) -> list[dict[str, Any]]:
    """Return the chunks of frames, without comments and without the mark of the end."""
    data = [line.removeprefix("data: ") for frame in frames for line in frame.split("\n") if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def types(frames: list[str]) -> list[str]:
    return [chunk["type"] for chunk in chunks(frames)]


def test_status_is_204_if_no_turn_is_in_progress_or_owed(served: Callable[[Work], None], clock: Clock) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        assert await Request(app, "/api/chat/k/stream").finish() == 204
        async with conversation.turn("t", lease=timedelta(minutes=1)):
            clock.move(minutes=2)  # the process was killed, and a worker will continue
            request = Request(app, "/api/chat/k/stream")
            assert await anext(request.frames())
            assert request.status == 200
            await request.disconnect()

    served(work)


@pytest.mark.parametrize("path", ["/api/chat/missing/stream", "/api/chat/bobs/stream", "/k/events"])
def test_refused_request_gets_an_http_error_status(served: Callable[[Work], None], path: str) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        await store.open("bobs", user_id="bob")
        assert await Request(app, path).finish() == 404

    served(work)


def test_answer_in_progress_is_sent_from_its_start_or_after_a_frame(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann", messages=[message()])
        async with conversation.turn("t", flush=AT_ONCE) as turn:
            await turn.append(Message.assistant("One."))
            await turn.write("Tw")
            request = Request(app, "/api/chat/k/stream")
            frames = request.frames()
            received: list[str] = []
            while not received or '"Tw"' not in received[-1]:
                received.append(await anext(frames))
            assert request.headers[b"x-vercel-ai-ui-message-stream"] == b"v1"
            step = ["text-start", "text-delta"]
            assert types(received) == ["start", "start-step", *step, "text-end", "finish-step", "start-step", *step]
            await request.disconnect()
            id = received[-1].split("\n")[0].removeprefix("id: ")
            again = Request(app, "/api/chat/k/stream", last_event_id=id)
            rest = again.frames()
            continued = [await anext(rest)]
            await turn.append(Message.assistant("Two."))
            turn.usage = {"output_tokens": 4}
        continued += [frame async for frame in rest]
        assert types(continued)[0] == "reset-step"
        texts = [chunk["delta"] for chunk in chunks(continued) if chunk["type"] == "text-delta"]
        assert "".join(texts) == "Two."
        assert chunks(continued)[-1]["messageMetadata"] == {"usage": {"output_tokens": 4}}
        assert continued[-1] == "data: [DONE]"

    served(work)


def test_stream_can_continue_after_the_id_of_each_of_its_frames(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t", flush=AT_ONCE) as turn:
            await turn.append(Message.assistant("One."))
            await turn.write("Tw")
            frames = aisdk(conversation, "t")
            received = [await anext(frames)]
            while '"Tw"' not in received[-1]:
                received.append(await anext(frames))
            await frames.aclose()
            for id in {"", *(line[4:] for line in "".join(received).split("\n") if line.startswith("id: "))}:
                request = Request(app, "/api/chat/k/stream", last_event_id=id)
                assert await anext(request.frames())
                await request.disconnect()
        whole = [frame async for frame in aisdk(conversation, "t")]
        assert [frame async for frame in aisdk(conversation, "t", after="")] == whole

    served(work)


def test_stream_of_a_saved_turn_ends_at_once(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            await turn.append(Message.assistant("One."))
        await conversation.save_turn([message()])
        frames = [frame async for frame in aisdk(conversation, "t")]
        assert types(frames)[-2:] == ["finish-step", "finish"]

    served(work)


def test_answer_that_nobody_finishes_ends_with_an_error(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        frames: list[str] = []
        with suppress(LeaseLost):
            async with conversation.turn("t", flush=AT_ONCE) as turn:
                await turn.write("half of ")
                async for frame in aisdk(conversation, "t", retry=timedelta(milliseconds=500)):
                    frames.append(frame)
                    if '"half of "' in frame:
                        await conversation.turns.release()
        assert types(frames)[-2:] == ["reset-step", "error"]

    served(work)


def test_reader_is_told_that_messages_have_changed(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            frames = aisdk(conversation, "t")
            received = [await anext(frames), await anext(frames)]
            answer = await turn.append(Message.assistant("One."))
            await conversation.edits.update(answer.seq, Message.assistant("1."))
            while '"data-changed"' not in received[-1]:
                received.append(await anext(frames))
            assert chunks(received)[-1]["data"] == {"kind": "update"}
            await frames.aclose()

    served(work)


def test_saved_turn_without_messages_ends_at_once(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann", messages=[message()])
        async with conversation.turn("t"):
            pass
        assert types([frame async for frame in aisdk(conversation, "t")]) == ["start", "finish"]

    served(work)


def test_draft_that_was_not_appended_is_taken_back_at_the_end(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        frames = aisdk(conversation, "t")
        received: list[str] = []
        async with conversation.turn("t", flush=AT_ONCE) as turn:
            await turn.write("half of ")
            while not received or '"half of "' not in received[-1]:
                received.append(await anext(frames))
        received += [frame async for frame in frames]
        assert types(received)[-2:] == ["reset-step", "finish"]

    served(work)


def test_reader_is_not_told_of_changes_before_it_came(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            answer = await turn.append(Message.assistant("One."))
            await conversation.edits.update(answer.seq, Message.assistant("1."))
        frames = [frame async for frame in aisdk(conversation, "t")]
        assert "data-changed" not in types(frames)
        assert '"1."' in "".join(frames)

    served(work)


def test_change_before_the_end_of_the_turn_is_sent(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            answer = await turn.append(Message.assistant("One."))
            frames = aisdk(conversation, "t")
            received = [await anext(frames)]
            while '"finish-step"' not in received[-1]:
                received.append(await anext(frames))
            id = next(line for line in reversed("".join(received).split("\n")) if line.startswith("id: "))
            await frames.aclose()
            await conversation.edits.update(answer.seq, Message.assistant("1."))
        rest = [frame async for frame in aisdk(conversation, "t", after=id.removeprefix("id: "))]
        assert types(rest) == ["data-changed", "finish"]

    served(work)


def test_call_that_was_removed_needs_no_approval(served: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, app: Chat) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="c1", name="pay", arguments={})]))
            await conversation.suspensions.create(calls=[(asking.seq, 0)], reason="Pay?")
            await conversation.edits.redact(asking.seq)
        assert "tool-approval-request" not in types([frame async for frame in aisdk(conversation, "t")])

    served(work)


def test_stored_messages_keep_their_ids(store: Store) -> None:
    conversation = store.open(
        "k", user_id="ann", messages=[Message.user("Weather?", id="q1"), Message.assistant("Where?", id="a1")]
    )
    call = ToolCall(id="c1", name="weather", arguments='{"city": "Oslo"}')
    with conversation.turn("t") as turn:
        turn.append(Message.user("Oslo", id="q2"))
        asking = turn.append(Message.assistant("Let me see.", tool_calls=[call]))
        turn.append(Message.tool({"degrees": 20}, tool_call_id="c1"))
        turn.append(Message.assistant("20 degrees."))
    question, where, oslo, answer = aisdk_messages(conversation.get())
    assert (question["id"], where["id"], oslo["id"]) == ("q1", "a1", "q2")
    assert str(asking.id).startswith(answer["id"])
    assert [part["type"] for part in answer["parts"]] == ["step-start", "text", "tool-weather", "step-start", "text"]
    tool = answer["parts"][2]
    assert (tool["state"], tool["input"], tool["output"]) == ("output-available", {"city": "Oslo"}, {"degrees": 20})


def test_versions_of_an_answer_that_begins_with_a_record_are_named(store: Store) -> None:
    thought = Message(role="record", content={"type": "reasoning"})
    first = [Message.user("Weather?"), thought, Message.assistant("20 degrees.")]
    conversation = store.open("k", messages=first)
    conversation.append_messages([thought, Message.assistant("-3 degrees.")], replace_after=1, keep=True)

    def metadata() -> list[Any]:
        return [
            each.get("metadata")
            for each in aisdk_messages(conversation.get(), alternatives=conversation.alternatives())
        ]

    for shown, id in ((1, 5), (0, 2)):
        conversation.switch(id)
        assert metadata() == [None, {"alternatives": {"ids": [2, 5], "shown": shown}}]
    conversation.compact(lambda _: Message.system("They talked."))
    conversation.append_message(Message.assistant("Bye"))
    assert metadata() == [{"alternatives": {"ids": [2, 5], "shown": 0}}, None]


def test_summary_and_last_message_have_the_versions_that_no_other_message_has(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("q1"), Message.assistant("a1")])
    conversation.append_messages([Message.assistant("a2")], replace_after=1, keep=True)
    conversation.compact(lambda _: Message.system("They talked."))
    conversation.append_messages([Message.user("q2")], replace_after=0, keep=True)

    def page() -> list[tuple[str, Any]]:
        shown = aisdk_messages(conversation.get(), alternatives=conversation.alternatives())
        return [(each["parts"][-1]["text"], each.get("metadata", {}).get("alternatives")) for each in shown]

    assert page() == [("q2", {"ids": [1, 8], "shown": 1})]
    conversation.switch(1)
    assert page() == [("They talked.", {"ids": [2, 4, 8], "shown": 1})]
    conversation.switch(8)
    assert page() == [("q2", {"ids": [1, 8], "shown": 1})]
    conversation.switch(2)
    assert page() == [("q1", {"ids": [1, 8], "shown": 0}), ("a1", {"ids": [2, 4], "shown": 0})]
    conversation.inbox.put_messages([], replace_after=1, keep=True)  # no worker answers
    assert page() == [("q1", {"ids": [1, 2, 4, 8], "shown": 0})]
    assert not conversation.switch(1)


def asked(*messages: dict[str, Any], trigger: str = "submit-message") -> dict[str, Any]:
    return {"id": "k", "messages": messages, "trigger": trigger}


QUESTION = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}


def test_new_message_of_the_user_keeps_its_id() -> None:
    request = from_aisdk(asked(QUESTION))
    assert request.message is not None
    assert (request.kind, request.message.id, request.message.content) == ("message", "q1", "Hello")


def test_request_for_another_answer_is_read() -> None:
    assert from_aisdk(asked(QUESTION, trigger="regenerate-message")).kind == "regenerate"


def test_approvals_of_the_user_are_read() -> None:
    part = {"type": "tool-pay", "state": "approval-responded", "approval": {"id": "s1", "approved": False}}
    request = from_aisdk(asked(QUESTION, {"id": "a1", "role": "assistant", "parts": [part]}))
    assert (request.kind, request.approvals) == ("approval", [("s1", {"approved": False, "reason": None})])


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": 3}])
def test_other_body_raises_value_error(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="useChat"):
        from_aisdk(body)
