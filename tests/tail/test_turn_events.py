"""Beginnings and ends of turns in the events of a session."""

import random
from contextlib import suppress
from datetime import timedelta

import pytest
from support.factories import message, messages
from support.following import follower, until_waiting

from lango_store import Appended, Conversation, Event, Message, RunningTurn, Store, TurnBegan, TurnEnded
from lango_store.testing import Clock

LEASE = timedelta(minutes=1)


@pytest.fixture
def conversation(store: Store) -> Conversation:
    return store.open("k")


def stored(conversation: Conversation, after: int | str = 0) -> list[Event]:
    return list(conversation.tail(after=after, follow=False))


def described(events: list[Event]) -> list[str]:
    """Describe the beginnings and ends of turns: the turn's id, or the outcome and the id."""
    return [
        event.turn_id if isinstance(event, TurnBegan) else f"{event.outcome} {event.turn_id}"
        for event in events
        if isinstance(event, TurnBegan | TurnEnded)
    ]


def test_reader_gets_the_beginning_and_the_end_of_a_saved_turn(conversation: Conversation) -> None:
    with conversation.turn("t") as turn:
        (began,) = stored(conversation)
        assert described([began]) == ["t"]
        assert stored(conversation, began.cursor) == []
        turn.append(message())
        turn.usage = {"output_tokens": 4}
    appended, ended = stored(conversation, began.cursor)
    assert isinstance(appended, Appended)
    assert isinstance(ended, TurnEnded)
    assert turn.stored is not None
    assert ended.turn == turn.stored.model_copy(update={"messages": []})
    assert stored(conversation, ended.cursor) == []
    assert stored(conversation, appended.cursor) == [ended]  # the reader was cut before the end


def test_saved_turns_follow_their_last_message(conversation: Conversation) -> None:
    for number in range(3):
        conversation.save_turn(messages(2), id=f"t{number}")
    conversation.append_message(message())
    events = stored(conversation)
    assert [type(event) for event in events] == [
        Appended,
        TurnEnded,
        Appended,
        TurnEnded,
        Appended,
        TurnEnded,
        Appended,
    ]
    assert described(events) == ["saved t0", "saved t1", "saved t2"]
    for number, event in enumerate(events):
        assert stored(conversation, event.cursor) == events[number + 1 :]
    assert described(stored(conversation, 4)) == ["saved t2"]


def test_compaction_is_not_a_turn_of_a_reader(conversation: Conversation) -> None:
    conversation.save_turn(messages(2), id="t")
    conversation.compact(lambda _: Message.assistant("summary"))
    assert described(stored(conversation)) == ["saved t"]


def test_turn_that_fails_is_given_up(conversation: Conversation) -> None:
    with suppress(ZeroDivisionError), conversation.turn("t"):
        (began,) = stored(conversation)
        raise ZeroDivisionError
    (ended,) = stored(conversation, began.cursor)
    assert described([ended]) == ["given_up None"]
    assert stored(conversation, ended.cursor) == []
    assert stored(conversation) == []


def test_released_turn_is_given_up(conversation: Conversation) -> None:
    conversation.turn("t").begin()
    (began,) = stored(conversation)
    conversation.turns.release()
    assert described(stored(conversation, began.cursor)) == ["given_up None"]


def test_turn_whose_lease_ends_is_lost_and_may_continue(conversation: Conversation, clock: Clock) -> None:
    turn = conversation.turn("t", lease=LEASE).begin()
    (began,) = stored(conversation)
    clock.move(minutes=2)
    (lost,) = stored(conversation, began.cursor)
    assert described([lost]) == ["lease_lost None"]
    turn.append(message())
    *_, again = stored(conversation, lost.cursor)
    assert described([again]) == ["t"]
    turn.save()
    assert described(stored(conversation, again.cursor)) == ["saved t"]


def test_turn_that_another_attempt_takes_over_is_lost(conversation: Conversation, clock: Clock) -> None:
    conversation.turn("t", lease=LEASE).begin()
    (began,) = stored(conversation)
    clock.move(minutes=2)
    conversation.turn("t").begin()
    assert described(stored(conversation, began.cursor)) == ["lease_lost None", "t"]


def test_saved_turn_of_another_id_does_not_end_the_turn_in_progress(conversation: Conversation) -> None:
    conversation.turn("t").begin()
    (began,) = stored(conversation)
    conversation.save_turn([message()], id="other")
    events = stored(conversation, began.cursor)
    assert described(events) == ["saved other"]
    conversation.turns.release()
    assert described(stored(conversation, events[-1].cursor)) == ["given_up None"]


@pytest.mark.slow
def test_many_turns_are_read_in_pages_without_gaps(conversation: Conversation) -> None:
    for number in range(450):
        conversation.save_turn(messages(number % 3), id=f"{number}")
    assert described(stored(conversation)) == [f"saved {number}" for number in range(450)]


def test_followers_get_the_ends_of_turns(store: Store, conversation: Conversation) -> None:
    with follower(store) as reader:
        until_waiting(store)
        turn = conversation.turn("t").begin()
        reader.wait(lambda: described(reader.events) == ["t"])
        turn.save()
        reader.wait(lambda: described(reader.events) == ["t", "saved t"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_cut_reader_gets_the_events_of_a_reader_that_is_never_cut(
    conversation: Conversation, clock: Clock, seed: int
) -> None:
    choose = random.Random(seed)
    whole: list[Event] = []
    cut: list[Event] = []
    turn: RunningTurn | None = None
    for _ in range(30):
        if turn is None:
            turn = conversation.turn(choose.choice("ab") + str(choose.random()), lease=LEASE, flush=timedelta(0))
            turn.begin()
        match choose.randrange(7):
            case 0:
                turn.save()
                turn = None
            case 1:
                turn.abandon()
                turn = None
            case 2:
                clock.move(minutes=2)
            case 3:
                turn.write("piece ")
            case 4:
                conversation.save_turn(messages(choose.randrange(3)))
            case _:
                turn.append(message())
        whole += stored(conversation, whole[-1].cursor if whole else 0)
        while cut[-1:] != whole[-1:]:
            cut.append(stored(conversation, cut[-1].cursor if cut else 0)[0])
    assert cut == whole
