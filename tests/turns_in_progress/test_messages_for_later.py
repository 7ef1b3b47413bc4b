"""Messages that are put into the inbox for a later time."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from support.commands import run
from support.factories import contents, message
from support.session_checks import assert_sound

from lango_store import AsyncStore, Conversation, Message, RunningTurn, Store, schema
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def work(store: Store, clock: Clock) -> list[list[Any]]:
    """Run the turns that are due, and return the contents of the messages of each."""
    ran: list[list[Any]] = []

    def answer(conversation: Conversation, turn: RunningTurn) -> None:
        ran.append(contents(turn.messages))
        turn.append(Message.assistant("ok"))

    Store(store.engine, clock=clock).work(answer, once=True)
    return ran


def test_message_for_later_is_taken_once_when_it_is_due(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    stored = conversation.inbox.put(message("wake"), in_=HOUR)
    assert stored.due_at == clock.time + HOUR
    assert [each.due_at for each in conversation.inbox.list()] == [stored.due_at]
    clock.move(hours=1, microseconds=-1)
    assert (work(store, clock), store.owed().items) == ([], [])
    clock.move(microseconds=1)
    assert [(each.key, each.reason, each.due_at) for each in store.owed().items] == [("k", "inbox", clock.time)]
    assert work(store, clock) == [["wake"]]
    assert (work(store, clock), store.owed(future=True).items, conversation.inbox.list()) == ([], [], [])
    assert contents(conversation.messages()) == ["wake", "ok"]


def test_worker_that_was_away_runs_a_message_late_and_once(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("wake", id="m"), at=clock.time + HOUR)
    clock.move(days=400)
    assert conversation.inbox.put(message("wake", id="m"), in_=HOUR).replayed
    assert work(store, clock) == [["wake"]]
    assert work(store, clock) == []


def test_time_in_the_past_is_due_now(store: Store, clock: Clock) -> None:
    store.open("k").inbox.put(message("wake"), at=clock.time - HOUR)
    assert work(store, clock) == [["wake"]]


def test_session_is_owed_a_turn_at_the_least_of_the_times(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    for hours in (3, 1, 2):
        conversation.inbox.put(message(f"in {hours}", id=f"m-{hours}"), in_=hours * HOUR)
    begin = clock.time

    def due() -> list[Any]:
        return [each.due_at and each.due_at - begin for each in store.owed(future=True).items]

    assert due() == [HOUR]
    assert conversation.inbox.delete("m-1")
    assert due() == [2 * HOUR]
    clock.move(hours=2)
    assert work(store, clock) == [["in 2"]]
    assert (due(), contents(conversation.inbox.list())) == ([3 * HOUR], ["in 3"])
    assert conversation.inbox.delete("m-3")
    assert due() == []


def test_turn_of_another_message_takes_only_what_is_due(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("later"), in_=HOUR)
    clock.move(minutes=30)
    conversation.inbox.put(message("now"))
    assert [each.due_at for each in store.owed().items] == [clock.time]
    assert work(store, clock) == [["now"]]
    with conversation.turn() as turn:
        clock.move(hours=1)  # it becomes due while a turn is running
    assert turn.messages == []
    assert work(store, clock) == [["later"]]


@pytest.mark.parametrize("end", ["saved", "released", "stopped", "crashed"])
def test_each_end_of_a_turn_keeps_the_message_for_later(store: Store, clock: Clock, end: str) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("later"), in_=HOUR)
    turn = conversation.turn("t").begin()
    conversation.inbox.put(message("sooner"), in_=HOUR / 2)
    if end == "saved":
        turn.__exit__(None, None, None)
    elif end == "released":
        conversation.turns.release()
    elif end == "stopped":
        conversation.turns.stop()
    clock.move(minutes=10)
    assert work(store, clock) == ([[]] if end == "crashed" else [])
    clock.move(minutes=20)
    assert work(store, clock) == [["sooner"]]
    clock.move(minutes=30)
    assert work(store, clock) == [["later"]]


def test_retry_does_not_begin_a_turn_that_is_owed_later(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("later"), in_=HOUR)
    assert not conversation.turns.retry()
    assert conversation.turns.stop() is None
    assert conversation.turns.stop(owed=True) is None
    stats = store.stats()
    assert (stats.owed_turns, stats.owed_since) == (0, None)
    clock.move(hours=1)
    assert conversation.turns.retry()
    assert work(store, clock) == [["later"]]


def test_forks_have_no_message_for_later_and_undo_keeps_it(store: Store, clock: Clock) -> None:
    conversation = store.open("k", messages=[message("first")])
    conversation.append_message(message("second"))
    conversation.inbox.put(message("later"), in_=HOUR)
    fork = conversation.fork("fork")
    assert fork.inbox.list() == []
    conversation.versions.undo()
    assert contents(conversation.inbox.list()) == ["later"]
    clock.move(hours=1)
    assert [each.key for each in store.owed(future=True).items] == ["k"]
    assert work(store, clock) == [["later"]]


def test_replaced_question_leaves_a_message_for_later_in_the_inbox(store: Store, clock: Clock) -> None:
    conversation = store.open("k", messages=[message("question"), message("answer", role="assistant")])
    conversation.inbox.put(message("later"), in_=HOUR)
    conversation.inbox.put(message("waits"))
    conversation.inbox.put_messages([message("other question")], replace_after=0)
    assert contents(conversation.inbox.list()) == ["later", "other question"]
    assert work(store, clock) == [["other question"]]
    clock.move(hours=1)
    assert work(store, clock) == [["later"]]


def test_redacted_message_keeps_its_time(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    stored = conversation.inbox.put(message("secret", id="m"), in_=HOUR)
    assert conversation.inbox.redact("m").due_at == stored.due_at
    assert work(store, clock) == []


def test_time_of_another_zone_is_stored_in_utc(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message(), at=datetime(2030, 1, 1, 1, tzinfo=timezone(2 * HOUR)))
    assert [each.due_at for each in conversation.inbox.list()] == [datetime(2029, 12, 31, 23, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("when", "error"),
    [
        ({"at": datetime(2030, 1, 1)}, ValueError),
        ({"at": datetime.max.replace(tzinfo=UTC)}, ValueError),
        ({"at": "2030-01-01"}, TypeError),
        ({"in_": -HOUR}, ValueError),
        ({"in_": timedelta.max}, ValueError),
        ({"in_": 60}, TypeError),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "in_": HOUR}, ValueError),
    ],
)
def test_invalid_time_is_refused(store: Store, when: Any, error: type[Exception]) -> None:
    conversation = store.open("k")
    with pytest.raises(error):
        conversation.inbox.put(message(), **when)
    assert conversation.inbox.list() == []


def test_put_for_later_sends_the_statements_of_a_put(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        conversation = store.open("k")
        counts: list[int] = []
        for later in (None, HOUR, None):
            sent.clear()
            conversation.inbox.put(message(), in_=later)
            counts.append(len(sent))
    assert counts == ([3, 3, 3] if url.startswith("sqlite") else [4, 4, 4])


def test_downgrade_makes_messages_for_later_due(url: str, store: Store, clock: Clock) -> None:
    store.open("k").inbox.put(message("later"), in_=HOUR)
    schema.downgrade(url, "0113")
    schema.upgrade(url)
    assert work(store, clock) == [["later"]]
    assert_sound(store)


def test_owed_command_lists_turns_at_a_later_time(url: str) -> None:
    store = Store(url)
    store.open("k").inbox.put(message("later"), in_=HOUR)
    assert run("owed", "--url", url).stdout == ""
    (owed,) = store.owed(future=True).items
    store.close()
    assert owed.due_at is not None
    assert run("owed", "--future", "--url", url).stdout == f"k\tinbox\t\t{owed.due_at.isoformat()}\t0\t\towed\n"


@pytest.mark.anyio
async def test_message_for_later_in_an_async_store(url: str, clock: Clock) -> None:
    async with AsyncStore(url, clock=clock) as store:
        conversation = store.conversation("k")
        await store.create("k")
        stored = await conversation.inbox.put(message("later"), in_=HOUR)
        assert stored.due_at == clock.time + HOUR
        assert (await store.owed()).items == []
        assert [each.due_at for each in (await store.owed(future=True)).items] == [stored.due_at]
