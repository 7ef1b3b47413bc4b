"""The end of a turn in progress that waits while another transaction changes the session."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from support.databases import MakeDatabase
from support.factories import contents, message
from support.locks import until_one_waits
from support.session_checks import assert_sound
from support.turns import messages_of

from lango_store import Conversation, RunningTurn, Store, Turn
from lango_store._dialect import DETECTED, dialect_of
from lango_store._rooms.turns_in_progress.leases import Retry


@pytest.fixture(params=["one statement", "steps"])
def store(request: pytest.FixtureRequest, make_postgres: MakeDatabase) -> Iterator[Store]:
    """Yield a store that ends a turn with one statement, or in steps, as on a cluster."""
    with Store(make_postgres(), keep_removed=timedelta(days=1)) as yielded:
        yielded.ping()
        if request.param == "steps":
            detected = dialect_of(yielded.engine)
            in_steps = type("InSteps", (type(detected),), {"modifying_cte": False})
            vars(yielded.engine.dialect)[DETECTED] = in_steps()
        yield yielded


def running_turn(store: Store) -> RunningTurn:
    """Return a turn with two messages, the seqs 1 and 2."""
    turn = store.open("k").turn("t").begin()
    turn.append_messages([message("a"), message("b", role="assistant")])
    return turn


class Ending:
    """A thread that saves a turn."""

    def __init__(self, turn: RunningTurn) -> None:
        self._turn = turn
        self._thread = threading.Thread(target=turn.save)
        self._thread.start()

    def saved(self) -> Turn:
        self._thread.join(60)
        assert self._turn.stored is not None
        return self._turn.stored


def saved_during(store: Store, change: Callable[[Conversation], object]) -> Turn:
    """Save a turn while the transaction of a change holds the lock of the session, and return the saved turn."""
    turn = running_turn(store)
    with store.engine.begin() as connection:
        change(store.using(connection).conversation("k"))
        ending = Ending(turn)
        until_one_waits(store.engine)
    return ending.saved()


def remove_and_restore(conversation: Conversation) -> None:
    conversation.edits.delete(1)
    conversation.versions.undo()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda conversation: conversation.append_message(message("other")), ["a", "b"]),
        (lambda conversation: conversation.edits.update(1, message("edited")), ["edited", "b"]),
        (lambda conversation: conversation.edits.delete(1), ["b"]),
        (remove_and_restore, ["a", "b"]),
        (lambda conversation: conversation.clear(), []),
    ],
    ids=["append", "edit", "delete", "undo", "clear"],
)
def test_turn_is_saved_with_the_messages_that_another_transaction_left(
    store: Store, change: Callable[[Conversation], object], expected: list[str]
) -> None:
    stored = saved_during(store, change)
    conversation = store.conversation("k")
    assert contents(stored.messages) == expected
    assert messages_of(conversation, stored) == stored.messages
    assert [each.content for each in conversation.messages() if each.turn_no == stored.turn_no] == expected
    assert conversation.turns.list() == [stored.model_copy(update={"messages": []})]
    assert_sound(store)


def test_turn_is_replayed_if_save_turn_stores_its_id_while_it_ends(store: Store) -> None:
    stored = saved_during(store, lambda conversation: conversation.save_turn([message("other")], id="t"))
    assert (stored.replayed, contents(stored.messages)) == (True, ["other"])
    assert store.conversation("k").turns.in_progress() is None


@pytest.mark.parametrize("end", ["saved", "abandoned", "postponed"])
def test_message_for_later_that_arrives_while_a_turn_ends_is_owed(store: Store, end: str) -> None:
    turn = running_turn(store)
    calls = {"saved": turn.save, "abandoned": turn.abandon, "postponed": lambda: turn._abandon(Retry(0))}
    with ThreadPoolExecutor(1) as thread, store.engine.begin() as connection:
        store.using(connection).conversation("k").inbox.put(message("later"), in_=timedelta(hours=1))
        ending = thread.submit(calls[end])
        until_one_waits(store.engine)
        connection.commit()
        ending.result(60)
    assert [each.key for each in store.owed(future=True).items] == ["k"]
