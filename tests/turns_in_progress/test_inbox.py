"""The inbox: messages that wait outside of the log until a turn moves them to the log."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from support.factories import contents, message, messages, seqs

from lango_store import (
    InvalidMessage,
    LeaseLost,
    Message,
    MessageNotFound,
    SessionExpired,
    SessionNotFound,
    Store,
    ToolCall,
)
from lango_store.testing import Clock

# Enqueue


def test_enqueued_message_is_in_the_inbox_and_not_in_the_log(store: Store, clock: Clock) -> None:
    conversation = store.open("k", messages=[message("question")])
    stored = conversation.inbox.put(message("waiting", author="ann", id="m1"))
    assert (stored.content, stored.author, stored.id) == ("waiting", "ann", "m1")
    assert (stored.seq, stored.turn_no, stored.created_at, stored.replayed) == (0, None, clock.time, False)
    assert conversation.inbox.list() == [stored]
    assert contents(conversation.all_messages()) == contents(conversation.messages()) == ["question"]
    assert [each["content"] for each in conversation.history()] == ["question"]
    assert (conversation.info().message_count, conversation.info().last_seq) == (1, 1)
    assert conversation.find_message("m1") is None


def test_enqueued_message_is_returned_unchanged(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    full = Message(
        role="assistant",
        content=[{"type": "text", "text": "a\0\ud800"}],
        author="ann",
        name="n",
        tool_call_id="c",
        tool_calls=[ToolCall(id="c", name="f", arguments={"x": [1.5, None]}, output="\0")],
        tokens=7,
        extra={"\ud800": 1},
        sent={"y": 2},
        id="m1",
        created_at=clock.time - timedelta(days=1),
    )
    assert conversation.inbox.put(full).model_dump(exclude={"seq"}) == full.model_dump(exclude={"seq"})
    with conversation.turn() as turn:
        (taken,) = turn.take_inbox()
    assert taken.model_dump(exclude={"seq", "turn_no"}) == full.model_dump(exclude={"seq", "turn_no"})
    assert conversation.messages()[0].model_dump(exclude={"seq", "turn_no"}) == full.model_dump(
        exclude={"seq", "turn_no"}
    )


def test_inbox_lists_messages_in_order_of_arrival(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    for n in range(12):
        clock.move(seconds=-1)
        conversation.inbox.put(message(f"{n}"))
    assert contents(conversation.inbox.list()) == [f"{n}" for n in range(12)]
    assert seqs(conversation.inbox.list()) == [0] * 12


def test_enqueue_of_an_id_that_is_in_the_inbox_returns_the_stored_message(store: Store) -> None:
    conversation = store.open("k")
    first = conversation.inbox.put(message("first", id="m1"))
    again = conversation.inbox.put(message("changed", id="m1"))
    assert (again.content, again.seq, again.replayed) == ("first", 0, True)
    assert again.created_at == first.created_at
    assert contents(conversation.inbox.list()) == ["first"]


def test_enqueue_of_an_id_that_is_in_the_log_returns_the_stored_message(store: Store) -> None:
    conversation = store.open("k", messages=[message("first", id="m1")])
    again = conversation.inbox.put(message("changed", id="m1"))
    assert (again.content, again.seq, again.replayed) == ("first", 1, True)
    assert conversation.inbox.list() == []


def test_enqueue_of_an_id_that_a_turn_took_from_the_inbox_returns_the_stored_message(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("first", id="m1"))
    with conversation.turn() as turn:
        turn.take_inbox()
        again = conversation.inbox.put(message("first", id="m1"))
        assert (again.seq, again.replayed) == (1, True)
        assert turn.take_inbox() == []


def test_enqueue_stores_each_of_two_equal_messages_without_id(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("equal"))
    assert not conversation.inbox.put(message("equal")).replayed
    assert contents(conversation.inbox.list()) == ["equal", "equal"]


def test_enqueue_changes_expires_at_and_updated_at_but_not_the_revision(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    before = conversation.info()
    clock.move(minutes=30)
    conversation.inbox.put(message(id="m1"))
    after = conversation.info()
    assert (after.updated_at, after.expires_at) == (clock.time, clock.time + timedelta(hours=1))
    moved = {"updated_at": after.updated_at, "expires_at": after.expires_at}
    assert after == before.model_copy(update=moved)
    clock.move(minutes=1)
    conversation.inbox.put(message(id="m1"))
    assert conversation.info() == after


def test_enqueue_sets_no_expiry_in_a_session_without_ttl(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message())
    assert conversation.info().expires_at is None


def test_enqueue_never_moves_expiry_back(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    before = conversation.info().expires_at
    clock.move(minutes=-5)
    conversation.inbox.put(message())
    assert conversation.info().expires_at == before


def test_dropped_message_leaves_the_inbox_and_its_id_can_be_used_again(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("first", id="m1"))
    conversation.inbox.put(message("second", id="m2"))
    assert conversation.inbox.delete("m1")
    assert not conversation.inbox.delete("m1")
    assert contents(conversation.inbox.list()) == ["second"]
    assert not conversation.inbox.put(message("first again", id="m1")).replayed


def test_redacted_message_keeps_its_place_in_the_inbox_and_what_identifies_it(store: Store) -> None:
    conversation = store.open("k")
    call = ToolCall(id="c", name="f", arguments="secret")
    conversation.inbox.put(
        Message.user(
            ["secret"], id="m1", author="ann", tokens=3, sent="secret", tool_calls=[call], extra={"x": "secret"}
        )
    )
    conversation.inbox.put(message("second", id="m2"))
    redacted = conversation.inbox.redact("m1", reason="asked to")
    assert redacted == conversation.inbox.list()[0]
    expected = Message.user("(redacted)", id="m1", author="ann", tokens=0, extra={"redacted": "asked to"})
    assert redacted.model_dump(exclude={"created_at"}) == expected.model_dump(exclude={"created_at"})
    assert contents(conversation.inbox.list()) == ["(redacted)", "second"]
    with pytest.raises(MessageNotFound):
        conversation.inbox.redact("m3")


def test_updated_message_keeps_its_place_in_the_inbox(store: Store) -> None:
    conversation = store.open("k")
    for id in ("m1", "m2"):
        conversation.inbox.put(message(id, id=id))
    updated = conversation.inbox.update(message("edited", id="m1"))
    assert updated == conversation.inbox.list()[0]
    assert contents(conversation.inbox.list()) == ["edited", "m2"]
    with conversation.turn() as turn:
        assert contents(turn.take_inbox()) == ["edited", "m2"]
    with pytest.raises(MessageNotFound):
        conversation.inbox.update(message("late", id="m1"))
    with pytest.raises(ValueError, match="has no id"):
        conversation.inbox.update(message("late"))
    assert contents(conversation.messages()) == ["edited", "m2"]


def test_enqueue_during_a_turn_does_not_change_the_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn() as turn:
        conversation.inbox.put(message("waiting"))
        assert contents(conversation.inbox.list()) == ["waiting"]
        assert turn.messages == []


def test_enqueue_is_rolled_back_with_the_callers_transaction(store: Store) -> None:
    conversation = store.open("k")
    with store.engine.connect() as connection:
        inside = store.using(connection).conversation("k")
        inside.inbox.put(message("waiting", id="m1"))
        assert inside.inbox.put(message("again", id="m1")).replayed
        assert contents(inside.inbox.list()) == ["waiting"]
        connection.rollback()
        assert conversation.inbox.list() == []
    store.transact(lambda tx: tx.conversation("k").inbox.put(message("committed")))
    assert contents(conversation.inbox.list()) == ["committed"]


@pytest.mark.parametrize("invalid", [message("x", extra={"x": object()}), message("x", id="x" * 513), "text", None])
def test_enqueue_of_an_invalid_message_writes_nothing(store: Store, invalid: Any) -> None:
    conversation = store.open("k")
    before = conversation.info()
    with pytest.raises(InvalidMessage):
        conversation.inbox.put(invalid)
    assert (conversation.inbox.list(), conversation.info()) == ([], before)


def test_inbox_and_enqueue_raise_for_a_missing_or_expired_session(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    clock.move(hours=1)
    calls: list[Callable[[], object]] = [conversation.inbox.list, lambda: conversation.inbox.put(message())]
    for call in calls:
        with pytest.raises(SessionExpired):
            call()
    store.delete("k")
    for call in calls:
        with pytest.raises(SessionNotFound):
            call()


def test_token_counter_counts_the_tokens_of_an_enqueued_message(url: str) -> None:
    with Store(url, token_counter=lambda each: len(str(each.content))) as store:
        conversation = store.open("k")
        assert conversation.inbox.put(message("four")).tokens == 4
        with conversation.turn() as turn:
            assert turn.take_inbox()[0].tokens == 4
        assert conversation.info().token_count == 4


# Take


def test_turn_inbox_moves_all_messages_to_the_log_in_order_of_arrival(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message("question"))
        for n in range(3):
            conversation.inbox.put(message(f"{n}"))
        arrived = clock.time
        clock.move(seconds=1)
        taken = turn.take_inbox()
        assert [(each.seq, each.content, each.created_at) for each in taken] == [
            (2, "0", arrived),
            (3, "1", arrived),
            (4, "2", arrived),
        ]
        assert (conversation.inbox.list(), turn.take_inbox()) == ([], [])
        assert contents(turn.messages) == contents(conversation.messages()) == ["question", "0", "1", "2"]
        conversation.inbox.put(message("3"))
        assert contents(turn.take_inbox()) == ["3"]
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["question", "0", "1", "2", "3"]
    assert [each.turn_no for each in conversation.messages()] == [1] * 5


def test_messages_that_no_turn_takes_stay_in_the_inbox(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("waiting"))
    with conversation.turn():
        pass
    with suppress(ZeroDivisionError), conversation.turn():
        raise ZeroDivisionError
    assert contents(conversation.inbox.list()) == ["waiting"]


def test_inbox_message_whose_id_is_in_the_log_is_not_stored_again(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("from the inbox", id="m1"))
    conversation.inbox.put(message("second", id="m2"))
    conversation.append_message(message("from the log", id="m1"))
    with conversation.turn() as turn:
        taken = turn.take_inbox()
    assert [(each.content, each.replayed) for each in taken] == [("from the log", True), ("second", False)]
    assert contents(conversation.messages()) == ["from the log", "second"]
    assert conversation.inbox.list() == []


def test_inbox_is_emptied_if_the_log_has_all_its_messages(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("waiting", id="m1"))
    conversation.append_message(message("stored", id="m1"))
    with conversation.turn() as turn:
        assert contents(turn.take_inbox()) == ["stored"]
    assert (contents(conversation.messages()), conversation.inbox.list()) == (["stored"], [])


@pytest.mark.parametrize("retry", [None, timedelta(seconds=1)])
def test_next_attempt_of_a_turn_begins_with_messages_that_the_first_took_from_the_inbox(
    url: str, retry: timedelta | None
) -> None:
    with Store(url, retry=retry) as store:
        conversation = store.open("k", messages=[message("earlier")])
        conversation.inbox.put(message("waiting"))
        with suppress(ZeroDivisionError), conversation.turn("t") as turn:
            turn.append(message("question"))
            turn.take_inbox()
            raise ZeroDivisionError
        with conversation.turn("t") as turn:
            assert contents(turn.messages) == ["question", "waiting"]
            assert turn.take_inbox() == []
        assert [each.turn_no for each in conversation.messages()] == [None, 1, 1]


def test_turn_inbox_changes_nothing_if_the_inbox_is_empty(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    before = conversation.info()
    with conversation.turn("t") as turn:
        clock.move(seconds=1)
        assert turn.take_inbox() == []
        assert conversation.info() == before


def test_turn_inbox_raises_lease_lost_after_another_turn_took_over(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    old = conversation.turn("t1").__enter__()
    clock.move(minutes=2)
    with conversation.turn("t2"):
        for waiting in ([], [message("waiting")]):
            for each in waiting:
                conversation.inbox.put(each)
            with pytest.raises(LeaseLost):
                old.take_inbox()
        assert contents(conversation.inbox.list()) == ["waiting"]
    assert conversation.messages() == []


@pytest.mark.slow
def test_turn_inbox_takes_1200_messages_in_one_call(store: Store) -> None:
    conversation = store.open("k")
    with store.transaction() as tx:
        for each in messages(1_200):
            tx.conversation("k").inbox.put(each)
    with conversation.turn() as turn:
        assert len(turn.take_inbox()) == 1_200
    assert turn.stored is not None
    assert seqs(turn.stored.messages) == list(range(1, 1_201))
