"""Prompts that a provider's cache recognizes: each one starts with the one before it."""

import json
import os
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.databases import MakeDatabase
from support.factories import message, messages, summary
from support.json_values import json_values
from support.prompt_rules import FORMATS, damaged_logs
from support.statements import watched

from lango_store import Message, Store, ToolCall, create_engine, window
from lango_store.content import OPENAI, read
from lango_store.interchange.copying import copy

LONGEST_TURN: Final = 8
EMPTY: Final = "(The message was empty.)"
LOGS: Final = int(os.environ.get("LANGO_STORE_DAMAGED_LOGS", "300"))


texts: Final = json_values().filter(lambda content: any(OPENAI.sends(part, "user") for part in read(content)))
"""Contents that are not left out, and other values than text, which a prompt has as JSON."""


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A user's message, tool calls with their results, an answer, and records in between."""
    sent = draw(st.none() | texts)
    turn = [Message.user(draw(texts), sent=sent, tokens=draw(st.integers(1, 9)))]
    for number in range(draw(st.integers(0, 2))):
        ids = [f"{number}{letter}" for letter in draw(st.sampled_from(["", "a", "ab"]))]
        calls = [ToolCall(id=each, name="search", arguments=draw(json_values())) for each in ids]
        turn.append(Message.assistant(draw(json_values()), tool_calls=calls, tokens=3))
        for call in ids:
            turn.append(Message.tool(draw(json_values()), tool_call_id=call, tokens=draw(st.integers(1, 9))))
        if draw(st.booleans()):
            turn.append(Message(role="record", content="a record"))
    return [*turn, Message.assistant("done", tokens=2)]


budgets = st.one_of(
    st.just({}),
    st.builds(lambda step: {"last": LONGEST_TURN + step, "step": step}, st.integers(1, 12)),
    st.builds(lambda step: {"max_tokens": 80 + step, "step_tokens": step}, st.integers(1, 60)),
)


def is_prefix(before: list[Any], after: list[Any]) -> bool:
    return json.dumps(after).startswith(json.dumps(before)[:-1])


@pytest.mark.slow
@given(session=st.lists(turns(), min_size=1, max_size=8), budget=budgets, nested=st.booleans())
def test_history_begins_with_the_previous_history_unless_a_step_moved_the_start(
    store: Store, session: list[list[Message]], budget: dict[str, Any], nested: bool
) -> None:
    conversation = store.open()
    prompts: list[list[dict[str, Any]]] = []
    seq = tokens = 0
    for new in (new for turn in session for new in turn):
        if new.role == "assistant":
            prompts.append(conversation.history(**budget, nested=nested))
            assert prompts[-1], "a prompt is never empty"
        seq, tokens = conversation.append_message(new).seq, tokens + (new.tokens or 0)
    moves = sum(not is_prefix(before, after) for before, after in pairwise(prompts))
    assert moves <= seq // budget.get("step", seq + 1) + tokens // budget.get("step_tokens", tokens + 1)


def parts_of(prompt: window.Prompt) -> list[Any]:
    """Return the parts of Gemini's contents, since an answer that follows an answer adds parts to its content."""
    return [(content["role"], part) for content in prompt for part in content["parts"]]


@pytest.mark.slow
@settings(max_examples=LOGS)
@given(log=damaged_logs(), format=st.sampled_from(FORMATS))
def test_prompt_of_a_damaged_log_begins_with_the_previous_one_unless_a_repair_was_taken_back(
    log: list[Message], format: Any
) -> None:
    numbered = [message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)]
    prompts = [window.prompt(numbered[:end], format) for end in range(len(log) + 1)]
    for before, after in pairwise(prompts):
        is_stable = EMPTY not in json.dumps(before) and all(repair in after.repairs for repair in before.repairs)
        as_sent = parts_of if format == "gemini" else list
        assert not is_stable or is_prefix(as_sent(before), as_sent(after))


@pytest.mark.slow
@given(session=st.lists(turns(), min_size=1, max_size=4), budget=budgets)
def test_history_of_a_copied_session_is_equal_in_another_database(
    store: Store, make_sqlite: MakeDatabase, session: list[list[Message]], budget: dict[str, Any]
) -> None:
    conversation = store.open(messages=[new for turn in session for new in turn])
    with Store(make_sqlite()) as other:
        copy(store, other)
        copied = other.conversation(conversation.key).history(**budget)
    assert json.dumps(copied) == json.dumps(conversation.history(**budget))
    store.delete(conversation.key)  # the next example copies all sessions


def contents(prompt: list[dict[str, Any]]) -> list[Any]:
    return [each["content"] for each in prompt]


def test_start_of_the_history_moves_only_at_multiples_of_step(store: Store) -> None:
    conversation = store.open()
    starts: list[int] = []
    for number in range(20):
        conversation.append_message(message(str(number)))
        starts.append(int(contents(conversation.history(last=6, step=4))[0]))
    assert starts == [0] * 9 + [4] * 4 + [8] * 4 + [12] * 3


def test_start_of_the_history_moves_only_at_multiples_of_step_tokens(store: Store) -> None:
    conversation = store.open()
    starts: list[int] = []
    for number in range(20):
        conversation.append_message(message(str(number), tokens=10))
        starts.append(int(contents(conversation.history(max_tokens=65, step_tokens=40))[0]))
    assert starts == [0] * 6 + [4] * 4 + [8] * 4 + [12] * 4 + [16] * 2


def test_history_with_step_and_step_tokens_obeys_both_last_and_max_tokens(store: Store) -> None:
    conversation = store.open(messages=[message(number, tokens=10) for number in range(20)])
    few_tokens = conversation.history(last=10, step=5, max_tokens=65, step_tokens=40)
    assert few_tokens == conversation.history(max_tokens=65, step_tokens=40)
    assert conversation.history(last=2, step=5, max_tokens=65, step_tokens=40) == conversation.history(last=2, step=5)


def test_history_with_step_tokens_is_not_empty_if_the_last_message_fits_the_budget(store: Store) -> None:
    conversation = store.open(messages=[message("long", tokens=500), message("short", tokens=10)])
    assert contents(conversation.history(max_tokens=100, step_tokens=100)) == ["short"]


def test_history_with_step_keeps_or_removes_a_summary_as_a_whole(store: Store) -> None:
    conversation = store.open(messages=messages(5))
    conversation.compact(lambda _: [*summary("one"), *summary("two")])
    summarized = contents(conversation.history())
    sizes = [len(summarized)]
    for number in range(8):
        conversation.append_message(message(number))
        sizes.append(len(conversation.history(last=6, step=3)))
    assert summarized == ["one", "two"]
    assert sizes == [2, 3, 4, 5, 6, 5, 6, 6, 7]


def test_history_with_step_sends_one_statement(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        conversation = store.open("k", messages=messages(100))
        with watched(engine) as statements:
            conversation.history(last=50, step=8)
        assert len(statements) == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"step": 3}, "give last as well"),
        ({"step_tokens": 3}, "give max_tokens as well"),
        ({"last": 5, "step": 0}, "step=0 is not positive"),
        ({"max_tokens": 5, "step_tokens": -1}, "step_tokens=-1 is not positive"),
        ({"max_tokens": 5, "step_tokens": 6}, "exceeds max_tokens=5"),
    ],
)
def test_history_refuses_invalid_steps(store: Store, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        store.open().history(**options)


def test_history_with_step_tokens_needs_stored_token_counts(store: Store) -> None:
    key = store.open(messages=messages(3)).key
    conversation = Store(store.engine, token_counter=lambda _: 4).conversation(key)
    assert len(conversation.history(max_tokens=8)) == 2
    with pytest.raises(ValueError, match="message 2 has no token count, which step_tokens needs"):
        conversation.history(max_tokens=8, step_tokens=4)
