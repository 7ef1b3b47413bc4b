"""Each form as the source and as the target of each kind of part: equal after a round trip, or named."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_values
from support.prompt_rules import FORMATS, faults

from lango_store import Message, Session, Store, ToolCall, window
from lango_store.content import FORMS, KINDS, Call, Form, Media, Native, Result, Text, Thinking, parts, read
from lango_store.ui import agui_messages, aisdk_messages

pytestmark = pytest.mark.one_database

PNG, PDF, WAV, URL = "iVBORw0KGgo=", "JVBERi0=", "UklGRg==", "https://example.com/a.png"
URI: Final = f"data:image/png;base64,{PNG}"

PDF_URI: Final = f"data:application/pdf;base64,{PDF}"

BLOCKS: dict[str, dict[str, dict[str, Any]]] = {
    "openai": {
        "text": {"type": "text", "text": "a"},
        "picture": {"type": "image_url", "image_url": {"url": URI}},
        "linked picture": {"type": "image_url", "image_url": {"url": URL}},
        "PDF": {"type": "file", "file": {"filename": "document.pdf", "file_data": PDF_URI}},
        "audio": {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
        "call": {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        "refusal": {"type": "refusal", "refusal": "No."},
    },
    "openai-responses": {
        "text": {"type": "output_text", "text": "a"},
        "picture": {"type": "input_image", "image_url": URI, "detail": "auto"},
        "linked picture": {"type": "input_image", "image_url": URL},
        "PDF": {"type": "input_file", "filename": "document.pdf", "file_data": PDF_URI},
        "call": {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        "result": {"type": "function_call_output", "call_id": "c1", "output": "r"},
        "signed thinking": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eHg="},
        "native": {"type": "compaction", "id": "cmp_1", "encrypted_content": "eHg="},
    },
    "anthropic": {
        "text": {"type": "text", "text": "a"},
        "picture": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        "linked picture": {"type": "image", "source": {"type": "url", "url": URL}},
        "PDF": {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
        "call": {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        "result": {"type": "tool_result", "tool_use_id": "c1", "content": "r"},
        "failed result": {"type": "tool_result", "tool_use_id": "c1", "content": "r", "is_error": True},
        "signed thinking": {"type": "thinking", "thinking": "t", "signature": "c2ln"},
        "unsigned thinking": {"type": "thinking", "thinking": "t"},
        "native": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
    },
    "gemini": {
        "text": {"text": "a"},
        "picture": {"inline_data": {"mime_type": "image/png", "data": PNG}},
        "linked picture": {"fileData": {"fileUri": URL, "mimeType": "image/png"}},
        "PDF": {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
        "audio": {"inline_data": {"mime_type": "audio/wav", "data": WAV}},
        "call": {"functionCall": {"id": "c1", "name": "f", "args": {}}},
        "result": {"function_response": {"id": "c1", "name": "f", "response": {"result": "r"}}},
        "failed result": {"function_response": {"id": "c1", "name": "f", "response": {"error": "r"}}},
        "unsigned thinking": {"text": "t", "thought": True},
        "native": {"executable_code": {"language": "PYTHON", "code": "1"}},
    },
    "aisdk": {
        "text": {"type": "text", "text": "a", "state": "done"},
        "picture": {"type": "file", "mediaType": "image/png", "url": URI},
        "linked picture": {"type": "file", "mediaType": "image/png", "url": URL},
        "PDF": {"type": "file", "mediaType": "application/pdf", "url": PDF_URI},
        "audio": {"type": "file", "mediaType": "audio/wav", "url": f"data:audio/wav;base64,{WAV}"},
        "call": {"type": "tool-f", "toolCallId": "c1", "state": "input-available", "input": {}},
        "result": {
            "type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": {"type": "text", "value": "r"},
        },
        "failed result": {
            "type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": {"type": "error-text", "value": "r"},
        },
        "unsigned thinking": {"type": "reasoning", "text": "t"},
        "source": {"type": "source-url", "sourceId": "s", "url": URL, "title": "A"},
        "native": {"type": "data-weather", "data": {"city": "Oslo"}},
    },
    "agui": {
        "text": {"type": "text", "text": "a"},
        "picture": {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}},
        "linked picture": {"type": "image", "source": {"type": "url", "value": URL, "mimeType": "image/png"}},
        "PDF": {"type": "document", "source": {"type": "data", "value": PDF, "mimeType": "application/pdf"}},
        "audio": {"type": "audio", "source": {"type": "data", "value": WAV, "mimeType": "audio/wav"}},
        "call": {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    },
    "langchain": {
        "text": {"type": "text", "text": "a", "annotations": []},
        "picture": {"type": "image", "base64": PNG, "mime_type": "image/png"},
        "linked picture": {"type": "image", "url": URL, "mime_type": "image/png"},
        "PDF": {"type": "file", "source_type": "base64", "data": PDF, "mime_type": "application/pdf"},
        "audio": {"type": "audio", "base64": WAV, "mime_type": "audio/wav"},
        "call": {"type": "tool_call", "id": "c1", "name": "f", "args": {}},
        "signed thinking": {"type": "reasoning", "reasoning": "t", "extras": {"signature": "c2ln"}},
        "unsigned thinking": {"type": "reasoning", "reasoning": "t"},
    },
    "mcp": {
        "text": {"type": "text", "text": "a", "annotations": {"priority": 1}},
        "picture": {"type": "image", "data": PNG, "mimeType": "image/png"},
        "linked picture": {"type": "resource_link", "uri": URL, "name": "a", "mimeType": "image/png"},
        "PDF": {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "application/pdf", "blob": PDF}},
        "audio": {"type": "audio", "data": WAV, "mimeType": "audio/wav"},
    },
    "pydantic-ai": {
        "text": {"kind": "text-content", "content": "a"},
        "picture": {"kind": "binary", "data": PNG, "media_type": "image/png"},
        "linked picture": {"kind": "image-url", "url": URL, "media_type": "image/png"},
        "PDF": {"kind": "binary", "data": PDF, "media_type": "application/pdf"},
        "audio": {"kind": "binary", "data": WAV, "media_type": "audio/wav"},
    },
}  # fmt: skip
BLOCKS |= {"adk": BLOCKS["gemini"], "claude": BLOCKS["anthropic"]}

EXPRESSED: Final = {
    "openai": {"text", "picture", "linked picture", "PDF", "audio", "call", "refusal"},
    "openai-responses": {"text", "picture", "linked picture", "PDF", "call"},
    "anthropic": {"text", "picture", "linked picture", "PDF", "call"},
    "claude": {"text", "picture", "linked picture", "PDF", "call"},
    "gemini": {"text", "picture", "linked picture", "PDF", "audio", "call"},
    "adk": {"text", "picture", "linked picture", "PDF", "audio", "call"},
    "aisdk": {"text", "picture", "linked picture", "PDF", "audio", "call", "result", "failed result", "source"},
    "agui": {"text", "picture", "linked picture", "PDF", "audio", "call"},
    "langchain": {"text", "picture", "linked picture", "PDF", "audio", "call", "unsigned thinking"},
    "mcp": {"text", "picture", "linked picture", "PDF", "audio"},
    "pydantic-ai": {"text", "picture", "linked picture", "PDF", "audio"},
}
"""The parts that a form expresses, whatever form it was written in."""

CELLS: Final = [(source, kind, target) for source, blocks in BLOCKS.items() for kind in blocks for target in FORMS]


def said(part: Any) -> Any:
    """Return what a part says, without what a form has no field for: names of files, ids of Gemini's calls."""
    match part:
        case Media():
            return (part.type.split("/")[0] if part.url else part.type), part.data, part.url
        case Call():
            arguments = json.loads(part.arguments) if isinstance(part.arguments, str) else part.arguments
            return "call", part.name, arguments
        case Result():
            return "result", part.content if isinstance(part.content, str) else str(part.content), part.failed
        case Thinking():
            return "thinking", part.text
        case Native(like=Call() as call):
            return said(call)
    return part


@pytest.mark.parametrize(("source", "kind", "target"), CELLS)
def test_part_of_each_form_is_equal_in_each_other_form_or_named(source: str, kind: str, target: str) -> None:
    form, notes = FORMS[target], list[str]()
    found = read([BLOCKS[source][kind]])
    assert found
    assert not any(isinstance(part, Native) and not part.form for part in found)
    is_users = isinstance(found[0], Media | Result) and target not in ("gemini", "adk", "aisdk")
    role = "assistant" if kind in ("refusal", "source") or not is_users else "user"
    written = form.write(found, role, notes.append)
    again = [said(part) for part in read(written)]
    wanted = [said(part) for part in found]
    if kind in EXPRESSED[target]:
        assert all(part in again for part in wanted)
        assert notes == []
    elif isinstance(found[0], Call | Result | Thinking) and target in ("openai", "agui", "pydantic-ai"):
        text = found[0].text if isinstance(found[0], Thinking) else "c1"
        assert notes or text in json.dumps(written)  # these forms have such parts beside the content
    else:
        assert notes or all(part in again for part in wanted)


@pytest.mark.parametrize("source", ["openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("kind", ["signed thinking", "native"])
def test_block_that_only_its_provider_reads_goes_back_to_it_unchanged(source: str, kind: str) -> None:
    block = BLOCKS[source].get(kind)
    if block is None:
        block = {"text": "t", "thought": True, "thought_signature": "c2ln"}
    for target, form in FORMS.items():
        notes: list[str] = []
        written = form.write(read([block]), "assistant", notes.append)
        if target == source:
            assert written == [block]
        elif target in FORMATS:
            assert written == []
            assert notes


def test_form_without_a_writer_for_a_kind_of_part_is_refused() -> None:
    with pytest.raises(TypeError, match="no writer for"):
        Form("x", {}, dict.fromkeys(KINDS[1:], lambda *_: None), FORMS["mcp"].roles)


PICTURE: Final = st.sampled_from([BLOCKS[form]["picture"] for form in BLOCKS])


@pytest.mark.parametrize("format", FORMATS)
@given(picture=PICTURE, failed=st.booleans())
def test_picture_in_a_result_is_sent_or_named(format: Any, picture: dict[str, Any], failed: bool) -> None:
    log = [Message.user("q"), Message.assistant(tool_calls=[ToolCall(id="c1", name="f", arguments={})])]
    log.append(Message.tool([{"type": "text", "text": "r"}, picture], tool_call_id="c1", failed=failed))
    prompt = window.prompt(log, format)
    assert faults(prompt, format) == []
    assert PNG in json.dumps(prompt) or any("image/png attachment" in repair.text for repair in prompt.repairs)


blocks = st.sampled_from([block for kinds in BLOCKS.values() for block in kinds.values()])
mixed = st.lists(blocks | json_values(), max_size=5) | json_values()
messages = st.builds(
    lambda role, content, calls: Message(role=role, content=content, tool_calls=calls),
    st.sampled_from(["user", "assistant", "tool", "system"]),
    mixed,
    st.lists(st.builds(ToolCall, id=st.sampled_from(["", "c1", "c2"]), name=st.sampled_from(["f", "3d"])), max_size=2),
)


@given(log=st.lists(messages, max_size=6))
def test_messages_mixed_from_all_forms_make_prompts_and_pages(log: list[Message]) -> None:
    numbered = [message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)]
    for format in FORMATS:
        prompt = window.prompt(numbered, format)
        assert faults(prompt, format) == []
        json.dumps(prompt, ensure_ascii=False).encode()
    for message in numbered:
        parts(message)


@pytest.mark.slow
@given(log=st.lists(messages, max_size=6))
def test_messages_mixed_from_all_forms_make_pages(store: Store, log: list[Message]) -> None:
    session: Session = store.open(messages=log).get()
    for shown in aisdk_messages(session):
        assert shown["parts"]
        ids = [part["toolCallId"] for part in shown["parts"] if "toolCallId" in part]
        assert all(ids)
        assert len(set(ids)) == len(ids)
    calls = [call["id"] for each in agui_messages(session) for call in each.get("toolCalls", ())]
    assert len(set(calls)) == len(calls)
    "".join(session.to_html())


def test_text_of_each_form_is_one_part() -> None:
    for kinds in BLOCKS.values():
        assert [part for part in read([kinds["text"]]) if isinstance(part, Text)] == [Text("a")]


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use", "web_search_tool_result"])
def test_server_tool_without_an_id_is_not_sent(kind: str) -> None:
    block: dict[str, Any] = {
        "type": kind,
        "id": [],
        "tool_use_id": [],
        "name": "web_search",
        "input": {},
        "content": [],
    }
    prompt = window.prompt([Message.user("q"), Message.assistant([block, {"type": "text", "text": "a"}])], "anthropic")
    assert prompt[1]["content"] == [{"type": "text", "text": "a"}]


def mcp_result(*, failed: bool = False) -> dict[str, Any]:
    """Return what a tool of MCP returns, as its client writes it."""
    blocks = [{"type": "text", "text": "the chart"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]
    return {"content": blocks, "isError": failed}


def mcp_logs(result: dict[str, Any]) -> dict[str, list[Message]]:
    """Return logs that have a result in each place where adapters store one."""
    asked = Message.assistant(tool_calls=[ToolCall(id="c1", name="f", arguments={})])
    response = {"function_response": {"id": "c1", "name": "f", "response": result}}
    answers = {
        "content": Message.tool(result, tool_call_id="c1", name="f"),
        "output": Message.tool(tool_calls=[ToolCall(id="c1", name="f", output=result)]),
        "block of Gemini": Message.user([response]),
        "block of OpenAI": Message.user([{"type": "function_call_output", "call_id": "c1", "output": result}]),
    }
    log = {place: [Message.user("q"), asked, answer] for place, answer in answers.items()}
    return {
        place: [message.model_copy(update={"seq": seq}) for seq, message in enumerate(each, 1)]
        for place, each in log.items()
    }


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("place", mcp_logs({}))
def test_result_of_a_tool_of_mcp_is_its_blocks_and_its_failure(place: str, failed: bool) -> None:
    log = mcp_logs(mcp_result(failed=failed))[place]
    prompt = window.prompt(log, "anthropic")
    (result,) = prompt[2]["content"]
    assert result.get("is_error", False) is failed
    shown = [block["type"] for block in result["content"]] if isinstance(result["content"], list) else []
    assert shown == (["text", "text"] if failed else ["text", "image"])  # a failed result may only have texts
    responses = window.prompt(log, "openai-responses")[-1]["output"]
    assert [block["type"] for block in responses] == ["input_text", "input_image"]
    for format in FORMATS:
        prompt = window.prompt(log, format)
        assert faults(prompt, format) == []
        assert "isError" not in json.dumps(prompt)
    assert place.startswith("block") or any(message.failed for message in log) is (failed and place == "content")


def test_structured_result_of_mcp_without_blocks_is_its_json() -> None:
    (result,) = parts(Message.tool({"content": [], "structuredContent": {"a": 1}, "isError": False}))
    assert result == Result(None, None, {"a": 1})


@pytest.mark.parametrize("data", [{"content": []}, {"content": "x", "isError": True}, {"content": [{"a": 1}]}])
def test_other_data_with_a_content_is_not_read_as_a_result_of_mcp(data: dict[str, Any]) -> None:
    assert parts(Message.tool(data)) == [Result(None, None, data)]
    assert not Message.tool(data).failed


def test_text_after_the_results_of_a_tool_message_is_sent_as_the_users(store: Store) -> None:
    answers = [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}, {"type": "text", "text": "and hurry"}]
    asked = Message.assistant(tool_calls=[ToolCall(id="c1", name="f", arguments={})])
    session = store.open(messages=[Message.user("q"), asked, Message.tool(answers)]).get()
    for format in FORMATS:
        prompt = window.prompt(session.messages, format)
        assert faults(prompt, format) == []
        assert "and hurry" in json.dumps(prompt)
    closed = window.close_calls(session.messages)
    assert [(each.role, each.content) for each in closed[2:]] == [("tool", "r"), ("user", answers[1:])]
    for page in (aisdk_messages(session), agui_messages(session)):
        assert [each["role"] for each in page if "and hurry" in json.dumps(each)] == ["user"]
        assert len({each["id"] for each in page}) == len(page)
