"""Contents that are lists of blocks: their text in output, archive searches and prompts."""

from typing import Any

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message

from lango_store import Message, Store, ToolCall
from lango_store.content import text_of

pytestmark = pytest.mark.one_database

OPENAI = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]
RESPONSES = [
    {"type": "input_text", "text": "What is"},
    {"type": "output_text", "text": "this?", "annotations": [{"type": "url_citation", "url": "https://a.example"}]},
]
ANTHROPIC = [
    {"type": "text", "text": "What is", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "this?"},
]
GEMINI = [{"text": "What is"}, {"text": "this?", "thought": None, "thoughtSignature": "c2ln"}]
BLOCKS = {"OpenAI": OPENAI, "Responses": RESPONSES, "Anthropic": ANTHROPIC, "Gemini": GEMINI}

IMAGE = {"type": "image_url", "image_url": {"url": "https://a.example/fjord.png"}}
WITH_IMAGE = [{"type": "text", "text": "What is this?"}, IMAGE]


@pytest.mark.parametrize("provider", BLOCKS)
def test_function_text_of_joins_the_text_blocks_of_each_provider(provider: str) -> None:
    assert text_of(BLOCKS[provider]) == "What is\n\nthis?"


@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "reasoning", "text": "hm"},
        {"text": "hm", "thought": True},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"text": "x"}},
        {"type": "text", "text": None},
        {"type": {}, "text": "x"},
    ],
)
def test_function_text_of_returns_none_for_a_block_that_is_not_text(block: dict[str, Any]) -> None:
    assert text_of([block, {"text": "so"}]) is None
    assert text_of([block]) is None


@pytest.mark.parametrize(
    "content",
    [None, [], {}, 1, {"text": "x"}, ["x"], ["x", {"text": "y"}], [IMAGE], [{"title": "a fjord", "text": "deep"}]],
)
def test_function_text_of_returns_none_for_content_without_text_blocks(content: Any) -> None:
    assert text_of(content) is None


def test_function_text_of_returns_plain_text_unchanged() -> None:
    assert text_of("x") == "x"


@pytest.mark.parametrize("provider", BLOCKS)
def test_show_command_prints_the_text_of_text_blocks(make_sqlite: MakeDatabase, provider: str) -> None:
    url = make_sqlite()
    with Store(url) as store:
        store.create("k", messages=[message(BLOCKS[provider]), message("plain")])
    lines = [line.strip("│ ") for line in run("sessions", "show", "k", "--url", url).stdout.splitlines()]
    assert lines[lines.index("What is") + 1] == "this?"
    assert '"text"' not in "".join(lines)


def test_show_command_names_attachments_and_prints_unknown_blocks_as_json(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    call = ToolCall(id="c1", name="look", output=OPENAI)
    with Store(url) as store:
        store.create("k", messages=[message(WITH_IMAGE), Message.tool(tool_calls=[call]), message([{"a": 1}])])
    output = run("sessions", "show", "k", "--url", url).stdout
    lines = [line.strip("│ ") for line in output.splitlines()]
    assert lines[lines.index("What is this?") + 1] == "[image/png attachment] https://a.example/fjord.png"
    assert "← look: What is" in lines
    assert '"a": 1' in lines


@pytest.mark.parametrize("provider", BLOCKS)
def test_history_returns_text_blocks_as_blocks_or_with_nested_false_as_text(store: Store, provider: str) -> None:
    blocks = BLOCKS[provider]
    outputs = [ToolCall(id="c1", name="look", output=blocks), ToolCall(id="c2", name="look", output=WITH_IMAGE)]
    request = Message.assistant(tool_calls=[ToolCall(id=call.id, name="look") for call in outputs])
    log = [message(blocks), message(WITH_IMAGE), request, Message.tool(tool_calls=outputs)]
    conversation = store.open("k", messages=log)
    nested, flat = conversation.history(), conversation.history(nested=False)
    assert [block["text"] for block in nested[0]["content"]] == ["What is", "this?"]
    assert {block["type"] for block in nested[0]["content"]} == {"text"}
    assert nested[1]["content"] == WITH_IMAGE
    assert nested[3]["content"] == "What is\n\nthis?"
    assert [block["type"] for block in nested[4]["content"]] == ["text", "text"]
    assert nested[4]["content"][1]["text"] == "[image/png attachment]"
    assert [each["content"] for each in flat] == [text_of(blocks), WITH_IMAGE, None, text_of(blocks), WITH_IMAGE]
