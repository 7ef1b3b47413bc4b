"""Compaction: a summary replaces messages in the window; concurrent appends are kept."""

import asyncio
import threading

import pytest
from support.factories import contents, message, messages, summary

from lango_store import AsyncStore, Conflict, InvalidMessage, Message, Store, ToolCall
from lango_store.testing import Clock


@pytest.fixture
def store(either_store: Store) -> Store:
    """Run each test with `Store` and with `AsyncStore`."""
    return either_store


def test_messages_appended_during_compaction_follow_the_summary(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))

    def summarize(window: list[Message]) -> list[Message]:
        store.conversation("k").append_messages([message("meanwhile 1"), message("meanwhile 2")])
        return summary()

    conversation.compact(summarize)
    conversation.append_message(message("later"))
    window = ["summary", "meanwhile 1", "meanwhile 2", "later"]
    assert contents(conversation.messages()) == window
    assert contents(store.get("k").messages) == window
    for last in range(6):
        assert contents(conversation.messages(last=last)) == window[len(window) - min(last, 4) :]
    assert [m["content"] for m in conversation.history()] == window
    assert contents(conversation.all_messages())[:3] == ["message 0", "message 1", "message 2"]


def test_finish_compaction_replaces_the_window_that_begin_compaction_returned(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    assert contents(pending.window) == ["message 0", "message 1", "message 2"]
    conversation.append_message(message("meanwhile"))
    compaction = pending.finish(summary())
    assert (compaction.replaced_upto, contents(conversation.messages())) == (3, ["summary", "meanwhile"])
    with pytest.raises(Conflict):
        pending.finish(summary())
    assert store.open("empty").turns.begin_compaction() is None


def test_compaction_of_one_session_hides_no_message_of_another_session(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn(messages(2))
    store.open("other", messages=messages(2)).compact(lambda window: summary())
    assert {turn.turn_no for turn in conversation.turns.list()} == {
        turn.turn_no for turn in store.open("other").turns.list()
    }
    assert conversation.messages(last=1) == conversation.all_messages()[-1:]


def test_one_of_two_concurrent_compactions_raises_conflict(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    other = store.open("k")

    def summarize(window: list[Message]) -> list[Message]:
        other.compact(lambda window: summary("other"))
        return summary("own")

    with pytest.raises(Conflict, match="compact again"):
        conversation.compact(summarize)
    assert contents(conversation.messages()) == ["other"]
    assert len(conversation.turns.list_compactions()) == 1


@pytest.mark.parametrize("removal", ["pop_message", "clear", "delete and create"])
def test_compaction_raises_conflict_if_messages_of_the_window_are_removed_meanwhile(
    store: Store, clock: Clock, removal: str
) -> None:
    conversation = store.open("k", messages=messages(3))

    def summarize(window: list[Message]) -> list[Message]:
        if removal == "delete and create":
            store.delete("k")
            clock.move(seconds=1)
            store.create("k", messages=messages(3))
        else:
            getattr(conversation, removal)()
        return summary()

    with pytest.raises(Conflict):
        conversation.compact(summarize)
    assert conversation.turns.list_compactions() == []


def test_failing_summarizer_changes_nothing(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    before = store.get("k")

    def summarize(window: list[Message]) -> list[Message]:
        raise RuntimeError("the model is tired")

    with pytest.raises(RuntimeError, match="tired"):
        conversation.compact(summarize)
    with pytest.raises(InvalidMessage):
        conversation.compact(lambda window: ["no message"])  # type: ignore[list-item]
    assert store.get("k") == before


def test_compaction_of_an_empty_window_returns_none(store: Store) -> None:
    conversation = store.open("k")
    assert conversation.compact(lambda window: pytest.fail("called")) is None
    assert conversation.info().turn_count == 0


def test_compactions_returns_the_summary_and_the_replaced_range_of_each_compaction(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    first = conversation.compact(lambda window: summary("one"))
    conversation.append_message(message("between"))
    second = conversation.compact(lambda window: [*summary("two"), *summary("three")])
    assert conversation.turns.list_compactions() == [first, second]
    assert first is not None
    assert second is not None
    assert (first.replaced_after, first.replaced_upto, first.replaced_messages) == (0, 3, 3)
    assert (second.replaced_after, second.replaced_upto, second.replaced_messages) == (3, 6, 2)
    assert contents(second.summary) == ["two", "three"]
    replaced = conversation.all_messages(after=second.replaced_after, before=second.replaced_upto + 1)
    assert contents(replaced) == ["one", "between"]
    assert contents(conversation.messages()) == ["two", "three"]


def test_compaction_with_discard_deletes_replaced_messages_and_keeps_usage(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("a", tokens=5)], {"tokens": 1})
    conversation.compact(lambda window: summary("one"))
    conversation.save_turn([message("b", tokens=7)], {"tokens": 10})
    conversation.update(last_consolidated=3)

    def summarize(window: list[Message]) -> list[Message]:
        conversation.save_turn([message("meanwhile", tokens=3)], {"tokens": 100})
        return summary("two")

    compaction = conversation.compact(summarize, discard=True)
    assert conversation.turns.list_compactions() == [compaction]
    assert compaction is not None
    assert (compaction.discarded, compaction.replaced_messages) == (True, 2)
    counted = {"original_event_count": 3, "original_message_count": 2}
    assert conversation.turns.list()[-1].metadata == counted | {"discarded": True}
    assert [(m.content, m.turn_no) for m in conversation.all_messages()] == [("meanwhile", 4), ("two", 5)]
    assert contents(conversation.messages()) == ["two", "meanwhile"]
    info = conversation.info()
    assert (info.message_count, info.token_count, info.turn_count, info.last_consolidated) == (2, 3, 2, 0)
    assert conversation.total_usage() == {"tokens": 111}


def test_copy_of_a_logged_message_in_a_summary_has_no_id(store: Store) -> None:
    conversation = store.open("k", messages=[message("a", id="1"), message("b", id="2")])
    conversation.compact(lambda window: [*summary(), window[-1]])
    assert [(m.content, m.id) for m in conversation.messages()] == [("summary", None), ("b", None)]
    assert conversation.append_message(message("b", id="2")).seq == 2


def test_summary_stores_one_of_several_messages_with_the_same_id(store: Store) -> None:
    conversation = store.open("k", messages=[message("a", id="1")])
    compaction = conversation.compact(lambda window: [message("s", id="2"), *window, message("t", id="2"), *window])
    assert compaction is not None
    assert [(m.content, m.id) for m in compaction.summary] == [("s", "2"), ("a", None)]
    compaction = conversation.compact(lambda window: [*window[:1], *window, *window[:1]], discard=True)
    assert compaction is not None
    assert [(m.content, m.id) for m in compaction.summary] == [("s", "2"), ("a", None)]


def test_compaction_with_discard_subtracts_discarded_messages_from_last_consolidated(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))

    def summarize(window: list[Message]) -> list[Message]:
        store.conversation("k").append_messages(messages(2))
        conversation.update(last_consolidated=4)
        return summary()

    conversation.compact(summarize, discard=True)
    assert conversation.info().last_consolidated == 1


def test_compaction_with_discard_keeps_an_empty_turn_saved_during_the_compaction(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.save_turn([], {"tokens": 1})

    def summarize(window: list[Message]) -> list[Message]:
        conversation.save_turn([], {"tokens": 10}, id="meanwhile")
        return summary()

    conversation.compact(summarize, discard=True)
    assert [(turn.kind, turn.id, turn.usage) for turn in conversation.turns.list()] == [
        ("turn", "meanwhile", {"tokens": 10}),
        ("compaction", None, {"tokens": 1}),
    ]
    assert conversation.save_turn([], {"tokens": 10}, id="meanwhile").replayed
    assert (conversation.info().turn_count, conversation.total_usage()) == (2, {"tokens": 11})


def test_history_starts_with_the_summary_and_omits_the_result_of_a_replaced_call(store: Store) -> None:
    call = Message.from_openai(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }
    )
    conversation = store.open("k", messages=[message("hi"), call])

    def summarize(window: list[Message]) -> list[Message]:
        conversation.append_message(Message(role="tool", content="done", tool_call_id="c"))
        return summary()

    conversation.compact(summarize)
    conversation.append_message(message("so?", role="assistant"))
    assert [m["content"] for m in conversation.history()] == ["summary", "so?"]


def test_history_omits_all_kinds_of_results_whose_call_the_summary_replaced(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(Message(role="assistant", tool_calls=[ToolCall(id="c", name="f")]))

    def summarize(window: list[Message]) -> list[Message]:
        conversation.append_message(message("wait"))
        conversation.append_message(Message(role="tool", content="done", tool_call_id="c"))
        conversation.append_message(Message(role="function", name="f", content="done, by name"))
        return [message("summary", role="assistant")]

    conversation.compact(summarize)
    assert [m["content"] for m in conversation.history()] == ["summary", "wait"]


def test_history_omits_a_result_without_its_call_although_the_summary_repeats_the_result(store: Store) -> None:
    conversation = store.open("k", messages=messages(1))
    answer = Message(role="tool", tool_calls=[ToolCall(id="c", name="f", output="done")])
    conversation.compact(lambda window: [message("summary"), answer])
    conversation.append_message(answer)
    assert [m["content"] for m in conversation.history()] == ["summary"]


def test_history_limited_to_part_of_a_summary_does_not_start_with_a_result(store: Store) -> None:
    conversation = store.open("k", messages=messages(1))
    call = Message(role="assistant", content="call", tool_calls=[ToolCall(id="c", name="f")])
    result = Message(role="tool", content="done", tool_call_id="c")
    conversation.compact(lambda window: [call, result])
    conversation.append_message(Message(role="tool", content="done again", tool_call_id="c"))
    for last in (3, 2):  # two results alone could not be sent
        assert [m["content"] for m in conversation.history(last=last)] == ["call", "done"]


def test_compact_accepts_an_async_summarizer_in_store_and_async_store(url: str) -> None:
    async def summarize(window: list[Message]) -> list[Message]:
        await asyncio.sleep(0)
        return summary(f"of {len(window)}")

    async def work() -> list[Message]:
        async with AsyncStore(url) as store:
            conversation = await store.open("a", messages=messages(3))
            await conversation.compact(summarize)
            await conversation.compact(lambda window: summarize(window))
            return await conversation.messages()

    assert contents(asyncio.run(work())) == ["of 1"]
    with Store(url) as store:
        conversation = store.open("b", messages=messages(3))
        conversation.compact(summarize)
        assert contents(conversation.messages()) == ["of 3"]

        async def inside_a_loop() -> None:
            with pytest.raises(TypeError, match="AsyncStore"):
                conversation.compact(summarize)

        asyncio.run(inside_a_loop())


def test_slow_summarizer_does_not_block_the_event_loop(url: str) -> None:
    async def work() -> list[Message]:
        async with AsyncStore(url) as store:
            conversation = await store.open("k", messages=messages(3))
            ticked = threading.Event()

            def summarize(window: list[Message]) -> list[Message]:
                assert ticked.wait(20)
                return summary()

            compacting = asyncio.create_task(conversation.compact(summarize))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(ticked.set)
            await compacting
            return await conversation.messages()

    assert contents(asyncio.run(work())) == ["summary"]


def test_history_with_max_tokens_contains_the_summary_only_if_the_summary_fits(store: Store) -> None:
    conversation = store.open("k", messages=messages(200, tokens=1))
    conversation.compact(lambda window: [message("summary", role="assistant", tokens=10)])
    conversation.append_messages(messages(300, tokens=1))
    assert len(conversation.history(max_tokens=250)) == 250
    assert len(conversation.history(max_tokens=250, last=100)) == 100
    whole = conversation.history(max_tokens=310)
    assert (len(whole), whole[0]["content"]) == (301, "summary")
    assert len(conversation.history(max_tokens=309)) == 300
    assert conversation.history(max_tokens=0) == []
