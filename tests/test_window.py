"""What of a conversation a model gets to see: suffixes, eviction for a budget of tokens, and the prompt itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from factories import message
from hypothesis import example, given
from hypothesis import strategies as st

from lango_store.model import Message, MessageRole, ToolCall
from lango_store.window import (
    answers,
    as_prompt,
    completion_budget,
    evict,
    fit,
    legal_suffix,
    plan_eviction,
    tail_within,
    tokens_of,
)

SHEPHERD = json.loads((Path(__file__).parent / "data" / "shepherd" / "cases.json").read_text())
EVERYTHING = 10**6
ROLES = {
    "u": MessageRole.USER,
    "a": MessageRole.ASSISTANT,
    "m": MessageRole.MODEL,
    "t": MessageRole.TOOL,
    "f": MessageRole.FUNCTION,
    "s": MessageRole.SYSTEM,
    "d": MessageRole.DEVELOPER,
}


def row(text: str) -> Message:
    """Make a message of a role and tokens, with ids of calls asked for or answered: `u10`, `a5:c1,c2`, `t7:c1`."""
    head, _, tail = text.partition(":")
    ids = tail.split(",") if tail else []
    fields: dict[str, Any] = {"role": ROLES[head[0]], "tokens": int(head[1:] or 1)}
    if head[0] in "am":
        fields["tool_calls"] = [ToolCall(id=call_id, name="n") for call_id in ids]
    elif len(ids) == 1:
        fields["tool_call_id"] = ids[0]
    else:
        fields["tool_calls"] = [ToolCall(id=call_id, name="n", output=text) for call_id in ids]
    return message(text, **fields)


def rows(text: str) -> list[Message]:
    return [row(word) for word in text.split()]


def written(messages: list[Message]) -> str:
    return " ".join(str(each.content) for each in messages)


# Which calls a message answers


def test_a_tool_answers_with_content_or_with_outputs() -> None:
    assert answers(message("-3", role=MessageRole.TOOL, tool_call_id="c1")) == ["c1"]
    outputs = [
        ToolCall(id="c1", name="n", output=None),
        ToolCall(id="c2", name="n", output="x"),
        ToolCall(id="c3", name="n"),
    ]
    assert answers(message(None, role=MessageRole.FUNCTION, tool_calls=outputs)) == ["c1", "c2"]
    assert answers(message("x", role=MessageRole.TOOL, tool_calls=outputs, tool_call_id="c2")) == ["c2", "c1"]


def test_what_asks_or_has_no_id_answers_nothing() -> None:
    assert answers(message("hi", tool_call_id="c1")) == []
    assert answers(message(role=MessageRole.ASSISTANT, tool_calls=[ToolCall(id="c1", name="n")])) == []
    assert answers(message(role=MessageRole.TOOL, tool_call_id="")) == []
    assert answers(message(role=MessageRole.TOOL, tool_calls=[ToolCall(id="", name="n", output=1)])) == []


def test_an_assistant_message_that_carries_outputs_answers_itself() -> None:
    assert answers(message(role=MessageRole.ASSISTANT, tool_calls=[ToolCall(id="c1", name="n", output=1)])) == ["c1"]


# Tokens


def test_tokens_are_what_the_message_carries_else_what_a_counter_says() -> None:
    def count(counted: Message) -> int:
        return len(counted.content)

    assert tokens_of(message("four", tokens=0), count) == 0
    assert tokens_of(message("four"), count) == 4


@pytest.mark.parametrize(
    "ask",
    [
        tokens_of,
        lambda uncounted: plan_eviction([uncounted], 1),
        lambda uncounted: fit([uncounted], 1),
        lambda uncounted: tail_within([uncounted], 1),
    ],
)
def test_a_message_without_tokens_needs_a_counter_and_the_error_says_so(ask: Callable[[Message], object]) -> None:
    with pytest.raises(ValueError, match=r"message 3 .*give the message `tokens`.*Store\(token_counter="):
        ask(message(seq=3))
    with pytest.raises(ValueError, match="role user"):
        ask(message())


# The legal suffix


@pytest.mark.parametrize(
    ("conversation", "last", "left"),
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
def test_the_legal_suffix_is_what_a_provider_accepts(conversation: str, last: int | None, left: str) -> None:
    assert written(legal_suffix(rows(conversation), last)) == left


def test_a_legal_suffix_refuses_a_negative_number() -> None:
    with pytest.raises(ValueError, match="max_messages is -1"):
        legal_suffix([], -1)


def test_the_tail_within_a_number_of_tokens_cuts_anywhere() -> None:
    conversation = rows("u5 a5:c1 t0:c1 a3")
    assert written(tail_within(conversation, 3)) == "t0:c1 a3"
    assert written(tail_within(conversation, 12)) == "a5:c1 t0:c1 a3"
    assert tail_within(conversation, 13) == conversation
    assert tail_within(conversation, 2) == []
    assert written(tail_within([message("ab"), message("c")], 2, count=lambda counted: len(counted.content))) == "c"
    with pytest.raises(ValueError, match="max_tokens is -1"):
        tail_within([], -1)


# Eviction


PARALLEL = "two tool results after one call"


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in SHEPHERD["eviction"]])
def test_eviction_is_shepherds_but_for_its_orphans(case: dict[str, Any]) -> None:
    expected = case
    if case["name"] == PARALLEL:  # there t8 is left without its call, which providers refuse
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
        ("u10 a5 t3 t3 u1", 1, [(0, 3)]),  # results of the last answer go with it
        ("u10 a5:c1 t3:c1 a5 u10 a5 u1", 23, [(0, 3)]),
        ("u10 a5:c1 t3:c1 a5 u10 a5 u1", 24, [(0, 3), (4, 5)]),
        ("u10 s1 a5 u1", 1, [(0, 0), (2, 2)]),
        ("u10 a5 d1 a5 u1", 1, [(0, 1), (3, 3)]),
        ("u10 m5 u1", 1, [(0, 1)]),
        ("u10 t3 a5 u1", 1, [(0, 0), (2, 2)]),  # an orphan stays where it is
        ("u10 a5:c1 t3:c9 a5 u1", 1, [(0, 1), (3, 3)]),
        ("u10 a5 f3 a5 u1", 1, [(0, 3)]),
        ("u10 a5 f3 u1", 1, [(0, 1)]),
        ("u10 a5 f3 t3 u1", 1, [(0, 1)]),
        ("u10 a5:c1 u1 t3:c1 u1", EVERYTHING, []),  # the turn is not whole: its result came later
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
        ("u10 a5 a5", EVERYTHING, []),
        ("a5 t3 u1 a5", EVERYTHING, []),
        ("a5 t3 a5 t3", EVERYTHING, []),  # nobody asked for anything
        ("s1 u10 a5 u1", 0, []),
    ],
)
def test_eviction_takes_whole_turns_then_answered_calls(
    conversation: str, need: int, plan: list[tuple[int, int]]
) -> None:
    assert plan_eviction(rows(conversation), need) == plan


def test_an_assistant_message_that_carries_outputs_is_an_answered_call() -> None:
    carried = message(
        "carried", role=MessageRole.ASSISTANT, tokens=5, tool_calls=[ToolCall(id="c", name="n", output=1)]
    )
    assert plan_eviction([row("u1"), carried, row("a1")], 1) == [(1, 1)]


def test_eviction_counts_what_carries_no_tokens() -> None:
    conversation = [message("long question", tokens=None), *rows("a1 u1")]
    assert plan_eviction(conversation, 14, count=lambda counted: len(counted.content)) == [(0, 1)]


def test_a_negative_need_is_refused() -> None:
    with pytest.raises(ValueError, match="need is -1"):
        plan_eviction([], -1)


@pytest.mark.parametrize(
    "plan", [[(0, 4)], [(-1, 0)], [(2, 1)], [(0, 1), (1, 2)], [(0, 0), (4, 4)], [(0, 10**12)], [(0, 0), (0, 0)]]
)
def test_a_plan_that_does_not_fit_changes_nothing(plan: list[tuple[int, int]]) -> None:
    conversation = rows("u a u a")
    left = evict(conversation, plan)
    assert left == conversation
    assert left is not conversation


def test_a_plan_is_carried_out_in_any_order() -> None:
    assert written(evict(rows("u1 a2 u3 a4"), [(3, 3), (0, 1)])) == "u3"
    assert written(evict(rows("u1 a2"), [])) == "u1 a2"


def test_fit_evicts_what_a_budget_asks_for_and_no_more() -> None:
    conversation = rows("s9 u10 a10 u10 a10 u5")
    assert fit(conversation, 54) == conversation
    assert written(fit(conversation, 53)) == "s9 u10 a10 u5"
    assert written(fit(conversation, 33)) == "s9 u5"
    assert written(fit(conversation, 0)) == "s9 u5"
    assert written(fit([message("u"), row("a1"), row("u1")], 2, count=lambda _: 1)) == "u1"
    with pytest.raises(ValueError, match="budget is -1"):
        fit([], -1)


@pytest.mark.parametrize("case", SHEPHERD["completion_tokens"], ids=lambda case: str(case["context"]))
def test_the_completion_budget_is_shepherds(case: dict[str, int]) -> None:
    for name, expected in case.items():
        if name.startswith("desired_completion_max_"):
            assert completion_budget(case["context"], int(name.rpartition("_")[2])) == expected
    assert completion_budget(case["context"]) == case["desired_completion_max_0"]


def test_the_completion_budget_grows_to_three_tenths_of_the_context() -> None:
    assert completion_budget(1) == 0
    assert completion_budget(200_000) == 60_000
    assert completion_budget(200_000, 64_000) == 60_000
    assert completion_budget(8017) == completion_budget(8016)  # half a token more would make one of difference


@pytest.mark.parametrize(("context", "max_output"), [(0, None), (-1, None), (8192, -1)])
def test_a_completion_budget_needs_a_context(context: int, max_output: int | None) -> None:
    with pytest.raises(ValueError, match="give"):
        completion_budget(context, max_output)


# The prompt


def test_a_prompt_has_what_a_model_is_sent_and_nothing_else() -> None:
    asked = message(
        None,
        role=MessageRole.MODEL,
        author="planner",
        tokens=7,
        id="m1",
        seq=2,
        extra={"timestamp": "now"},
        tool_calls=[
            ToolCall(id="c1", name="weather", arguments={"city": "Tromsø"}, extra={"signature": "s"}),
            ToolCall(id="c2", name="clock", arguments='{"zone": "CET"}'),
            ToolCall(id="c3", name="dice"),
            ToolCall(id="c4", name="sum", arguments=[]),
        ],
    )
    answered = message([{"type": "text", "text": "-3"}], role=MessageRole.FUNCTION, tool_call_id="c1", name="weather")
    question = message("hi")
    assert [list(entry) for entry in as_prompt([asked, answered, question])] == [
        ["role", "content", "tool_calls"],
        ["role", "content", "tool_call_id", "name"],
        ["role", "content"],
    ]
    assert as_prompt([question, asked, answered]) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Troms\\u00f8"}'},
                    "signature": "s",
                },
                {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}},
                {"id": "c3", "type": "function", "function": {"name": "dice", "arguments": "{}"}},
                {"id": "c4", "type": "function", "function": {"name": "sum", "arguments": "[]"}},
            ],
        },
        {"role": "tool", "content": [{"type": "text", "text": "-3"}], "tool_call_id": "c1", "name": "weather"},
    ]
    assert as_prompt([asked], nested=False)[0]["tool_calls"] == [
        {"id": "c1", "name": "weather", "arguments": {"city": "Tromsø"}},
        {"id": "c2", "name": "clock", "arguments": '{"zone": "CET"}'},
        {"id": "c3", "name": "dice"},
        {"id": "c4", "name": "sum", "arguments": []},
    ]


def test_each_output_of_a_tool_becomes_a_message_of_its_own() -> None:
    outputs = [
        ToolCall(id="c1", name="weather", output={"city": "Tromsø"}),
        ToolCall(id="c2", name="", output="as it is"),
        ToolCall(id="c3", name="dice", output=None),
        ToolCall(id="c4", name="dice"),
    ]
    ours = message("five", role=MessageRole.TOOL, tool_call_id="c5", name="sum", tool_calls=outputs[:1])
    assert as_prompt([message("a summary", role=MessageRole.TOOL, tool_calls=outputs)]) == [
        {"role": "tool", "content": '{"city": "Tromsø"}', "tool_call_id": "c1", "name": "weather"},
        {"role": "tool", "content": "as it is", "tool_call_id": "c2"},
        {"role": "tool", "content": "null", "tool_call_id": "c3", "name": "dice"},
    ]
    assert as_prompt([ours], nested=False) == [
        {"role": "tool", "content": "five", "tool_call_id": "c5", "name": "sum"},
        {"role": "tool", "content": {"city": "Tromsø"}, "tool_call_id": "c1", "name": "weather"},
    ]
    assert len(as_prompt([ours.model_copy(update={"tool_call_id": "c1"})])) == 1


def test_an_assistant_that_carries_outputs_is_followed_by_their_messages() -> None:
    calls = [ToolCall(id="c1", name="dice", arguments={}, output=6), ToolCall(id="c2", name="dice", arguments={})]
    assert as_prompt([message("", role=MessageRole.ASSISTANT, tool_calls=calls)], nested=False) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "name": "dice", "arguments": {}},
                {"id": "c2", "name": "dice", "arguments": {}},
            ],
        },
        {"role": "tool", "content": 6, "tool_call_id": "c1", "name": "dice"},
    ]


# What holds for all conversations

ids = st.sampled_from(["c1", "c2", "c3"])


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """An assistant message with parallel calls, and their results in either shape, perhaps something in between."""
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
        results += draw(st.lists(strangers(), max_size=1))
    role = draw(st.sampled_from([MessageRole.ASSISTANT, MessageRole.MODEL]))
    asking = message(role=role, tool_calls=[ToolCall(id=call_id, name="n") for call_id in calls])
    return [asking, *results]


def strangers() -> st.SearchStrategy[Message]:
    """Anything that may stand anywhere: other roles, orphans, second askers, results of several calls."""
    return st.builds(
        lambda kind, asked: row(f"{kind}:{','.join(asked)}" if kind in "amtf" and asked else kind),
        st.sampled_from("uuasdtfm"),
        st.lists(ids, unique=True, max_size=2),
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    users = st.just("u").map(lambda kind: [row(kind)])
    parts = draw(st.lists(users | exchanges() | strangers().map(lambda stranger: [stranger]), max_size=10))
    return [each.model_copy(update={"tokens": draw(st.integers(0, 9))}) for part in parts for each in part]


def is_tool(each: Message) -> bool:
    return each.role is MessageRole.TOOL


def is_tool_or_function(each: Message) -> bool:
    return each.role.canonical is MessageRole.TOOL


def is_assistant(each: Message) -> bool:
    return each.role.canonical is MessageRole.ASSISTANT


def pairs(messages: list[Message], is_result: Callable[[Message], bool]) -> set[tuple[int, int]]:
    """Say which message answers which, found the slow way: positions of asker and result."""
    found = set()
    for position, result in enumerate(messages):
        if is_result(result):
            for call_id in answers(result):
                askers = [
                    other
                    for other in range(position)
                    if is_assistant(messages[other]) and call_id in [call.id for call in messages[other].tool_calls]
                ]
                found |= {(asker, position) for asker in askers[-1:]}
            beside = position - 1
            while beside >= 0 and is_result(messages[beside]):
                beside -= 1
            without_ids = not answers(result) or not messages[beside].tool_calls
            if beside >= 0 and is_assistant(messages[beside]) and without_ids:
                found.add((beside, position))
    return found


def is_legal(messages: list[Message], start: int) -> bool:
    suffix = messages[start:]
    torn = any(asker < start <= result for asker, result in pairs(messages, is_tool_or_function))
    speakers = [each for each in suffix if is_assistant(each) or is_tool_or_function(each)]
    bare = bool(speakers) and is_tool_or_function(speakers[0])
    users = [each.role is MessageRole.USER for each in suffix]
    return not torn and not bare and (not any(users) or users[0])


@given(conversation=conversations(), last=st.none() | st.integers(0, 12))
def test_the_legal_suffix_is_the_longest_of_those_that_are_legal(conversation: list[Message], last: int | None) -> None:
    left = legal_suffix(conversation, last)
    start = len(conversation) - len(left)
    assert all(ours is theirs for ours, theirs in zip(left, conversation[start:], strict=True))
    most = len(conversation) if last is None else min(last, len(conversation))
    assert len(left) <= most
    assert is_legal(conversation, start)
    assert not any(is_legal(conversation, longer) for longer in range(len(conversation) - most, start))


@given(conversation=conversations(), need=st.integers(1, 60) | st.just(EVERYTHING))
@example(conversation=rows("u a:c1 a:c2 t:c2 t:c1 u"), need=1)
def test_eviction_never_parts_a_call_from_its_results(conversation: list[Message], need: int) -> None:
    plan = plan_eviction(conversation, need)
    gone = {position for first, last in plan for position in range(first, last + 1)}
    answered = pairs(conversation, is_tool)
    assert all((asker in gone) == (result in gone) for asker, result in answered)

    orphans = {position for position, each in enumerate(conversation) if is_tool(each)} - {pair[1] for pair in answered}
    assert not gone & orphans


@given(conversation=conversations(), need=st.integers(1, 60) | st.just(EVERYTHING))
def test_a_plan_is_sorted_in_bounds_and_frees_what_it_can(conversation: list[Message], need: int) -> None:
    plan = plan_eviction(conversation, need)
    ends = [end for ends in plan for end in ends]
    assert ends == sorted(ends)
    assert all(last < first for (_, last), (first, _) in pairwise(plan))
    assert all(0 <= first <= last < len(conversation) for first, last in plan)

    left = evict(conversation, plan)
    freed = sum(map(tokens_of, conversation)) - sum(map(tokens_of, left))
    assert freed >= need or plan == plan_eviction(conversation, EVERYTHING)
    assert [each for each in conversation if each.role in (MessageRole.SYSTEM, MessageRole.DEVELOPER)] == [
        each for each in left if each.role in (MessageRole.SYSTEM, MessageRole.DEVELOPER)
    ]
    users = [each for each in conversation if each.role is MessageRole.USER]
    assert users[-1:] == [each for each in left if each.role is MessageRole.USER][-1:]


@given(conversation=conversations(), budget=st.integers(0, 60))
def test_fit_keeps_the_budget_or_evicts_all_it_can(conversation: list[Message], budget: int) -> None:
    left = fit(conversation, budget)
    if sum(map(tokens_of, conversation)) <= budget:
        assert left == conversation
    elif sum(map(tokens_of, left)) > budget:
        assert left == evict(conversation, plan_eviction(conversation, EVERYTHING))


@given(conversation=conversations(), max_tokens=st.integers(0, 60))
def test_the_tail_is_the_longest_within_its_tokens(conversation: list[Message], max_tokens: int) -> None:
    left = tail_within(conversation, max_tokens)
    assert sum(map(tokens_of, left)) <= max_tokens
    start = len(conversation) - len(left)
    assert left == conversation[start:]
    assert start == 0 or sum(map(tokens_of, conversation[start - 1 :])) > max_tokens


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
tool_calls = st.builds(
    lambda call_id, name, given: ToolCall(id=call_id, name=name, **given),
    ids | st.just(""),
    st.sampled_from(["", "n"]),
    st.fixed_dictionaries({}, optional={"arguments": json_values, "output": json_values}),
)
any_message = st.builds(
    Message,
    role=st.sampled_from(MessageRole),
    content=json_values,
    name=st.none() | st.sampled_from(["", "n"]),
    tool_call_id=st.none() | ids | st.just(""),
    tool_calls=st.lists(tool_calls, max_size=3),
    extra=st.dictionaries(st.text(), json_values, max_size=2),
)


def spoil(value: Any) -> None:
    """Change every list and dict inside a value."""
    for inner in list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []:
        spoil(inner)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")


@given(conversation=st.lists(any_message, max_size=5), nested=st.booleans())
def test_a_prompt_shares_nothing_with_the_messages(conversation: list[Message], nested: bool) -> None:
    before = [each.model_dump() for each in conversation]
    spoil(as_prompt(conversation, nested=nested))
    assert [each.model_dump() for each in conversation] == before


@given(conversation=st.lists(any_message, max_size=5), nested=st.booleans())
def test_a_prompt_has_few_keys_and_every_answer(conversation: list[Message], nested: bool) -> None:
    prompt = as_prompt(conversation, nested=nested)
    order = ["role", "content", "tool_calls", "tool_call_id", "name"]
    for entry in prompt:
        assert list(entry) == [key for key in order if key in entry]
        assert set(entry) >= {"role", "content"}
        assert all(entry[key] for key in entry if key not in ("role", "content"))
        assert type(entry["role"]) is str
        assert MessageRole(entry["role"]).canonical == entry["role"]
        for call in entry.get("tool_calls", []):
            assert "output" not in call
            assert not nested or isinstance(call["function"]["arguments"], str)
    outputs = [call.output for each in conversation for call in each.tool_calls if call.answered]
    told = [entry["content"] for entry in prompt if entry["role"] == "tool"]
    for output in outputs:
        told.remove(output if isinstance(output, str) or not nested else json.dumps(output, ensure_ascii=False))
    given_answers = [call_id for each in conversation for call_id in answers(each)]
    assert set(given_answers) <= {entry.get("tool_call_id") for entry in prompt}
