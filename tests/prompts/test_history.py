"""`history`: the end of a window as a prompt, read without the messages before it."""

from itertools import takewhile
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.factories import message, messages
from support.session_checks import count_to_send
from support.statements import watched

from lango_store import Message, MessageRole, Store, ToolCall, create_engine, window


def contents(prompt: list[dict[str, Any]]) -> list[Any]:
    return [each["content"] for each in prompt]


@pytest.mark.parametrize("options", [{"last": 5}, {"max_tokens": 20}, {"last": 5, "from_consolidated": True}])
def test_history_with_a_limit_reads_only_the_end_of_the_log(store: Store, options: dict[str, Any]) -> None:
    """The messages before the tail are damaged, so reading them would raise."""
    conversation = store.open("k", messages=messages(300, tokens=1))
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE lango_message SET role = 'nobody' WHERE seq < 200"))
    assert contents(conversation.history(**options))[-5:] == [f"message {n}" for n in range(295, 300)]


def test_history_with_a_message_limit_sends_one_statement(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        conversation = store.open("k", messages=messages(100))
        with watched(engine) as statements:
            conversation.history(last=50)
        assert len(statements) == 1
    engine.dispose()


def test_history_is_limited_by_both_last_and_max_tokens_including_system_messages(store: Store) -> None:
    talk = [message("s", role="system", tokens=100), *messages(4, tokens=10)]
    conversation = store.open("k", messages=talk)
    assert contents(conversation.history(last=2, max_tokens=1_000)) == ["s", "message 2", "message 3"]
    assert contents(conversation.history(last=4, max_tokens=125)) == ["s", "message 2", "message 3"]
    assert len(conversation.history(max_tokens=139)) == 4
    assert len(conversation.history(max_tokens=140)) == 5
    assert len(conversation.history(last=3)) == 4
    assert len(conversation.history(last=5)) == 5
    assert contents(conversation.history(last=0)) == contents(conversation.history(max_tokens=0)) == ["s"]


def test_history_starts_with_a_user_message(store: Store) -> None:
    talk = [message(f"{role} {n}", role=role) for n in range(2) for role in ("user", "assistant")]
    conversation = store.open("k", messages=[message("be kind", role="system"), *talk])
    assert contents(conversation.history(last=3)) == ["be kind", "user 1", "assistant 1"]


def test_history_with_from_consolidated_has_the_summary_but_no_consolidated_messages(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    conversation.append_messages([message("consolidated"), message("meanwhile")])
    pending.finish([message("summary 1"), message("summary 2")])
    conversation.append_message(message("later"))
    conversation.update(last_consolidated=4)
    prompt = conversation.history(last=3, from_consolidated=True)
    assert contents(prompt) == ["summary 2", "meanwhile", "later"]


@pytest.mark.parametrize("size", [1, 3, 9])
def test_history_after_a_long_summary_returns_messages_appended_during_the_compaction(store: Store, size: int) -> None:
    conversation = store.open("k", messages=messages(1))
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    conversation.append_messages([message(f"meanwhile {n}") for n in range(2)])
    pending.finish([message("summary", role="assistant")] * size)
    assert contents(conversation.history(last=2)) == ["meanwhile 0", "meanwhile 1"]


def test_history_is_empty_if_the_last_message_exceeds_the_budget(store: Store) -> None:
    conversation = store.open("k", messages=[message("a", tokens=1), message("b", tokens=50)])
    assert conversation.history(max_tokens=10) == []


def test_history_with_max_tokens_needs_a_counter_for_uncounted_messages(store: Store) -> None:
    conversation = store.open("k", messages=messages(1))
    with pytest.raises(ValueError, match=r"tokens.*token_counter"):
        conversation.history(max_tokens=10)


def test_history_counts_tokens_of_messages_stored_without_a_token_count(url: str) -> None:
    with Store(url) as store:
        store.open("k", messages=messages(3))
    with Store(url, token_counter=lambda message: 10) as store:
        assert len(store.open("k").history(max_tokens=20)) == 2


def test_changing_a_history_does_not_change_the_store(store: Store) -> None:
    conversation = store.open("k", messages=[message([{"type": "text", "text": "x"}])])
    conversation.history()[0]["content"][0]["text"] = "changed"
    assert contents(conversation.history()) == [[{"type": "text", "text": "x"}]]


def test_history_adds_results_for_unanswered_calls(store: Store) -> None:
    calls = [ToolCall(id=id, name=f"tool_{id}", arguments={}) for id in ("c1", "c2", "c3")]
    conversation = store.open("k", messages=[message("go"), message(None, role="assistant", tool_calls=calls)])
    conversation.append_messages([message("done", role="tool", tool_call_id="c2"), message("still there?")])
    unknown = "The tool did not finish: its result is unknown."
    closed = conversation.history()
    assert closed[2:] == [
        {"role": "tool", "content": unknown, "tool_call_id": "c1", "name": "tool_c1"},
        {"role": "tool", "content": "done", "tool_call_id": "c2"},
        {"role": "tool", "content": unknown, "tool_call_id": "c3", "name": "tool_c3"},
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


@pytest.mark.slow
@given(exchanges, st.integers(0, 12), st.integers(0, 4))
def test_history_never_contains_a_tool_result_without_the_call(
    url: str, talk: list[list[tuple[str, int]]], last: int, consolidated: int
) -> None:
    stored: list[Message] = []
    for number, exchange in enumerate(talk):
        ids = [f"{number}-{n}" for n in range(exchange[0][1])]
        stored.append(message(str(number), role=exchange[0][0], tool_calls=[ToolCall(id=id, name="f") for id in ids]))
        stored += [message("done", role="tool", tool_call_id=id) for id in ids]
    with Store(url) as store:
        conversation = store.open(messages=stored)
        conversation.update(last_consolidated=min(consolidated, len(stored)))
        all_options: list[dict[str, Any]] = [{}, {"last": last}, {"from_consolidated": True, "last": last}]
        for options in all_options:
            prompt = conversation.history(**options)
            leading = len(list(takewhile(lambda each: each["role"] == "system", prompt)))
            limit = options.get("last", len(stored))
            assert len(prompt) - leading <= (max(limit, count_to_send(stored)) if limit else 0)
            called: set[str] = set()
            for each in prompt:
                called |= {call["id"] for call in each.get("tool_calls", ())}
                assert each["role"] != "tool" or each["tool_call_id"] in called
        assert window.as_prompt(conversation.messages()) == window.as_prompt(stored)


CALL = ToolCall(id="c1", name="find", arguments={})
ASKED = [Message.system("s"), Message.user("u"), Message.assistant("a", tool_calls=[CALL])]
RESULT = Message.tool("r", tool_call_id="c1")
RECORD = Message(role=MessageRole.RECORD, content="n")


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("step", [None, 1, 3])
@pytest.mark.parametrize(
    "end",
    [
        [Message.system("x")],
        [Message(role=MessageRole.DEVELOPER, content="x"), RECORD],
        [RESULT],
        [RESULT, RECORD, *[Message.system("x")] * 6, RECORD],
        [Message.assistant("")],
    ],
)
def test_limited_history_reaches_back_to_a_message_that_can_be_sent(
    store: Store, end: list[Message], step: int | None, format: window.Format
) -> None:
    log = [*messages(200), *ASKED, *end]
    conversation = store.open("k", messages=log)
    most = range(len(end), len(end) + (step or 1) + 1)
    allowed = [window.prompt(log[-1 - count :], format) for count in most]
    assert conversation.history(last=1, step=step, format=format) in allowed


def test_history_without_a_message_that_can_be_sent_has_all_instructions(store: Store) -> None:
    conversation = store.open("k", messages=[Message.system("s"), Message.system("x")])
    assert contents(conversation.history(last=1)) == ["s", "x"]
    assert contents(conversation.history(last=0)) == ["s", "x"]
