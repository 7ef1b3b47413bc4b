"""Properties of suffixes and evictions, checked for random conversations."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.factories import message
from support.talks import EVERYTHING, row, rows

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.window import (
    answers,
    evict,
    fit,
    last_within,
    legal_suffix,
    plan_eviction,
    tokens_of,
)

ids = st.sampled_from(["c1", "c2", "c3"])


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """Draw an assistant message with parallel calls and their results, possibly with other messages between."""
    calls = draw(st.lists(ids, unique=True, max_size=3))
    results: list[Message] = []
    for answered in draw(st.permutations(calls)) if calls else draw(st.lists(st.just(""), max_size=2)):
        shape = draw(st.sampled_from(["content", "outputs", "no id"]))
        fields: dict[str, Any] = {"role": draw(st.sampled_from([MessageRole.TOOL, MessageRole.FUNCTION]))}
        if answered and shape == "content":
            fields["tool_call_id"] = answered
        elif answered and shape == "outputs":
            fields["tool_calls"] = [ToolCall(id=answered, name="n", output=draw(st.none() | st.just("done")))]
        results.append(message(role=fields.pop("role"), **fields))
        results += draw(st.lists(other_messages(), max_size=1))
    role = draw(st.sampled_from([MessageRole.ASSISTANT, MessageRole.MODEL]))
    asking = message(role=role, tool_calls=[ToolCall(id=call_id, name="n") for call_id in calls])
    return [asking, *results]


def other_messages() -> st.SearchStrategy[Message]:
    """Draw any other message: other roles, orphaned results, repeated calls, results of several calls."""
    return st.builds(
        lambda kind, asked: row(f"{kind}:{','.join(asked)}" if kind in "amtf" and asked else kind),
        st.sampled_from("uuasdtfm"),
        st.lists(ids, unique=True, max_size=2),
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    users = st.just("u").map(lambda kind: [row(kind)])
    parts = draw(st.lists(users | exchanges() | other_messages().map(lambda other: [other]), max_size=10))
    return [each.model_copy(update={"tokens": draw(st.integers(0, 9))}) for part in parts for each in part]


def is_tool(each: Message) -> bool:
    return each.role is MessageRole.TOOL


def is_tool_or_function(each: Message) -> bool:
    return each.role.canonical is MessageRole.TOOL


def is_assistant(each: Message) -> bool:
    return each.role.canonical is MessageRole.ASSISTANT


def pairs(messages: list[Message], is_result: Callable[[Message], bool]) -> set[tuple[int, int]]:
    """Return positions of each call and its result, computed by a simple, slow search."""
    call_result_pairs = set()
    for position, result in enumerate(messages):
        if is_result(result):
            for call_id in answers(result):
                callers = [
                    other
                    for other in range(position)
                    if is_assistant(messages[other]) and call_id in [call.id for call in messages[other].tool_calls]
                ]
                call_result_pairs |= {(caller, position) for caller in callers[-1:]}
            previous = position - 1
            while previous >= 0 and is_result(messages[previous]):
                previous -= 1
            without_ids = not answers(result) or not messages[previous].tool_calls
            if previous >= 0 and is_assistant(messages[previous]) and without_ids:
                call_result_pairs.add((previous, position))
    return call_result_pairs


def is_legal(messages: list[Message], start: int) -> bool:
    suffix = messages[start:]
    torn = any(caller < start <= result for caller, result in pairs(messages, is_tool_or_function))
    speakers = [each for each in suffix if is_assistant(each) or is_tool_or_function(each)]
    bare = bool(speakers) and is_tool_or_function(speakers[0])
    users = [each.role is MessageRole.USER for each in suffix]
    return not torn and not bare and (not any(users) or users[0])


@pytest.mark.slow
@given(conversation=conversations(), last=st.none() | st.integers(0, 12))
def test_legal_suffix_returns_the_longest_suffix_that_providers_accept(
    conversation: list[Message], last: int | None
) -> None:
    remaining = legal_suffix(conversation, last)
    start = len(conversation) - len(remaining)
    assert all(ours is theirs for ours, theirs in zip(remaining, conversation[start:], strict=True))
    most = len(conversation) if last is None else min(last, len(conversation))
    assert len(remaining) <= most
    assert is_legal(conversation, start)
    assert not any(is_legal(conversation, longer) for longer in range(len(conversation) - most, start))


@pytest.mark.slow
@given(conversation=conversations(), need=st.integers(1, 60) | st.just(EVERYTHING))
@example(conversation=rows("u a:c1 a:c2 t:c2 t:c1 u"), need=1)
def test_eviction_never_separates_a_call_from_its_results(conversation: list[Message], need: int) -> None:
    plan = plan_eviction(conversation, need)
    evicted = {position for first, last in plan for position in range(first, last + 1)}
    answered = pairs(conversation, is_tool)
    assert all((caller in evicted) == (result in evicted) for caller, result in answered)

    orphans = {position for position, each in enumerate(conversation) if is_tool(each)} - {pair[1] for pair in answered}
    assert not evicted & orphans


@given(conversation=conversations(), need=st.integers(1, 60) | st.just(EVERYTHING))
def test_eviction_plan_is_sorted_within_bounds_and_frees_enough_tokens(conversation: list[Message], need: int) -> None:
    plan = plan_eviction(conversation, need)
    ends = [end for ends in plan for end in ends]
    assert ends == sorted(ends)
    assert all(last < first for (_, last), (first, _) in pairwise(plan))
    assert all(0 <= first <= last < len(conversation) for first, last in plan)

    remaining = evict(conversation, plan)
    freed = sum(map(tokens_of, conversation)) - sum(map(tokens_of, remaining))
    assert freed >= need or plan == plan_eviction(conversation, EVERYTHING)
    assert [each for each in conversation if each.role in (MessageRole.SYSTEM, MessageRole.DEVELOPER)] == [
        each for each in remaining if each.role in (MessageRole.SYSTEM, MessageRole.DEVELOPER)
    ]
    users = [each for each in conversation if each.role is MessageRole.USER]
    assert users[-1:] == [each for each in remaining if each.role is MessageRole.USER][-1:]


@pytest.mark.slow
@given(conversation=conversations(), budget=st.integers(0, 60))
def test_fit_meets_the_budget_or_evicts_everything_possible(conversation: list[Message], budget: int) -> None:
    remaining = fit(conversation, budget)
    if sum(map(tokens_of, conversation)) <= budget:
        assert remaining == conversation
    elif sum(map(tokens_of, remaining)) > budget:
        assert remaining == evict(conversation, plan_eviction(conversation, EVERYTHING))


@pytest.mark.slow
@given(conversation=conversations(), max_tokens=st.integers(0, 60))
def test_tail_within_returns_the_longest_tail_that_fits_the_budget(
    conversation: list[Message], max_tokens: int
) -> None:
    remaining = last_within(conversation, max_tokens)
    assert sum(map(tokens_of, remaining)) <= max_tokens
    start = len(conversation) - len(remaining)
    assert remaining == conversation[start:]
    assert start == 0 or sum(map(tokens_of, conversation[start - 1 :])) > max_tokens
