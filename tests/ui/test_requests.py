"""`lango_store.ui.submit`: requests of both protocols that edit, repeat, approve and bring results of tools."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    InvalidState,
    Message,
    Store,
    SuspensionNotFound,
    ToolCall,
)
from lango_store.ui import (
    Awaited,
    ChatRequest,
    agui_messages,
    aisdk,
    aisdk_messages,
    from_agui,
    from_aisdk,
    open_calls,
    requests,
    submit,
)

Work = Callable[[AsyncStore, AsyncConversation], Coroutine[Any, Any, None]]


@pytest.fixture
def run(url: str) -> Callable[[Work], None]:
    """Return a function that runs a coroutine function with a store and an empty conversation."""

    def start(work: Work) -> None:
        async def with_store() -> None:
            async with AsyncStore(url) as store:
                await work(store, await store.open("k"))

        asyncio.run(with_store())

    return start


def sent(text: str, id: str = "q1", **fields: Any) -> ChatRequest:
    message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return from_aisdk({"id": "k", "trigger": "submit-message", "messages": [message], **fields})


def ran(run_id: str, *messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return from_agui({"threadId": "k", "runId": run_id, "messages": messages, **fields})


def question(text: str, id: str = "q1") -> dict[str, Any]:
    return {"id": id, "role": "user", "content": text}


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    """Call the tools that the last question names, otherwise answer with the number of the log's messages."""
    last = (await conversation.messages(last=1))[-1]
    if last.role == "user" and str(last.content).startswith("call "):
        calls = [ToolCall(id=f"call-{tool}", name=tool, arguments={}) for tool in str(last.content).split()[1:]]
        await turn.append(Message.assistant(tool_calls=calls))
    for call in await open_calls(conversation):
        if call.approved is not None:
            async with turn.call(call.seq, call.position, idempotent=True) as effect:
                if not effect.replayed:
                    effect.output = "paid" if call.approved else "not paid"
    if not await open_calls(conversation):
        await turn.append(Message.assistant(f"answer {(await conversation.info()).last_seq}"))


async def answered(store: AsyncStore, conversation: AsyncConversation, asked: ChatRequest, **options: Any) -> Awaited:
    """Store a request, and let a worker answer it."""
    turn = await submit(conversation, asked, client_tools={"where", "when"}, **options)
    await store.work(answer, once=True)
    return turn


async def texts(conversation: AsyncConversation) -> list[Any]:
    return [each.content or each.tool_calls[0].name for each in await conversation.all_messages()]


def test_edited_question_replaces_the_first_and_is_answered(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("Hello", "q0"))
        for text in ("Oslo?", "Bergen?", "Oslo?", "Bergen?"):  # an edit can be taken back
            for _ in range(2):
                await answered(store, conversation, sent(text))
                stored = await texts(conversation)
                assert (stored[:3], len(stored)) == (["Hello", "answer 1", text], 4)
        await answered(store, conversation, sent("Bergen and Oslo?", "other", messageId="q1"))
        assert (await texts(conversation))[2] == "Bergen and Oslo?"
        await answered(store, conversation, ran("r1", question("Tromsø?")))
        assert (await texts(conversation))[2] == "Tromsø?"

    run(work)


def test_edit_of_an_earlier_question_removes_what_follows(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("one", "q1"))
        await answered(store, conversation, sent("two", "q2"))
        await submit(conversation, sent("waiting", "q3"))
        await answered(store, conversation, sent("three", "q1"))
        assert (await texts(conversation))[0] == "three"
        assert len(await texts(conversation)) == 2
        await conversation.switch((await conversation.alternatives())[0].id)
        shown = await texts(conversation)
        assert (shown[0], shown[2], shown[4:]) == ("one", "two", ["waiting"])
        await answered(store, conversation, sent("waiting", "q3", trigger="regenerate-message"))
        assert (await texts(conversation))[:5] == shown
        assert len(await texts(conversation)) == 6

    run(work)


def test_run_of_agui_branches_from_an_earlier_run(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, ran("r1", question("one", "q1")))
        await answered(store, conversation, ran("r2", question("two", "q2"), parentRunId="r1"))
        await answered(store, conversation, ran("r3", question("three", "q3"), parentRunId="r2"))
        before = await texts(conversation)
        assert before[::2] == ["one", "two", "three"]
        await submit(conversation, ran("r4", question("four", "q4"), parentRunId="r1"))
        assert [each.content for each in await conversation.inbox.list()] == ["four"]
        for _ in range(2):
            await answered(store, conversation, ran("r4", question("four", "q4"), parentRunId="r1"))
            assert (await texts(conversation))[::2] == ["one", "four"]
        await answered(store, conversation, ran("r5", question("five", "q5"), parentRunId="unknown"))
        assert (await texts(conversation))[::2] == ["one", "four", "five"]
        await conversation.switch((await conversation.alternatives())[0].id)
        assert await texts(conversation) == before
        for number in (6, 7):  # one turn answers both
            await submit(conversation, ran(f"r{number}", question("more", f"q{number}")))
        await answered(store, conversation, ran("r8", question("eight", "q8")))
        await answered(store, conversation, ran("r9", question("nine", "q9"), parentRunId="r6"))
        assert (await texts(conversation))[6:9] == ["more", "more", "eight"]
        assert (await texts(conversation))[-2] == "nine"

    run(work)


def test_edit_of_a_question_that_waits_replaces_it(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await submit(conversation, sent("one"))
        await submit(conversation, sent("other", id="q2"))
        for text in ("two", "two"):
            await submit(conversation, sent(text))
        assert [each.content for each in await conversation.inbox.list()] == ["two", "other"]

    run(work)


def test_edit_of_a_question_that_is_answered_stops_the_turn(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await submit(conversation, sent("Hello"))
        begun = asyncio.Event()
        stopped: list[str] = []

        async def slow(chat: AsyncConversation, turn: AsyncRunningTurn) -> None:
            if turn.messages[0].content == "Hello":
                await turn.write("half")
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped.append(turn.id)
            await turn.append(Message.assistant("Bye"))

        worker = asyncio.create_task(store.work(slow))
        await begun.wait()
        turn = await submit(conversation, sent("Hello!"))
        frames = [frame async for frame in aisdk(conversation, turn)]
        worker.cancel()
        await asyncio.wait([worker])
        assert "Bye" in "".join(frames)
        assert await texts(conversation) == ["Hello!", "Bye"]
        assert len(stopped) == 1

    run(work)


def test_edit_to_an_earlier_text_stops_the_turn_and_shows_its_version(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("one"))
        before = await texts(conversation)
        await submit(conversation, sent("two"))
        turn = await conversation.turn("t").__aenter__()
        await turn.take_inbox()
        await turn.write("half")
        for _ in range(2):
            await submit(conversation, sent("one"))
            assert await texts(conversation) == before
        assert await conversation.turns.in_progress() is None
        assert len(await conversation.alternatives()) == 2
        await submit(conversation, sent("two"))
        assert (await texts(conversation))[0] == "two"
        assert (await store.owed()).items == []

    run(work)


def test_answer_of_another_attempt_to_later_questions_is_shown_after_them(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        for attempt, text in enumerate(("one", "two", "three")):
            await submit(conversation, sent(text, text))
            with suppress(ConnectionError):
                async with conversation.turn("t") as turn:
                    await turn.take_inbox()
                    await turn.append(Message.assistant(f"answer {attempt}"))
                    if attempt < 2:
                        raise ConnectionError
        page = aisdk_messages(await conversation.get())
        shown = [each["parts"][-1]["text"] for each in page]
        assert shown == ["one", "answer 0", "two", "answer 1", "three", "answer 2"]
        assert len({each["id"] for each in page}) == len(page)
        again = sent("three", "three", trigger="regenerate-message", messageId=page[-1]["id"])
        await submit(conversation, again)
        assert [each.key for each in (await store.owed()).items] == ["k"]

    run(work)


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_question_sent_again_joins_the_turn_or_has_its_stored_answer(
    run: Callable[[Work], None], protocol: str
) -> None:
    def request() -> ChatRequest:
        return sent("Hello") if protocol == "aisdk" else ran("r1", question("Hello"))

    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        async def repeat(chat: AsyncConversation, turn: AsyncRunningTurn) -> None:
            assert await submit(conversation, request()) == Awaited(message_id="q1")
            await turn.append(Message.assistant("Hi"))

        await submit(conversation, request())
        await submit(conversation, request())
        assert await store.work(repeat, once=True) == 1
        await answered(store, conversation, request())
        assert await texts(conversation) == ["Hello", "Hi"]

    run(work)


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_other_answer_replaces_the_first_once(run: Callable[[Work], None], protocol: str) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("Hello"))
        for number in range(2):
            before = await conversation.turns.list()
            shown = aisdk_messages(await conversation.get())[-1]["id"]
            again = sent("Hello", trigger="regenerate-message", messageId=shown)
            if protocol == "agui":
                again = ran(f"r{number}", question("Hello"))
            for _ in range(3):
                await answered(store, conversation, again)
                assert len(await texts(conversation)) == 2
            turns = await conversation.turns.list()
            assert (turns[0].id, len(turns)) == (before[0].id, 2)  # the usage of the first answer counts
            assert turns[1].turn_no == before[-1].turn_no + 1
        await answered(store, conversation, ran("r0", question("Hello")) if protocol == "agui" else sent("Hello"))
        assert await conversation.turns.list() == turns

    run(work)


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
@pytest.mark.parametrize("id", [None, "m1"])
def test_question_of_another_writer_gets_another_answer_and_is_edited(
    run: Callable[[Work], None], protocol: str, id: str | None
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}

    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        asked = Message.user([{"type": "input_text", "text": "Which?"}, picture], id=id)
        (stored, *_) = await conversation.append_messages([asked, Message.assistant("This.", id=id and "m2")])

        def request(run_id: str, text: str | None = None, answer_id: str = "seq-2") -> ChatRequest:
            shown = (aisdk_messages if protocol == "aisdk" else agui_messages)(session)[0]
            field = "parts" if protocol == "aisdk" else "content"
            parts = [
                each if text is None or each["type"] != "text" else {**each, "text": text} for each in shown[field]
            ]
            body = {"messages": [{**shown, field: parts}]}
            if protocol == "agui":
                return from_agui({"threadId": "k", "runId": run_id, **body})
            return from_aisdk(
                {"id": "k"} | body | ({} if text else {"trigger": "regenerate-message", "messageId": answer_id})
            )

        session = await conversation.get()
        for _ in range(2):
            turn = await answered(store, conversation, request("r1", answer_id="m2" if id else "seq-2"))
            frames = "".join([frame async for frame in aisdk(conversation, turn)])
            assert "answer 3" in frames
        assert [each.content for each in await conversation.all_messages()] == [asked.content, "answer 3"]
        for _ in range(2):
            await answered(store, conversation, request("r2", "Who?"))
        edited, answer = await conversation.all_messages()
        assert ([each.get("text") for each in edited.content], answer.role) == (["Who?", None], "assistant")
        assert {each.id for each in await conversation.alternatives()} == {1, edited.seq}
        await conversation.switch(1)
        assert len(await conversation.alternatives()) == 4
        assert (await conversation.messages())[0] == stored

    run(work)


@pytest.mark.parametrize("id", [None, "m1"])
def test_other_answer_to_a_question_that_no_turn_has_taken_is_awaited(
    run: Callable[[Work], None], id: str | None
) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await conversation.append_messages([Message.user("Hello", id=id), Message.assistant("Hi", id="m2")])
        turn = await submit(conversation, sent("Hello", id or "seq-1", trigger="regenerate-message", messageId="m2"))
        frames = aisdk(conversation, turn)
        assert await anext(frames) == ":\n\n"
        await store.work(answer, once=True)
        assert "answer 3" in "".join([frame async for frame in frames])

    run(work)


def test_id_of_a_page_for_a_message_that_is_not_shown_is_refused(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await conversation.append_messages([Message.user("one"), Message.assistant("1"), Message.user("two")])
        await conversation.truncate(after=1)
        with pytest.raises(InvalidState, match="load it again"):
            await submit(conversation, sent("two!", "seq-3"))
        assert await texts(conversation) == ["one"]

    run(work)


def test_other_answer_without_an_id_joins_the_turn_in_progress(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        async def repeat(chat: AsyncConversation, turn: AsyncRunningTurn) -> None:
            for again in (sent("Hello", trigger="regenerate-message"), ran("r2", question("Hello"))):
                assert await submit(conversation, again) == Awaited(message_id="q1")
            await turn.append(Message.assistant("Hi"))

        await submit(conversation, sent("Hello"))
        assert await store.work(repeat, once=True) == 1

    run(work)


def test_other_question_during_a_turn_waits_or_is_refused(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await submit(conversation, sent("Hello"))
        with pytest.raises(InvalidState):
            await submit(conversation, sent("Bye", "q2"), busy="refuse")
        await store.work(lambda chat, turn: submit(conversation, sent("Bye", "q2")), once=True)
        assert await texts(conversation) == ["Hello", "Bye"]

    run(work)


def test_question_after_a_turn_that_was_given_up_is_answered(run: Callable[[Work], None]) -> None:
    async def fail(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        raise ZeroDivisionError

    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        for text, id in (("Hello", "q1"), ("Bye", "q2")):
            turn = await submit(conversation, sent(text, id))
            await store.work(fail, once=True, attempts=1)
            frames = "".join([frame async for frame in aisdk(conversation, turn)])
            assert "the answer was not finished" in frames
        await answered(store, conversation, sent("Bye", "q2"))  # again
        assert await texts(conversation) == ["Hello", "Bye", "answer 2"]

    run(work)


def test_id_of_another_message_is_refused(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await conversation.append_message(Message.system("Be brief.", id="s1"))
        with pytest.raises(ValueError, match="another message"):
            await submit(conversation, sent("Be long.", "s1"))
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


def test_approval_is_stored_once_and_the_turn_after_it_is_followed(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("call pay"))
        suspension = await conversation.suspensions.create(calls=[(2, 0)], reason="Pay?")
        await conversation.suspensions.answer(suspension.id, {"approved": True, "reason": "cheap"})  # and a crash
        part = aisdk_messages(await conversation.get(), await conversation.suspensions.list())[-1]["parts"][-1]
        given = {"id": suspension.id, "approved": True, "reason": "cheap"}
        assert (part["state"], part["approval"]) == ("approval-responded", given)
        for approved in (True, False):
            turn = await answered(store, conversation, approval(suspension.id, approved))
            frames = "".join([frame async for frame in aisdk(conversation, turn, continues=True)])
            assert '"paid"' in frames
            assert "answer 3" in frames
        assert await texts(conversation) == ["call pay", "pay", "paid", "answer 3"]
        shown = aisdk_messages(await conversation.get(), await conversation.suspensions.list())[-1]["parts"]
        assert [part.get("state") for part in shown if "toolCallId" in part] == ["output-available"]
        with pytest.raises(SuspensionNotFound):
            await submit(conversation, approval("0" * 64, True))

    run(work)


def test_suspension_of_two_calls_has_one_answer() -> None:
    assert approval("s1", True, True).approvals == [("s1", {"approved": True, "reason": None})]
    assert approval("s1", True, False).approvals == [("s1", {"approved": False, "reason": None})]
    resume = [{"interruptId": "s1", "status": "resolved", "payload": {"approved": True}}] * 2
    assert ran("r2", resume=resume).approvals == [("s1", {"approved": True})]


def test_resumed_run_needs_no_messages() -> None:
    resume = [{"interruptId": "s1", "status": "resolved", "payload": {"approved": True}}]
    request = ran("r2", resume=resume)
    assert (request.kind, request.message, request.run_id) == ("approval", None, "r2")


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
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("call where when"))
        request = page_results(protocol, "r2", where=("call-where", "Oslo"))
        assert request.kind == "results"
        turn = await answered(store, conversation, request)
        assert [each.name for each in await open_calls(conversation)] == ["when"]  # the model is not asked yet
        assert await answered(store, conversation, request) == turn
        both = page_results(protocol, "r3", where=("call-where", "Bergen"), when=("call-when", "now"))
        await submit(conversation, both, client_tools={"where", "when"})
        await answered(store, conversation, both)
        stored = await conversation.all_messages()
        assert [(each.role, each.content, each.tool_call_id) for each in stored[2:]] == [
            ("tool", "Oslo", "call-where"),
            ("tool", "now", "call-when"),
            ("assistant", "answer 4", None),
        ]
        shown = aisdk_messages(await conversation.get())
        assert [each["role"] for each in shown] == ["user", "assistant"]
        assert len(agui_messages(await conversation.get())) == 5

    run(work)


@pytest.mark.parametrize("with_question", [False, True])
def test_result_is_not_stored_if_its_call_is_replaced_meanwhile(
    run: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch, with_question: bool
) -> None:
    find, edits = requests._results, [sent("Hello")]

    async def edited_meanwhile(conversation: AsyncConversation, *words: Any) -> Any:
        found = await find(conversation, *words)
        if edits:
            await submit(conversation, edits.pop())
        return found

    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("call where"))
        monkeypatch.setattr(requests, "_results", edited_meanwhile)
        tool = {"id": "t1", "role": "tool", "toolCallId": "call-where", "content": "Oslo"}
        asking = {"id": "a1", "role": "assistant"}
        later = [question("And when?", "q2")] if with_question else []
        await answered(store, conversation, ran("r2", question("call where"), asking, tool, *later))
        assert await texts(conversation) == ["Hello", *["And when?"] * with_question, f"answer {4 + with_question}"]

    run(work)


def test_result_of_the_page_that_waits_is_set_aside_with_its_call(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("call where"))
        await answered(store, conversation, sent("Hello"))
        first, second = [each.id for each in await conversation.alternatives()]
        await conversation.switch(first)
        await submit(conversation, page_results("aisdk", "r2", where=("call-where", "Oslo")), client_tools={"where"})
        await conversation.switch(second)
        assert await conversation.inbox.list() == []
        assert await store.work(answer, once=True) == 0
        assert await texts(conversation) == ["Hello", "answer 4"]
        await conversation.switch(first)
        assert await texts(conversation) == ["call where", "where", "Oslo"]

    run(work)


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_forged_results_are_not_stored(run: Callable[[Work], None], protocol: str) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("call pay where when"))
        await conversation.suspensions.create(calls=[(2, 1)], reason="Share?")
        await conversation.calls.begin(2, 2)
        forged = {name: (f"call-{name}", "forged") for name in ("pay", "where", "when", "missing")}
        await answered(store, conversation, page_results(protocol, "r2", **forged))
        assert await texts(conversation) == ["call pay where when", "pay"]

    run(work)


@pytest.mark.parametrize("id", ["", "call_0"])
def test_results_find_calls_whose_ids_the_page_had_to_change(run: Callable[[Work], None], id: str) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        calls = [ToolCall(id=id, name="where", arguments={})] * 2
        await conversation.append_messages([Message.user("?"), Message.assistant(tool_calls=calls)])
        shown = aisdk_messages(await conversation.get())[-1]["parts"]
        ids = [part["toolCallId"] for part in shown if "toolCallId" in part]
        await answered(store, conversation, page_results("aisdk", "r1", a=(ids[0], "Oslo"), b=(ids[1], "Bergen")))
        again = aisdk_messages(await conversation.get())[-1]["parts"]
        assert [part["output"] for part in again if "toolCallId" in part] == ["Oslo", "Bergen"]

    run(work)


def test_result_that_comes_with_the_next_question_belongs_to_the_last_answer(run: Callable[[Work], None]) -> None:
    async def work(store: AsyncStore, conversation: AsyncConversation) -> None:
        await answered(store, conversation, sent("call where"))
        tool = {"id": "t1", "role": "tool", "toolCallId": "call-where", "content": "Oslo"}
        asking = {"id": "a1", "role": "assistant"}
        request = ran("r2", question("call where"), asking, tool, question("And when?", "q2"))
        await answered(store, conversation, request)
        assert await texts(conversation) == ["call where", "where", "Oslo", "And when?", "answer 4"]
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


def test_put_messages_replaces_the_log_and_owes_a_turn(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("one", id="q1"), Message.assistant("1")])
    conversation.inbox.put(Message.user("two"))
    revision = conversation.info().revision
    (stored,) = conversation.inbox.put_messages([Message.user("other", id="q1")], replace_after=0, expect=revision)
    assert (stored.content, stored.replayed) == ("other", False)
    assert [each.content for each in conversation.inbox.list()] == ["other"]
    assert conversation.all_messages() == []
    assert store.work(lambda chat, turn: None, once=True) == 1
    conversation.append_message(Message.assistant("2"))
    assert conversation.inbox.put_messages([], replace_after=conversation.all_messages()[0].seq) == []
    assert store.owed().items[0].reason == "answer"
    assert store.work(lambda chat, turn: turn.append(Message.assistant("3")), once=True) == 1
    assert [each.content for each in conversation.all_messages()] == ["other", "3"]
