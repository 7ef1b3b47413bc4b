"""The last message of the window is removed: `pop_message`."""

import pytest
from support.compacted import assert_window, compacted_session
from support.factories import messages
from support.session_checks import assert_sound

from lango_store import Store

WINDOWS = [["summary", "of all", "question"], ["summary", "of all"], ["summary"]]


@pytest.mark.parametrize("discard", [False, True])
def test_pop_message_removes_the_last_message_of_a_window_with_a_summary(store: Store, discard: bool) -> None:
    for pops, expected in enumerate(WINDOWS, 1):
        conversation = compacted_session(store, f"{pops} pops", discard=discard)
        for _ in range(pops):
            conversation.pop_message()
        assert_window(conversation, expected)
    assert_sound(store)


def test_pop_message_of_the_only_message_of_a_turn_removes_the_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn(messages(2), {"tokens": 1})
    conversation.pop_message()
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns.list()] == [(1, 1)]
    conversation.pop_message()
    assert (conversation.turns.list(), conversation.info().turn_count) == ([], 0)


def test_pop_message_keeps_a_later_empty_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn(messages(2))
    conversation.save_turn([], {"tokens": 1})
    conversation.pop_message()
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns.list()] == [(1, 1), (3, 2)]
