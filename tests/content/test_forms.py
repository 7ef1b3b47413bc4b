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

CELLS: Final = [(source, kind) for source, blocks in BLOCKS.items() for kind in blocks]


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


@pytest.mark.parametrize(("source", "kind"), CELLS)
def test_part_of_each_form_is_equal_in_each_other_form_or_named(source: str, kind: str) -> None:
    found = read([BLOCKS[source][kind]])
    assert found
    assert not any(isinstance(part, Native) and not part.form for part in found)
    wanted = [said(part) for part in found]
    for target, form in FORMS.items():
        notes: list[str] = []
        is_users = isinstance(found[0], Media | Result) and target not in ("gemini", "adk", "aisdk")
        role = "assistant" if kind in ("refusal", "source") or not is_users else "user"
        written = form.write(found, role, notes.append)
        again = [said(part) for part in read(written)]
        if kind in EXPRESSED[target]:
            assert all(part in again for part in wanted), target
            assert notes == [], target
        elif isinstance(found[0], Call | Result | Thinking) and target in ("openai", "agui", "pydantic-ai"):
            text = found[0].text if isinstance(found[0], Thinking) else "c1"
            assert notes or text in json.dumps(written), target  # these forms have such parts outside the content
        else:
            assert notes or all(part in again for part in wanted), target


NATIVE: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "openai-responses": {"native": {"type": "tool_search_output", "call_id": "c1", "tools": []}},
    "anthropic": {"native": {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}},
    "gemini": {
        "signed thinking": {"text": "t", "thought": True, "thought_signature": "c2ln"},
        "native": {"tool_call": {"id": "t1", "tool_type": "FILE_SEARCH", "args": {}}, "thought_signature": "c2ln"},
    },
}
"""More blocks that only their provider reads."""


OWN: Final = [
    pytest.param(source, blocks[source][kind], id=f"{source}-{kind}")
    for blocks in (BLOCKS, NATIVE)
    for source in NATIVE
    for kind in ("signed thinking", "native")
    if kind in blocks[source]
]


@pytest.mark.parametrize(("source", "block"), OWN)
def test_block_that_only_its_provider_reads_goes_back_to_it_unchanged(source: str, block: Any) -> None:
    for target, form in FORMS.items():
        notes: list[str] = []
        written = form.write(read([block]), "assistant", notes.append)
        if target == source:
            assert written == [block]
        elif target in FORMATS:
            assert written == []
            assert notes


def file(kind: str, url: str) -> dict[str, Any]:
    """Return an attachment as a page of the AI SDK sends it."""
    return {"type": "file", "mediaType": kind, "url": url}


def linked(kind: str, url: str) -> dict[str, Any]:
    """Return an attachment by URL in the form of servers that are compatible with OpenAI."""
    return {"type": kind, kind: {"url": url}}


FILES: Final = "https://generativelanguage.googleapis.com/v1beta/files/a"
ALL: Final = frozenset(FORMATS)
ATTACHMENTS: Final[list[tuple[dict[str, Any], str, frozenset[str] | set[str]]]] = [
    (file("text/plain", "data:text/plain,two%20tides"), '"two tides"', ALL),
    (file("text/csv", "data:text/csv;base64,YSxi"), '"a,b"', ALL),
    (file("application/json", "data:application/json;base64,WzddCg=="), r'"[7]\n"', ALL),
    (file("image/svg+xml", "data:image/svg+xml;utf8,<svg/>"), '"<svg/>"', ALL),
    (file("image/png", f"data:image/PNG;BASE64,{PNG}"), PNG, ALL),
    (file("image/png", "data:image/png;base64,iVBORw0KGgo%3D"), PNG, ALL),
    (file("image/png", "data:image/png;base64,/9j/4A=="), "image/jpeg", ALL),
    (file("application/octet-stream", "data:;base64,R0lGODlhAQ=="), "R0lGODlhAQ==", ALL - {"gemini"}),
    (file("image/jpeg", "data:image/jpeg;base64,UklGRiQAAABXRUJQ"), "image/webp", ALL),
    ({"type": "file", "mediaType": None, "url": URI}, PNG, ALL),
    (file("image/png", "data:image/png;base64,a"), "a===", set()),
    (file("text/plain", "data:text/plain;base64,a"), "a===", set()),
    (file("image/png", "blob:http://localhost/1"), "blob:", set()),
    (file("application/zip", "data:application/zip;base64,UEsDBA=="), "UEsDBA==", set()),
    (file("image/heic", "data:image/heic;base64,AAAA"), "AAAA", {"gemini"}),
    ({"file_data": {"file_uri": FILES, "mime_type": "image/png"}}, FILES, {"gemini"}),
    ({"kind": "uploaded-file", "provider_name": "google", "file_id": FILES}, FILES, {"gemini"}),
    ({"type": "image", "file_id": "file_011"}, "file_011", {"anthropic"}),
    ({"type": "image", "file_id": "file-abc"}, "file-abc", {"openai-responses"}),
    ({"type": "file", "file": {"file_data": PDF}}, PDF, ALL),
    ({"type": "media", "mime_type": "image/png", "data": PNG}, PNG, ALL),
    ({"type": "text-plain", "mime_type": "text/plain", "base64": "dHdvIHRpZGVz"}, '"two tides"', ALL),
    (linked("document_url", "https://files.test/a.pdf"), "a.pdf", ALL - {"openai"}),
    (linked("video_url", "https://files.test/a.mp4"), "a.mp4", {"gemini"}),
    (linked("audio_url", "https://files.test/a.mp3"), "a.mp3", {"gemini"}),
]
"""Attachments, what of them reaches a model, and the formats that can express it. The others name the attachment."""


@pytest.mark.parametrize(("block", "wanted", "formats"), ATTACHMENTS)
def test_attachment_reaches_each_model_that_reads_it(block: dict[str, Any], wanted: str, formats: set[str]) -> None:
    for format in FORMATS:
        prompt = window.prompt([Message.user([{"type": "text", "text": "See"}, block])], format)
        assert faults(prompt, format) == []
        assert (wanted in json.dumps(prompt)) is (format in formats), format
        assert format in formats or ("attachment" in json.dumps(prompt) and prompt.repairs)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"refusal": "I will not."}, "I will not."),
        ({"langchain": {"additional_kwargs": {"refusal": "I will not."}}}, "I will not."),
        ({"audio": {"id": "audio_1", "data": WAV, "transcript": "Hello"}}, "Hello"),
        ({"function_call": {"name": "look", "arguments": "{}"}}, "look"),
    ],
)
def test_answer_outside_the_content_is_sent_and_shown(store: Store, fields: dict[str, Any], said: str) -> None:
    log = [Message.user("q"), Message.assistant(None, extra=fields)]
    log.append(Message(role="function", name="look", content="rain") if said == "look" else Message.user("why?"))
    session = store.open(messages=log).get()
    for format in FORMATS:
        prompt = window.prompt(session.messages, format)
        assert faults(prompt, format) == []
        assert said in json.dumps(prompt[1]), format
        assert len(prompt) == 3
    for page in (aisdk_messages(session), agui_messages(session)):
        assert said in json.dumps(page[1])


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"reasoning": "hm", "reasoning_details": [{"type": "reasoning.encrypted", "data": "eHg="}]}, True),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "c2ln"}]}, True),
        ({"reasoning_content": "hm"}, True),
        ({"reasoning": "hm"}, False),
        ({"thinking": "hm"}, False),
    ],
)
def test_reasoning_of_compatible_servers_is_shown_and_sent_to_those_that_demand_it(
    store: Store, fields: dict[str, Any], sent: bool
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = Message.from_openai({"role": "assistant", "content": None, "tool_calls": [call], **fields})
    log = [Message.user("q"), asked, Message.tool("rain", tool_call_id="c1")]
    demanded = {name: value for name, value in fields.items() if sent and name.startswith("reasoning_")}
    assert {name: value for name, value in window.prompt(log)[1].items() if name in fields} == demanded
    other = window.prompt([asked.model_copy(update={"provider": "openrouter"})], provider="xai")
    assert other[0].keys() == {"role", "content", "tool_calls"}
    page = aisdk_messages(store.open(messages=log).get())
    assert ("hm" in json.dumps(page)) is ("hm" in fields.values())


def test_output_of_a_response_that_is_stored_unchanged_is_read(store: Store) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm", "index": 0}]}
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    output = [thought, said | {"content": [{"type": "output_text", "text": "I look.", "annotations": []}]}]
    output.append({"type": "shell_call", "id": "sh_1", "call_id": "c1", "action": {"commands": ["ls"]}})
    result = {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a.txt"}]}
    session = store.open(messages=[Message.user("q"), Message.assistant(output), Message.user([result])]).get()
    sent = window.prompt(session.messages, "openai-responses")
    clean = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
    assert sent[1:] == [clean, {"role": "assistant", "content": "I look."}, output[2], result]
    for rest in (session.messages[:2], session.messages[::2]):  # the application has deleted the other one
        prompt = window.prompt(rest, "openai-responses")
        assert "shell_call" not in json.dumps(prompt)
        assert "output is missing" in str(prompt.repairs)
    assert window.prompt(session.messages[:2], "openai-responses", unanswered="keep")[1:] == sent[1:-1]
    for format in FORMATS:
        assert "I look." in json.dumps(window.prompt(session.messages, format))
    for page in (aisdk_messages(session), agui_messages(session)):
        assert "I look." in json.dumps(page)


def test_picture_of_a_response_of_gemini_is_sent_and_goes_back_to_gemini() -> None:
    picture = {"inline_data": {"mime_type": "image/png", "data": PNG}}
    response = {"function_response": {"name": "look", "response": {"ok": 1}, "parts": [picture]}}
    log = [Message.user("q"), Message.assistant([{"function_call": {"name": "look", "args": {}}}])]
    log.append(Message.user([response]))
    for format in FORMATS:
        prompt = window.prompt(log, format)
        assert faults(prompt, format) == []
        assert PNG in json.dumps(prompt) or format == "openai"
    assert window.prompt(log, "gemini")[2]["parts"] == [response]


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


@pytest.mark.parametrize("damaged", [{}, {"sourceId": None, "title": 7}, {"providerMetadata": "no", "filename": []}])
def test_source_without_its_fields_is_shown_with_empty_ones(store: Store, damaged: dict[str, Any]) -> None:
    cited = Message.assistant([{"type": "source-document", **damaged}, {"type": "source-url", "url": URL, **damaged}])
    (answer,) = aisdk_messages(store.open(messages=[cited]).get())
    assert answer["parts"][1:] == [
        {"type": "source-document", "sourceId": "", "mediaType": "application/octet-stream", "title": ""},
        {"type": "source-url", "sourceId": URL, "url": URL},
    ]


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


def test_data_next_to_a_picture_of_a_result_is_sent_as_its_json() -> None:
    output = [{"seen": 1}, {"type": "image", "data": PNG, "mimeType": "image/png"}]
    asked = Message.assistant(tool_calls=[ToolCall(id="c1", name="f", arguments={})])
    for format in FORMATS:
        prompt = window.prompt([Message.user("q"), asked, Message.tool(output, tool_call_id="c1")], format)
        assert faults(prompt, format) == []
        assert "seen" in json.dumps(prompt)


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
