"""`lango_store.ui.open_turn`: requests of both protocols that edit, repeat, approve and bring results of tools."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lango_store import AsyncConversation, AsyncStore, Message, SuspensionNotFound, ToolCall, TurnInProgress
from lango_store.ui import ChatRequest, aisdk_messages, from_agui, from_aisdk, open_calls, open_turn

Work = Callable[[AsyncConversation], Coroutine[Any, Any, None]]


@pytest.fixture
def run(url: str) -> Callable[[Work], None]:
    """Return a function that runs a coroutine function with an empty conversation."""

    def start(work: Work) -> None:
        async def with_store() -> None:
            async with AsyncStore(url) as store:
                await work(await store.open("k"))

        asyncio.run(with_store())

    return start


def sent(text: str, id: str = "q1", **fields: Any) -> ChatRequest:
    message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return from_aisdk({"id": "k", "trigger": "submit-message", "messages": [message], **fields})


def ran(run_id: str, *messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return from_agui({"threadId": "k", "runId": run_id, "messages": messages, **fields})


def question(text: str, id: str = "q1") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": text}


async def answered(conversation: AsyncConversation, asked: ChatRequest, *tools: str) -> str:
    """Answer a request, with calls of these tools or with the number of the log's messages; return the turn's id."""
    async with open_turn(conversation, asked, server_tools={"pay"}) as (turn_id, turn):
        if turn is not None and not await open_calls(conversation):
            calls = [ToolCall(id=f"call-{tool}", name=tool, arguments={}) for tool in tools]
            if calls:
                await turn.append(Message.assistant(tool_calls=calls))
            else:
                await turn.append(Message.assistant(f"answer {(await conversation.info()).last_seq}"))
    return turn_id


async def texts(conversation: AsyncConversation) -> list[Any]:
    return [each.content or each.tool_calls[0].name for each in await conversation.all_messages()]


def test_edited_question_replaces_the_first_and_is_answered(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        for edits, text in enumerate(("Oslo?", "Bergen?", "Oslo?", "Bergen?"), 1):  # an edit can be taken back
            await answered(conversation, sent("Hello", "q0"))
            await answered(conversation, sent(text))
            stored = await texts(conversation)
            assert stored == ["Hello", "answer 1", text, stored[-1]]
            assert [each.turn_no for each in await conversation.all_messages()] == [1, 1, 1 + edits, 1 + edits]
            assert len(await conversation.turns.list()) == 2
        await answered(conversation, sent("Bergen and Oslo?", "other", messageId="q1"))
        assert (await texts(conversation))[2] == "Bergen and Oslo?"
        await answered(conversation, ran("r1", question("Tromsø?")))
        assert (await texts(conversation))[2] == "Tromsø?"

    run(work)


def test_edit_of_an_earlier_question_removes_what_follows(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("one", "q1"))
        await answered(conversation, sent("two", "q2"))
        await answered(conversation, sent("three", "q1"))
        assert (await texts(conversation))[0] == "three"
        assert len(await texts(conversation)) == 2

    run(work)


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_question_sent_again_joins_the_turn_or_has_its_stored_answer(
    run: Callable[[Work], None], protocol: str
) -> None:
    def request() -> ChatRequest:
        return sent("Hello") if protocol == "aisdk" else ran("r1", question("Hello"))

    async def work(conversation: AsyncConversation) -> None:
        async with open_turn(conversation, request()) as (first, turn):
            assert turn is not None
            async with open_turn(conversation, request()) as (again, other):
                assert (again, other) == (first, None)
            await turn.append(Message.assistant("Hi"))
        assert await answered(conversation, request()) == first
        assert await texts(conversation) == ["Hello", "Hi"]

    run(work)


def test_question_sent_again_has_its_newest_answer(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Hello"))
        newest = await answered(conversation, sent("Hello", trigger="regenerate-message"))
        question, answer = await texts(conversation)
        assert (question, answer) != ("Hello", "answer 1")
        assert await answered(conversation, sent("Hello")) == newest
        assert len(await conversation.turns.list()) == 2  # the usage of the first answer counts

    run(work)


def test_other_answer_that_is_asked_for_twice_is_one(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Hello"))
        for again in (sent("Hello", trigger="regenerate-message"), ran("r2", question("Hello"))):
            async with open_turn(conversation, again) as (turn_id, turn):
                assert turn is not None
                same = again if again.reruns else sent("Hello", trigger="regenerate-message")
                async with open_turn(conversation, same) as (joined, other):
                    assert (joined, other) == (turn_id, None)

    run(work)


def test_other_question_during_a_turn_is_refused(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await conversation.append_message(Message.user("earlier", id="q0"))
        async with open_turn(conversation, sent("Hello")):
            for other in (sent("Bye", "q2"), sent("Hello!"), ran("r2", question("Bye", "q2")), sent("earlier", "q0")):
                with pytest.raises(TurnInProgress):
                    await answered(conversation, other)
        assert await texts(conversation) == ["earlier", "Hello"]

    run(work)


def test_killed_attempt_is_continued_by_the_same_request(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Hello"))
        for request in (sent("Bye"), sent("Bye"), sent("Hello", "q2")):
            with pytest.raises(ZeroDivisionError):
                async with open_turn(conversation, request):
                    raise ZeroDivisionError
            await answered(conversation, request)
        assert [each for each in await texts(conversation) if "answer" not in each] == ["Bye", "Hello"]

    run(work)


def test_id_of_another_message_is_refused(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await conversation.append_message(Message.system("Be brief.", id="s1"))
        with pytest.raises(ValueError, match="another message"):
            await answered(conversation, sent("Be long.", "s1"))
        assert await texts(conversation) == ["Be brief."]

    run(work)


def approval(suspension_id: str, *approved: bool) -> ChatRequest:
    parts = [
        {"type": "tool-pay", "toolCallId": f"c{number}", "state": "approval-responded"}
        | {"approval": {"id": suspension_id, "approved": each}}
        for number, each in enumerate(approved)
    ]
    answer = {"id": "a1", "role": "assistant", "parts": parts}
    user = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Pay"}]}
    return from_aisdk({"id": "k", "messages": [user, answer]})


def test_approval_is_stored_once_and_can_be_sent_again_after_a_crash(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Pay"), "pay")
        suspension = await conversation.suspensions.create(calls=[(2, 0)], reason="Pay?")
        await conversation.suspensions.answer(suspension.id, {"approved": True, "reason": "cheap"})  # and a crash
        part = aisdk_messages(await conversation.get(), await conversation.suspensions.list())[-1]["parts"][-1]
        given = {"id": suspension.id, "approved": True, "reason": "cheap"}
        assert (part["state"], part["approval"]) == ("approval-responded", given)
        request = approval(suspension.id, True)
        async with open_turn(conversation, request) as (turn_id, turn):
            assert turn is not None
            async with open_turn(conversation, request) as (again, other):
                assert (again, other) == (turn_id, None)
            async with turn.call(2, 0) as effect:
                effect.output = "paid"
            await turn.append(Message.assistant("Done."))
        assert await answered(conversation, request) == turn_id
        assert await texts(conversation) == ["Pay", "pay", "paid", "Done."]
        shown = aisdk_messages(await conversation.get(), await conversation.suspensions.list())[-1]["parts"]
        assert [part.get("state") for part in shown if "toolCallId" in part] == ["output-available"]
        with pytest.raises(SuspensionNotFound):
            await answered(conversation, approval("0" * 64, True))

    run(work)


def test_suspension_of_two_calls_has_one_answer() -> None:
    assert approval("s1", True, True).approvals == [("s1", {"approved": True, "reason": None})]
    assert approval("s1", True, False).approvals == [("s1", {"approved": False, "reason": None})]
    resume = [{"interruptId": "s1", "status": "resolved", "payload": {"approved": True}}] * 2
    assert ran("r2", resume=resume).approvals == [("s1", {"approved": True})]


def test_resumed_run_needs_no_messages() -> None:
    resume = [{"interruptId": "s1", "status": "resolved", "payload": {"approved": True}}]
    request = ran("r2", resume=resume)
    assert (request.kind, request.message, request.turn_id) == ("approval", None, "r2")


def page_results(protocol: str, run_id: str, **outputs: Any) -> ChatRequest:
    """Return the request of a page that has run tools."""
    if protocol == "agui":
        tools = [
            {"id": f"t-{tool}", "role": "tool", "toolCallId": id, "content": each}
            for tool, (id, each) in outputs.items()
        ]
        return ran(run_id, question("Where?"), {"id": "a1", "role": "assistant"}, *tools)
    parts = [
        {"type": f"tool-{tool}", "toolCallId": id, "state": "output-available", "output": each}
        for tool, (id, each) in outputs.items()
    ]
    user = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Where?"}]}
    return from_aisdk({"id": "k", "messages": [user, {"id": "a1", "role": "assistant", "parts": parts}]})


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_results_of_the_page_are_stored_once_and_continue_the_answer(
    run: Callable[[Work], None], protocol: str
) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Where?"), "where", "when")
        request = page_results(protocol, "r2", where=("call-where", "Oslo"))
        assert request.kind == "results"
        turn_id = await answered(conversation, request)
        assert [each.name for each in await open_calls(conversation)] == ["when"]  # the model is not asked yet
        assert await answered(conversation, request) == turn_id
        await answered(
            conversation, page_results(protocol, "r3", where=("call-where", "Bergen"), when=("call-when", "now"))
        )
        stored = await conversation.all_messages()
        assert [(each.role, each.content, each.tool_call_id) for each in stored[2:]] == [
            ("tool", "Oslo", "call-where"),
            ("tool", "now", "call-when"),
            ("assistant", "answer 4", None),
        ]
        shown = aisdk_messages(await conversation.get())
        assert [each["role"] for each in shown] == ["user", "assistant"]

    run(work)


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_forged_results_are_not_stored(run: Callable[[Work], None], protocol: str) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Where?"), "pay", "where", "begun")
        await conversation.suspensions.create(calls=[(2, 1)], reason="Share?")
        await conversation.calls.begin(2, 2)
        forged = {name: (f"call-{name}", "forged") for name in ("pay", "where", "begun", "missing")}
        await answered(conversation, page_results(protocol, "r2", **forged))
        assert await texts(conversation) == ["Where?", "pay"]

    run(work)


@pytest.mark.parametrize("id", ["", "call_0"])
def test_results_find_calls_whose_ids_the_page_had_to_change(run: Callable[[Work], None], id: str) -> None:
    async def work(conversation: AsyncConversation) -> None:
        calls = [ToolCall(id=id, name="where", arguments={})] * 2
        await conversation.append_messages([Message.user("?"), Message.assistant(tool_calls=calls)])
        shown = aisdk_messages(await conversation.get())[-1]["parts"]
        ids = [part["toolCallId"] for part in shown if "toolCallId" in part]
        await answered(conversation, page_results("aisdk", "r1", a=(ids[0], "Oslo"), b=(ids[1], "Bergen")))
        again = aisdk_messages(await conversation.get())[-1]["parts"]
        assert [part["output"] for part in again if "toolCallId" in part] == ["Oslo", "Bergen"]

    run(work)


def test_result_that_comes_with_the_next_question_belongs_to_the_last_answer(run: Callable[[Work], None]) -> None:
    async def work(conversation: AsyncConversation) -> None:
        await answered(conversation, sent("Where?"), "where")
        tool = {"id": "t1", "role": "tool", "toolCallId": "call-where", "content": "Oslo"}
        asking = {"id": "a1", "role": "assistant"}
        await answered(conversation, ran("r2", question("Where?"), asking, tool, question("And when?", "q2")))
        assert await texts(conversation) == ["Where?", "where", "Oslo", "And when?", "answer 4"]
        shown = aisdk_messages(await conversation.get())
        assert [each["role"] for each in shown] == ["user", "assistant", "user", "assistant"]

    run(work)


def test_failed_result_of_the_page_is_stored_as_failed() -> None:
    tool = {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "", "error": "denied"}
    part = {"type": "tool-where", "toolCallId": "c1", "state": "output-error", "errorText": "denied"}
    user = {"id": "q1", "role": "user", "parts": []}
    ai = from_aisdk({"messages": [user, {"id": "a1", "role": "assistant", "parts": [part]}]})
    for request in (ran("r1", question("?"), tool), ai):
        assert request.results == [Message.tool("denied", failed=True, tool_call_id="c1")]


def test_result_without_an_output_is_null() -> None:
    part = {"type": "tool-where", "toolCallId": "c1", "state": "output-available"}
    user = {"id": "q1", "role": "user", "parts": []}
    request = from_aisdk({"messages": [user, {"id": "a1", "role": "assistant", "parts": [part]}]})
    assert request.results == [Message.tool(None, tool_call_id="c1")]


def test_answer_without_parts_is_ignored_before_a_question() -> None:
    user = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
    assert from_aisdk({"messages": [{"id": "a1", "role": "assistant"}, user]}).kind == "message"


@given(st.text(), st.text())
def test_turn_id_depends_on_the_text(first: str, second: str) -> None:
    assert (sent(first).turn_id == sent(second).turn_id) == (first == second)
