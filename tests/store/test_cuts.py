"""Cuts of sessions, also with summaries: truncate, replace_after, clear."""

from collections.abc import Callable
from typing import Any

import pytest
from support.compacted import assert_window, compacted_session, put_compacted
from support.databases import MakeDatabase
from support.factories import contents, message, messages
from support.session_checks import assert_sound

from lango_store import Conflict, Conversation, DamagedMessage, InvalidCut, Message, MessageRole, Store

WINDOW_CUTS: list[tuple[Callable[[Conversation], Any], list[str]]] = [
    (lambda c: c.append_messages([message("better")], replace_after=5),
     ["summary", "of all", "question", "better"]),
    (lambda c: c.append_messages([message("better")], replace_after=4), ["summary", "of all", "better"]),
    (lambda c: c.append_messages([message("better")], replace_after=9),
     ["summary", "of all", "question", "answer", "better"]),
    (lambda c: c.truncate(after=5), ["summary", "of all", "question"]),
    (lambda c: c.truncate(after=4), ["summary", "of all"]),
    (lambda c: c.truncate(after=6), ["summary", "of all", "question"]),
    (lambda c: c.truncate(after=7), ["summary", "of all", "question"]),
    (lambda c: c.truncate(after=8), ["summary", "of all", "question"]),
    (lambda c: c.truncate(after=c.info().last_seq), ["summary", "of all", "question", "answer"]),
    (lambda c: c.truncate(after=0), []),
    (lambda c: c.clear(), []),
    (lambda c: c.compact(lambda window: [message("again")]), ["again"]),
    (lambda c: c.compact(lambda window: [message("again")], discard=True), ["again"]),
]  # fmt: skip


@pytest.mark.parametrize("discard", [False, True])
def test_cut_removes_only_the_requested_messages_from_the_window(store: Store, discard: bool) -> None:
    for number, (cut, expected) in enumerate(WINDOW_CUTS):
        conversation = compacted_session(store, f"cut {number}", discard=discard)
        cut(conversation)
        assert_window(conversation, expected)
    assert_sound(store)


CUTS_AFTER: dict[str, Callable[[Conversation, int], object]] = {
    "truncate": lambda c, after: c.truncate(after=after),
    "replace_after": lambda c, after: c.append_messages([], replace_after=after),
}


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS_AFTER.values(), ids=CUTS_AFTER)
def test_cut_after_a_lower_seq_never_keeps_more_messages_or_turns(
    store: Store, cut: Callable[[Conversation, int], object]
) -> None:
    def open_session(key: str) -> Conversation:
        conversation = compacted_session(store, key)
        conversation.save_turn([])
        conversation.compact(lambda window: [message("newer"), message("summary")])
        conversation.save_turn([], {"tokens": 1})
        return conversation

    whole = open_session("whole")
    last_seq, turns = whole.info().last_seq, len(whole.turns.list())
    before: tuple[set[int], set[int]] = set(), set()
    for after in range(last_seq + 2):
        conversation = open_session(f"cut after {after}")
        cut(conversation, after)
        remaining = {m.seq for m in conversation.all_messages()}, {turn.turn_no for turn in conversation.turns.list()}
        assert before[0] <= remaining[0], after
        assert before[1] <= remaining[1], after
        before = remaining
    assert len(before[1]) == turns
    assert_sound(store)


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS_AFTER.values(), ids=CUTS_AFTER)
def test_cut_removes_later_turns_that_have_no_messages(
    store: Store, cut: Callable[[Conversation, int], object]
) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.save_turn([], {"tokens": 1})
    cut(conversation, 2)
    assert (conversation.turns.list(), conversation.info().turn_count) == ([], 0)
    assert contents(conversation.messages()) == ["message 0", "message 1"]
    assert_sound(store)


@pytest.mark.parametrize("id", [None, "new"])
def test_replace_after_stores_new_messages_even_if_it_replaces_only_records(store: Store, id: str | None) -> None:
    records = [Message(role=MessageRole.RECORD, content=n) for n in range(2)]
    conversation = store.open("k", messages=[message("question"), *records])
    with store.transaction() as tx:
        tx.conversation("k").append_messages([message("answer", id=id), records[0]], replace_after=1)
        tx.conversation("k").values.set({"state": 1})
    assert contents(conversation.all_messages()) == ["question", "answer", 0]
    assert conversation.values.get() == {"state": 1}
    info = conversation.info()
    assert (info.message_count, info.record_count) == (2, 1)
    assert conversation.truncate(after=1) == 1
    assert_sound(store)


def test_clear_with_keep_system_restores_a_summarized_system_message(store: Store) -> None:
    conversation = compacted_session(store)
    conversation.clear(keep_system=True)
    assert contents(conversation.messages()) == ["be kind"]


CUTS: dict[str, Callable[[Conversation], object]] = {
    "truncate": lambda c: c.truncate(after=3),
    "replace": lambda c: c.append_messages([], replace_after=3),
}


@pytest.mark.parametrize("cut", CUTS)
def test_cut_within_summarized_messages_undoes_the_compaction(store: Store, cut: str) -> None:
    conversation = compacted_session(store)
    CUTS[cut](conversation)
    assert contents(conversation.messages()) == ["be kind", "message 0", "message 1"]
    assert conversation.turns.list_compactions() == []


@pytest.mark.parametrize("cut", CUTS)
def test_cut_within_discarded_messages_is_refused(store: Store, cut: str) -> None:
    conversation = compacted_session(store, discard=True)
    before = conversation.get()
    with pytest.raises(InvalidCut, match="give 4 or more to keep the summary") as raised:
        CUTS[cut](conversation)
    assert (raised.value.seq, raised.value.first) == (3, 4)
    assert not isinstance(raised.value, Conflict)  # a loop that retries on Conflict would never end
    assert conversation.get() == before


SUMMARY_METADATA: dict[str, tuple[str | None, list[str]]] = {
    "no metadata": (None, ["first"]),
    "a list": ("[1]", ["first"]),
    "discarded is false": ('{"discarded": false}', ["first"]),
    "discarded is true": ('{"discarded": true}', ["summary", "last"]),
}


@pytest.mark.parametrize(("metadata", "remaining"), SUMMARY_METADATA.values(), ids=SUMMARY_METADATA)
def test_cut_within_summarized_messages_is_refused_only_if_metadata_says_discarded(
    store: Store, metadata: str | None, remaining: list[str]
) -> None:
    put_compacted(store, replaced_upto=2, metadata=metadata)
    conversation = store.open("k")
    if remaining == ["first"]:
        conversation.truncate(after=1)
    else:
        with pytest.raises(InvalidCut):
            conversation.truncate(after=1)
    assert contents(conversation.messages()) == remaining


def test_cut_raises_damaged_message_if_the_metadata_of_a_summary_is_damaged(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        put_compacted(store, replaced_upto=2, metadata="{")
        with pytest.raises(DamagedMessage, match="metadata of turn 1"):
            store.conversation("k").truncate(after=1)
        assert contents(store.conversation("k").messages()) == ["summary", "last"]


def test_summary_that_replaced_no_messages_is_removed_only_by_a_cut_after_0(store: Store) -> None:
    put_compacted(store, replaced_upto=None)
    conversation = store.open("k")
    conversation.truncate(after=2)
    assert contents(conversation.messages()) == ["summary", "first", "second"]
    (compaction,) = conversation.turns.list_compactions()
    assert (compaction.replaced_after, compaction.replaced_upto) == (0, 0)
    assert (compaction.replaced_messages, compaction.discarded) == (0, False)
    conversation.truncate(after=0)
    assert (contents(conversation.messages()), conversation.turns.list_compactions()) == ([], [])


def test_counters_and_last_seq_are_correct_after_a_cut_below_a_summary(store: Store) -> None:
    conversation = compacted_session(store)
    conversation.save_turn([message("more")], {"tokens": 1})
    conversation.truncate(after=4)
    info = conversation.info()
    assert (info.message_count, info.turn_count, info.summarized_upto, info.last_seq) == (6, 1, 4, 11)
    assert conversation.append_message(message("new")).seq == 12


# `replace_after`: afterwards the log is the messages up to that seq, then the new ones


def test_replace_after_appends_new_messages_with_the_ids_of_replaced_ones(store: Store) -> None:
    conversation = store.open("k", messages=[message("a"), *(message(id, id=id) for id in "bcd")])
    stored = conversation.append_messages([message("new b", id="b"), message("new d", id="d")], replace_after=1)
    assert [(m.content, m.replayed) for m in stored] == [("new b", False), ("new d", False)]
    assert contents(conversation.all_messages()) == ["a", "new b", "new d"]
    (last,) = conversation.append_messages([message("e", id="e")], replace_after=stored[-1].seq)
    assert not last.replayed
    assert contents(conversation.all_messages())[3:] == ["e"]


def test_repeated_replace_after_changes_nothing(store: Store) -> None:
    conversation = store.open("k", messages=[message("a", id="a"), *messages(3)])
    batch = [message("a", id="a"), message("x", id="x"), message("y", id="y"), message("x", id="x")]
    first = conversation.append_messages(batch, replace_after=1, after=4)
    store.create("another", messages=messages(9, id=None))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET name = name WHERE id = 'x'")  # moves the row in the table
        connection.exec_driver_sql("ANALYZE")  # PostgreSQL then reads the few rows without an index, in table order
    before = conversation.info()
    for _ in range(2):
        again = conversation.append_messages(batch, replace_after=1, after=4)
        assert [(m.content, m.seq) for m in again] == [(m.content, m.seq) for m in first]
        assert all(m.replayed for m in again)
    assert contents(conversation.all_messages()) == ["a", "x", "y"]
    assert conversation.info() == before


def test_replace_after_with_reordered_ids_is_not_a_replay(store: Store) -> None:
    conversation = store.open("k", messages=[message("a"), message("b", id="b"), message("c", id="c")])
    conversation.append_messages([message("c", id="c"), message("b", id="b")], replace_after=1)
    assert contents(conversation.all_messages()) == ["a", "c", "b"]


def test_replace_after_replays_messages_that_are_stored_before_the_cut(store: Store) -> None:
    conversation = store.open("k", messages=[message("a", id="a"), message("b", id="b"), message("c")])
    stored = conversation.append_messages([message("new a", id="a"), message("d", id="d")], replace_after=2)
    assert [(m.content, m.seq, m.replayed) for m in stored] == [("a", 1, True), ("d", 5, False)]
    assert contents(conversation.all_messages()) == ["a", "b", "d"]
    conversation.append_messages([message("b", id="b")], replace_after=2)
    assert contents(conversation.all_messages()) == ["a", "b"]


def test_replace_after_deletes_concurrent_messages_unless_after_is_passed_too(store: Store) -> None:
    conversation = store.open("k", messages=[message("a"), message("b")])
    conversation.append_messages([message("x", id="x")], replace_after=1, after=2)
    conversation.append_message(message("concurrent"))
    with pytest.raises(Conflict):
        conversation.append_messages([message("x", id="x")], replace_after=1, after=2)
    conversation.append_messages([message("x again", id="x")], replace_after=1)
    assert contents(conversation.all_messages()) == ["a", "x again"]
