"""`turns.stop`: the turn in progress is saved as interrupted, and no attempt of it follows."""

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    Conversation,
    InvalidValue,
    LeaseLost,
    Message,
    RunningTurn,
    SessionNotFound,
    Store,
    ToolCall,
)
from lango_store._rooms.turns_in_progress import leases
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
BY_ANN = {"stopped": {"by": "ann", "reason": "too long"}}


def contents(conversation: Conversation) -> list[object]:
    return [message.content for message in conversation.messages()]


def test_stop_saves_the_messages_and_the_draft_of_a_running_turn(store: Store) -> None:
    conversation = store.open("k")
    turn = Store(store.engine).conversation("k").turn("t", flush=HOUR).begin()
    turn.append(Message.user("Tell me a story."))
    turn.write("Once upon")
    turn.flush()
    stopped = conversation.turns.stop(by="ann", reason="too long")
    assert stopped is not None
    assert (stopped.id, stopped.usage, stopped.metadata, stopped.replayed) == ("t", {}, BY_ANN, False)
    assert stopped.messages == conversation.messages()
    assert contents(conversation) == ["Tell me a story.", "Once upon"]
    assert conversation.messages()[-1].extra == {"interrupted": True}
    assert conversation.turns.find("t") == stopped
    assert conversation.drafts.list() == []
    assert (conversation.turns.in_progress(), store.owed().items) == (None, [])


def test_stopped_turn_loses_its_lease(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    turn.append(Message.user("question"))
    conversation.turns.stop()
    for write in (turn.save, lambda: turn.append(Message.user("late")), turn.take_inbox):
        with pytest.raises(LeaseLost):
            write()
    turn.abandon()
    assert contents(conversation) == ["question"]
    assert conversation.turn("t").begin().replayed


def test_stop_without_a_turn_returns_none_and_changes_nothing(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(Message.user("question"))
    conversation.inbox.put(Message.user("waiting"))
    before = conversation.info()
    assert (conversation.turns.stop(), conversation.turns.stop(by="ann")) == (None, None)
    assert conversation.info() == before
    assert [each.reason for each in store.owed().items] == ["inbox"]


def test_stop_of_a_missing_session_raises_session_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFound):
        store.conversation("k").turns.stop()


def test_stop_refuses_values_that_cannot_be_stored(store: Store) -> None:
    conversation = store.open("k")
    conversation.turn("t").begin()
    refused: list[dict[str, Any]] = [{"by": "a\0"}, {"reason": 1}]
    for values in refused:
        with pytest.raises(InvalidValue):
            conversation.turns.stop(**values)
    assert conversation.turns.in_progress() is not None


def test_stop_of_a_turn_without_messages_saves_an_empty_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.turn("t").begin()
    stopped = conversation.turns.stop()
    assert stopped is not None
    assert (stopped.messages, stopped.metadata) == ([], {"stopped": {"by": None, "reason": None}})


def fail(conversation: Conversation, turn: RunningTurn) -> None:
    turn.write("Once")
    raise ZeroDivisionError


@pytest.mark.parametrize("attempts", [1, 5])
def test_stop_of_a_failed_turn_ends_its_attempts(store: Store, clock: Clock, attempts: int) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("question"))
    store.work(fail, once=True, attempts=attempts)
    (owed,) = store.owed().items
    assert owed.given_up == (attempts == 1)
    stopped = conversation.turns.stop()
    assert stopped is not None
    assert stopped.id == owed.turn_id
    assert contents(conversation) == ["question", "Once"]
    clock.move(hours=1)
    assert (store.owed().items, store.work(fail, once=True)) == ([], 0)
    assert not conversation.turns.retry()


def test_stop_of_a_turn_whose_process_died_ends_its_attempts(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    turn.append(Message.user("question"))
    turn.write("Once")
    turn.flush()
    clock.move(hours=1)
    assert conversation.turns.stop() is not None
    assert (contents(conversation), store.owed().items) == (["question", "Once"], [])


def test_stop_leaves_later_messages_of_the_inbox_owed(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("first"))
    answered: list[object] = []

    def handle(own: Conversation, turn: RunningTurn) -> None:
        if not answered:
            conversation.inbox.put(Message.user("second"))
            conversation.turns.stop()
        answered.append([each.content for each in turn.messages])

    assert store.work(handle, once=True) == 1
    assert answered == [["first"], ["second"]]
    assert contents(conversation) == ["first", "second"]


def test_stop_before_a_claimed_turn_takes_the_inbox_ends_its_question_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("question"))
    begin = RunningTurn.begin

    def stop_first(turn: RunningTurn) -> RunningTurn:
        conversation.turns.stop()
        return begin(turn)

    monkeypatch.setattr(RunningTurn, "begin", stop_first)
    store.work(fail, once=True)
    assert (contents(conversation), store.owed().items) == (["question"], [])
    assert [each.metadata for each in conversation.turns.list()] == [{"stopped": {"by": None, "reason": None}}]


def test_stop_keeps_only_the_draft_of_the_last_attempt(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("question"))

    def handle(own: Conversation, turn: RunningTurn) -> None:
        turn.write(f"attempt {turn.attempt}")
        turn.flush()
        clock.move(seconds=1)
        if turn.attempt == 2:
            turn.append(Message.assistant("an answer"))
        raise ZeroDivisionError

    store.work(handle, once=True)
    clock.move(hours=1)
    store.work(handle, once=True)
    assert [each.text for each in conversation.drafts.list()] == ["attempt 1"]
    conversation.turns.stop()
    assert contents(conversation) == ["question", "an answer"]
    assert conversation.drafts.list() == []


def test_stop_keeps_the_rules_of_calls_that_have_begun(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")]))
    with turn.call(asking, 0) as effect:
        conversation.turns.stop()
        effect.output = "paid"
    assert contents(conversation)[-1] == "paid"
    assert [each.state for each in conversation.calls.list()] == ["finished"]


def test_stop_of_a_turn_that_save_turn_has_stored_returns_the_stored_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.turn("t").begin()
    conversation.save_turn([Message.user("question")], id="t", metadata={"a": 1})
    stopped = conversation.turns.stop()
    assert stopped is not None
    assert (stopped.replayed, stopped.metadata) == (True, {"a": 1})
    assert (conversation.turns.in_progress(), store.owed().items) == (None, [])


def test_handler_that_returns_or_raises_after_a_stop_is_not_retried_and_logs_one_line(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    conversation = store.open("k")

    def handle(own: Conversation, turn: RunningTurn) -> None:
        stopper = threading.Thread(target=conversation.turns.stop)
        stopper.start()
        assert turn.stopped.wait(60)
        stopper.join()
        if turn.messages[0].content == "raise":
            raise ZeroDivisionError

    caplog.set_level(logging.INFO, "lango_store")
    for text in ("return", "raise"):
        caplog.clear()
        conversation.inbox.put(Message.user(text))
        assert store.work(handle, once=True) == 0
        lines = [(each.levelname, each.exc_info) for each in caplog.records if "turn" in each.message]
        assert lines == [("INFO", None)]
    assert store.owed().items == []
    assert contents(conversation) == ["return", "raise"]


def test_message_that_waits_for_a_turn_that_was_given_up_is_due_after_the_stop(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("first"))
    store.work(fail, once=True, attempts=1)
    conversation.inbox.put(Message.user("second"))
    assert conversation.turns.stop() is not None
    assert [(each.reason, each.given_up) for each in store.owed().items] == [("inbox", False)]
    assert store.work(lambda own, turn: turn.append(Message.assistant("answer")), once=True) == 1
    assert contents(conversation) == ["first", "Once", "second", "answer"]


def test_stop_of_what_is_owed_answers_nothing_of_the_inbox(store: Store) -> None:
    conversation = store.open("k")
    assert conversation.turns.stop(owed=True) is None
    for text in ("first", "second"):
        conversation.inbox.put(Message.user(text))
    stopped = conversation.turns.stop(by="ann", reason="too long", owed=True)
    assert stopped is not None
    assert ([each.content for each in stopped.messages], stopped.metadata) == (["first", "second"], BY_ANN)
    assert (conversation.inbox.list(), store.owed().items, store.work(fail, once=True)) == ([], [], 0)
    assert conversation.turns.stop(owed=True) is None


def test_stop_of_what_is_owed_leaves_the_inbox_if_a_turn_has_begun(store: Store) -> None:
    conversation = store.open("k")
    conversation.turn("t").begin()
    conversation.inbox.put(Message.user("later"))
    stopped = conversation.turns.stop(owed=True)
    assert stopped is not None
    assert (stopped.id, stopped.messages) == ("t", [])
    assert [each.reason for each in store.owed().items] == ["inbox"]


def test_stop_of_what_is_owed_ends_the_wait_of_an_answer(store: Store) -> None:
    conversation = store.open("k")
    suspension = conversation.suspensions.create()
    conversation.suspensions.answer(suspension.id, True)
    assert [each.reason for each in store.owed().items] == ["answer"]
    assert conversation.turns.stop(owed=True) is not None
    assert store.owed().items == []


def test_turn_outside_of_work_learns_of_a_stop_of_another_process_at_its_next_write(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    leases.OF_PROCESS.pop(turn.lease.token)  # as in another process
    conversation.turns.stop()
    assert not turn.stopped.is_set()
    with pytest.raises(LeaseLost):
        store.in_turn(turn).conversation("k").append_message(Message.user("late"))
    assert turn.stopped.is_set()


def test_stop_in_a_transaction_that_is_rolled_back_stops_nothing(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()

    def stop_and_fail(inner: Store) -> None:
        assert inner.conversation("k").turns.stop() is not None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(stop_and_fail)
    assert not turn.stopped.is_set()
    assert turn.save().metadata == {}


def test_async_turn_learns_of_a_stop_of_the_same_process_at_once(url: str) -> None:
    async def main() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            turn = conversation.turn("t")
            await turn.__aenter__()
            assert not turn.stopped.is_set()
            stopped = await conversation.turns.stop(by="ann", reason="too long")
            await asyncio.wait_for(turn.stopped.wait(), 60)
            with pytest.raises(LeaseLost):
                await turn.__aexit__(None, None, None)
            assert stopped is not None
            assert stopped.metadata == BY_ANN

    asyncio.run(main())


def test_async_handler_of_a_stopped_turn_is_cancelled_at_once(url: str) -> None:
    seen: list[bool] = []

    async def main() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            await conversation.inbox.put(Message.user("question"))

            async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
                try:
                    await conversation.turns.stop()
                    await asyncio.Event().wait()  # a model that never answers
                finally:
                    seen.append(turn.stopped.is_set())

            assert await store.work(handle, once=True, lease=timedelta(days=1)) == 0
            assert (await store.owed()).items == []

    asyncio.run(main())
    assert seen == [True]
