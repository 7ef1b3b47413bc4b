"""Contents of each form for people: found by searches, and shown in documents and terminals."""

import json
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from io import StringIO
from typing import Any, Final

import pytest
from rich.console import Console
from support.content_blocks import BLOCKS
from support.content_cases import CASES, case_log, stored
from support.searches import found

from lango_store import Message, Store, ToolCall, schema
from lango_store.cli.rendering import render_message
from lango_store.content import FORMS, Call, Media, Part, Refusal, Result, Text, Thinking, ignore, parts, read, shown

CELLS: Final = {
    f"{name}/{case}": stored(form, log, ignore)
    for name, form in FORMS.items()
    for case in CASES
    if (log := case_log(case, name)) is not None
}
"""A session for each form and each case that it has."""


def words_of(found: Iterable[Part]) -> list[str]:
    """Return the texts of parts, and of the results among them."""
    texts: list[str] = []
    for part in found:
        match part:
            case Text() | Refusal() | Thinking():
                texts.append(part.text)
            case Media(name=str(name)):
                texts.append(name)
            case Call():
                texts.append(part.name)
            case Result():
                texts += words_of(read(part.content, is_data=True))
    return texts


def test_search_finds_the_texts_of_each_form(store: Store) -> None:
    for key, messages in CELLS.items():
        store.create(key, messages=messages)
    schema.enable_search(store.engine)
    wanted: dict[str, set[str]] = defaultdict(set)
    for key, messages in CELLS.items():
        for message in messages:
            for text in words_of(parts(message)):
                wanted[text].add(key)
    assert {"hello", "the moon", "I will not.", "a chart", "no network", "tides.pdf", "search"} <= wanted.keys()
    for text, keys in wanted.items():
        missing = keys - {key for key, _ in found(store, f'"{text}"')}
        assert missing == set(), text


def test_search_finds_reasoning_that_is_not_in_the_content(store: Store) -> None:
    store.create("k", messages=[Message.assistant("42", extra={"reasoning_content": "counted the fish"})])
    schema.enable_search(store.engine)
    assert found(store, "fish") == [("k", 1)]


def test_rebuilt_search_index_is_that_of_appended_messages(store: Store) -> None:
    schema.enable_search(store.engine)
    for key, messages in CELLS.items():
        store.create(key, messages=messages)
    queries = ("hello", '"the moon"', "refuse", '"I will not"', "chart", "network", "tides", "search")
    appended = [found(store, query) for query in queries]
    schema.rebuild_search(store.engine)
    assert [found(store, query) for query in queries] == appended


@pytest.mark.one_database
def test_document_and_terminal_show_the_parts_of_each_form(store: Store) -> None:
    for key, messages in CELLS.items():
        session = store.open(key, messages=messages).get()
        html, text = session.to_html(), _printed(session.messages)
        for message in session.messages:
            for each in words_of(parts(message)):
                assert escape(each) in html, (key, each)
                assert all(line in text for line in each.splitlines()), (key, each)
            for part in _with_inner(parts(message)):
                if isinstance(part, Media) and part.is_image and part.data:
                    assert f'<img src="{part.uri}"' in html, key
                elif isinstance(part, Media):
                    assert part.label in html, key
                    assert part.label in text, key
                elif isinstance(part, Result) and part.failed:
                    assert 'class="failed"' in html, key
                    assert "failed" in text, key


def _with_inner(found: Iterable[Part]) -> list[Part]:
    return [each for part in found for each in (part, *_inner(part))]


def _inner(part: Part) -> list[Part]:
    return read(part.content, is_data=True) if isinstance(part, Result) else []


def _printed(messages: Iterable[Any]) -> str:
    console = Console(file=StringIO(), width=200)
    for message in messages:
        console.print(render_message(message, full=True))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.one_database
@pytest.mark.parametrize("form", [name for name, blocks in BLOCKS.items() if blocks])
def test_each_block_of_a_form_is_shown(store: Store, form: str) -> None:
    for role in ("user", "assistant", "tool"):
        session = store.open(f"{form}/{role}", messages=[Message(role=role, content=BLOCKS[form])]).get()
        assert "the moon" not in json.dumps(BLOCKS[form]) or "the moon" in session.to_html()
        assert "base64,iVBORw0KGgo=" not in _printed(session.messages)


@pytest.mark.one_database
def test_call_in_the_content_and_in_tool_calls_is_shown_once() -> None:
    block = {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Oslo"}}
    message = Message.assistant([block], tool_calls=[ToolCall(id="c", name="weather", arguments={"city": "Oslo"})])
    assert _printed([message]).count("Oslo") == 1


@pytest.mark.one_database
def test_text_of_a_tool_message_with_outputs_is_shown() -> None:
    outputs = [ToolCall(id="c", name="weather", output="cold")]
    different = Message.tool("It is cold in Oslo.", tool_call_id="c", tool_calls=outputs)
    equal = Message.tool("cold", tool_call_id="c", tool_calls=outputs)
    results = Message.tool([{"type": "tool_result", "tool_use_id": "c", "content": "cold"}, {"text": "and windy"}])
    assert [Text("It is cold in Oslo."), Result("c", "weather", "cold")] == shown(different)
    assert [Result("c", "weather", "cold")] == shown(equal)
    assert [Result("c", None, "cold"), Text("and windy")] == shown(results)


def test_call_of_a_tool_part_without_input_is_not_shown_beside_its_result() -> None:
    part = {"type": "tool-search", "toolCallId": "c", "state": "output-available", "output": "two tides"}
    assert [type(each) for each in shown(Message(role="tool", content=[part | {"input": None}]))] == [Result]
    assert [type(each) for each in shown(Message(role="tool", content=[part | {"input": {"a": 1}}]))] == [Call, Result]
