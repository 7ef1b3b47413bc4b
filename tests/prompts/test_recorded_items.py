"""Items of OpenAI's responses that are stored as records, in prompts of this format."""

from typing import Any, Final

import pytest
from support.prompt_rules import faults

from lango_store import Message, Store, ToolCall, window
from lango_store.interchange.openai_items import messages_of

REASONING: Final = [
    {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": [{"type": "summary_text", "text": "the moon"}],
        "encrypted_content": "c2ln",
    }
    for number in range(4)
]
SEARCH: Final = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
COMPACTION: Final = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2ln"}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "tides", "arguments": "{}"}


def output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "low"}


ITEMS: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": "When is low tide?"},
    REASONING[0],
    call("c1"),
    REASONING[1],
    call("c2"),
    output("c1"),
    output("c2"),
    SEARCH,
    REASONING[2],
    {"role": "assistant", "content": "At noon."},
    {"role": "user", "content": "And high tide?"},
    REASONING[3],
    {"role": "assistant", "content": "At six."},
]


def test_prompt_has_recorded_items_in_their_places(store: Store) -> None:
    conversation = store.open("k", messages=messages_of(ITEMS))
    prompt = conversation.history(format="openai-responses")
    # The result of each call follows its message.
    assert prompt == [*ITEMS[:3], output("c1"), *ITEMS[3:5], output("c2"), *ITEMS[7:]]
    assert faults(prompt, "openai-responses") == []


@pytest.mark.one_database
@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini"])
def test_prompt_of_another_format_has_no_recorded_items(store: Store, format: Any) -> None:
    conversation = store.open("k", messages=messages_of(ITEMS))
    assert "rs_" not in str(conversation.history(format=format))


def test_limited_prompt_has_the_recorded_items_of_its_messages(store: Store) -> None:
    conversation = store.open("k", messages=[Message.system("Be brief."), *messages_of(ITEMS)])
    prompt = conversation.history(format="openai-responses", last=2)
    assert prompt == [{"role": "system", "content": "Be brief."}, *ITEMS[-3:]]


def test_reasoning_without_an_answer_is_left_out(store: Store) -> None:
    conversation = store.open("k", messages=messages_of([*ITEMS, ITEMS[0], REASONING[0]]))
    assert conversation.history(format="openai-responses")[-1] == ITEMS[0]


def test_compaction_that_is_a_record_precedes_the_messages_after_the_summary(store: Store) -> None:
    conversation = store.open("k", messages=messages_of(ITEMS))
    conversation.compact(lambda _: messages_of([ITEMS[0], COMPACTION]))
    conversation.append_messages(messages_of(ITEMS[-3:]))
    assert conversation.history(format="openai-responses") == [ITEMS[0], COMPACTION, *ITEMS[-3:]]


def test_records_of_other_authors_are_in_no_prompt(store: Store) -> None:
    records = [Message(role="record", content=REASONING[0]), Message(role="record", content=SEARCH, author="me")]
    damaged = [
        Message(role="record", content=each, author="openai_agents") for each in (None, 7, {"type": "reasoning"})
    ]
    conversation = store.open("k", messages=[*messages_of(ITEMS[:1]), *records, *damaged, Message.assistant("Noon.")])
    prompt = conversation.history(format="openai-responses")
    assert prompt == [ITEMS[0], {"role": "assistant", "content": "Noon."}]


@pytest.mark.one_database
def test_recorded_result_is_that_of_its_position_in_tool_calls() -> None:
    blocks: list[Any] = [{"type": "tool_use", "id": id, "name": "pay", "input": {}} for id in ("b", "a")]
    calls = [ToolCall(id=id, name="pay", arguments={}) for id in ("a", "b")]
    log = [
        Message.user("Pay twice."),
        Message.assistant(blocks, tool_calls=calls),
        Message.tool("paid the second", tool_call_id="x"),
        Message.tool("paid the first", tool_call_id="y"),
    ]
    numbered = [message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)]
    prompt = window.prompt(numbered, "openai", recorded={3: (2, 1), 4: (2, 0)})
    results = {each["tool_call_id"]: each["content"] for each in prompt if each["role"] == "tool"}
    assert results == {"a": "paid the first", "b": "paid the second"}
