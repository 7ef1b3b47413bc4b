"""Writes of `Store.in_turn`: each of them compares the lease of the turn."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.databases import not_on_a_cluster
from support.every_method import calls_of, prepare
from support.factories import contents, message
from support.rows import all_rows

from lango_store import LeaseLost, Message, Store, ToolCall, schema
from lango_store._connections.cancellation import Cancellation
from lango_store.testing import Clock


@pytest.mark.slow
@not_on_a_cluster("a search index is refused on distributed tables")
def test_no_method_writes_in_a_turn_that_has_lost_its_lease(url: str, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    with Store(url) as store:
        prepare(store, cold)
        schema.enable_search(url)
        turn = store.open("leased").turn().begin()
        store.conversation("leased").turns.release()
        before = all_rows(store)
        late = store.in_turn(turn)
        for kind, methods in calls_of(late, cold).items():
            for name, method_call in ((name, each) for name, calls in methods.items() for each in calls):
                call = Cancellation()
                try:
                    call.run(method_call)
                    refused = False
                except LeaseLost:
                    refused = True
                assert call.cancel() == refused, f"{kind.__name__}.{name}"
        assert all_rows(store) == before


def test_writes_in_a_turn_extend_its_lease(either_store: Store, clock: Clock) -> None:
    conversation = either_store.open("k", messages=[message("first")])
    with conversation.turn(lease=timedelta(minutes=2)) as turn:
        begun = conversation.turns.in_progress()
        own = either_store.in_turn(turn).conversation("k")
        clock.move(seconds=1)
        own.edits.update(1, message("edited"))
        own.values.set({"a": 1})
        own.update(title="T")
        own.inbox.put(message("waiting"))
        extended = conversation.turns.in_progress()
    assert begun is not None
    assert extended is not None
    assert extended.until > begun.until
    assert contents(conversation.messages()) == ["edited"]
    assert conversation.values.get() == {"a": 1}
    assert conversation.info().title == "T"


def test_transaction_in_a_turn_that_has_lost_its_lease_is_refused_at_its_beginning(store: Store) -> None:
    turn = store.open("k").turn().begin()
    store.conversation("k").turns.release()
    late = store.in_turn(turn)
    with pytest.raises(LeaseLost), late.transaction() as tx:
        tx.create("another")
    with pytest.raises(LeaseLost), store.engine.begin() as connection:
        late.using(connection).conversation("k").values.set({"a": 1})
    assert not store.exists("another")
    assert store.conversation("k").values.get() == {}


def test_result_of_a_call_begun_in_a_turn_is_stored_after_the_lease_was_lost(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn().begin()
    asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")]))
    calls = store.in_turn(turn).conversation("k").calls
    effect = calls.begin(asking.seq, 0)
    conversation.turns.release()
    assert calls.finish(effect, "paid").content == "paid"
