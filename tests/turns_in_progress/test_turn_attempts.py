"""Another attempt of a turn: which messages it finds, which it stores again, and the ids of messages."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.factories import contents, message, seqs
from support.json_values import json_values
from support.turns import messages_of

from lango_store import Conversation, Message, Store, ToolCall
from lango_store.testing import Clock


def fail(conversation: Conversation, id: str, *new: Message) -> None:
    """Append messages in an attempt of a turn that fails."""
    with suppress(ZeroDivisionError), conversation.turn(id) as turn:
        for each in new:
            turn.append(each)
        raise ZeroDivisionError


def test_next_attempt_of_a_turn_begins_with_messages_of_the_failed_attempt(store: Store) -> None:
    conversation = store.open("k", messages=[message("before")])
    fail(conversation, "t", message("question"), message("call", role="assistant"))
    conversation.append_message(message("of another"))
    with conversation.turn("t") as turn:
        assert [(each.seq, each.content) for each in turn.messages] == [(2, "question"), (3, "call")]
        assert not turn.replayed
        turn.append(message("answer", role="assistant"))
        assert contents(turn.messages) == ["question", "call", "answer"]
    stored = turn.stored
    assert stored is not None
    assert (contents(stored.messages), stored.first_seq, stored.last_seq) == (["question", "call", "answer"], 2, 5)
    assert contents(messages_of(conversation, stored)) == ["question", "call", "answer"]
    assert [each.turn_no for each in conversation.messages()] == [None, 1, 1, None, 1]


@pytest.mark.parametrize("id", [None, "m1"])
def test_next_attempt_of_a_turn_begins_with_messages_that_the_failed_attempt_took_from_the_inbox(
    store: Store, id: str | None
) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("question", id=id))
    with suppress(ZeroDivisionError), conversation.turn("t") as turn:
        turn.take_inbox()
        turn.append(message("call", role="assistant"))
        raise ZeroDivisionError
    conversation.inbox.put(message("later"))
    with conversation.turn("another") as other:
        assert other.messages == []
    with conversation.turn("t") as turn:
        assert contents(turn.messages) == ["question", "call"]
        assert contents(turn.take_inbox()) == ["later"]
        turn.append(message("answer", role="assistant"))
    assert turn.stored is not None
    assert contents(messages_of(conversation, turn.stored)) == ["question", "call", "later", "answer"]
    assert [each.turn_no for each in conversation.messages()] == [2, 2, 2, 2]


def test_next_attempt_of_a_turn_does_not_store_messages_of_the_failed_attempt_again(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    question, call = message("question", author="ann"), Message.assistant(tool_calls=[ToolCall(id="c", name="f")])
    result = Message.tool("result", tool_call_id="c", name="f")
    fail(conversation, "t", question, call, result)
    stored = conversation.messages()
    clock.move(seconds=1)
    with conversation.turn("t") as turn:
        again = [turn.append(question), *turn.append_messages([call, result, message("new")])]
    assert [each.replayed for each in again] == [True, True, True, False]
    assert [each.model_copy(update={"replayed": False}) for each in again[:3]] == stored
    assert seqs(conversation.messages()) == seqs(again)
    assert turn.stored is not None
    assert seqs(turn.stored.messages) == seqs(again)


@pytest.mark.parametrize(
    "changed",
    [
        {"content": "other"},
        {"content": ["text"]},
        {"role": "assistant"},
        {"author": "ben"},
        {"name": "n"},
        {"extra": {"a": 1}},
        {"sent": {"b": 1}},
        {"tool_call_id": "c"},
    ],
)
def test_next_attempt_of_a_turn_stores_a_message_that_differs_from_the_stored_one(
    store: Store, changed: dict[str, Any]
) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("text"))
    with conversation.turn("t") as turn:
        assert not turn.append(message(**{"content": "text"} | changed)).replayed
    assert turn.stored is not None
    assert len(turn.stored.messages) == len(conversation.messages()) == 2


@pytest.mark.parametrize("changed", [{"tokens": 9}, {"created_at": Clock()() - timedelta(days=1)}])
def test_next_attempt_of_a_turn_recognizes_a_message_with_different_tokens_or_time(
    store: Store, changed: dict[str, Any]
) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("text"))
    with conversation.turn("t") as turn:
        assert turn.append(message("text", **changed)).replayed
    assert conversation.info().message_count == 1


def test_equal_messages_of_one_attempt_are_all_stored(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("equal"))
        turn.append(message("equal"))
        turn.append_messages([message("equal"), message("equal")])
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["equal"] * 4
    assert len({each.id for each in turn.stored.messages}) == 4


def test_third_equal_message_is_stored_if_the_failed_attempt_stored_two(store: Store) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("equal"), message("equal"))
    with conversation.turn("t") as turn:
        appended = [turn.append(message("equal")), *turn.append_messages([message("equal"), message("equal")])]
    assert [(each.seq, each.replayed) for each in appended] == [(1, True), (2, True), (3, False)]
    assert contents(conversation.messages()) == ["equal"] * 3


def test_last_attempt_of_a_turn_finds_messages_of_all_earlier_attempts(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("a"))
    fail(conversation, "t", message("a"), message("b"))
    conversation.turn("t").__enter__().append(message("of a process that died"))
    clock.move(minutes=2)
    with conversation.turn("t") as turn:
        assert contents(turn.messages) == ["a", "b", "of a process that died"]
        assert turn.append(message("b")).replayed
    assert [each.turn_no for each in conversation.messages()] == [1, 1, 1]


def test_turn_does_not_find_messages_of_another_turn_that_failed(store: Store) -> None:
    conversation = store.open("k")
    fail(conversation, "t1", message("question"))
    with conversation.turn("t2") as turn:
        assert turn.messages == []
        assert not turn.append(message("question")).replayed
    assert contents(conversation.messages()) == ["question", "question"]
    with conversation.turn("t1") as turn:
        assert seqs(turn.messages) == [1]


@pytest.mark.parametrize("other", ["E\u0301", "e\u0301 ", "\u00e9", "e"])
def test_turns_with_ids_that_look_alike_are_different_turns(store: Store, other: str) -> None:
    conversation = store.open("k")
    fail(conversation, "e\u0301", message())
    with conversation.turn(other) as turn:
        assert turn.messages == []
    with conversation.turn("e\u0301") as turn:
        assert not turn.replayed
        assert len(turn.messages) == 1


def test_deleted_message_of_an_earlier_attempt_is_not_part_of_the_turn(store: Store) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("a"), message("b"), message("c"))
    conversation.edits.delete(2)
    with conversation.turn("t") as turn:
        assert contents(turn.messages) == ["a", "c"]
        assert not turn.append(message("b")).replayed
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["a", "c", "b"]


def test_message_of_an_earlier_attempt_is_stored_again_if_deleted_during_the_turn(store: Store) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("a"))
    with conversation.turn("t") as turn:
        conversation.truncate(after=0)
        assert not turn.append(message("a")).replayed
    assert turn.stored is not None
    assert contents(turn.stored.messages) == contents(conversation.messages()) == ["a"]


# Ids that the caller gives


def test_append_in_a_turn_is_replayed_if_the_id_is_stored(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        first = turn.append(message("first", id="m1"))
        assert (first.id, first.replayed) == ("m1", False)
        again = turn.append(message("changed", id="m1"))
        assert (again.content, again.seq, again.replayed) == ("first", 1, True)
        both = turn.append_messages([message("first", id="m1"), message("second", id="m2")])
        assert [each.replayed for each in both] == [True, False]
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["first", "second"]


def test_next_attempt_begins_with_messages_whose_id_was_chosen(store: Store) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("question", id="m1"))
    with conversation.turn("t") as turn:
        assert contents(turn.messages) == ["question"]
        assert turn.append(message("question", id="m1")).replayed
        assert contents(turn.messages) == ["question"]
    assert [each.turn_no for each in conversation.messages()] == [1]


def test_message_stored_before_a_turn_becomes_part_of_the_turn_that_appends_it_again(store: Store) -> None:
    conversation = store.open("k", messages=[message("question", id="m1"), message("other")])
    with conversation.turn("t") as turn:
        assert turn.append(message("question", id="m1")).replayed
        turn.append(message("answer"))
    assert turn.stored is not None
    assert (contents(turn.stored.messages), turn.stored.first_seq) == (["question", "answer"], 1)
    assert [each.turn_no for each in conversation.messages()] == [1, None, 1]


def test_message_of_a_saved_turn_stays_in_that_turn_if_a_later_turn_appends_it(store: Store) -> None:
    conversation = store.open("k")
    first = conversation.save_turn([message("question", id="m1")], id="t1")
    with conversation.turn("t2") as turn:
        assert turn.append(message("question", id="m1")).replayed
        turn.append(message("answer"))
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["answer"]
    assert contents(messages_of(conversation, first)) == ["question"]


def test_save_turn_stores_a_message_of_a_failed_attempt_again_if_it_has_no_id(store: Store) -> None:
    conversation = store.open("k")
    fail(conversation, "t", message("question"))
    conversation.save_turn([message("question")], id="t")
    with conversation.turn("t") as turn:
        assert turn.replayed
        assert seqs(turn.messages) == [2]


texts = st.text(st.characters(codec=None, exclude_categories=()))
values = json_values(texts)
fields = st.fixed_dictionaries(
    {"content": texts | values},
    optional={
        "extra": st.dictionaries(texts, values, max_size=2),
        "sent": values,
        "author": st.just("ann"),
        "role": st.sampled_from(["user", "assistant", "record"]),
    },
)


@pytest.mark.slow
@given(drawn=st.lists(fields, max_size=4))
def test_next_attempt_of_a_turn_recognizes_equal_messages_with_any_json(
    store: Store, drawn: list[dict[str, Any]]
) -> None:
    store.delete("k")
    conversation = store.open("k")
    new = [message(**each) for each in drawn]
    fail(conversation, "t", *new)
    with conversation.turn("t") as turn:
        assert all(each.replayed for each in turn.append_messages(new))
    assert turn.stored is not None
    assert seqs(turn.stored.messages) == list(range(1, len(new) + 1))
