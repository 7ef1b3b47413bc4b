"""`lango_store.ui`: requests and messages of AG-UI. Tests in a browser read the streams with its own reader."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.asgi import Request
from support.factories import message

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    InvalidCursor,
    LeaseLost,
    Message,
    Store,
    ToolCall,
)
from lango_store.testing import Clock
from lango_store.ui import Awaited, agui, agui_messages, from_agui
from lango_store.web import chat

Work = Callable[[AsyncStore], Coroutine[Any, Any, None]]
AT_ONCE = timedelta(0)


@pytest.fixture
def run(url: str, clock: Clock) -> Callable[[Work], None]:
    """Return a function that runs a coroutine function with a store."""

    def run(work: Work) -> None:
        async def start() -> None:
            async with AsyncStore(url, clock=clock) as store:
                await work(store)

        asyncio.run(start())

    return run


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    """Answer nothing: these tests answer themselves."""


def events(frames: list[str]) -> list[dict[str, Any]]:
    """Return the events of frames, without comments, and without snapshots that only clear the messages."""
    data = [line.removeprefix("data: ") for line in "".join(frames).split("\n") if line.startswith("data: ")]
    found = [json.loads(each) for each in data]
    return [each for each in found if "messages" not in each or not any(m["id"] == "-" for m in each["messages"])]


def types(frames: list[str]) -> list[str]:
    return [event["type"] for event in events(frames)]


async def received_until(frames: Any, text: str) -> list[str]:
    received = [await anext(frames)]
    while text not in received[-1]:
        received.append(await anext(frames))
    return received


def test_status_is_204_if_no_turn_is_in_progress(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        await store.open("k", user_id="ann")
        app = chat(store, answer, user=lambda request: "ann", background=True)
        assert await Request(app, "/api/agent/k/stream").finish() == 204

    run(work)


def test_run_begins_with_a_snapshot_or_is_continued_after_a_frame(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann", messages=[Message.user("Hello", id="q1")])
        app = chat(store, answer, user=lambda request: "ann", background=True)
        async with conversation.turn("t", flush=AT_ONCE) as turn:
            await turn.append(Message.assistant("One."))
            await turn.write("Tw")
            request = Request(app, "/api/agent/k/stream")
            received = await received_until(request.frames(), '"Tw"')
            started, snapshot, piece = events([f"{frame}\n\n" for frame in received])
            assert started == {"type": "RUN_STARTED", "threadId": "k", "runId": "t"}
            assert [each["content"] for each in snapshot["messages"]] == ["Hello", "One."]
            assert (piece["type"], piece["delta"]) == ("TEXT_MESSAGE_CHUNK", "Tw")
            await request.disconnect()
            id = received[-1].split("\n")[0].removeprefix("id: ")
            rest = agui(conversation, "t", after=id)
            await turn.append(Message.assistant("Two."))
            turn.usage = {"prompt_tokens": 9, "completion_tokens": 4}
        continued = events([frame async for frame in rest])
        assert [each["type"] for each in continued] == ["RUN_STARTED", "TEXT_MESSAGE_CHUNK", "RUN_FINISHED"]
        assert (continued[1]["messageId"], continued[1]["delta"]) == (piece["messageId"], "o.")
        assert continued[2]["usage"] == [{"inputTokens": 9, "outputTokens": 4}]

    run(work)


def test_run_can_continue_after_the_id_of_each_of_its_frames(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann")
        app = chat(store, answer, user=lambda request: "ann", background=True)
        async with conversation.turn("t", flush=AT_ONCE) as turn:
            await turn.append(Message.assistant("One."))
            await turn.write("Tw")
            frames = agui(conversation, "t")
            received = await received_until(frames, '"Tw"')
            await frames.aclose()
            for id in {"", *(line[4:] for line in "".join(received).split("\n") if line.startswith("id: "))}:
                request = Request(app, "/api/agent/k/stream", last_event_id=id)
                assert await anext(request.frames())
                await request.disconnect()
        whole = [frame async for frame in agui(conversation, "t")]
        assert [frame async for frame in agui(conversation, "t", after="")] == whole

    run(work)


def test_waiting_question_without_an_id_is_shown_once_and_a_reminder_when_it_is_taken(
    run: Callable[[Work], None],
) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k")
        await conversation.inbox.put(Message.user("Hello"))
        await conversation.inbox.put(Message.user("Due"), at=datetime(2026, 1, 1, tzinfo=UTC))
        await conversation.inbox.put(Message.user("Later"), in_=timedelta(days=1))
        (shown_first,) = agui_messages(await conversation.get(), await conversation.inbox.list())
        assert shown_first["content"] == "Hello"
        frames = agui(conversation, Awaited())
        async with conversation.turn("t") as turn:
            received = await received_until(frames, "Hello")  # the turn has begun, and has not taken the question
            await turn.take_inbox()
            await turn.append(Message.assistant("Hi"))
        received += [frame async for frame in frames]
        shown: dict[str, str] = {}
        for event in events(received):
            if event["type"] == "MESSAGES_SNAPSHOT":
                shown = {each["id"]: each["content"] for each in event["messages"]}
            elif event["type"] == "TEXT_MESSAGE_CHUNK":
                shown[event["messageId"]] = shown.get(event["messageId"], "") + event["delta"]
        assert shown == {each["id"]: each["content"] for each in agui_messages(await conversation.get())}
        assert [*shown.values()] == ["Hello", "Due", "Hi"]

    run(work)


def test_turn_that_ended_before_the_wait_began_is_streamed(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k")
        for number in (1, 2):
            async with conversation.turn(f"t{number}") as turn:
                await turn.append(Message.assistant(f"answer {number}"))
        last = types([frame async for frame in agui(conversation, "t2")])
        assert types([frame async for frame in agui(conversation, Awaited(after_turn=1))]) == last
        for idle in (Awaited(), Awaited(after_turn=2)):
            assert types([frame async for frame in agui(conversation, idle)])[-1] == "RUN_ERROR"

    run(work)


def test_position_that_is_not_an_id_raises_invalid_cursor(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann")
        for position in ("7", "7_x", "7_0", "x_0"):
            with pytest.raises(InvalidCursor):
                await anext(agui(conversation, "t", after=position))

    run(work)


def test_draft_of_a_failed_attempt_is_replaced_by_a_snapshot(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann", messages=[Message.user("Hello", id="q1")])
        frames = agui(conversation, "t", retry=timedelta(milliseconds=500))
        received: list[str] = []
        with suppress(LeaseLost):
            async with conversation.turn("t", flush=AT_ONCE) as turn:
                await turn.write("half of ")
                received = await received_until(frames, '"half of "')
                await conversation.turns.release()
                received += [frame async for frame in frames]
        assert types(received)[-2:] == ["MESSAGES_SNAPSHOT", "RUN_ERROR"]
        assert [each["id"] for each in events(received)[-2]["messages"]] == ["q1"]

    run(work)


def test_edit_is_sent_as_a_snapshot(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            answer = await turn.append(Message.assistant("One."))
            frames = agui(conversation, "t")
            await received_until(frames, "MESSAGES_SNAPSHOT")
            await conversation.edits.update(answer.seq, Message.assistant("1."))
            received = await received_until(frames, "MESSAGES_SNAPSHOT")
            assert [each["content"] for each in events(received)[-1]["messages"]] == ["1."]
            await frames.aclose()

    run(work)


def test_suspension_is_an_interrupt(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="c1", name="pay", arguments={})]))
            suspension = await conversation.suspensions.create(calls=[(asking.seq, 0)], reason="Pay?")
        received = [frame async for frame in agui(conversation, "t")]
        outcome = events(received)[-1]["outcome"]
        (interrupt,) = outcome["interrupts"]
        assert outcome["type"] == "interrupt"
        assert (interrupt["id"], interrupt["toolCallId"], interrupt["message"]) == (suspension.id, "c1", "Pay?")

    run(work)


def test_call_that_was_removed_needs_no_approval(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann")
        async with conversation.turn("t") as turn:
            asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="c1", name="pay", arguments={})]))
            await conversation.suspensions.create(calls=[(asking.seq, 0)], reason="Pay?")
            await conversation.edits.redact(asking.seq)
        assert "outcome" not in events([frame async for frame in agui(conversation, "t")])[-1]

    run(work)


def test_saved_turn_without_messages_ends_at_once(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("k", user_id="ann", messages=[message()])
        async with conversation.turn("t"):
            pass
        assert types([frame async for frame in agui(conversation, "t")])[-1] == "RUN_FINISHED"

    run(work)


def test_stored_messages_are_messages_of_ag_ui(store: Store) -> None:
    picture = {"type": "image", "source": {"type": "url", "value": "https://example.com/a.png"}}
    other = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    question = Message.user([{"type": "text", "text": "Weather?"}, picture, other], id="q1")
    conversation = store.open("k", user_id="ann", messages=[Message.system("Be brief.", id="s1"), question])
    calls = [ToolCall(id=id, name="weather", arguments={"city": "Oslo"}) for id in ("c1", "c2")]
    with conversation.turn("t") as turn:
        thought = {"type": "thinking", "thinking": "Oslo"}
        turn.append(Message.assistant([thought, {"type": "text", "text": "Let me see."}], tool_calls=calls))
        turn.append(Message.tool("wet", tool_call_id="c1", id="r1"))
        turn.append(Message.assistant("One result."))
        turn.append(Message.tool({"degrees": 20}, tool_call_id="c2", id="r2", extra={"failed": True}))
    system, asked, reasoning, asking, first, second, answer = agui_messages(conversation.get())
    assert system == {"id": "s1", "role": "system", "content": "Be brief."}
    named = {"type": "text", "text": "[image attachment]"}
    source = {"type": "url", "value": "https://example.com/a.png", "mimeType": "image/png"}  # of its extension
    shown = {"type": "image", "source": source}
    assert asked == {"id": "q1", "role": "user", "content": [{"type": "text", "text": "Weather?"}, shown, named]}
    assert (reasoning["role"], reasoning["content"]) == ("reasoning", "Oslo")
    assert asking["content"] == "Let me see."
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert asking["toolCalls"] == [{"id": id, "type": "function", "function": function} for id in ("c1", "c2")]
    assert first == {"id": "r1", "role": "tool", "toolCallId": "c1", "content": "wet"}
    assert (second["id"], second["content"], second["metadata"]) == ("r2", '{"degrees": 20}', {"failed": True})
    assert answer["content"] == "One result."


def asked(**fields: Any) -> dict[str, Any]:
    question = {"id": "q1", "role": "user", "content": "Hello"}
    return {"threadId": "k", "runId": "r1", "messages": [question], **fields}


def test_new_message_of_the_user_keeps_its_id() -> None:
    request = from_agui(asked())
    assert request.message is not None
    assert (request.kind, request.message.id, request.message.content) == ("message", "q1", "Hello")
    assert request.run_id == "r1"


def test_image_of_the_user_is_read() -> None:
    image = {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}}
    content = [{"type": "text", "text": "Look"}, image, {"type": "forged"}]
    request = from_agui(asked(messages=[{"id": "q1", "role": "user", "content": content}]))
    assert request.message is not None
    assert request.message.content == content[:2]


def test_answers_to_interrupts_are_read() -> None:
    resume = [
        {"interruptId": "s1", "status": "resolved", "payload": {"approved": True}},
        {"interruptId": "s2", "status": "resolved"},
        {"interruptId": "s3", "status": "cancelled", "payload": {"approved": True}},
    ]
    request = from_agui(asked(resume=resume))
    refused = {"approved": False}
    assert (request.kind, request.approvals) == (
        "approval",
        [("s1", {"approved": True}), ("s2", refused), ("s3", refused)],
    )


@pytest.mark.parametrize("body", [{}, {"messages": []}, asked(runId=None), asked(resume=[{}]), {"messages": 3}])
def test_other_body_raises_value_error(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_agui(body)
