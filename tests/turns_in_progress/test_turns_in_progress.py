"""Turns in progress: what the block saves, the state after an exception, and invalid calls."""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from support.factories import contents, message
from support.turns import messages_of

from lango_store import (
    AsyncStore,
    InvalidMessage,
    InvalidState,
    InvalidValue,
    LangoStoreError,
    RunningTurn,
    Store,
    create_engine,
)
from lango_store._connections import cancellation
from lango_store.testing import Clock

SECOND = timedelta(seconds=1)


# Save


def test_leaving_the_block_saves_the_turn_with_its_messages(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k", messages=[message("before")])
    with conversation.turn("request-1") as turn:
        assert (turn.id, turn.replayed, turn.messages, turn.stored) == ("request-1", False, [], None)
        question = turn.append(message("question"))
        assert (question.seq, question.turn_no, question.created_at) == (2, None, clock.time)
        assert turn.append_messages([message("a", role="assistant"), message("b", role="tool")])[1].seq == 4
        assert contents(turn.messages) == ["question", "a", "b"]
        assert contents(conversation.messages()) == ["before", "question", "a", "b"]
        assert conversation.turns.list() == []
        turn.usage = {"input_tokens": 7}
        turn.metadata = {"model": "m"}
        clock.move(seconds=5)
    stored = turn.stored
    assert stored is not None
    assert (stored.id, stored.turn_no, stored.kind) == ("request-1", 1, "turn")
    assert (stored.first_seq, stored.last_seq, stored.created_at) == (2, 4, clock.time)
    assert (stored.usage, stored.metadata, stored.replayed) == ({"input_tokens": 7}, {"model": "m"}, False)
    assert [(each.content, each.turn_no) for each in stored.messages] == [("question", 1), ("a", 1), ("b", 1)]
    assert conversation.turns.list() == [stored.model_copy(update={"messages": []})]
    assert messages_of(conversation, stored) == stored.messages == turn.messages
    assert (conversation.info().turn_count, conversation.total_usage()) == (1, {"input_tokens": 7})


def test_turn_without_id_gets_a_unique_id(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn() as first:
        pass
    with conversation.turn() as second:
        pass
    assert first.id != second.id
    assert [turn.id for turn in conversation.turns.list()] == [first.id, second.id]


def test_turn_without_messages_is_saved(store: Store) -> None:
    conversation = store.open("k", messages=[message()])
    with conversation.turn("t") as turn:
        assert turn.append_messages([]) == []
    assert turn.stored is not None
    assert (turn.stored.messages, turn.stored.first_seq, turn.stored.last_seq) == ([], 2, 1)
    assert messages_of(conversation, turn.stored) == []


def test_turn_in_progress_changes_counters_like_save_turn(store: Store, clock: Clock) -> None:
    def batch() -> list[Any]:
        return [message("q", tokens=2), message("a", role="assistant", tokens=3), message("r", role="record")]

    saved, run = store.open("saved"), store.open("run")
    saved.save_turn(batch(), {"tokens": 5}, id="t")
    with run.turn("t") as turn:
        turn.append_messages(batch())
        turn.usage = {"tokens": 5}
    own = {"key", "revision"}
    assert run.info().model_dump(exclude=own) == saved.info().model_dump(exclude=own)
    assert turn.stored is not None
    assert turn.stored.model_dump(exclude={"messages"}) == saved.turns.list()[0].model_dump(exclude={"messages"})


def test_token_counter_counts_the_tokens_of_messages_that_a_turn_appends(url: str) -> None:
    with Store(url, token_counter=lambda each: len(str(each.content))) as store:
        conversation = store.open("k")
        with conversation.turn() as turn:
            assert turn.append(message("four")).tokens == 4
            assert turn.append(message("given", tokens=99)).tokens == 99
            assert turn.append(message("record", role="record")).tokens is None
        assert conversation.info().token_count == 103


def test_turn_in_a_store_with_retry_stores_each_message_once(url: str) -> None:
    with Store(url, retry=SECOND) as store:
        conversation = store.open("k")
        conversation.inbox.put(message("waiting"))
        with conversation.turn("t") as turn:
            turn.append_messages([message("equal"), message("equal")])
            turn.write("draft")
            turn.append(message("answer", role="assistant"))
            turn.take_inbox()
        assert contents(conversation.messages()) == ["equal", "equal", "answer", "waiting"]
        assert turn.stored is not None
        assert turn.stored.messages == conversation.messages()


# Replay


def test_turn_with_a_stored_id_is_replayed(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k")
    with conversation.turn("t") as first:
        first.append(message("answer", role="assistant"))
        first.usage = {"tokens": 1}
    conversation.append_message(message("after"))
    before = conversation.info()
    clock.move(seconds=1)
    with conversation.turn("t") as again:
        assert again.replayed
        assert contents(again.messages) == ["answer"]
        assert again.stored is not None
        assert (again.stored.usage, again.stored.replayed) == ({"tokens": 1}, True)
    assert first.stored is not None
    assert again.stored == first.stored.model_copy(update={"replayed": True})
    assert conversation.info() == before
    assert conversation.info().turn_count == 1
    assert conversation.turns.in_progress() is None


def test_turn_that_save_turn_stored_is_replayed(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("a")], id="t")
    with conversation.turn("t") as turn:
        assert turn.replayed
        assert contents(turn.messages) == ["a"]


def test_save_turn_with_the_id_of_a_turn_that_a_block_saved_is_replayed(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("a"))
    assert conversation.save_turn([message("other")], id="t").replayed
    assert contents(conversation.messages()) == ["a"]


def test_stored_turn_is_replayed_while_another_turn_runs(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("a")], id="t1")
    with conversation.turn("t2") as turn:
        with conversation.turn("t1") as again:
            assert again.replayed
        open_turn = conversation.turns.in_progress()
        assert open_turn is not None
        assert open_turn.id == "t2"
        turn.append(message("b"))
    assert [each.id for each in conversation.turns.list()] == ["t1", "t2"]


@pytest.mark.parametrize("method", ["append", "append_messages", "write", "flush", "take_inbox"])
def test_replayed_turn_refuses_writes(either_store: Store, method: str) -> None:
    conversation = either_store.open("k")
    conversation.save_turn([message("a")], id="t")
    arguments: dict[str, list[Any]] = {
        "append": [message()],
        "append_messages": [[message()]],
        "write": ["piece"],
    }
    with conversation.turn("t") as turn:
        assert turn.interrupt() is None
        with pytest.raises(InvalidState, match="already stored"):
            getattr(turn, method)(*arguments.get(method, []))
    assert conversation.info().message_count == 1


@pytest.mark.parametrize("method", ["append", "append_messages", "write", "flush", "take_inbox"])
def test_turn_refuses_writes_outside_of_its_block(either_store: Store, method: str) -> None:
    conversation = either_store.open("k")
    arguments: dict[str, list[Any]] = {
        "append": [message()],
        "append_messages": [[message()]],
        "write": ["piece"],
    }
    turn = conversation.turn("t")
    for _ in range(2):
        with pytest.raises(InvalidState, match="inside of its block"):
            getattr(turn, method)(*arguments.get(method, []))
        if not turn.stored:
            with turn:
                pass
    assert conversation.messages() == []


def test_block_of_one_turn_object_cannot_be_entered_twice(either_store: Store) -> None:
    conversation = either_store.open("k")
    turn = conversation.turn("t")
    with suppress(ZeroDivisionError), turn:
        turn.write("draft")
        raise ZeroDivisionError
    with pytest.raises(LangoStoreError, match="once"), turn:
        pass
    assert conversation.turns.in_progress() is None


# Exceptions in the block


def test_exception_in_the_block_keeps_messages_and_draft_but_saves_no_turn(either_store: Store) -> None:
    conversation = either_store.open("k")
    with pytest.raises(ZeroDivisionError), conversation.turn("t", flush=timedelta(hours=1)) as turn:
        fail_after_writing(turn)
    assert [(each.content, each.turn_no) for each in conversation.messages()] == [("question", None)]
    assert [(each.turn_id, each.text) for each in conversation.drafts.list()] == [("t", "first second")]
    assert (conversation.turns.list(), conversation.turns.in_progress(), turn.stored) == ([], None, None)
    with pytest.raises(InvalidState, match="inside of its block"):
        turn.append(message())


def fail_after_writing(turn: RunningTurn) -> None:
    turn.append(message("question"))
    turn.write("first ")
    turn.write("second")
    raise ZeroDivisionError


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_interruption_of_the_block_releases_the_lease(store: Store, error: type[BaseException]) -> None:
    conversation = store.open("k")
    with suppress(error), conversation.turn("t") as turn:
        turn.append(message("question"))
        raise error
    assert (conversation.turns.list(), conversation.turns.in_progress()) == ([], None)
    with conversation.turn("t", wait=SECOND) as again:
        assert contents(again.messages) == ["question"]


@pytest.mark.parametrize("loss", ["release", "takeover", "delete", "expiry"])
def test_exception_in_the_block_reaches_the_caller_although_the_lease_is_lost(
    either_store: Store, clock: Clock, loss: str
) -> None:
    conversation = either_store.open("k", ttl=timedelta(hours=1))

    def fail(turn: RunningTurn) -> None:
        turn.write("stored")
        turn.write("collected")
        match loss:
            case "release":
                conversation.turns.release()
            case "takeover":
                clock.move(minutes=2)
                conversation.turn("t2").__enter__()
            case "delete":
                either_store.delete("k")
            case _:
                clock.move(hours=1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), conversation.turn("t", flush=timedelta(hours=1)) as turn:
        fail(turn)
    if loss in ("release", "takeover"):
        assert [each.text for each in conversation.drafts.list()] == ["stored"]
        assert (conversation.turns.in_progress() is not None) is (loss == "takeover")
    if loss == "expiry":
        either_store.touch("k")
        assert [each.text for each in conversation.drafts.list()] == ["storedcollected"]
        assert conversation.turns.in_progress() is None


def test_exception_in_the_block_reaches_the_caller_although_the_database_fails(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    conversation = store.open("k")

    def fail(turn: RunningTurn) -> None:
        store.close()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), conversation.turn("t") as turn:
        fail(turn)
    assert "turn 't' could not release its lease" in caplog.text


@pytest.mark.parametrize("name", ["usage", "metadata"])
def test_turn_with_usage_or_metadata_that_cannot_be_stored_is_not_saved(either_store: Store, name: str) -> None:
    conversation = either_store.open("k")

    def finish(turn: RunningTurn) -> None:
        turn.write("first ")
        turn.write("second")
        setattr(turn, name, {"value": object()})

    with pytest.raises(InvalidValue, match=name), conversation.turn("t", flush=timedelta(hours=1)) as turn:
        finish(turn)
    assert (conversation.turns.list(), conversation.turns.in_progress()) == ([], None)
    assert [each.text for each in conversation.drafts.list()] == ["first second"]


def test_append_of_an_invalid_message_in_a_turn_writes_nothing(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        invalid_messages: list[Any] = [message("x", extra={"x": object()}), "no message"]
        for invalid in invalid_messages:
            with pytest.raises(InvalidMessage):
                turn.append_messages([message("valid"), invalid])
        turn.append(message("valid"))
    assert turn.stored is not None
    assert contents(turn.stored.messages) == contents(conversation.messages()) == ["valid"]


def test_task_cancelled_inside_the_block_keeps_the_draft_and_releases_the_lease(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            entered = asyncio.Event()

            async def run() -> None:
                async with conversation.turn("t", flush=timedelta(hours=1)) as turn:
                    await turn.append(message("question"))
                    await turn.write("first ")
                    await turn.write("second")
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(run())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await conversation.turns.in_progress() is None
            assert [each.text for each in await conversation.drafts.list()] == ["first second"]

    asyncio.run(work())


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a call in a thread has begun to write."""
    event, begin_write = threading.Event(), cancellation.begin_write

    def begin_write_and_set() -> None:
        begin_write()
        event.set()

    monkeypatch.setattr(cancellation, "begin_write", begin_write_and_set)
    return event


def test_task_cancelled_while_the_turn_takes_the_lease_releases_the_lease(url: str, begun: threading.Event) -> None:
    async def work() -> None:
        engine = create_engine(url)
        async with AsyncStore(url) as store:
            conversation = await store.open("k")

            async def run() -> None:
                async with conversation.turn("t"):
                    pass

            with engine.connect() as connection:
                connection.exec_driver_sql("UPDATE lango_session SET title = title")  # locks the session
                begun.clear()
                task = asyncio.create_task(run())
                assert await asyncio.to_thread(begun.wait, 60)
                task.cancel()
                connection.rollback()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert await conversation.turns.in_progress() is None
            assert await conversation.turns.list() == []
        engine.dispose()

    asyncio.run(work())


def test_task_cancelled_after_the_end_of_the_block_still_saves_the_turn(url: str) -> None:
    async def work() -> None:
        engine = create_engine(url, pool_size=1, max_overflow=0)
        async with AsyncStore(engine) as store:  # with one worker thread
            conversation = await store.open("k")
            busy, free = threading.Event(), threading.Event()

            def occupy(_: Store) -> None:
                busy.set()
                assert free.wait(60)

            async def cancel_and_free(task: asyncio.Task[Any]) -> None:
                task.cancel()
                for _ in range(100):  # until the task has received the cancellation
                    await asyncio.sleep(0)
                free.set()

            async def run() -> None:
                async with conversation.turn("t"):
                    tasks.append(asyncio.create_task(store.run_sync(occupy)))
                    assert await asyncio.to_thread(busy.wait, 60)
                    tasks.append(asyncio.create_task(cancel_and_free(task)))  # it runs when the block has ended

            tasks: list[asyncio.Task[Any]] = []
            task = asyncio.create_task(run())
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.gather(*tasks)
            assert [each.id for each in await conversation.turns.list()] == ["t"]
            assert await conversation.turns.in_progress() is None
        engine.dispose()

    asyncio.run(work())


def test_task_cancelled_while_the_turn_is_being_saved_still_saves_the_turn(url: str, begun: threading.Event) -> None:
    async def work() -> None:
        engine = create_engine(url)
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            with engine.connect() as connection:

                async def run() -> None:
                    async with conversation.turn("t"):
                        connection.exec_driver_sql("UPDATE lango_session SET title = title")  # locks the session
                        begun.clear()
                        ending.set()

                ending = asyncio.Event()
                task = asyncio.create_task(run())
                await ending.wait()
                assert await asyncio.to_thread(begun.wait, 60)
                task.cancel()
                connection.rollback()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert [each.id for each in await conversation.turns.list()] == ["t"]
            assert await conversation.turns.in_progress() is None
        engine.dispose()

    asyncio.run(work())


# Arguments


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lease": 120}, TypeError),
        ({"lease": None}, TypeError),
        ({"lease": timedelta(0)}, ValueError),
        ({"lease": timedelta(microseconds=999)}, ValueError),
        ({"lease": timedelta(days=1, microseconds=1)}, ValueError),
        ({"wait": 1.5}, TypeError),
        ({"wait": timedelta(seconds=-1)}, ValueError),
        ({"wait": timedelta(days=2)}, ValueError),
        ({"flush": 0.25}, TypeError),
        ({"flush": None}, TypeError),
        ({"flush": timedelta(microseconds=-1)}, ValueError),
        ({"flush": timedelta(days=2)}, ValueError),
        ({"id": ""}, ValueError),
        ({"id": "x" * 513}, ValueError),
        ({"id": "ä" * 257}, ValueError),
        ({"id": "a\0b"}, ValueError),
        ({"id": "\ud800"}, ValueError),
        ({"id": 17}, ValueError),
    ],
)
def test_turn_refuses_invalid_arguments(store: Store, options: dict[str, Any], error: type[Exception]) -> None:
    conversation = store.open("k")
    with pytest.raises(error, match=next(iter(options))):
        conversation.turn(**options)


@pytest.mark.parametrize("id", ["x" * 512, "ä" * 256, "日本語", "'; --", "👩‍🚀", " "])
def test_turn_accepts_ids_up_to_512_bytes(store: Store, id: str) -> None:
    conversation = store.open("k")
    with suppress(ZeroDivisionError), conversation.turn(id) as first:
        open_turn = conversation.turns.in_progress()
        assert open_turn is not None
        assert open_turn.id == id
        fail_after_writing(first)
    assert [each.turn_id for each in conversation.drafts.list()] == [id]
    with conversation.turn(id) as second:
        assert second.append(message("question")).replayed
    assert conversation.drafts.list() == []
    with conversation.turn(id) as again:
        assert again.replayed
    assert contents(conversation.messages()) == ["question"]


@pytest.mark.parametrize("text", [b"bytes", None, 1, ["piece"]])
def test_turn_write_refuses_values_that_are_not_text(either_store: Store, text: Any) -> None:
    conversation = either_store.open("k")
    with conversation.turn() as turn:
        with pytest.raises(TypeError, match="text"):
            turn.write(text)
        assert turn.draft_text == ""


def test_turn_is_refused_in_a_callers_transaction(store: Store) -> None:
    store.open("k")

    def begin(tx: Store) -> None:
        tx.conversation("k").turn("t")

    with pytest.raises(LangoStoreError, match=r"using\(\)"):
        store.transact(begin)
    with store.engine.connect() as connection, pytest.raises(LangoStoreError, match=r"using\(\)"):
        store.using(connection).conversation("k").turn("t")
    assert store.turns.list_in_progress().items == []


def test_turns_in_progress_can_be_read_in_a_callers_transaction(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.write("piece")
        with store.engine.connect() as connection:
            inside = store.using(connection)
            open_turn = inside.conversation("k").turns.in_progress()
            assert open_turn == conversation.turns.in_progress()
            assert inside.turns.list_in_progress().items == [open_turn]
            assert inside.conversation("k").drafts.list() == conversation.drafts.list()
