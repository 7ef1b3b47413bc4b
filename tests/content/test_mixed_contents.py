"""Messages whose contents mix the blocks of all forms, for each provider and each page."""

import json
import os
from fnmatch import fnmatch
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.content_blocks import BLOCKS, PNG, contents, mixed_logs
from support.content_cases import page_of
from support.json_values import json_values
from support.prompt_rules import faults

from lango_store import Message, window
from lango_store.content import FORMS, Native, parts, read

PROMPTS: Final = [name for name, form in FORMS.items() if form.render is not None]
PAGES: Final = ("aisdk", "agui")
MANY: Final = settings(max_examples=int(os.environ.get("LANGO_STORE_MIXED_LOGS", "300")), deadline=None)


def texts_in(value: Any) -> list[str]:
    """Return the texts that a model or a user reads."""
    if isinstance(value, list):
        return [text for each in value for text in texts_in(each)]
    if not isinstance(value, dict):
        return []
    own = [value[name] for name in ("text", "content", "output", "errorText") if isinstance(value.get(name), str)]
    return own + [text for each in value.values() for text in texts_in(each)]


def test_each_form_has_an_example_of_each_of_its_blocks() -> None:
    examples = [block for blocks in BLOCKS.values() for block in blocks]
    kinds = {str(block.get("type") or block.get("kind") or "") for block in examples}
    server_tools = ("*_tool_result", "*_call", "*_call_output", "mcp_*")
    for form in FORMS.values():
        assert form.name in BLOCKS
        for kind in form.readers:
            is_like_another = any(fnmatch(kind, each) for each in server_tools)
            assert is_like_another or any(fnmatch(each, kind) for each in kinds), (form.name, kind)


@pytest.mark.parametrize("form", FORMS)
def test_each_block_of_a_form_is_read(form: str) -> None:
    for block in BLOCKS[form]:
        assert not any(isinstance(part, Native) and not part.form for part in read([block])), block


def test_answer_with_only_the_result_of_a_missing_call_is_not_an_empty_message() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    log = [Message.user("a"), Message.assistant([result]), Message.user("b")]
    assert faults(window.prompt(log, "anthropic"), "anthropic") == []


@pytest.mark.parametrize("format", PROMPTS)
@MANY
@given(log=mixed_logs())
def test_provider_accepts_blocks_of_all_forms(format: Any, log: list[Message]) -> None:
    before = [message.model_dump_json() for message in log] if _is_encodable(log) else None
    prompt = window.prompt(log, format)
    assert faults(prompt, format) == []
    json.dumps(prompt, ensure_ascii=False).encode()  # no halves of surrogate pairs
    assert not any(PNG in text for text in texts_in(prompt) if not text.startswith("data:"))
    assert before is None or before == [message.model_dump_json() for message in log]


def _is_encodable(log: list[Message]) -> bool:
    return "\\ud800" not in json.dumps([message.model_dump(mode="python") for message in log], default=str)


@MANY
@given(log=mixed_logs())
def test_flat_prompt_of_blocks_of_all_forms_can_be_encoded(log: list[Message]) -> None:
    json.dumps(window.prompt(log, nested=False), ensure_ascii=False).encode()


@pytest.mark.parametrize("protocol", PAGES)
@MANY
@given(log=mixed_logs())
def test_page_shows_blocks_of_all_forms(protocol: str, log: list[Message]) -> None:
    page = page_of(protocol, log)
    json.dumps(page)
    assert not any(PNG in text for text in texts_in(page))
    ids = [message["id"] for message in page]
    assert len(set(ids)) == len(ids)
    assert protocol != "aisdk" or all(message["parts"] for message in page)


@given(texts=st.lists(st.integers(0, 10**6), unique=True, min_size=2, max_size=6), others=st.lists(contents))
def test_texts_of_an_answer_keep_their_order_among_other_blocks(texts: list[int], others: list[Any]) -> None:
    blocks: list[Any] = []
    for position, number in enumerate(texts):
        other = others[position] if position < len(others) else None
        blocks += [{"type": "text", "text": f"<{number}>"}, *(other if isinstance(other, list) else [])]
    log = [Message.user("hello"), Message.assistant(blocks)]
    marks = [f"<{number}>" for number in texts]
    shown: list[Any] = [window.prompt(log, format) for format in PROMPTS]  # type: ignore[arg-type]
    shown += [page_of(protocol, log) for protocol in PAGES]
    for each in shown:
        text = json.dumps(each)
        assert sorted(marks, key=text.index) == marks


@given(content=json_values())
def test_any_json_is_read(content: Any) -> None:
    for is_data in (True, False):
        read(content, is_data=is_data)
    for role in ("user", "assistant", "tool"):
        parts(Message(role=role, content=content))
