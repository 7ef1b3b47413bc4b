"""Forks: copies of sessions made inside the database."""

from datetime import timedelta
from operator import attrgetter

import pytest
from support.factories import message, messages
from support.session_checks import assert_sound

from lango_store import SessionExists, SessionNotFound, Store
from lango_store.testing import Clock


def create_session(store: Store, key: str = "k") -> None:
    conversation = store.open(
        key,
        agent_id="a",
        user_id="u",
        title="t",
        model="m",
        settings={"s": 1},
        metadata={"x": [1]},
        tools=[{"name": "ls"}],
    )
    conversation.save_turn([message("q1", tokens=1), message("a1", role="assistant", tokens=2)], {"tokens": 3})
    conversation.append_message(message("q2", tokens=4, id="second"))
    conversation.save_turn([message("a2", role="assistant", tokens=8), message("q3", tokens=16)], {"tokens": 24})


def test_fork_equals_the_original_session(store: Store) -> None:
    create_session(store)
    store.open("k").compact(lambda window: [message("summary", role="assistant")])
    store.conversation("k").update(last_consolidated=2)
    source = store.open("k")
    forked = source.fork("f")
    excluded = {"key", "forked_from", "created_at", "updated_at", "revision"}
    assert forked.info().model_dump(exclude=excluded) == source.info().model_dump(exclude=excluded)
    assert forked.info().forked_from == "k"
    for read in ("messages", "all_messages", "turns.list", "turns.list_compactions", "total_usage", "history"):
        assert attrgetter(read)(forked)() == attrgetter(read)(source)()
    assert store.conversation("f").find_message("second") == store.conversation("k").find_message("second")


def test_fork_and_original_session_change_independently(store: Store) -> None:
    create_session(store)
    forked = store.open("k").fork("f")
    assert forked.save_turn([message("only here")]).turn_no == 3
    assert forked.append_message(message("again", id="second")).replayed
    store.open("k").clear()
    assert [m.content for m in forked.messages()] == ["q1", "a1", "q2", "a2", "q3", "only here"]
    store.delete("k")
    assert forked.info().forked_from == "k"


def test_fork_upto_a_seq_inside_a_turn_copies_messages_without_the_turn(store: Store) -> None:
    create_session(store)
    forked = store.open("k").fork("f", upto=4)
    assert [(m.content, m.turn_no) for m in forked.messages()] == [("q1", 1), ("a1", 1), ("q2", None), ("a2", None)]
    info = forked.info()
    assert (info.last_seq, info.message_count, info.token_count, info.turn_count) == (4, 4, 15, 1)
    assert forked.total_usage() == {"tokens": 3}
    assert forked.append_message(message()).seq == 5
    assert store.open("k").fork(upto=99).info().last_seq == 5
    with pytest.raises(ValueError, match="upto=-1 is not a seq"):
        store.open("k").fork(upto=-1)


def test_fork_upto_a_seq_copies_the_turn_that_ends_there_and_no_later_turn(store: Store) -> None:
    source = store.open("k")
    source.save_turn([message("one")], {"tokens": 1})
    source.save_turn([], {"tokens": 10})
    source.append_message(message("two"))
    forked = source.fork("f", upto=1)
    assert [(turn.first_seq, turn.last_seq) for turn in forked.turns.list()] == [(1, 1)]
    assert (forked.total_usage(), forked.info().turn_count) == ({"tokens": 1}, 1)


def test_append_to_a_fork_gets_a_seq_after_all_copied_turns_and_changes(store: Store) -> None:
    source = store.open("k")
    source.save_turn(messages(2))
    source.compact(lambda window: [message("summary", role="assistant")])
    source.append_message(message("later"))
    forked = source.fork("f", upto=2)
    assert [m.content for m in forked.messages()] == ["summary"]
    assert forked.info().last_seq == 5  # 4 is the summary, 5 the change that explains the missing 3
    assert forked.append_message(message("new")).seq == 6


def test_fork_upto_the_last_seq_copies_everything(store: Store) -> None:
    create_session(store)
    source = store.open("k")
    source.compact(lambda window: [])
    source.save_turn([], {"tokens": 100})
    forked, whole = source.fork("f", upto=source.info().last_seq), source.fork("w")
    assert (forked.turns.list(), forked.messages()) == (source.turns.list(), [])
    assert forked.info().model_copy(update={"key": "w", "revision": whole.info().revision}) == whole.info()


def test_fork_upto_a_seq_inside_a_summary_copies_the_whole_summary(store: Store) -> None:
    create_session(store)
    source = store.open("k")
    source.compact(lambda window: [message("one"), message("two"), message("three")])
    forked = source.fork("f", upto=8)
    assert forked.turns.list_compactions() == source.turns.list_compactions()
    assert (forked.messages(), forked.turns.list()) == (source.messages(), source.turns.list())


def test_fork_of_a_missing_session_or_to_an_existing_key_is_refused(store: Store) -> None:
    create_session(store)
    source = store.open("k")
    for key in ("k", "other"):
        store.open(key)
        with pytest.raises(SessionExists):
            source.fork(key)
    store.delete("k")
    with pytest.raises(SessionNotFound):
        source.fork("f")


def test_fork_starts_a_new_ttl(store: Store, clock: Clock) -> None:
    source = store.open("k", ttl=timedelta(hours=1))
    clock.move(minutes=30)
    assert source.fork("same").info().expires_at == clock() + timedelta(hours=1)
    assert source.fork("longer", ttl=timedelta(days=1)).info().expires_at == clock() + timedelta(days=1)
    assert source.fork("never", ttl=None).info().expires_at is None
    assert source.info().expires_at == clock() + timedelta(minutes=30)


@pytest.mark.parametrize(("upto", "consolidated"), [(1, 1), (2, 2), (3, 2), (None, 2)])
def test_last_consolidated_of_a_fork_is_at_most_the_number_of_messages(
    store: Store, upto: int | None, consolidated: int
) -> None:
    store.create("k", messages=messages(4))
    store.conversation("k").update(last_consolidated=2)
    assert store.conversation("k").fork("f", upto=upto).info().last_consolidated == consolidated


def test_fork_copies_the_current_values(store: Store) -> None:
    k = store.open("k", messages=messages(3))
    k.values.set({"a": 1, "b": None})
    for fork in (k.fork("whole"), k.fork("part", upto=1)):
        assert fork.values.get() == {"a": 1, "b": None}
        fork.values.set({"a": 2})
    assert k.values.get() == {"a": 1, "b": None}
    assert_sound(store)
