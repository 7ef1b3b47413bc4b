"""`tail(follow=False)`: the stored events after a seq or a cursor."""

from datetime import timedelta
from typing import assert_never

import pytest
import sqlalchemy as sa
from support.factories import contents, message, messages, seqs, summary

from lango_store import (
    Appended,
    Changed,
    DamagedMessage,
    Ended,
    Event,
    InvalidCursor,
    InvalidKey,
    LangoStoreError,
    Piece,
    SessionExpired,
    SessionNotFound,
    Store,
    TurnBegan,
    TurnEnded,
)
from lango_store.testing import Clock


@pytest.fixture
def store(either_store: Store) -> Store:
    """Run each test with `Store` and with `AsyncStore`."""
    return either_store


def stored(store: Store, key: str = "k", after: int | str = 0) -> list[Event]:
    return list(store.conversation(key).tail(after=after, follow=False))


def test_tail_yields_stored_messages_and_records(store: Store) -> None:
    conversation = store.open("k")
    appended = conversation.append_messages([message("a"), message("b", role="record"), message("c")])
    (event,) = stored(store)
    assert isinstance(event, Appended)
    assert event.messages == appended


def test_tail_of_conversation_yields_events_of_its_session(store: Store) -> None:
    store.create("other", messages=messages(2))
    conversation = store.open("k", messages=messages(1))
    assert list(conversation.tail(follow=False)) == stored(store)


def test_tail_starts_after_a_seq(store: Store) -> None:
    store.create("k", messages=messages(3))
    (event,) = stored(store, after=2)
    assert isinstance(event, Appended)
    assert seqs(event.messages) == [3]
    assert stored(store, after=3) == []
    assert stored(store, after=100) == []


def test_tail_starts_after_the_cursor_of_an_event(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.pop_message()
    conversation.append_messages(messages(2))
    events = stored(store)
    assert len(events) == 3
    for number, event in enumerate(events):
        assert stored(store, after=event.cursor) == events[number + 1 :]


def test_cursor_consists_of_seq_and_incarnation(store: Store) -> None:
    store.create("k", messages=messages(2))
    (event,) = stored(store)
    seq, incarnation = event.cursor.split("-")
    assert (seq, len(incarnation)) == ("2", 8)


def test_tail_yields_changes_between_messages(store: Store) -> None:
    conversation = store.open("k", messages=messages(4))
    conversation.truncate(after=3)
    conversation.append_message(message("new"))
    conversation.edits.update(1, message("edited"))
    conversation.compact(lambda _: summary())
    first, truncated, second, *changes, last = stored(store)
    assert isinstance(first, Appended)
    assert contents(first.messages) == ["edited", "message 1", "message 2"]
    assert isinstance(truncated, Changed)
    assert (truncated.kind, truncated.seq, truncated.after_seq) == ("truncate", 5, 3)
    assert isinstance(second, Appended)
    assert contents(second.messages) == ["new"]
    assert [(each.kind, each.after_seq) for each in changes if isinstance(each, Changed)] == [
        ("update", 1),
        ("compact", 7),
    ]
    assert isinstance(last, Appended)
    assert contents(last.messages) == ["summary"]


def test_long_log_is_read_in_pages_without_gaps(store: Store) -> None:
    conversation = store.open("k", messages=messages(450))
    for seq in (1, 200, 201, 400):
        conversation.edits.delete(seq)
    events = stored(store)
    read = [each for event in events if isinstance(event, Appended) for each in event.messages]
    assert read == conversation.all_messages()
    assert all(len(event.messages) <= 200 for event in events if isinstance(event, Appended))
    assert [event.seq for event in events if isinstance(event, Changed)] == [451, 452, 453, 454]


@pytest.mark.slow
def test_many_changes_are_read_in_pages_without_gaps(store: Store) -> None:
    conversation = store.open("k", messages=messages(1))
    for number in range(250):
        conversation.edits.update(1, message(f"{number}"))
    conversation.append_message(message("last"))
    first, *changes, last = stored(store)
    assert [event.seq for event in changes if isinstance(event, Changed)] == list(range(2, 252))
    assert isinstance(first, Appended)
    assert isinstance(last, Appended)
    assert (contents(first.messages), contents(last.messages)) == (["249"], ["last"])


def test_tail_of_missing_session_raises_session_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFound):
        stored(store)


def test_tail_of_expired_session_raises_session_expired(store: Store, clock: Clock) -> None:
    store.create("k", ttl=timedelta(hours=1), messages=messages(1))
    clock.move(hours=2)
    with pytest.raises(SessionExpired):
        stored(store)


def test_tail_with_the_cursor_of_a_deleted_session_yields_ended(store: Store) -> None:
    store.create("k", messages=messages(1))
    (event,) = stored(store)
    store.delete("k")
    (ended,) = stored(store, after=event.cursor)
    assert ended == Ended(cursor=event.cursor, reason="deleted")


def test_tail_with_the_cursor_of_a_replaced_session_yields_ended(store: Store) -> None:
    store.create("k", messages=messages(1))
    (event,) = stored(store)
    store.delete("k")
    store.create("k", messages=messages(3))
    assert stored(store, after=event.cursor) == [Ended(cursor=event.cursor, reason="replaced")]
    (appended,) = stored(store, after=1)
    assert isinstance(appended, Appended)
    assert seqs(appended.messages) == [2, 3]


def test_tail_with_the_cursor_of_an_expired_session_yields_ended(store: Store, clock: Clock) -> None:
    store.create("k", ttl=timedelta(hours=1), messages=messages(1))
    (event,) = stored(store)
    clock.move(hours=2)
    assert stored(store, after=event.cursor) == [Ended(cursor=event.cursor, reason="expired")]
    store.touch("k")
    assert stored(store, after=event.cursor) == []


@pytest.mark.parametrize("after", ["", "x", "-1", "1-", "1-x", "1.2-00000000", "9999999999999999999", "1-0000000g"])
def test_text_that_is_not_a_cursor_raises_invalid_cursor(store: Store, after: str) -> None:
    with pytest.raises(InvalidCursor):
        store.conversation("k").tail(after=after)


def test_tail_after_a_negative_seq_raises_value_error(store: Store) -> None:
    with pytest.raises(ValueError, match="after=-1"):
        store.conversation("k").tail(after=-1)


def test_tail_with_empty_key_raises_invalid_key(store: Store) -> None:
    with pytest.raises(InvalidKey):
        store.conversation("").tail()


def test_tail_accepts_seq_as_text(store: Store) -> None:
    store.create("k", messages=messages(2))
    (event,) = stored(store, after="1")
    assert isinstance(event, Appended)
    assert seqs(event.messages) == [2]


def test_tail_raises_damaged_message_for_a_damaged_message(store: Store) -> None:
    store.create("k", messages=messages(1))
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE lango_message SET extra = '1'"))
    with pytest.raises(DamagedMessage):
        stored(store)


def test_tail_in_a_transaction_yields_uncommitted_writes_but_cannot_follow(url: str) -> None:
    with Store(url) as store, store.transaction() as tx:
        tx.create("k", messages=messages(2))
        (event,) = tx.conversation("k").tail(follow=False)
        assert isinstance(event, Appended)
        assert len(event.messages) == 2
        with pytest.raises(LangoStoreError, match="follow=False"):
            tx.conversation("k").tail()


def test_events_are_equal_after_a_round_trip_through_json(url: str) -> None:
    with Store(url) as store:
        conversation = store.open("k", messages=[message("lone \ud83d"), message("b")])
        conversation.pop_message()
        conversation.save_turn([message()], usage={"output_tokens": 4})
        conversation.turn("t").begin().write("half \ud83d")
        events = stored(store)
    assert [type(event) for event in events] == [Appended, Changed, Appended, TurnEnded, TurnBegan, Piece]
    for event in events:
        assert type(event).model_validate_json(event.model_dump_json()) == event
        assert "\n" not in event.data


def described(event: Event) -> str:
    """Describe an event; type checkers know its class from the field `event`, and that no kind is missing."""
    if event.event == "appended":
        return f"{len(event.messages)} messages"
    if event.event == "changed":
        return f"{event.kind} after {event.after_seq}"
    if event.event == "piece":
        return event.text
    if event.event == "turn_began":
        return event.turn_id
    if event.event == "turn_ended":
        return event.outcome
    if event.event == "ended":
        return event.reason
    assert_never(event)


def test_class_of_an_event_follows_from_its_field_event(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.truncate(after=1)
    assert [described(each) for each in stored(store)][:2] == ["1 messages", "truncate after 1"]
