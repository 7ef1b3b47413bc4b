"""Tool calls: a call is recorded before its tool runs, and its result together with the end of the call."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.factories import contents, message
from support.processes import Program
from support.statements import watched

from lango_store import (
    AsyncStore,
    CallFinished,
    CallInProgress,
    CallNotFound,
    CallUnknown,
    Conflict,
    Conversation,
    InvalidMessage,
    InvalidState,
    LangoStoreError,
    LeaseLost,
    Message,
    Store,
    Suspension,
    ToolCall,
    TurnInProgress,
    create_engine,
    window,
)
from lango_store.testing import Clock

LIMIT = timedelta(minutes=2)
CALLS = [ToolCall(id="call_0", name="pay", arguments={"euros": 40})] * 3
"""Calls that only their position tells apart, as several servers send them."""
UNFINISHED = "The tool did not finish: its result is unknown."


def asks(conversation: Conversation) -> Message:
    return conversation.append_message(Message.assistant(tool_calls=CALLS))


def replayed(stored: Message | None) -> Message:
    assert stored is not None
    return stored.model_copy(update={"replayed": True})


def states(conversation: Conversation) -> list[tuple[int, int, str]]:
    return [(call.seq, call.position, call.state) for call in conversation.calls.list()]


# Begin and finish


def test_begin_call_of_a_finished_call_returns_the_stored_result(either_store: Store) -> None:
    conversation = either_store.open("k")
    seq = asks(conversation).seq
    effect = conversation.calls.begin(seq, 1)
    assert (effect.replayed, effect.result, effect.call) == (False, None, CALLS[1])
    result = conversation.calls.finish(effect, {"paid": 40})
    assert (result.role, result.tool_call_id, result.seq) == ("tool", "call_0", 2)
    assert result.tool_calls == [ToolCall(id="call_0", name="pay", output={"paid": 40})]
    again = conversation.calls.begin(seq, 1)
    assert (again.replayed, again.result, again.key) == (True, replayed(result), effect.key)
    assert states(conversation) == [(1, 1, "finished")]


def test_calls_with_the_same_id_are_distinguished_by_seq_and_position(store: Store) -> None:
    conversation = store.open("k")
    first, second = asks(conversation).seq, asks(conversation).seq
    effects = [conversation.calls.begin(seq, position) for seq in (first, second) for position in (2, 0)]
    assert len({effect.key for effect in effects}) == 4
    conversation.calls.finish(effects[3], "of the second message")
    assert states(conversation) == [
        (first, 0, "running"),
        (first, 2, "running"),
        (second, 0, "finished"),
        (second, 2, "running"),
    ]


def test_begin_call_raises_call_in_progress_while_the_call_is_running(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    seq = asks(conversation).seq
    conversation.calls.begin(seq, 0, limit=LIMIT)
    with pytest.raises(CallInProgress) as raised:
        conversation.calls.begin(seq, 0, idempotent=True)
    error = raised.value
    assert (error.key, error.seq, error.position, error.until) == ("k", seq, 0, clock.time + LIMIT)


def test_call_without_a_result_is_unknown_after_the_time_limit(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k")
    seq = asks(conversation).seq
    effect = conversation.calls.begin(seq, 0, limit=LIMIT)
    assert either_store.calls.list_unknown().items == []
    clock.move(minutes=2)
    with pytest.raises(CallUnknown) as raised:
        conversation.calls.begin(seq, 0)
    assert (raised.value.seq, raised.value.position, raised.value.effect_key) == (seq, 0, effect.key)
    (unknown,) = either_store.calls.list_unknown().items
    assert (unknown.key, unknown.name, unknown.effect_key) == ("k", "pay", effect.key)
    assert (unknown.state, unknown.begun_at, unknown.until) == ("unknown", clock.time - LIMIT, clock.time)


def test_idempotent_call_without_a_result_begins_again_with_the_same_effect_key(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    seq = asks(conversation).seq
    late = conversation.calls.begin(seq, 0)
    clock.move(minutes=2)
    effect = conversation.calls.begin(seq, 0, idempotent=True)
    assert effect.key == late.key
    with pytest.raises(Conflict, match="begun again, or"):
        conversation.calls.finish(late, "late")
    conversation.calls.finish(effect, "done")
    assert [each.content for each in conversation.messages()][1:] == ["done"]


def test_result_after_the_time_limit_is_stored_if_the_call_was_not_resolved(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    clock.move(hours=2)
    assert conversation.calls.finish(effect, "late").content == "late"
    assert states(conversation) == [(1, 0, "finished")]


def test_second_finish_call_stores_no_second_result(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    stored = conversation.calls.finish(effect, "done")
    assert conversation.calls.finish(effect, "done") == replayed(stored)
    assert len(conversation.messages()) == 2


def test_finish_call_of_a_replayed_call_returns_the_first_result(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation).seq
    stored = conversation.calls.finish(conversation.calls.begin(seq, 0), "first")
    assert conversation.calls.finish(conversation.calls.begin(seq, 0), "second") == replayed(stored)
    assert [each.content for each in conversation.messages()][1:] == ["first"]


def test_failure_of_a_call_is_stored_as_the_result(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    result = conversation.calls.finish(effect, failed="no money")
    assert (result.content, result.extra) == ("no money", {"failed": True})
    assert conversation.calls.begin(1, 0).result == replayed(result)


@pytest.mark.parametrize("given", [{}, {"output": 1, "failed": "no"}])
def test_finish_call_needs_either_an_output_or_a_failure(store: Store, given: dict[str, Any]) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    with pytest.raises(TypeError, match="the output of the tool, or the text of its failure"):
        conversation.calls.finish(effect, **given)


def test_output_that_cannot_be_stored_leaves_the_call_running(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    with pytest.raises(InvalidMessage):
        conversation.calls.finish(effect, {"when": {1, 2}})
    assert states(conversation) == [(1, 0, "running")]
    assert len(conversation.messages()) == 1


@pytest.mark.parametrize(("seq", "position"), [(1, 3), (1, -1), (2, 0), (9, 0), (0, 0)])
def test_begin_call_refuses_a_call_that_no_message_asks_for(store: Store, seq: int, position: int) -> None:
    conversation = store.open("k")
    asks(conversation)
    conversation.append_message(message("no call"))
    with pytest.raises(CallNotFound, match="there is no call"):
        conversation.calls.begin(seq, position)
    assert conversation.calls.list() == []


def test_begin_call_is_refused_in_a_callers_transaction(store: Store) -> None:
    seq = asks(store.open("k")).seq
    with pytest.raises(InvalidState, match="needs its own transaction"):
        store.transact(lambda tx: tx.conversation("k").calls.begin(seq, 0))


def test_result_of_a_call_is_committed_or_rolled_back_with_the_callers_transaction(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)

    def finish(tx: Store) -> None:
        tx.shared_values("account").set({"paid": 40})
        tx.conversation("k").calls.finish(effect, "done")

    def fail(tx: Store) -> None:
        finish(tx)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(fail)
    assert (store.shared_values("account").get(), states(conversation)) == ({}, [(1, 0, "running")])
    store.transact(finish)
    assert (store.shared_values("account").get(), states(conversation)) == ({"paid": 40}, [(1, 0, "finished")])


def test_begin_call_with_wait_returns_the_result_that_another_process_stored(url: str) -> None:
    waits = """
import sys
from datetime import timedelta
from lango_store import Store
with Store(sys.argv[1]) as store:
    print("waiting", flush=True)
    effect = store.conversation("k").calls.begin(1, 0, wait=timedelta(seconds=60))
    print(effect.replayed, effect.result.content)
"""
    with Store(url) as store:
        conversation = store.open("k")
        effect = conversation.calls.begin(asks(conversation).seq, 0)
        program = Program(waits, url)
        assert program.stdout.readline() == "waiting\n"
        conversation.calls.finish(effect, "done")
        assert program.communicate() == ("True done\n", "")


scalars = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@pytest.mark.slow
@given(output=st.recursive(scalars, st.lists))
def test_replay_of_a_call_returns_any_output_unchanged(store: Store, output: Any) -> None:
    conversation = store.open()
    conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
    conversation.calls.finish(conversation.calls.begin(1, 0), output)
    result = conversation.calls.begin(1, 0).result
    assert result is not None
    assert (result.content if isinstance(output, str) else result.tool_calls[0].output) == output
    closed = window.close_calls(conversation.messages())
    assert window.as_prompt(closed) == window.as_prompt(conversation.messages())


def test_stored_result_of_a_call_cannot_be_begun_as_a_call(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    result = conversation.calls.finish(effect, {"paid": 40})
    assert result.tool_calls
    with pytest.raises(CallNotFound, match=r"message 2 .* has the role tool and asks for no call"):
        conversation.calls.begin(result.seq, 0)
    with (
        conversation.turn("t") as turn,
        pytest.raises(CallNotFound, match="asks for no call"),
        turn.call(result, 0),
    ):
        pytest.fail("the result was begun as a call")
    assert states(conversation) == [(1, 0, "finished")]


NOT_ASKING = [
    message("u", tool_calls=CALLS),
    message("s", role="system", tool_calls=CALLS),
    message("f", role="function", tool_calls=CALLS),
    message("r", role="record", tool_calls=CALLS),
    message("a", role="assistant", tool_calls=[ToolCall(id="call_0", name="pay", output="paid")]),
]


@pytest.mark.parametrize("stored", NOT_ASKING, ids=lambda stored: stored.content)
def test_call_of_a_message_that_does_not_ask_for_it_is_refused(store: Store, stored: Message) -> None:
    conversation = store.open("k")
    seq = conversation.append_message(stored).seq
    for call in (conversation.calls.begin, lambda seq, position: conversation.suspensions.create([(seq, position)])):
        with pytest.raises((CallNotFound, CallFinished), match=r"asks for no call|already has an output"):
            call(seq, 0)
    assert (conversation.calls.list(), conversation.suspensions.list()) == ([], [])


def test_call_of_a_message_with_the_role_model_can_begin(store: Store) -> None:
    conversation = store.open("k", messages=[message(None, role="model", tool_calls=CALLS)])
    assert not conversation.calls.begin(1, 0).replayed


@pytest.mark.parametrize("position", [True, "0", 0.0, None])
def test_begin_call_refuses_a_position_that_is_not_an_int(store: Store, position: Any) -> None:
    seq = asks(store.open("k")).seq
    with pytest.raises(TypeError, match="position is"):
        store.conversation("k").calls.begin(seq, position)


@pytest.mark.parametrize("failed", [5, True, ["no"]])
def test_finish_call_refuses_a_failure_that_is_not_text(store: Store, failed: Any) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    with pytest.raises(TypeError, match="failed is"):
        conversation.calls.finish(effect, failed=failed)


def test_finish_call_refuses_an_effect_of_another_session(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    with pytest.raises(ValueError, match="another session"):
        store.open("another").calls.finish(effect, "done")


def test_async_begin_call_waits_without_using_a_thread(url: str) -> None:
    async def run() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            seq = (await conversation.append_message(Message.assistant(tool_calls=CALLS))).seq
            effect = await conversation.calls.begin(seq, 0)
            waiting = [conversation.calls.begin(seq, 0, wait=timedelta(seconds=60)) for _ in range(40)]
            tasks = [asyncio.create_task(each) for each in waiting]
            result = await conversation.calls.finish(effect, "done")
            for found in await asyncio.gather(*tasks):
                assert found.result == replayed(result)
            await conversation.calls.begin(seq, 1)
            with pytest.raises(CallInProgress):
                await conversation.calls.begin(seq, 1)

    asyncio.run(run())


# In the prompt


def test_result_stored_after_later_messages_directly_follows_its_call_in_the_prompt(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    effect = conversation.calls.begin(asks(conversation).seq, 0)
    conversation.append_messages([message("weather?"), Message.assistant("sunny")])
    conversation.calls.finish(effect, "paid")
    prompt = [(each["role"], each["content"]) for each in conversation.history()]
    results = [("tool", "paid"), ("tool", UNFINISHED), ("tool", UNFINISHED)]
    assert prompt == [("user", "pay"), ("assistant", None), *results, ("user", "weather?"), ("assistant", "sunny")]


def test_result_answers_the_call_with_the_same_tool_name_if_two_calls_share_an_id(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay and mail")])
    both = [ToolCall(id="call_0", name="pay"), ToolCall(id="call_0", name="mail")]
    seq = conversation.append_message(Message.assistant(tool_calls=both)).seq
    conversation.calls.finish(conversation.calls.begin(seq, 1), "mailed")
    results = [(each["name"], each["content"]) for each in conversation.history() if each["role"] == "tool"]
    assert results == [("pay", UNFINISHED), ("mail", "mailed")]


def test_result_does_not_answer_a_later_call_of_another_tool_with_the_same_id(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="call_0", name="pay")]))
    effect = conversation.calls.begin(asking.seq, 0)
    mail = Message.assistant(tool_calls=[ToolCall(id="call_0", name="mail")])
    conversation.append_messages([message("mail"), mail, message("done?")])
    conversation.calls.finish(effect, "paid")
    results = [(each["name"], each["content"]) for each in conversation.history() if each["role"] == "tool"]
    assert results == [("pay", "paid"), ("mail", UNFINISHED)]


def results_by_call(conversation: Conversation, **options: Any) -> list[list[str]]:
    """Return the contents of the results that follow each message with calls in the prompt."""
    results: list[list[str]] = []
    for each in conversation.history(**options):
        if each.get("tool_calls"):
            results.append([])
        elif each["role"] == "tool":
            results[-1].append(each["content"])
    return results


def test_result_is_shown_under_the_call_that_was_begun_if_two_messages_ask_with_the_same_id(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    first = conversation.append_message(Message.assistant(tool_calls=CALLS[:1])).seq
    conversation.append_message(message("pay once more"))
    second = conversation.append_message(Message.assistant(tool_calls=CALLS[:1])).seq
    conversation.append_message(message("weather?"))
    conversation.calls.finish(conversation.calls.begin(first, 0), "paid the first")
    assert results_by_call(conversation) == [["paid the first"], [UNFINISHED]]
    # Without the message that asks for its call, the result is left out.
    assert results_by_call(conversation, last=4) == [[UNFINISHED]]
    assert results_by_call(conversation, last=4, step=2) == [[UNFINISHED]]
    conversation.calls.finish(conversation.calls.begin(second, 0), "paid the second")
    assert results_by_call(conversation) == [["paid the first"], ["paid the second"]]
    recorded = window.recorded_calls(conversation.calls.list())
    closed = window.close_calls(conversation.messages(), recorded=recorded)
    assert window.as_prompt(closed, nested=False) == conversation.history(nested=False)


def test_results_of_calls_that_share_an_id_have_the_order_of_the_calls(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    seq = asks(conversation).seq
    effects = [conversation.calls.begin(seq, position) for position in range(3)]
    conversation.calls.finish(effects[2], "third")
    assert results_by_call(conversation) == [[UNFINISHED, UNFINISHED, "third"]]
    conversation.calls.finish(effects[0], "first")
    conversation.append_message(message("weather?"))
    conversation.calls.finish(effects[1], "second")
    assert results_by_call(conversation) == [["first", "second", "third"]]


def test_result_moves_to_the_earlier_call_that_was_begun_although_the_later_one_is_open(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    first, second = asks(conversation).seq, asks(conversation).seq
    conversation.calls.finish(conversation.calls.begin(first, 1), "of the first")
    assert results_by_call(conversation) == [[UNFINISHED, "of the first", UNFINISHED], [UNFINISHED] * 3]
    conversation.calls.finish(conversation.calls.begin(second, 0), "of the second")
    expected = [[UNFINISHED, "of the first", UNFINISHED], ["of the second", UNFINISHED, UNFINISHED]]
    assert results_by_call(conversation) == expected
    assert results_by_call(conversation, last=50) == expected


def test_appended_result_is_not_shown_under_a_call_whose_result_is_recorded(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    first = conversation.append_message(Message.assistant(tool_calls=CALLS[:1])).seq
    second = conversation.append_message(Message.assistant(tool_calls=CALLS[:1])).seq
    effect = conversation.calls.begin(second, 0)
    conversation.append_message(Message.tool("appended", tool_call_id="call_0"))
    conversation.calls.finish(effect, "recorded")
    conversation.append_message(Message.tool("superfluous", tool_call_id="call_0"))
    assert first < second
    assert results_by_call(conversation) == [["appended"], ["recorded"]]
    assert closed_results(conversation) == ["appended", "recorded"]


@pytest.mark.parametrize("change", ["delete", "record", "user"])
def test_result_that_was_removed_leaves_its_call_to_an_appended_one(store: Store, change: str) -> None:
    conversation = store.open("k", messages=[message("pay")])
    seq = conversation.append_message(Message.assistant(tool_calls=CALLS[:1])).seq
    result = conversation.calls.finish(conversation.calls.begin(seq, 0), "recorded")
    if change == "delete":
        conversation.edits.delete(result.seq)
    else:
        conversation.edits.update(result.seq, message("recorded", role=change))
    conversation.append_message(Message.tool("appended", tool_call_id="call_0"))
    assert results_by_call(conversation) == [["appended"]]
    assert closed_results(conversation) == ["appended"]


def closed_results(conversation: Conversation) -> list[Any]:
    """Return the results as `close_calls` shows them."""
    recorded = window.recorded_calls(conversation.calls.list())
    closed = window.close_calls(conversation.messages(), recorded=recorded)
    return [each.content for each in closed if each.role == "tool"]


def test_recorded_result_leaves_the_other_call_to_a_result_that_was_appended(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    first, second = asks(conversation).seq, asks(conversation).seq
    assert first < second
    conversation.append_message(Message.tool("appended", tool_call_id="call_0"))
    conversation.calls.finish(conversation.calls.begin(second, 0), "recorded")
    assert results_by_call(conversation) == [[UNFINISHED] * 3, ["recorded", "appended", UNFINISHED]]


def test_result_is_shown_under_its_call_if_another_result_became_a_record(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    first = asks(conversation).seq
    effects = [conversation.calls.begin(first, 1), conversation.calls.begin(first, 2)]
    effects.append(conversation.calls.begin(asks(conversation).seq, 0))
    results = [replayed(conversation.calls.finish(each, text)) for each, text in zip(effects, "abc", strict=True)]
    conversation.edits.update(results[1].seq, Message(role="record", content="b"))
    assert results_by_call(conversation) == [[UNFINISHED, "a", UNFINISHED], ["c", UNFINISHED, UNFINISHED]]


def test_history_without_results_does_not_read_the_begun_calls(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        conversation = store.open("k", messages=[message("pay")])
        effect = conversation.calls.begin(asks(conversation).seq, 0)
        counts = []
        for _ in range(2):
            with watched(engine) as statements:
                conversation.history(last=50)
            counts.append(len(statements))
            conversation.calls.finish(effect, "paid")
        assert counts == [1, 2]
    engine.dispose()


STEPS = ["ask", "exchange", "user", "answer", "finish oldest", "finish newest", "compact", "compact during a finish"]


def is_accepted(prompt: list[dict[str, Any]]) -> bool:
    """True if each call has one result, and each result directly follows the message that asks for its call."""
    expected: list[str] = []
    for each in [*prompt, {"role": "end"}]:
        if each["role"] != "tool":
            if expected:
                return False
            expected = [call["id"] for call in each.get("tool_calls", ())]
        elif each["tool_call_id"] in expected:
            expected.remove(each["tool_call_id"])
        else:
            return False
    return True


@pytest.mark.slow
@given(steps=st.lists(st.sampled_from(STEPS), max_size=10), is_unique=st.booleans())
@example(steps=["ask", "exchange", "compact", "finish oldest"], is_unique=False)
@example(steps=["ask", "user", "answer", "compact during a finish"], is_unique=True)
@example(steps=["ask", "user", "answer", "finish oldest", "user"], is_unique=True)
def test_history_with_late_approvals_is_accepted_by_providers(store: Store, steps: list[str], is_unique: bool) -> None:
    conversation = store.open(messages=[message("start")])
    waiting: list[Suspension] = []

    def ask(number: int) -> int:
        call = ToolCall(id=f"call_{number if is_unique else 0}", name="pay")
        return conversation.append_message(Message.assistant(tool_calls=[call])).seq

    def finish(suspension: Suspension, output: str) -> None:
        for seq, position in conversation.suspensions.answer(suspension.id, True).calls:
            conversation.calls.finish(conversation.calls.begin(seq, position), output)

    for number, step in enumerate(steps):
        match step:
            case "ask":
                waiting.append(conversation.suspensions.create([(ask(number), 0)]))
            case "exchange":
                conversation.calls.finish(conversation.calls.begin(ask(number), 0), f"result {number}")
            case "finish oldest" | "finish newest" if waiting:
                finish(waiting.pop(0 if step == "finish oldest" else -1), f"late {number}")
            case "compact":
                conversation.compact(lambda _: [message("summary")])
            case "compact during a finish" if waiting:
                pending = conversation.turns.begin_compaction()
                finish(waiting.pop(), f"late {number}")
                if pending is not None:
                    pending.finish([message("summary", role="assistant")])
            case _:
                conversation.append_message(message(step, role="user" if step == "user" else "assistant"))
        for last in range(len(conversation.messages()) + 1):
            for step_of_start in (None, 1, 2, 3):
                prompt = conversation.history(last=last, step=step_of_start)
                assert is_accepted(prompt), (last, step_of_start, prompt)
                late = [each["content"] for each in prompt if str(each["content"]).startswith(("late", "result"))]
                assert len(late) == len(set(late))


# In a turn


def test_result_of_a_call_in_a_turn_belongs_to_the_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        for position in range(3):
            with turn.call(asking, position) as effect:
                assert not effect.replayed
                effect.output = f"result {position}"
    assert [each.turn_no for each in conversation.messages()] == [1, 1, 1, 1]
    assert [state for _, _, state in states(conversation)] == ["finished"] * 3


def test_turn_call_accepts_a_tool_call_object_unless_several_are_equal(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with turn.call(asking, asking.tool_calls[1]) as effect:
            effect.output = "done"
        with (
            pytest.raises(ValueError, match="3 calls of the message equal this one"),
            turn.call(asking, CALLS[0].model_copy()),
        ):
            pass
    assert states(conversation) == [(1, 1, "finished")]


def test_turn_call_accepts_seq_and_position(either_store: Store) -> None:
    conversation = either_store.open("k")
    seq = asks(conversation).seq
    with conversation.turn("t") as turn:
        with turn.call(seq, 2) as effect:
            effect.output = "done"
        with pytest.raises(ValueError, match="give the position"), turn.call(seq, CALLS[0]):
            pass
    assert states(conversation) == [(seq, 2, "finished")]


def test_next_attempt_of_a_turn_replays_calls_that_the_first_attempt_finished(store: Store) -> None:
    conversation = store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with turn.call(asking, 0) as effect:
            effect.output = "equal"
        raise ZeroDivisionError
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        assert asking.replayed
        with turn.call(asking, 0) as effect:
            assert effect.replayed
        with turn.call(asking, 1) as effect:
            effect.output = "equal"
        assert len(turn.messages) == 3
    assert [(each.seq, each.turn_no) for each in conversation.messages()] == [(1, 1), (2, 1), (3, 1)]


def test_message_that_equals_a_replayed_result_is_stored(store: Store) -> None:
    conversation = store.open("k")
    for attempt in range(2):
        with suppress(ZeroDivisionError), conversation.turn("t") as turn:
            asking = turn.append(Message.assistant(tool_calls=CALLS))
            with turn.call(asking, 0) as effect:
                if not effect.replayed:
                    effect.output = "equal"
            if attempt == 0:
                raise ZeroDivisionError
            assert effect.replayed
            assert not turn.append(Message.tool("equal", tool_call_id="call_0", name="pay")).replayed
    assert len(conversation.messages()) == 3


def test_call_is_unknown_if_the_block_raises_or_sets_no_output(either_store: Store) -> None:
    conversation = either_store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with pytest.raises(ZeroDivisionError), turn.call(asking, 0):
            raise ZeroDivisionError
        with turn.call(asking, 1):
            pass  # no output
        assert [call.position for call in either_store.calls.list_unknown().items] == [0, 1]
        with pytest.raises(CallUnknown), turn.call(asking, 0):
            pass
        with turn.call(asking, 1, idempotent=True) as effect:
            effect.failed = "no"
    assert [state for _, _, state in states(conversation)] == ["unknown", "finished"]


class Cancelled(Exception):
    """Ends a transaction of the application."""


def test_call_is_unknown_if_its_result_was_rolled_back_with_the_callers_transaction(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with turn.call(asking, 0) as effect, suppress(Cancelled), store.transaction() as transaction:
            transaction.conversation("k").calls.finish(effect, "paid")
            raise Cancelled
        assert effect.result is None
    assert states(conversation) == [(1, 0, "unknown")]
    assert contents(conversation.messages()) == [None]


def test_output_is_stored_if_an_earlier_result_was_rolled_back_with_the_callers_transaction(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with turn.call(asking, 0) as effect:
            with suppress(Cancelled), store.engine.connect() as connection:
                store.using(connection).conversation("k").calls.finish(effect, "lost")
                raise Cancelled
            effect.output = "paid"
    assert states(conversation) == [(1, 0, "finished")]
    assert contents(conversation.messages()) == contents(turn.messages) == [None, "paid"]


def test_result_that_was_committed_with_the_callers_transaction_ends_the_call(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with turn.call(asking, 0) as effect, store.transaction() as transaction:
            result = transaction.conversation("k").calls.finish(effect, "paid")
        assert effect.result == result
        effect = turn._begin_call(asking, 1)
        with store.transaction() as transaction:
            transaction.conversation("k").calls.finish(effect, "paid too")
            turn._end_call(effect)  # writes nothing, because the transaction has locked the call
    assert [state for _, _, state in states(conversation)] == ["finished"] * 2


def test_output_of_a_call_is_stored_if_the_block_raises_after_setting_it(either_store: Store) -> None:
    conversation = either_store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        with suppress(ZeroDivisionError), turn.call(asking, 0) as effect:
            effect.output = "paid"
            raise ZeroDivisionError
    assert states(conversation) == [(1, 0, "finished")]


def test_output_that_was_set_before_a_call_is_cancelled_is_stored(url: str) -> None:
    async def run() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            async with conversation.turn("t") as turn:
                asking = await turn.append(Message.assistant(tool_calls=CALLS))
                ran = asyncio.Event()

                async def call() -> None:
                    async with turn.call(asking, 0) as effect:
                        effect.output = "paid"
                        ran.set()
                        await asyncio.Event().wait()

                task = asyncio.create_task(call())
                await ran.wait()
                task.cancel()
                await asyncio.wait([task])
            assert [each.state for each in await conversation.calls.list()] == ["finished"]

    asyncio.run(run())


def test_messages_of_a_turn_are_in_the_order_of_the_log(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    killed = conversation.turn("t").begin()
    asking = killed.append(Message.assistant(tool_calls=CALLS))
    killed._begin_call(asking, 0)
    clock.move(minutes=2)
    conversation.calls.resolve(asking.seq, 0, output="paid")
    with suppress(ZeroDivisionError), conversation.turn("t") as turn:
        turn.append(Message.assistant("You have paid."))
        raise ZeroDivisionError
    with conversation.turn("t") as turn:
        with turn.call(asking, 0) as effect:
            assert effect.replayed
        assert [each.content for each in turn.messages] == [None, "paid", "You have paid."]


def test_message_of_an_earlier_turn_stays_in_the_earlier_turn_if_appended_again(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("first", id="m")], id="first")
    with conversation.turn("second") as turn:
        assert turn.append(message("first", id="m")).replayed
        turn.append(message("second"))
    assert [each.turn_no for each in conversation.messages()] == [1, 2]
    assert contents(conversation.turn("second").begin().messages) == ["second"]


def test_result_of_a_call_is_stored_even_after_another_attempt_took_over_the_turn(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    late = conversation.turn("t").begin()
    asking = late.append(Message.assistant(tool_calls=CALLS))
    with late.call(asking, 0) as effect:
        clock.move(minutes=2)
        with pytest.raises(CallUnknown), conversation.turn("t") as turn, turn.call(asking, 0):
            pass
        effect.output = "paid"
    with pytest.raises(LeaseLost):
        late.append(message())
    with conversation.turn("t") as turn, turn.call(asking, 0) as effect:
        assert effect.replayed
    assert [each.turn_no for each in conversation.messages()] == [1, 1]


def test_turn_that_lost_the_lease_cannot_begin_a_call(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    asking = turn.append(Message.assistant(tool_calls=CALLS))
    conversation.turns.release()
    with pytest.raises(LeaseLost), turn.call(asking, 0):
        pass
    assert conversation.calls.list() == []


def test_begin_and_end_of_a_call_extend_the_lease_of_the_turn(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        asking = turn.append(Message.assistant(tool_calls=CALLS))
        for moment in ("begin", "end"):
            clock.move(seconds=90)
            with turn.call(asking, 0 if moment == "begin" else 1) as effect:
                clock.move(seconds=90)
                with pytest.raises(TurnInProgress), conversation.turn("another"):
                    pass
                effect.output = moment
    assert conversation.turns.find("t") is not None


def test_call_is_unknown_if_the_task_is_cancelled_before_setting_an_output(url: str) -> None:
    async def run() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            async with conversation.turn("t") as turn:
                asking = await turn.append(Message.assistant(tool_calls=CALLS))
                entered = asyncio.Event()

                async def hang() -> None:
                    async with turn.call(asking, 0):
                        entered.set()
                        await asyncio.Event().wait()

                task = asyncio.create_task(hang())
                await entered.wait()
                task.cancel()
                await asyncio.wait([task])
                assert [call.position for call in (await store.calls.list_unknown()).items] == [0]

    asyncio.run(run())


# Resolve


def unknown(conversation: Conversation, clock: Clock) -> int:
    seq = asks(conversation).seq
    conversation.calls.begin(seq, 0)
    clock.move(minutes=2)
    return seq


def test_resolve_call_with_an_output_stores_the_output_as_the_result(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    seq = unknown(conversation, clock)
    stored = conversation.calls.resolve(seq, 0, output="paid")
    assert stored is not None
    assert (stored.content, stored.tool_call_id, stored.name) == ("paid", "call_0", "pay")
    assert conversation.calls.begin(seq, 0).result == replayed(stored)
    assert store.calls.list_unknown().items == []


def test_resolve_call_with_a_failure_stores_the_failure_as_the_result(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    seq = unknown(conversation, clock)
    conversation.calls.resolve(seq, 0, failed="refused")
    result = conversation.calls.begin(seq, 0).result
    assert result is not None
    assert (result.content, result.extra) == ("refused", {"failed": True})


def test_call_resolved_with_retry_can_begin_one_more_time(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    seq = unknown(conversation, clock)
    (key,) = {call.effect_key for call in store.calls.list_unknown().items}
    assert conversation.calls.resolve(seq, 0, retry=True) is None
    assert (states(conversation), store.calls.list_unknown().items) == ([(seq, 0, "retry")], [])
    effect = conversation.calls.begin(seq, 0)
    assert effect.key == key
    with pytest.raises(CallInProgress):
        conversation.calls.begin(seq, 0)


@pytest.mark.parametrize("resolution", [{"output": "paid"}, {"retry": True}])
def test_finish_call_is_refused_after_the_call_was_resolved(
    store: Store, clock: Clock, resolution: dict[str, Any]
) -> None:
    conversation = store.open("k")
    late = conversation.calls.begin(asks(conversation).seq, 0)
    clock.move(minutes=2)
    conversation.calls.resolve(1, 0, **resolution)
    with pytest.raises(Conflict, match="was resolved"):
        conversation.calls.finish(late, "late")
    assert [each.content for each in conversation.messages()][1:] == [
        value for value in resolution.values() if value == "paid"
    ]


def test_resolve_call_refuses_a_call_that_is_not_unknown(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation).seq
    with pytest.raises(CallNotFound, match="was never begun"):
        conversation.calls.resolve(seq, 0, retry=True)
    effect = conversation.calls.begin(seq, 0)
    with pytest.raises(CallInProgress):
        conversation.calls.resolve(seq, 0, retry=True)
    conversation.calls.finish(effect, "done")
    with pytest.raises(CallFinished, match="already has a result: message 2"):
        conversation.calls.resolve(seq, 0, output="other")
    with pytest.raises(TypeError, match="retry=True"):
        conversation.calls.resolve(seq, 0, output="other", retry=True)


# Removed messages


@pytest.mark.slow
@pytest.mark.parametrize("change", ["truncate", "clear", "pop", "delete", "replace", "discard"])
def test_begun_call_is_deleted_with_the_message_that_asks_for_the_call(store: Store, change: str) -> None:
    conversation = store.open("k", messages=[message()])
    seq = asks(conversation).seq
    conversation.calls.finish(conversation.calls.begin(seq, 0), "done")
    conversation.calls.begin(seq, 1)
    match change:
        case "truncate":
            conversation.truncate(after=1)
        case "clear":
            conversation.clear()
        case "pop":
            conversation.pop_message()
            conversation.pop_message()
        case "delete":
            conversation.edits.delete(seq)
        case "replace":
            conversation.append_messages([message()], replace_after=1)
        case "discard":
            conversation.compact(lambda _: message("summary"), discard=True)
    assert conversation.calls.list() == []
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


def test_call_is_unknown_after_the_message_with_the_result_is_removed(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation).seq
    conversation.calls.finish(conversation.calls.begin(seq, 0), "done")
    conversation.truncate(after=seq)
    with pytest.raises(CallUnknown):
        conversation.calls.begin(seq, 0)
    assert (states(conversation), store.calls.list_unknown().items) == ([(seq, 0, "unknown")], [])
    conversation.calls.resolve(seq, 0, output="done")
    assert states(conversation) == [(seq, 0, "finished")]


def test_update_message_refuses_to_change_begun_calls(store: Store) -> None:
    conversation = store.open("k")
    asking = asks(conversation)
    conversation.calls.finish(conversation.calls.begin(asking.seq, 0), "paid")
    with pytest.raises(InvalidMessage, match="was begun"):
        conversation.edits.update(asking.seq, Message.assistant(tool_calls=[ToolCall(id="", name="mail")]))
    conversation.edits.update(asking.seq, asking.model_copy(update={"content": "I pay."}))
    assert conversation.calls.begin(asking.seq, 0).replayed


@pytest.mark.parametrize("resolution", [{"output": "paid"}, {"retry": True}])
def test_unknown_call_of_a_redacted_message_can_be_resolved(
    store: Store, clock: Clock, resolution: dict[str, Any]
) -> None:
    conversation = store.open("k")
    seq = unknown(conversation, clock)
    conversation.edits.redact(seq)
    assert [call.name for call in store.calls.list_unknown().items] == [""]
    conversation.calls.resolve(seq, 0, **resolution)
    assert store.calls.list_unknown().items == []


def test_fork_has_no_begun_calls(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation).seq
    conversation.calls.finish(conversation.calls.begin(seq, 0), "done")
    fork = conversation.fork("fork")
    assert fork.calls.list() == []
    assert not fork.calls.begin(seq, 0).replayed


def test_session_renewed_after_expiry_has_no_calls_and_no_suspensions(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    conversation.calls.begin(asks(conversation).seq, 0)
    conversation.suspensions.create()
    clock.move(hours=1)
    renewed = store.open("k", renew=True)
    assert (renewed.calls.list(), renewed.suspensions.list()) == ([], [])


def test_calls_of_an_expired_session_are_not_listed(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    seq = asks(conversation).seq
    conversation.calls.begin(seq, 0)
    clock.move(hours=2)
    assert store.calls.list_unknown().items == []
    with pytest.raises(LangoStoreError):
        conversation.calls.list()
    store.expire()
    assert store.open("k").calls.list() == []
