"""The window of a model: legal suffixes, and eviction for a budget of tokens."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.factories import message
from support.paths import DATA
from support.talks import EVERYTHING, row, rows, written

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.window import (
    answers,
    completion_budget,
    evict,
    fit,
    last_within,
    legal_suffix,
    plan_eviction,
    tokens_of,
)

SHEPHERD = json.loads((DATA / "shepherd" / "cases.json").read_text())


# Calls that a message answers


def test_tool_message_answers_calls_with_its_content_or_its_outputs() -> None:
    assert answers(message("-3", role=MessageRole.TOOL, tool_call_id="c1")) == ["c1"]
    outputs = [
        ToolCall(id="c1", name="n", output=None),
        ToolCall(id="c2", name="n", output="x"),
        ToolCall(id="c3", name="n"),
    ]
    assert answers(message(None, role=MessageRole.FUNCTION, tool_calls=outputs)) == ["c1", "c2"]
    assert answers(message("x", role=MessageRole.TOOL, tool_calls=outputs, tool_call_id="c2")) == ["c2", "c1"]


def test_function_answers_returns_no_ids_for_a_message_without_tool_role_or_call_id() -> None:
    assert answers(message("hi", tool_call_id="c1")) == []
    assert answers(message(role=MessageRole.ASSISTANT, tool_calls=[ToolCall(id="c1", name="n")])) == []
    assert answers(message(role=MessageRole.TOOL, tool_call_id="")) == []
    assert answers(message(role=MessageRole.TOOL, tool_calls=[ToolCall(id="", name="n", output=1)])) == []


# Tokens


def test_function_tokens_of_uses_the_counter_only_if_no_tokens_are_stored() -> None:
    def count(counted: Message) -> int:
        return len(counted.content)

    assert tokens_of(message("four", tokens=0), count) == 0
    assert tokens_of(message("four"), count) == 4


@pytest.mark.parametrize(
    "call",
    [
        tokens_of,
        lambda uncounted: plan_eviction([uncounted], 1),
        lambda uncounted: fit([uncounted], 1),
        lambda uncounted: last_within([uncounted], 1),
    ],
)
def test_message_without_tokens_raises_if_no_counter_is_given(call: Callable[[Message], object]) -> None:
    with pytest.raises(ValueError, match=r"message 3 .*give the message `tokens`.*Store\(token_counter="):
        call(message(seq=3))
    with pytest.raises(ValueError, match="role user"):
        call(message())


# The legal suffix


@pytest.mark.parametrize(
    ("conversation", "last", "expected"),
    [
        ("u a u a", 4, "u a u a"),
        ("u a u a", 3, "u a"),
        ("u a u a", 1, "a"),
        ("u a u a", 0, ""),
        ("u a u a", None, "u a u a"),
        ("s u a", None, "u a"),
        ("s d a", None, "s d a"),
        ("a u", None, "u"),
        ("u a:c1 t:c1 a", 3, "a:c1 t:c1 a"),
        ("u a:c1 t:c1 a", 2, "a"),
        ("u a:c1,c2 t:c1 t:c2 a", 3, "a"),
        ("u a:c1,c2 t:c1,c2 a", 2, "a"),
        ("u a:c1,c2 t:c1 t:c2", 2, ""),
        ("u m f f u", 3, "u"),
        ("u m f f a", 3, "a"),
        ("u a:c1 u t:c1 a u a", 6, "u a"),
        ("u a:c1 a:c2 t:c1 t:c2 a", 4, "a"),
        ("u a:c1 a:c2 t:c1,c2 a", 3, "a"),
        ("t:c1 a", None, "a"),
        ("s t:c1 a", None, "a"),
        ("u t:c1 a", None, "a"),
        ("u a t a t", None, "u a t a t"),
        ("u a:c1 t:c9 t:c1", 2, ""),
        ("u a:c1", 2, "u a:c1"),
    ],
)
def test_legal_suffix_is_a_prompt_that_providers_accept(conversation: str, last: int | None, expected: str) -> None:
    assert written(legal_suffix(rows(conversation), last)) == expected


def test_legal_suffix_refuses_a_negative_number() -> None:
    with pytest.raises(ValueError, match="max_messages is -1"):
        legal_suffix([], -1)


def test_function_tail_within_can_begin_the_tail_at_any_message() -> None:
    conversation = rows("u5 a5:c1 t0:c1 a3")
    assert written(last_within(conversation, 3)) == "t0:c1 a3"
    assert written(last_within(conversation, 12)) == "a5:c1 t0:c1 a3"
    assert last_within(conversation, 13) == conversation
    assert last_within(conversation, 2) == []
    assert written(last_within([message("ab"), message("c")], 2, count=lambda counted: len(counted.content))) == "c"
    with pytest.raises(ValueError, match="max_tokens is -1"):
        last_within([], -1)


# Eviction


PARALLEL = "two tool results after one call"


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in SHEPHERD["eviction"]])
def test_eviction_equals_the_eviction_of_shepherd_except_for_orphaned_results(case: dict[str, Any]) -> None:
    expected = case
    if case["name"] == PARALLEL:  # Shepherd keeps t8 without its call, which providers refuse
        assert case["left"] == ["u10", "t8", "a6", "t9"]
        expected = {"ranges": [[1, 3]], "left": ["u10", "a6", "t9"]}
    conversation = [row(word) for word in case["messages"]]
    plan = plan_eviction(conversation, case["need"])
    assert plan == [tuple(ends) for ends in expected["ranges"]]
    assert [each.content for each in evict(conversation, plan)] == expected["left"]


@pytest.mark.parametrize(
    ("conversation", "need", "plan"),
    [
        # Pass 1
        ("u10 a5 t3 t3 u1", 1, [(0, 3)]),  # with the results of the last answer
        ("u10 a5:c1 t3:c1 a5 u10 a5 u1", 23, [(0, 3)]),
        ("u10 a5:c1 t3:c1 a5 u10 a5 u1", 24, [(0, 3), (4, 5)]),
        ("u10 s1 a5 u1", 1, [(0, 0), (2, 2)]),
        ("u10 a5 d1 a5 u1", 1, [(0, 1), (3, 3)]),
        ("u10 m5 u1", 1, [(0, 1)]),
        ("u10 t3 a5 u1", 1, [(0, 0), (2, 2)]),  # an orphaned result is kept
        ("u10 a5:c1 t3:c9 a5 u1", 1, [(0, 1), (3, 3)]),
        ("u10 a5 f3 a5 u1", 1, [(0, 3)]),
        ("u10 a5 f3 u1", 1, [(0, 1)]),
        ("u10 a5 f3 t3 u1", 1, [(0, 1)]),
        ("u10 a5:c1 u1 t3:c1 u1", EVERYTHING, []),  # the turn is incomplete: its result comes later
        ("u10 a5:c1 u1 a5:c2 t3:c1,c2 u1", EVERYTHING, []),
        ("u10 a5:c1 a5:c2 t3:c1 t3:c2 u1", 1, [(0, 4)]),
        # Pass 2
        ("u10 a5 t3 a5", EVERYTHING, [(1, 2)]),
        ("u10 a5 t3 a5 t3 a5", 8, [(1, 2)]),
        ("u10 a5:c1,c2 t3:c2 t3:c1 a5", 1, [(1, 3)]),
        ("u10 a5:c1,c2 t3:c1,c2 a5", 1, [(1, 2)]),
        ("u10 a5:c1 t3:c9 a5", EVERYTHING, []),
        ("u10 a5:c1 t3:c9 t3:c1 a5", EVERYTHING, [(1, 1), (3, 3)]),
        ("u10 a5:c1 s1 t3:c1 a5", EVERYTHING, [(1, 1), (3, 3)]),
        ("u10 a5 s1 t3 a5", EVERYTHING, []),
        ("u10 a5:c1 a5:c2 t3:c1 t3:c2 a5", EVERYTHING, [(1, 1), (2, 2), (3, 3), (4, 4)]),
        ("u10 a5:c1 a5:c2 t3:c1,c2 a5", EVERYTHING, [(1, 3)]),
        ("u10 a5:c1 a5:c2 a5:c3 t3:c1,c2,c3 a5", EVERYTHING, [(1, 4)]),
        ("u10 a5:c1 t3:c1 a5:c2 t3:c1,c2", EVERYTHING, []),  # joined to the last exchange
        ("u10 a5 f3 a5 t3 a5", EVERYTHING, [(3, 4)]),
        ("u10 a5 t3 s1", EVERYTHING, []),  # the last exchange stays
        ("u10 a5 a5", EVERYTHING, []),
        ("a5 t3 u1 a5", EVERYTHING, []),
        ("a5 t3 a5 t3", EVERYTHING, []),  # there is no user message
        ("s1 u10 a5 u1", 0, []),
    ],
)
def test_eviction_removes_whole_turns_first_and_then_answered_calls(
    conversation: str, need: int, plan: list[tuple[int, int]]
) -> None:
    assert plan_eviction(rows(conversation), need) == plan


def test_assistant_message_with_tool_outputs_counts_as_an_answered_call() -> None:
    answered_call = message(
        "carried", role=MessageRole.ASSISTANT, tokens=5, tool_calls=[ToolCall(id="c", name="n", output=1)]
    )
    assert plan_eviction([row("u1"), answered_call, row("a1")], 1) == [(1, 1)]


def test_eviction_counts_tokens_of_messages_that_have_no_count() -> None:
    conversation = [message("long question", tokens=None), *rows("a1 u1")]
    assert plan_eviction(conversation, 14, count=lambda counted: len(counted.content)) == [(0, 1)]


def test_plan_eviction_refuses_a_negative_need() -> None:
    with pytest.raises(ValueError, match="need is -1"):
        plan_eviction([], -1)


@pytest.mark.parametrize(
    "plan", [[(0, 4)], [(-1, 0)], [(2, 1)], [(0, 1), (1, 2)], [(0, 0), (4, 4)], [(0, 10**12)], [(0, 0), (0, 0)]]
)
def test_evict_with_an_invalid_plan_changes_nothing(plan: list[tuple[int, int]]) -> None:
    conversation = rows("u a u a")
    remaining = evict(conversation, plan)
    assert remaining == conversation
    assert remaining is not conversation


def test_evict_accepts_ranges_in_any_order() -> None:
    assert written(evict(rows("u1 a2 u3 a4"), [(3, 3), (0, 1)])) == "u3"
    assert written(evict(rows("u1 a2"), [])) == "u1 a2"


def test_fit_evicts_only_as_much_as_the_budget_requires() -> None:
    conversation = rows("s9 u10 a10 u10 a10 u5")
    assert fit(conversation, 54) == conversation
    assert written(fit(conversation, 53)) == "s9 u10 a10 u5"
    assert written(fit(conversation, 33)) == "s9 u5"
    assert written(fit(conversation, 0)) == "s9 u5"
    assert written(fit([message("u"), row("a1"), row("u1")], 2, count=lambda _: 1)) == "u1"
    with pytest.raises(ValueError, match="budget is -1"):
        fit([], -1)


@pytest.mark.parametrize("case", SHEPHERD["completion_tokens"], ids=lambda case: str(case["context"]))
def test_completion_budget_equals_the_budget_of_shepherd(case: dict[str, int]) -> None:
    for name, expected in case.items():
        if name.startswith("desired_completion_max_"):
            assert completion_budget(case["context"], int(name.rpartition("_")[2])) == expected
    assert completion_budget(case["context"]) == case["desired_completion_max_0"]


def test_completion_budget_is_at_most_30_percent_of_the_context() -> None:
    assert completion_budget(0) == completion_budget(1) == 0
    assert completion_budget(200_000) == 60_000
    assert completion_budget(200_000, 64_000) == 60_000
    assert completion_budget(8017) == completion_budget(8016)  # the value is rounded down


@pytest.mark.parametrize(("context", "max_output"), [(-1, None), (10**12 + 1, None), (8192, -1)])
def test_completion_budget_refuses_out_of_range_arguments(context: int, max_output: int | None) -> None:
    with pytest.raises(ValueError, match="give"):
        completion_budget(context, max_output)
