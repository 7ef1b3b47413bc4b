"""Pieces of a draft in the events of a session: in order and once, also for readers that reconnect."""

import random
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.following import Follower, follower, until_waiting
from support.polling import until

from lango_store import Appended, Conversation, Event, Message, Piece, RunningTurn, Store, TurnBegan, TurnEnded

AT_ONCE = timedelta(0)


def begun(conversation: Conversation, *pieces: str, id: str = "t") -> RunningTurn:
    """Begin a turn that streams these pieces."""
    turn = conversation.turn(id, flush=AT_ONCE).begin()
    for piece in pieces:
        turn.write(piece)
    return turn


def pieces(events: Iterable[Event]) -> list[tuple[str | None, int, str]]:
    return [(event.turn_id, event.n, event.text) for event in events if isinstance(event, Piece)]


def text_of(events: Iterable[Event]) -> str:
    """Return the draft that a reader shows."""
    text = ""
    for event in events:
        if isinstance(event, Piece):
            assert event.n in (0, len(text)), "a piece came twice or out of order"
            text = text[: event.n] + event.text
    return text


def stored(store: Store, after: int | str = 0) -> list[Event]:
    """Return the events after a position, without beginnings and ends of turns."""
    events = store.conversation("k").tail(after=after, follow=False)
    return [event for event in events if not isinstance(event, TurnBegan | TurnEnded)]


@pytest.fixture
def conversation(store: Store) -> Conversation:
    return store.open("k")


def test_stored_draft_is_sent_as_one_piece(store: Store, conversation: Conversation) -> None:
    begun(conversation, "It ", "is ")
    assert pieces(stored(store)) == [("t", 0, "It is ")]


def test_tail_with_the_cursor_of_a_piece_continues_the_draft(store: Store, conversation: Conversation) -> None:
    turn = begun(conversation, "It ")
    (first,) = stored(store)
    assert stored(store, first.cursor) == []
    turn.write("is ")
    (second,) = stored(store, first.cursor)
    assert pieces([first, second]) == [("t", 0, "It "), ("t", 3, "is ")]


def test_stored_answer_ends_the_draft(store: Store, conversation: Conversation) -> None:
    turn = begun(conversation, "It is sunny.")
    (piece,) = stored(store)
    turn.append(Message.assistant(turn.draft_text))
    answer, end = stored(store, piece.cursor)
    assert isinstance(answer, Appended)
    assert pieces([end]) == [(None, 0, "")]
    assert stored(store, end.cursor) == []
    assert pieces(stored(store)) == []
    assert pieces(stored(store, answer.cursor)) == [(None, 0, "")]  # the reader was cut before the end of the draft


def test_draft_is_not_repeated_after_a_message_of_another_writer(store: Store, conversation: Conversation) -> None:
    turn = begun(conversation, "It ")
    (piece,) = stored(store)
    conversation.append_message(Message.user("Hello?"))
    (question,) = stored(store, piece.cursor)
    assert isinstance(question, Appended)
    turn.write("is ")
    assert pieces(stored(store, question.cursor)) == [("t", 3, "is ")]


def test_second_answer_of_a_turn_begins_a_new_draft(store: Store, conversation: Conversation) -> None:
    turn = begun(conversation, "One.")
    (first,) = stored(store)
    turn.append(Message.assistant("One."))
    turn.write("Two.")
    answer, second = stored(store, first.cursor)
    assert isinstance(answer, Appended)
    assert pieces([second]) == [("t", 0, "Two.")]


def test_next_attempt_of_a_turn_begins_a_new_draft(store: Store, conversation: Conversation) -> None:
    begun(conversation, "It is ra")
    (first,) = stored(store)
    conversation.turns.release()
    begun(conversation, "It is sunny.")
    assert pieces(stored(store, first.cursor)) == [("t", 0, "It is sunny.")]


def test_failed_turn_ends_the_draft(store: Store, conversation: Conversation) -> None:
    with suppress(ZeroDivisionError), conversation.turn("t", flush=AT_ONCE) as turn:
        turn.write("half of ")
        (piece,) = stored(store)
        turn.write("an answer")
        raise ZeroDivisionError
    assert pieces(stored(store, piece.cursor)) == [(None, 0, "")]
    assert [draft.text for draft in conversation.drafts.list()] == ["half of an answer"]


def test_draft_of_open_turn_is_shown_until_the_lease_is_released(store: Store, conversation: Conversation) -> None:
    begun(conversation, "half of ")
    assert pieces(stored(store)) == [("t", 0, "half of ")]
    conversation.turns.release()
    assert pieces(stored(store)) == []


def test_tail_continues_a_draft_at_its_cursor_if_the_draft_is_stored_again_from_its_start(
    store: Store, conversation: Conversation
) -> None:
    turn = begun(conversation, "It ", "is ")
    (first,) = stored(store)
    turn._draft.flushed = 0  # as after a flush whose outcome is unknown
    turn.write("sunny.")
    assert pieces(stored(store, first.cursor)) == [("t", 6, "sunny.")]


def test_surrogate_pair_divided_between_two_writes_is_sent_whole(store: Store, conversation: Conversation) -> None:
    turn = begun(conversation, "a \ud83d")
    (first,) = stored(store)
    turn.write("\ude00!")
    assert pieces([first, *stored(store, first.cursor)]) == [("t", 0, "a \ud83d"), ("t", 0, "a \N{GRINNING FACE}!")]


@pytest.mark.slow
@given(st.lists(st.text(min_size=1), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_pieces_arrive_in_order_and_once_across_reconnects(
    store: Store, texts: list[str], choose: random.Random
) -> None:
    store.delete("k")
    turn = begun(store.open("k"))
    events: list[Event] = []
    after: int | str = 0
    for text in texts:
        turn.write(text)
        for event in stored(store, after) if choose.random() < 0.7 else ():
            events.append(event)
            after = event.cursor
            if choose.random() < 0.5:
                break  # cut
    events += stored(store, after)
    assert text_of(events) == turn.draft_text


@pytest.mark.slow
def test_followers_get_pieces_of_a_draft_and_the_end_of_the_draft(store: Store, conversation: Conversation) -> None:
    with follower(store) as early:
        until_waiting(store)
        turn = begun(conversation)
        for number in range(20):
            turn.write(f"{number} ")
            early.wait(lambda: text_of(list(early.events)) == turn.draft_text)
        late = Follower(store, "k")
        late.wait(lambda: text_of(list(late.events)) == turn.draft_text)
        answer = turn.append(Message.assistant(turn.draft_text))
        for reader in (early, late):
            assert reader.wait_for_messages(1) == [answer]
            until(lambda reader=reader: pieces(reader.events[-1:]) == [(None, 0, "")])  # type: ignore[misc]
        assert len(pieces(early.events)) == 21
