"""Turns: saved completely or not at all, once, with their usage."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.databases import MakeDatabase
from support.factories import contents, message, messages
from support.turns import messages_of

from lango_store import Conflict, InvalidMessage, InvalidValue, SessionNotFound, Store
from lango_store._values.usage import describe, total


def test_save_turn_returns_seqs_of_its_messages(store: Store) -> None:
    conversation = store.open("k", messages=[message("before")])
    turn = conversation.save_turn([message("a"), message("b")], {"input_tokens": 1}, metadata={"model": "x"})
    assert (turn.turn_no, turn.first_seq, turn.last_seq, turn.kind) == (1, 2, 3, "turn")
    assert [(m.seq, m.turn_no) for m in turn.messages] == [(2, 1), (3, 1)]
    assert turn.messages == conversation.all_messages(after=1)
    (listed,) = conversation.turns.list()
    assert listed == turn.model_copy(update={"messages": []})


def test_save_turn_with_a_stored_id_is_replayed(store: Store) -> None:
    conversation = store.open("k", messages=[message("before")])
    first = conversation.save_turn([message("a"), message("b")], {"input_tokens": 1}, id="request-1")
    conversation.append_message(message("after"))
    again = conversation.save_turn([message("something else")], {"input_tokens": 9}, id="request-1", after=0)
    assert again.replayed
    assert not first.replayed
    assert again == first.model_copy(update={"replayed": True})
    assert (conversation.info().turn_count, conversation.total_usage()) == (1, {"input_tokens": 1})
    assert "replayed" not in again.model_dump()


def test_save_turn_is_replayed_if_a_turn_with_the_same_message_ids_is_stored(store: Store) -> None:
    conversation = store.open("k")
    batch = [message("a", id="1"), message("b", id="2")]
    first = conversation.save_turn(batch, {"input_tokens": 1})
    again = conversation.save_turn(batch, {"input_tokens": 1})
    assert (again.replayed, again.turn_no, again.messages) == (True, first.turn_no, first.messages)
    assert conversation.total_usage() == {"input_tokens": 1}


def test_save_turn_stores_only_messages_whose_id_is_not_stored(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message("a", id="1"))
    conversation.append_message(message("between"))
    turn = conversation.save_turn([message("changed", id="1"), message("b", id="2"), message("again", id="2")])
    assert [(m.content, m.replayed, m.turn_no) for m in turn.messages] == [
        ("a", True, None),
        ("b", False, 1),
        ("b", True, 1),
    ]
    assert (turn.first_seq, turn.last_seq) == (3, 3)
    assert [m.content for m in conversation.messages()] == ["a", "between", "b"]


def test_repeated_save_turn_is_replayed_although_some_messages_were_stored_before(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message("a", id="1"))
    conversation.save_turn([message("b", id="2")], {"tokens": 1})
    batch = [message("a", id="1"), message("b", id="2"), message("c", id="3")]
    saved = conversation.save_turn(batch, {"tokens": 10})
    again = conversation.save_turn(batch, {"tokens": 10})
    assert (again.replayed, again.turn_no) == (True, saved.turn_no)
    assert (conversation.info().turn_count, conversation.total_usage()) == (2, {"tokens": 11})


def test_repeated_save_turn_of_appended_messages_counts_the_usage_once(store: Store) -> None:
    conversation = store.open("k")
    batch = [message("a", id="1"), message("b", id="2")]
    conversation.append_messages(batch)
    saved = conversation.save_turn(batch, {"tokens": 100})
    assert not saved.replayed
    for _ in range(2):
        again = conversation.save_turn(batch, {"tokens": 100})
        assert again == saved.model_copy(update={"replayed": True})
        assert again.replayed
    assert (conversation.info().turn_count, conversation.total_usage()) == (1, {"tokens": 100})
    assert [m.content for m in again.messages] == ["a", "b"]
    other = conversation.save_turn(batch[1:], {"tokens": 5})
    assert (other.replayed, conversation.total_usage()) == (False, {"tokens": 105})


def test_find_returns_a_turn_with_its_messages_by_its_id_or_number(store: Store) -> None:
    conversation = store.open("k", messages=[message("before")])
    saved = conversation.save_turn([message("a"), message("b")], {"tokens": 1}, id="t")
    bare = conversation.save_turn([], {"tokens": 2}, id="bare")
    conversation.append_message(message("after"))
    compaction = conversation.compact(lambda window: [message("summary")])
    assert conversation.turns.find("t") == conversation.turns.find(saved.turn_no) == saved
    assert conversation.turns.find("bare") == bare
    assert compaction is not None
    found = conversation.turns.find(compaction.turn_no)
    assert found is not None
    assert (found.kind, found.messages) == ("compaction", compaction.summary)
    assert [each.messages for each in conversation.turns.list()] == [[], [], []]
    conversation.truncate(after=2)
    assert contents(messages_of(conversation, saved)) == ["a"]
    for unknown in ("bare", "unknown", 2, 0, -1, 2**70):
        assert conversation.turns.find(unknown) is None


def test_save_turn_raises_conflict_if_the_argument_after_is_not_the_last_seq(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_message(message())
    with pytest.raises(Conflict) as raised:
        conversation.save_turn([message()], after=0)
    assert raised.value.last_seq == 1
    assert conversation.save_turn([message()], after=1).last_seq == 2
    for new in ([message()], [message(id="twice"), message(id="twice")]):
        with pytest.raises(ValueError, match="after=-1 is not a seq"):
            conversation.save_turn(new, after=-1)


@pytest.mark.parametrize(("usage", "field"), [({"a": float("nan")}, "usage"), ([1], "usage"), ({1: 2}, "usage")])
def test_usage_that_is_not_json_is_refused(store: Store, usage: Any, field: str) -> None:
    conversation = store.open("k")
    with pytest.raises(InvalidValue) as raised:
        conversation.save_turn([message()], usage)
    assert raised.value.field == field
    assert (conversation.messages(), conversation.info().turn_count) == ([], 0)


def test_turn_with_an_invalid_message_is_not_stored(store: Store) -> None:
    conversation = store.open("k")
    with pytest.raises(InvalidMessage):
        conversation.save_turn([message("good"), message({1: "bad"})], {"input_tokens": 1})
    assert (conversation.messages(), conversation.info().turn_count, conversation.total_usage()) == ([], 0, {})


def test_turn_methods_raise_session_not_found_for_a_deleted_session(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.save_turn([message()])
    store.delete("k")
    for call in (
        lambda: conversation.save_turn([message()]),
        conversation.total_usage,
        conversation.turns.list,
        lambda: conversation.turns.find("t"),
        lambda: messages_of(conversation, turn),
    ):
        with pytest.raises(SessionNotFound):
            call()


def test_turns_are_ordered_by_turn_no_even_if_the_database_uses_no_index(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        conversation = store.open("k")
        conversation.save_turn(messages(3), {"tier": "a"})
        conversation.truncate(after=1)
        vacuum(store)  # leaves free space before the row of the first turn
        conversation.save_turn(messages(1), {"tier": "b"})
        vacuum(store)  # PostgreSQL then reads the few rows without an index, in table order
        assert [turn.turn_no for turn in conversation.turns.list()] == [1, 2]
        assert conversation.total_usage() == {"tier": "b"}


def vacuum(store: Store) -> None:
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE) lango_turn")


def test_truncate_removes_an_empty_turn_after_the_seq(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.truncate(after=1)
    conversation.save_turn([], {"tokens": 1})
    before = conversation.info()
    assert conversation.truncate(after=1) == 0
    assert (conversation.turns.list(), conversation.info().turn_count) == ([], 0)
    assert conversation.info().last_seq == before.last_seq + 1


def test_usage_is_rolled_back_with_the_callers_transaction(url: str) -> None:
    with Store(url) as store:
        store.open("k")
        with store.engine.begin() as connection:
            bound = store.using(connection).open("k")
            bound.save_turn([message()], {"tokens": 1}, id="t")
            assert bound.save_turn([message()], {"tokens": 1}, id="t").replayed
            connection.rollback()
        assert store.open("k").total_usage() == {}


usages = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.integers(-(2**53), 2**53) | st.booleans() | st.none() | st.text(max_size=3) | st.lists(st.integers()),
        lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


@pytest.mark.slow
@given(st.lists(usages, max_size=5))
def test_total_usage_sums_nested_numbers(usage_list: list[dict[str, Any]]) -> None:
    def numbers(value: Any) -> int:
        if isinstance(value, dict):
            return sum(map(numbers, value.values()))
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    only_numbers = [{"n": numbers(usage), "deep": {"n": numbers(usage)}} for usage in usage_list]
    expected = sum(map(numbers, usage_list))
    assert total(only_numbers) == ({"n": expected, "deep": {"n": expected}} if usage_list else {})
    assert set(total(usage_list)) == {name for usage in usage_list for name in usage}


def test_function_describe_lists_each_usage_field_with_its_path() -> None:
    usage = {"input_tokens": 12_345, "cost": {"usd": 0.1 + 0.2, "by": {"tool": -1}}, "tier": "a", "ok": True, "n": None}
    assert list(describe(usage)) == [
        "input_tokens 12,345",
        "cost.usd 0.3",
        "cost.by.tool -1",
        "tier a",
        "ok true",
        "n null",
    ]


def test_total_usage_keeps_the_last_non_numeric_value() -> None:
    usage_list: list[dict[str, Any]] = [
        {"tier": "standard", "n": None, "flag": True},
        {"tier": "priority", "n": 2, "flag": False},
        {"n": 3.5},
    ]
    assert total(usage_list) == {"tier": "priority", "n": 5.5, "flag": False}


def test_total_usage_of_mixed_types_sums_the_numbers(store: Store) -> None:
    conversation = store.open("k")
    for usage in (
        {"number": 1, "dict": {"a": 1}, "text": "a", "flag": True, "late": None},
        {"number": "x", "dict": "x", "text": None, "flag": 1, "late": 2},
        {"number": None, "dict": None, "text": "b", "flag": 2, "late": {"a": 1}},
        {"text": None, "flag": None, "late": None},
    ):
        conversation.save_turn([], usage)
    assert conversation.total_usage() == {"number": 1, "dict": {"a": 1}, "text": "b", "flag": 3, "late": 2}


def test_turn_with_another_id_is_saved_although_its_messages_are_stored(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message(id="a")], {"tokens": 1}, id="first")
    second = conversation.save_turn([message(id="a")], {"tokens": 10}, id="second")
    assert (second.turn_no, second.replayed, [each.replayed for each in second.messages]) == (2, False, [True])
    assert (conversation.info().turn_count, conversation.total_usage()) == (2, {"tokens": 11})


def test_turn_includes_a_stored_question_if_the_answer_directly_follows_it(store: Store) -> None:
    conversation = store.open("k", messages=[message("earlier")])
    question, answer = message("q", id="q"), message("a", id="a", role="assistant")
    conversation.append_message(question)
    turn = conversation.save_turn([question, answer], {"tokens": 5})
    assert [(m.content, m.turn_no, m.replayed) for m in turn.messages] == [("q", 1, True), ("a", 1, False)]
    assert (turn.first_seq, turn.last_seq) == (2, 3)
    assert [m.turn_no for m in conversation.all_messages()] == [None, 1, 1]
    assert conversation.turns.list() == [turn.model_copy(update={"messages": []})]
    again = conversation.save_turn([question, answer], {"tokens": 5})
    assert (again.replayed, [m.content for m in again.messages]) == (True, ["q", "a"])


@pytest.mark.parametrize("between", ["a message", "a turn"])
def test_turn_excludes_the_question_if_another_write_comes_between_it_and_the_answer(
    store: Store, between: str
) -> None:
    conversation = store.open("k")
    question = message("q", id="q")
    if between == "a turn":
        conversation.save_turn([question])
    else:
        conversation.append_message(question)
    if between == "a message":
        conversation.append_message(message("other"))
    before = conversation.find_message("q")
    turn = conversation.save_turn([question, message("a", id="a", role="assistant")])
    assert turn.first_seq == turn.last_seq == turn.messages[1].seq
    assert conversation.find_message("q") == before
