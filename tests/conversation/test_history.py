"""What a store gives a model: the end of a window, read without what stands before it."""

from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.factories import message, messages
from support.statements import watched

from lango_store import Message, Store, ToolCall, create_engine, window


def contents(found: list[dict[str, Any]]) -> list[Any]:
    return [each["content"] for each in found]


@pytest.mark.parametrize("options", [{"last": 5}, {"max_tokens": 20}, {"last": 5, "from_consolidated": True}])
def test_it_reads_the_tail_and_not_the_whole(store: Store, options: dict[str, Any]) -> None:
    """Messages that cannot be read stand before the tail: whoever reads them raises."""
    conversation = store.open("k", messages=messages(300, tokens=1))
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE lango_message SET role = 'nobody' WHERE seq < 200"))
    assert contents(conversation.history(**options))[-5:] == [f"message {n}" for n in range(295, 300)]


def test_the_last_messages_are_one_statement(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        conversation = store.open("k", messages=messages(100))
        with watched(engine) as statements:
            conversation.history(last=50)
        assert len(statements) == 1
    engine.dispose()


def test_the_smaller_bound_wins_and_system_messages_count(store: Store) -> None:
    talk = [message("s", role="system", tokens=100), *messages(4, tokens=10)]
    conversation = store.open("k", messages=talk)
    assert contents(conversation.history(last=2, max_tokens=1_000)) == ["message 2", "message 3"]
    assert contents(conversation.history(last=4, max_tokens=25)) == ["message 2", "message 3"]
    assert len(conversation.history(max_tokens=139)) == 4
    assert len(conversation.history(max_tokens=140)) == 5
    assert len(conversation.history(last=4)) == 4
    assert contents(conversation.history(last=5))[0] == "s"
    assert conversation.history(last=0) == conversation.history(max_tokens=0) == []


def test_it_begins_with_a_users_message_wherever_that_cuts(store: Store) -> None:
    talk = [message(f"{role} {n}", role=role) for n in range(2) for role in ("user", "assistant")]
    conversation = store.open("k", messages=[message("be kind", role="system"), *talk])
    assert contents(conversation.history(last=3)) == ["user 1", "assistant 1"]


def test_what_is_consolidated_stays_out_where_a_summary_stands_among_the_last(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    pending = conversation.begin_compaction()
    assert pending is not None
    conversation.append_messages([message("consolidated"), message("meanwhile")])
    conversation.finish_compaction(pending, [message("summary 1"), message("summary 2")])
    conversation.append_message(message("later"))
    conversation.update(last_consolidated=4)
    shown = conversation.history(last=3, from_consolidated=True)
    assert contents(shown) == ["summary 2", "meanwhile", "later"]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_history_after_long_summary_returns_the_messages_appended_during_compaction(store: Store, size: int) -> None:
    conversation = store.open("k", messages=messages(1))
    pending = conversation.begin_compaction()
    assert pending is not None
    conversation.append_messages([message(f"meanwhile {n}") for n in range(2)])
    conversation.finish_compaction(pending, [message("summary", role="assistant")] * size)
    assert contents(conversation.history(last=2)) == ["meanwhile 0", "meanwhile 1"]


def test_a_message_too_large_for_the_budget_leaves_nothing(store: Store) -> None:
    conversation = store.open("k", messages=[message("a", tokens=1), message("b", tokens=50)])
    assert conversation.history(max_tokens=10) == []


def test_a_counter_of_the_store_serves_messages_that_were_stored_without_it(url: str) -> None:
    with Store(url) as store:
        store.open("k", messages=messages(3))
    with Store(url, token_counter=lambda message: 10) as store:
        assert len(store.open("k").history(max_tokens=20)) == 2


def test_what_it_gives_is_the_callers_to_change(store: Store) -> None:
    conversation = store.open("k", messages=[message([{"type": "text", "text": "x"}])])
    conversation.history()[0]["content"][0]["text"] = "changed"
    assert contents(conversation.history()) == [[{"type": "text", "text": "x"}]]


def test_history_closes_calls_that_a_crash_left_without_result(store: Store) -> None:
    calls = [ToolCall(id=id, name=f"tool {id}", arguments={}) for id in ("c1", "c2", "c3")]
    conversation = store.open("k", messages=[message("go"), message(None, role="assistant", tool_calls=calls)])
    conversation.append_messages([message("done", role="tool", tool_call_id="c2"), message("still there?")])
    left = "The tool did not finish: its result is unknown."
    closed = conversation.history()
    assert closed[2:] == [
        {"role": "tool", "content": "done", "tool_call_id": "c2"},
        {"role": "tool", "content": left, "tool_call_id": "c1", "name": "tool c1"},
        {"role": "tool", "content": left, "tool_call_id": "c3", "name": "tool c3"},
        {"role": "user", "content": "still there?"},
    ]
    assert conversation.history() == closed
    assert conversation.history(last=4, nested=False)[2:] == closed[2:]
    assert contents(conversation.history(unanswered="keep")) == ["go", None, "done", "still there?"]
    assert conversation.info().message_count == 4
    with pytest.raises(ValueError, match="unanswered='drop'"):
        conversation.history(unanswered="drop")  # type: ignore[arg-type]


exchanges = st.lists(
    st.sampled_from(["user", "assistant", "call", "calls", "system"]).map(
        lambda kind: {
            "call": [("assistant", 1), ("tool", 1)],
            "calls": [("assistant", 2), ("tool", 1), ("tool", 1)],
        }.get(kind, [(kind, 0)])
    ),
    max_size=12,
)


@given(exchanges, st.integers(0, 12), st.integers(0, 4))
def test_no_history_holds_a_result_without_its_call(
    url: str, talk: list[list[tuple[str, int]]], last: int, consolidated: int
) -> None:
    made: list[Message] = []
    for number, exchange in enumerate(talk):
        ids = [f"{number}-{n}" for n in range(exchange[0][1])]
        made.append(message(number, role=exchange[0][0], tool_calls=[ToolCall(id=id, name="f") for id in ids]))
        made += [message("done", role="tool", tool_call_id=id) for id in ids]
    with Store(url) as store:
        conversation = store.open(messages=made)
        conversation.update(last_consolidated=min(consolidated, len(made)))
        chosen: list[dict[str, Any]] = [{}, {"last": last}, {"from_consolidated": True, "last": last}]
        for options in chosen:
            shown = conversation.history(**options)
            assert len(shown) <= options.get("last", len(made))
            called: set[str] = set()
            for each in shown:
                called |= {call["id"] for call in each.get("tool_calls", ())}
                assert each["role"] != "tool" or each["tool_call_id"] in called
        assert window.as_prompt(conversation.messages()) == window.as_prompt(made)
