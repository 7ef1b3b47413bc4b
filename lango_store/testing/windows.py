"""Checks of windows: what a model should see, records beside it, summaries in its place, and the end that fits."""

from __future__ import annotations

from typing import Any

from lango_store.errors import Conflict
from lango_store.model import Message, MessageRole, ToolCall
from lango_store.store import Store
from lango_store.testing.checks import check
from lango_store.testing.clock import Clock
from lango_store.testing.expecting import contents, holds, refused, same


def _record(content: Any) -> Message:
    return Message(role=MessageRole.RECORD, content=content)


def _summary(window: list[Message]) -> list[Message]:
    return [Message.assistant(f"summary of {len(window)}")]


def _numbers(store: Store, number: int) -> None:
    store.create("k", messages=[Message.user(n) for n in range(number)])


@check()
def last_is_the_end_of_the_window(store: Store, clock: Clock) -> None:
    """messages(last=n) gives the last n messages of the window, in their order."""
    _numbers(store, 5)
    for last, expected in ((0, []), (2, [3, 4]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])):
        same(contents(store.messages("k", last=last)), expected, f"messages with last={last}")


@check()
def records_are_in_the_log_only(store: Store, clock: Clock) -> None:
    """A record has its seq and lies in the log; no window, history or count of messages has it."""
    said = [_record("mode"), Message.user("hello"), _record("cost"), _record("cost"), Message.assistant("hi")]
    store.create("k", messages=said)
    handle = store.conversation("k")
    for what, found in {
        "get": store.get("k").messages,
        "messages": store.messages("k"),
        "messages with last=2": store.messages("k", last=2),
    }.items():
        same(contents(found), ["hello", "hi"], what)
    same([message["content"] for message in handle.history()], ["hello", "hi"], "history")
    same(contents(store.all_messages("k")), ["mode", "hello", "cost", "cost", "hi"], "the log")
    info = store.info("k")
    same((info.message_count, info.record_count, info.last_seq), (2, 3, 5), "counts of messages and records, last seq")


@check()
def a_pop_passes_records_by(store: Store, clock: Clock) -> None:
    """pop_message takes the last message, past records behind it; with records=True the log's last row."""
    store.create("k", messages=[Message.user("hello"), Message.assistant("hi"), _record("cost")])
    popped = store.pop_message("k")
    same(popped and popped.content, "hi", "what was popped")
    popped = store.pop_message("k", records=True)
    same(popped and popped.content, "cost", "what was popped with records")
    same(contents(store.all_messages("k")), ["hello"], "the log")


@check()
def a_summary_stands_in_the_place_of_what_it_sums_up(store: Store, clock: Clock) -> None:
    """After compact the window is the summary and what comes later; the log keeps everything, and compactions tell."""
    _numbers(store, 4)
    handle = store.conversation("k")
    done = handle.compact(_summary)
    store.append_message("k", Message.user("later"))
    same(contents(store.messages("k")), ["summary of 4", "later"], "the window")
    same(contents(store.get("k").messages), ["summary of 4", "later"], "the window, with the session")
    same(contents(store.all_messages("k")), [0, 1, 2, 3, "summary of 4", "later"], "the log")
    same(handle.compactions(), [done], "the compactions")
    holds(
        done is not None and (done.replaced_after, done.replaced_upto) == (0, 4), "what the compaction says it replaced"
    )
    same(contents(handle.compact(_summary).summary), ["summary of 2"], "a second summary")  # type: ignore[union-attr]
    store.create("empty")
    same(store.conversation("empty").compact(_summary), None, "compact of an empty window")


@check()
def what_comes_in_meanwhile_stays_after_the_summary(store: Store, clock: Clock) -> None:
    """What is appended while a summary is being written stands after it in the window."""
    _numbers(store, 3)

    def summarize(window: list[Message]) -> list[Message]:
        store.append_message("k", Message.user("meanwhile"))
        return _summary(window)

    store.conversation("k").compact(summarize)
    same(contents(store.messages("k")), ["summary of 3", "meanwhile"], "the window")
    same(contents(store.messages("k", last=1)), ["meanwhile"], "the last of the window")


@check()
def a_summary_of_what_has_changed_is_refused(store: Store, clock: Clock) -> None:
    """A summary of a window that was cut meanwhile is Conflict; a summarizer that fails changes nothing."""
    _numbers(store, 3)
    handle = store.conversation("k")
    pending = handle.begin_compaction()
    if pending is None:
        raise AssertionError("begin_compaction of a window with messages gave None")
    store.pop_message("k")
    with refused(Conflict, "a summary of a window that was cut"):
        handle.finish_compaction(pending, _summary(pending.window))

    def fail(window: list[Message]) -> list[Message]:
        raise LookupError("no model")

    with refused(LookupError, "a summarizer that fails"):
        handle.compact(fail)
    same((contents(store.messages("k")), handle.compactions()), ([0, 1], []), "window and compactions")


@check()
def discarding_leaves_the_summary_and_what_was_spent(store: Store, clock: Clock) -> None:
    """compact(discard=True) takes what was summed up from the log, and what it cost still counts."""
    store.create("k")
    handle = store.conversation("k")
    for number in range(3):
        handle.save_turn([Message.user(number, tokens=5)], {"tokens": 10})
    handle.compact(_summary, discard=True)
    same(contents(store.all_messages("k")), ["summary of 3"], "the log")
    info = store.info("k")
    same((info.message_count, info.token_count), (1, 0), "messages and tokens of the session")
    same(handle.total_usage(), {"tokens": 30}, "what all turns cost")


@check()
def what_a_summary_replaced_comes_back_with_its_end(store: Store, clock: Clock) -> None:
    """When the last message of a summary is popped, what it replaced is in the window again."""
    _numbers(store, 3)
    handle = store.conversation("k")
    handle.compact(_summary)
    popped = store.pop_message("k")
    same(popped and popped.content, "summary of 3", "what was popped")
    same((contents(store.messages("k")), handle.compactions()), ([0, 1, 2], []), "window and compactions")


@check()
def a_history_begins_with_no_orphan(store: Store, clock: Clock) -> None:
    """A history never begins with a tool's result whose call is missing, and holds what a model takes only."""
    call = ToolCall(id="c", name="f", arguments={"a": 1})
    answer = Message.tool("3", tool_call_id="c", name="f", author="someone")
    store.create(
        "k", messages=[Message.user("q"), Message.assistant(tool_calls=[call]), answer, Message.user("thanks")]
    )
    handle = store.conversation("k")
    same([message["role"] for message in handle.history()], ["user", "assistant", "tool", "user"], "the whole history")
    for last in range(5):
        found = handle.history(last=last)
        holds(len(found) <= last, f"history(last={last}) has {len(found)} messages")
        holds(not found or found[0]["role"] == "user", f"history(last={last}) begins with {found[:1]}")
    allowed = {"role", "content", "tool_calls", "tool_call_id", "name"}
    holds(all(set(message) <= allowed for message in handle.history()), "history has a field that no model takes")


@check()
def a_history_keeps_to_its_budget(store: Store, clock: Clock) -> None:
    """history(max_tokens=n) has the end of the window that fits, and misses nothing that would fit too."""
    store.create("k", messages=[Message.user(n, tokens=10) for n in range(6)])
    handle = store.conversation("k")
    for budget, expected in ((0, []), (9, []), (10, [5]), (29, [4, 5]), (60, [0, 1, 2, 3, 4, 5])):
        found = [message["content"] for message in handle.history(max_tokens=budget)]
        same(found, expected, f"history within {budget} tokens")
