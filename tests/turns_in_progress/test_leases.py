"""Leases of turns in progress: one turn at a time, takeover after the lease has ended, and waiting for a turn."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from support.factories import contents, message, messages
from support.processes import Program
from support.statements import watched

from lango_store import (
    AsyncStore,
    Conversation,
    LeaseLost,
    RunningTurn,
    SessionExpired,
    SessionNotFound,
    Store,
    TurnInProgress,
    create_engine,
)
from lango_store.testing import Clock

LEASE = timedelta(minutes=2)
LONG = timedelta(seconds=60)
"""A time to wait that no passing test reaches."""


def begun(conversation: Conversation, id: str | None = None) -> RunningTurn:
    """Begin a turn, as a process does that dies or pauses before the end of the block."""
    return conversation.turn(id).__enter__()


def leave(turn: RunningTurn) -> None:
    """End the block of a turn."""
    turn.__exit__(None, None, None)


# One turn at a time


def test_second_turn_of_a_session_raises_turn_in_progress_while_the_first_runs(
    either_store: Store, clock: Clock
) -> None:
    conversation = either_store.open("k")
    with either_store.open("a").turn("other"), conversation.turn("t1"):
        with pytest.raises(TurnInProgress) as raised, conversation.turn("t2"):
            pass
        error = raised.value
        assert (error.key, error.turn_id, error.until) == ("k", "t1", clock.time + LEASE)
        open_turn = conversation.turns.in_progress()
        assert open_turn is not None
        assert (open_turn.key, open_turn.id, open_turn.until, open_turn.held) == ("k", "t1", clock.time + LEASE, True)
    assert conversation.turns.in_progress() is None
    assert [turn.id for turn in conversation.turns.list()] == ["t1"]


def test_second_attempt_of_a_running_turn_raises_turn_in_progress(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t"), pytest.raises(TurnInProgress), conversation.turn("t"):
        pass
    assert conversation.info().turn_count == 1


def test_turns_of_two_sessions_can_run_at_the_same_time(store: Store) -> None:
    a, b = store.open("a"), store.open("b")
    with a.turn("t") as of_a, b.turn("t") as of_b:
        of_a.append(message("of a"))
        of_b.append(message("of b"))
        assert [(each.key, each.id) for each in store.turns.list_in_progress().items] == [("a", "t"), ("b", "t")]
    assert store.turns.list_in_progress().items == []
    assert (contents(a.messages()), contents(b.messages())) == (["of a"], ["of b"])


def test_turn_does_not_block_appends_that_are_not_part_of_the_turn(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn() as turn:
        conversation.append_message(message("of another"))
        turn.append(message("of the turn"))
        conversation.save_turn([message("of a saved turn")])
    assert contents(conversation.messages()) == ["of another", "of the turn", "of a saved turn"]


def test_turn_of_missing_session_raises_session_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFound), store.conversation("k").turn():
        pass


def test_turn_of_expired_session_raises_session_expired(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    with conversation.turn("stored"):
        pass
    clock.move(hours=2)
    for id in ("stored", "new"):
        with pytest.raises(SessionExpired), conversation.turn(id):
            pass


# The time of a lease


def test_another_turn_can_take_over_only_after_the_lease_has_ended(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    begun(conversation, "t1")
    clock.move(seconds=119.999)
    with pytest.raises(TurnInProgress), conversation.turn("t2"):
        pass
    clock.move(milliseconds=1)
    open_turn = conversation.turns.in_progress()
    assert open_turn is not None
    assert not open_turn.held
    with conversation.turn("t2") as turn:
        turn.append(message())
    assert [each.id for each in conversation.turns.list()] == ["t2"]


@pytest.mark.parametrize("lease", [timedelta(milliseconds=1), timedelta(seconds=7.25), timedelta(days=1)])
def test_lease_lasts_as_long_as_the_argument_lease_says(store: Store, clock: Clock, lease: timedelta) -> None:
    conversation = store.open("k")
    conversation.turn("t1", lease=lease).__enter__()
    open_turn = conversation.turns.in_progress()
    assert open_turn is not None
    assert open_turn.until == clock.time + lease
    clock.time += lease - timedelta(microseconds=1)
    with pytest.raises(TurnInProgress), conversation.turn("t2"):
        pass
    clock.move(microseconds=1)
    with conversation.turn("t2"):
        pass


@pytest.mark.parametrize("method", ["append", "append of known id", "append_messages", "flush", "inbox"])
def test_write_of_a_turn_raises_lease_lost_after_another_turn_took_over(
    store: Store, clock: Clock, method: str
) -> None:
    conversation = store.open("k", messages=[message("before", id="known")])
    conversation.inbox.put(message("waiting"))
    old = begun(conversation, "t1")
    old.append(message("by the old holder"))
    clock.move(minutes=2)
    with conversation.turn("t2") as new:
        new.append(message("by the new holder"))
        before = conversation.info()
        with pytest.raises(LeaseLost) as raised:
            write(old, method)
        assert conversation.info() == before
    assert (raised.value.key, raised.value.last_seq) == ("k", 3)
    assert conversation.drafts.list() == []
    assert contents(conversation.messages()) == ["before", "by the old holder", "by the new holder"]
    assert contents(conversation.inbox.list()) == ["waiting"]
    assert [each.id for each in conversation.turns.list()] == ["t2"]


def write(turn: RunningTurn, method: str) -> None:
    match method:
        case "append":
            turn.append(message("too late"))
        case "append of known id":
            turn.append(message(id="known"))
        case "append_messages":
            turn.append_messages(messages(2))
        case "flush":
            turn.write("too late")
            turn.flush()
        case _:
            turn.take_inbox()


def test_saving_a_turn_raises_lease_lost_after_another_turn_took_over(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k")
    old = begun(conversation, "t1")
    old.append(message("by the old holder"))
    clock.move(minutes=2)
    begun(conversation, "t2")
    with pytest.raises(LeaseLost):
        leave(old)
    assert conversation.turns.list() == []
    assert old.stored is None
    assert conversation.messages()[0].turn_no is None
    open_turn = conversation.turns.in_progress()
    assert open_turn is not None
    assert open_turn.id == "t2"


def test_turn_gets_lease_lost_even_after_the_turn_that_took_over_has_ended(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    old = begun(conversation, "t1")
    clock.move(minutes=2)
    with conversation.turn("t2"):
        pass
    with pytest.raises(LeaseLost):
        old.append(message("too late"))
    with pytest.raises(LeaseLost):
        leave(old)
    assert conversation.messages() == []
    assert [each.id for each in conversation.turns.list()] == ["t2"]


def test_turn_can_write_after_the_lease_ended_if_no_other_turn_took_over(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message("waiting"))
    with conversation.turn("t") as turn:
        clock.move(hours=1)
        turn.append(message("late"))
        clock.move(hours=1)
        turn.write("piece")
        turn.flush()
        clock.move(hours=1)
        assert contents(turn.take_inbox()) == ["waiting"]
        clock.move(hours=1)
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["late", "waiting"]
    assert conversation.turns.in_progress() is None


def extend_by_append(turn: RunningTurn) -> None:
    turn.append(message())


def extend_by_several(turn: RunningTurn) -> None:
    turn.append_messages(messages(2))


def extend_by_known_id(turn: RunningTurn) -> None:
    assert turn.append(message("known", id="known")).replayed


def extend_by_piece(turn: RunningTurn) -> None:
    turn.write("piece")


def extend_by_answer(turn: RunningTurn) -> None:
    turn.append(message("answer", role="assistant"))


def extend_by_inbox(turn: RunningTurn) -> None:
    assert turn.take_inbox()


@pytest.mark.parametrize(
    "extend",
    [extend_by_append, extend_by_several, extend_by_known_id, extend_by_piece, extend_by_answer, extend_by_inbox],
)
def test_each_write_of_a_turn_extends_the_lease(
    store: Store, clock: Clock, extend: Callable[[RunningTurn], None]
) -> None:
    conversation = store.open("k", messages=[message("known", id="known")])
    conversation.inbox.put(message("waiting"))
    with conversation.turn("t", flush=timedelta(0)) as turn:
        turn.write("first piece")
        clock.move(seconds=100)
        extend(turn)
        open_turn = conversation.turns.in_progress()
        assert open_turn is not None
        assert open_turn.until == clock.time + LEASE


def test_piece_that_is_not_stored_yet_does_not_extend_the_lease(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    with conversation.turn("t", flush=timedelta(hours=1)) as turn:
        turn.write("stored at once")
        before = conversation.turns.in_progress()
        clock.move(seconds=100)
        turn.write("collected")
        assert conversation.turns.in_progress() == before


def test_taking_a_lease_changes_neither_revision_nor_times_of_the_session(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    before = conversation.info()
    clock.move(seconds=1)
    with suppress(ZeroDivisionError), conversation.turn("t") as turn:
        assert conversation.info() == before
        clock.move(seconds=1)
        turn.write("piece")
        assert conversation.info() == before
        assert turn.take_inbox() == []
        raise ZeroDivisionError
    assert conversation.info() == before
    begun(conversation)
    conversation.turns.release()
    assert conversation.info() == before


def test_append_in_a_turn_changes_revision_and_times_of_the_session(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    before = conversation.info()
    clock.move(seconds=1)
    with conversation.turn("t") as turn:
        turn.append(message())
        after = conversation.info()
        assert after.revision > before.revision
        assert (after.updated_at, after.expires_at) == (clock.time, clock.time + timedelta(hours=1))


# Release


def test_release_turn_lets_another_turn_begin(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    old = begun(conversation, "t1")
    released = conversation.turns.release()
    assert released is not None
    assert (released.key, released.id, released.until, released.held) == ("k", "t1", clock.time + LEASE, True)
    assert (conversation.turns.in_progress(), conversation.turns.release()) == (None, None)
    with conversation.turn("t2") as turn, pytest.raises(LeaseLost):
        old.append(message())
    assert turn.stored is not None


def test_released_turn_gets_lease_lost_even_if_no_other_turn_began(store: Store) -> None:
    conversation = store.open("k")
    turn = begun(conversation)
    conversation.turns.release()
    with pytest.raises(LeaseLost, match=r"turns\.release"):
        turn.append(message())
    assert conversation.messages() == []


def test_release_turn_of_missing_session_raises_session_not_found(store: Store) -> None:
    for call in (store.conversation("k").turns.release, store.conversation("k").turns.in_progress):
        with pytest.raises(SessionNotFound):
            call()


def test_replay_of_a_stored_turn_does_not_take_over_an_ended_lease(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("stored")], id="t1")
    late = begun(conversation, "t2")
    clock.move(minutes=2)
    with conversation.turn("t1") as turn:
        assert turn.replayed
    late.append(message("late"))
    leave(late)
    assert contents(conversation.messages()) == ["stored", "late"]


def test_end_of_a_turn_does_not_release_the_lease_of_the_turn_that_took_over(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("t1"):
        clock.move(minutes=2)
        begun(conversation, "t2")
        raise ZeroDivisionError
    open_turn = conversation.turns.in_progress()
    assert open_turn is not None
    assert (open_turn.id, open_turn.held) == ("t2", True)


def test_open_turns_are_sorted_by_the_end_of_the_lease(store: Store, clock: Clock) -> None:
    for key, seconds in (("a", 30), ("b", 10), ("c", 20)):
        store.open(key).turn(f"turn of {key}", lease=timedelta(seconds=seconds)).__enter__()
    store.open("d")
    clock.move(seconds=20)
    assert [(each.key, each.id, each.held) for each in store.turns.list_in_progress().items] == [
        ("b", "turn of b", False),
        ("c", "turn of c", False),
        ("a", "turn of a", True),
    ]


# Wait


def test_waiting_turn_begins_when_the_running_turn_ends(either_store: Store) -> None:
    conversation = either_store.open("k")
    first = begun(conversation, "t1")
    reached: list[str] = []

    def wait() -> None:
        with conversation.turn("t2", wait=LONG) as turn:
            reached.append("begun")
            turn.append(message("second"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    first.append(message("first"))
    assert reached == []
    leave(first)
    waiting.join(60)
    assert contents(conversation.messages()) == ["first", "second"]
    assert [each.id for each in conversation.turns.list()] == ["t1", "t2"]


def test_wait_that_is_too_short_raises_turn_in_progress(either_store: Store) -> None:
    conversation = either_store.open("k")
    begun(conversation, "t1")
    with pytest.raises(TurnInProgress) as raised, conversation.turn("t2", wait=timedelta(milliseconds=50)):
        pass
    assert raised.value.turn_id == "t1"


@pytest.mark.slow
def test_waiting_turn_only_reads_until_the_lease_is_free(store: Store) -> None:
    conversation = store.open("k")
    begun(conversation, "t1")
    with watched(store.engine) as statements:
        with pytest.raises(TurnInProgress), conversation.turn("t2", wait=timedelta(seconds=2)):
            pass
        assert sum("lease_token IS NOT NULL" in each for each in statements) > 2
        assert sum(each.startswith("UPDATE") for each in statements) == 1


def test_waiting_turn_begins_when_the_lease_of_a_dead_turn_ends(url: str) -> None:
    with Store(url) as store:
        conversation = store.open("k")
        conversation.turn("t1", lease=timedelta(milliseconds=50)).__enter__()
        with conversation.turn("t2", wait=LONG):
            pass
        assert [each.id for each in conversation.turns.list()] == ["t2"]


def test_waiting_attempt_is_replayed_when_the_running_attempt_has_saved_the_turn(store: Store) -> None:
    conversation = store.open("k")
    first = begun(conversation, "t")
    first.append(message("answer", role="assistant"))
    replayed: list[bool] = []

    def wait() -> None:
        with conversation.turn("t", wait=LONG) as turn:
            replayed.append(turn.replayed)

    waiting = threading.Thread(target=wait)
    waiting.start()
    leave(first)
    waiting.join(60)
    assert replayed == [True]
    assert conversation.info().turn_count == 1


def test_waiting_attempt_of_a_saved_turn_is_replayed_although_another_turn_has_begun(either_store: Store) -> None:
    conversation = either_store.open("k")
    first = begun(conversation, "t1")
    replayed: list[bool] = []

    def wait() -> None:
        with conversation.turn("t1", wait=LONG) as turn:
            replayed.append(turn.replayed)

    waiting = threading.Thread(target=wait)
    waiting.start()
    leave(first)
    begun(conversation, "t2")
    waiting.join(60)
    assert replayed == [True]
    open_turn = conversation.turns.in_progress()
    assert open_turn is not None
    assert open_turn.id == "t2"


PROGRAM = """
import sys
from lango_store import Message, Store

with Store(sys.argv[1]) as store:
    with store.conversation("k").turn("of the process") as turn:
        turn.append(Message.user("of the process"))
        print("begun", flush=True)
        sys.stdin.readline()
        if sys.argv[2] == "release":
            print("ending", flush=True)
        else:
            import os
            os._exit(9)
"""


def test_waiting_turn_begins_when_the_turn_of_another_process_ends(url: str) -> None:
    with Store(url) as store:
        conversation = store.open("k")
        with Program(PROGRAM, url, "release") as program:
            assert program.stdout.readline() == "begun\n"
            with pytest.raises(TurnInProgress), conversation.turn():
                pass
            program.stdin.write("end\n")
            program.stdin.flush()
            with conversation.turn("t2", wait=LONG) as turn:
                turn.append(message("of this process"))
            assert contents(conversation.messages()) == ["of the process", "of this process"]


def test_turn_of_a_killed_process_keeps_the_lease_until_release_turn(url: str) -> None:
    with Store(url) as store:
        conversation = store.open("k")
        with Program(PROGRAM, url, "die") as program:
            assert program.stdout.readline() == "begun\n"
            program.stdin.write("die\n")
            program.stdin.flush()
            assert program.wait() == 9
            with pytest.raises(TurnInProgress), conversation.turn():
                pass
            released = conversation.turns.release()
            assert released is not None
            assert released.id == "of the process"
            with conversation.turn("of the process") as turn:
                assert contents(turn.messages) == ["of the process"]


@pytest.mark.slow
def test_async_turn_waits_for_the_lease_without_a_thread_or_connection(url: str) -> None:
    async def work() -> None:
        engine = create_engine(url, pool_size=1, max_overflow=0)
        async with AsyncStore(engine) as store:  # with one worker thread
            conversation = await store.open("k")

            async def wait(id: str) -> None:
                async with conversation.turn(id, wait=LONG):
                    pass

            async with conversation.turn("first") as turn:
                waiting = [asyncio.create_task(wait(f"waiting {n}")) for n in range(3)]
                for n in range(20):
                    await turn.append(message(f"{n}"))
                    await asyncio.wait(waiting, timeout=0.01)
                assert not any(each.done() for each in waiting)
            await asyncio.gather(*waiting)
            ids = [each.id for each in await conversation.turns.list()]
            assert (ids[0], sorted(map(str, ids[1:]))) == ("first", ["waiting 0", "waiting 1", "waiting 2"])
        engine.dispose()

    asyncio.run(work())
