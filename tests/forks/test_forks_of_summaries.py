"""Forks of sessions with a summary, up to a seq or as a whole."""

import pytest
from support.compacted import assert_window, compacted_session, put_compacted
from support.factories import contents, message
from support.session_checks import assert_sound

from lango_store import Conflict, InvalidCut, Store

WINDOWS: list[tuple[int | None, list[str]]] = [
    (None, ["summary", "of all", "question", "answer"]),
    (4, ["summary", "of all"]),
    (5, ["summary", "of all", "question"]),
    (7, ["summary", "of all", "question"]),
    (8, ["summary", "of all", "question"]),
]


@pytest.mark.parametrize("discard", [False, True])
def test_fork_upto_a_seq_has_only_the_messages_up_to_it_in_its_window(store: Store, discard: bool) -> None:
    conversation = compacted_session(store, discard=discard)
    for upto, expected in WINDOWS:
        assert_window(conversation.fork(f"f{upto}", upto=upto), expected)
    assert_sound(store)


def test_fork_upto_a_seq_within_summarized_messages_has_no_summary(store: Store) -> None:
    forked = compacted_session(store).fork("f", upto=3)
    assert contents(forked.messages()) == ["be kind", "message 0", "message 1"]
    assert forked.turns.list_compactions() == []


def test_fork_upto_a_seq_within_discarded_messages_is_refused(store: Store) -> None:
    conversation = compacted_session(store, discard=True)
    with pytest.raises(InvalidCut, match="give 4 or more to keep the summary") as raised:
        conversation.fork("f", upto=3)
    assert (raised.value.seq, raised.value.first) == (3, 4)
    assert not isinstance(raised.value, Conflict)  # a loop that retries on Conflict would never end
    assert not store.exists("f")
    assert contents(conversation.fork("f", upto=0).messages()) == []


def test_fork_has_a_summary_that_replaced_no_messages_unless_it_is_empty(store: Store) -> None:
    put_compacted(store, replaced_upto=None)
    conversation = store.open("k")
    assert contents(conversation.fork("f", upto=2).messages()) == ["summary", "first", "second"]
    assert contents(conversation.fork("g", upto=0).messages()) == []


def test_fork_upto_a_seq_below_a_summary_continues_after_the_seqs_of_the_summary(store: Store) -> None:
    conversation = compacted_session(store)
    conversation.save_turn([message("more")], {"tokens": 1})
    forked = conversation.fork("f", upto=4)
    assert (forked.info().last_seq, forked.info().message_count) == (9, 6)
    assert forked.append_message(message("new")).seq == 10
