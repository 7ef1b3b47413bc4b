"""Blocks of all forms, as their systems write them, and logs that mix them."""

from typing import Any, Final

from hypothesis import strategies as st

from lango_store import Message, ToolCall

PNG: Final = "iVBORw0KGgo="
DATA: Final = "data:image/png;base64,iVBORw0KGgo="
URL: Final = "https://files.test/a.png"
_SOURCE: Final = {"type": "base64", "media_type": "image/png", "data": PNG}
_TOOL: Final = {"toolCallId": "call_1", "input": {"query": "tides"}}
_MODEL: Final = {"tool_name": "search", "tool_call_id": "call_1"}

BLOCKS: Final[dict[str, list[Any]]] = {
    "openai": [
        {"type": "text", "text": "plain"},
        {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "video_url", "video_url": {"url": "https://files.test/a.mp4"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,UklGRg=="}},
        {"type": "document_url", "document_url": "https://files.test/a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "refusal", "refusal": "I will not."},
        {"type": "function", "id": "call_1", "function": {"name": "search", "arguments": '{"query": "tides"}'}},
        {"type": "custom", "id": "call_9", "custom": {"name": "run", "input": "ls"}},
    ],
    "openai-responses": [
        {"type": "input_text", "text": "asked"},
        {"type": "output_text", "text": "answered", "annotations": []},
        {"type": "input_image", "image_url": URL, "detail": "auto"},
        {"type": "input_file", "file_url": "https://files.test/a.pdf"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "the moon"}]},
        {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": '{"query": "tides"}'},
        {"type": "custom_tool_call", "call_id": "call_9", "name": "run", "input": "ls"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_image", "image_url": DATA}]},
        {"type": "custom_tool_call_output", "call_id": "call_9", "output": "a.txt"},
        {"type": "compaction", "encrypted_content": "c2ln"},
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "tides"},
        },
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "said"}]},
        {"type": "computer_call_output", "call_id": "call_8", "output": {"type": "computer_screenshot"}},
        {"type": "tool_search_output", "call_id": "call_7", "tools": []},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["tides"]},
        {"type": "item_reference", "id": "msg_1"},
    ],
    "anthropic": [
        {"type": "image", "source": _SOURCE, "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "url", "url": URL}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page 1"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "page 2"}]}},
        {"type": "search_result", "source": URL, "title": "Tides", "content": [{"type": "text", "text": "found"}]},
        {"type": "thinking", "thinking": "the moon", "signature": "c2ln"},
        {"type": "thinking", "thinking": "not signed"},
        {"type": "redacted_thinking", "data": "c2ln"},
        {"type": "tool_use", "id": "call_1", "name": "search", "input": {"query": "tides"}},
        {
            "type": "tool_result",
            "tool_use_id": "call_1",
            "is_error": True,
            "content": [{"type": "image", "source": _SOURCE}],
        },
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tides"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": URL, "title": "Tides", "encrypted_content": "c2ln"}],
        },
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "read", "server_name": "files", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": "a file"},
        {"type": "compaction", "content": "earlier: tides"},
        {"type": "container_upload", "file_id": "file_1"},
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        {"type": "mcp_tool_listing", "mcp_server_name": "files", "tools": []},
        {"type": "thinking", "thinking": [{"type": "text", "text": "of Mistral"}]},
    ],
    "gemini": [
        {"text": "from Gemini", "thoughtSignature": "c2ln"},
        {"text": "the moon", "thought": True},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0K-_8"}},
        {"file_data": {"file_uri": "gs://bucket/a.png"}},
        {"functionCall": {"name": "search", "args": {"query": "tides"}}},
        {"functionResponse": {"name": "search", "response": {"result": "two tides"}}},
        {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
        {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "2"}},
        {"tool_call": {"id": "t1", "tool_type": "GOOGLE_SEARCH_WEB", "args": {}}, "thought_signature": "c2ln"},
        {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {}}},
        {"functionResponse": {"name": "search", "response": {}, "parts": [{"inlineData": {"data": PNG}}]}},
    ],
    "aisdk": [
        {"type": "file", "mediaType": "image/*", "url": DATA, "filename": "a.png"},
        {"type": "file", "mediaType": "text/plain", "url": "data:text/plain;base64,aGVsbG8="},
        {"type": "file", "mediaType": "text/plain", "url": "data:text/plain,half\ud800%20a"},
        {"type": "file", "mediaType": "text/plain", "url": "data:text/plain;base64,a"},
        {"type": "reasoning", "text": "the moon", "state": "done"},
        {"type": "source-url", "sourceId": "s1", "url": URL, "title": "Tides"},
        {"type": "source-document", "sourceId": "s2", "mediaType": "application/pdf", "title": "Tides"},
        {"type": "tool-search", "state": "output-available", "output": {"tides": 2}, **_TOOL},
        {"type": "dynamic-tool", "toolName": "search", "state": "output-error", "errorText": "no network", **_TOOL},
        {"type": "tool-call", "toolName": "search", **_TOOL},
        {
            "type": "tool-result",
            "toolCallId": "call_1",
            "toolName": "search",
            "output": {"type": "text", "value": "two"},
        },
        {"type": "step-start"},
        {"type": "data-weather", "data": {"degrees": 7}},
    ],
    "agui": [
        {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/jpg"}},
        {"type": "audio", "source": {"type": "url", "value": "https://files.test/a.wav"}},
        {"type": "video", "source": {"type": "url", "value": "https://files.test/a.mp4"}},
        {"type": "document", "source": {"type": "data", "value": "JVBERi0=", "mimeType": "application/pdf"}},
        {"type": "binary", "mimeType": "image/png", "data": PNG},
    ],
    "langchain": [
        {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": PNG},
        {"type": "image", "base64": PNG, "mime_type": "image/png"},
        {"type": "audio", "url": "https://files.test/a.mp3"},
        {"type": "video", "file_id": "file-1"},
        {"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf"},
        {"type": "text-plain", "text": "a file of text"},
        {"type": "media", "mime_type": "image/png", "data": PNG},
        {"type": "reasoning", "reasoning": "the moon", "extras": {"signature": "c2ln"}},
        {"type": "reasoning_content", "reasoning_content": {"text": "the moon", "signature": "c2ln"}},
        {"type": "tool_call", "id": "call_1", "name": "search", "args": {"query": "tides"}},
        {"type": "invalid_tool_call", "id": "call_2", "name": "read", "args": "{page", "error": "broken"},
        {"type": "server_tool_call", "id": "srv_1", "name": "web_search", "args": {}},
        {"type": "server_tool_result", "tool_call_id": "srv_1", "status": "success", "output": "found"},
        {"type": "non_standard", "value": {"type": "compaction", "content": "earlier: tides"}},
    ],
    "mcp": [
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/x-wav"},
        {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "a resource"}},
        {"type": "resource", "resource": {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": "JVBERi0="}},
        {"type": "resource_link", "uri": URL, "name": "a.png"},
    ],
    "pydantic-ai": [
        {"kind": "binary", "data": PNG, "media_type": "image/png", "identifier": "a1"},
        {"kind": "image-url", "url": URL},
        {"kind": "audio-url", "url": "https://files.test/a.mp3"},
        {"kind": "video-url", "url": "https://files.test/a.mp4"},
        {"kind": "document-url", "url": "https://files.test/a.pdf"},
        {"kind": "uploaded-file", "file_id": "file-1", "provider_name": "openai"},
        {"kind": "text-content", "content": "a text"},
        {"part_kind": "thinking", "content": "the moon"},
        {"part_kind": "tool-call", "args": {"query": "tides"}, **_MODEL},
        {"part_kind": "tool-return", "content": "two tides", **_MODEL},
    ],
    "adk": [],
    "claude": [],
    "unknown": [
        {"type": "unknown", "value": 1},
        {"type": "image"},
        {"type": "tool_use"},
        {"type": "function_call_output"},
        {"type": 7},
        {},
    ],
}
"""Examples by form, those of ADK and Claude with Gemini's and Anthropic's, and blocks that no form reads."""

OUTSIDE: Final[list[dict[str, Any]]] = [
    {"reasoning_content": "the moon"},
    {"reasoning": "half \ud800", "reasoning_details": [{"type": "reasoning.text", "text": "half \ud800"}]},
    {"thinking": "the moon"},
    {"refusal": "No, half \ud800"},
    {"function_call": {"name": "search", "arguments": "{}"}},
    {"function_call": {"name": "half \ud800"}},
    {"audio": {"id": "audio_1", "transcript": "half \ud800"}},
    {"audio": 7, "refusal": 7, "images": [7, PNG, "half \ud800", "https://files.test"], "reasoning_details": 7},
]
"""Fields of `extra` that OpenAI and compatible servers write outside the content."""

_BLOCKS: Final = st.sampled_from([block for blocks in BLOCKS.values() for block in blocks])
_FIELDS: Final = st.sampled_from([None, "", 7, [], {}, [None], {"type": "text"}, "é\ud800"])


@st.composite
def _damaged_blocks(draw: st.DrawFn) -> Any:
    """A block of which one field is missing, or has another kind of value."""
    block = dict(draw(_BLOCKS))
    if block and draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(block)))
        if name in ("type", "kind"):
            return block
        block[name] = draw(_FIELDS)
        if draw(st.booleans()):
            del block[name]
    return block


contents: Final = st.one_of(
    st.lists(_damaged_blocks(), min_size=1, max_size=5),
    st.lists(st.one_of(_damaged_blocks(), st.text(max_size=5)), min_size=1, max_size=3),
    st.text(max_size=10),
    st.none(),
)


@st.composite
def mixed_logs(draw: st.DrawFn, max_size: int = 6) -> list[Message]:
    """Messages with the blocks of all forms at once, and calls in their fields."""
    log: list[Message] = []
    for role in draw(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), min_size=1, max_size=max_size)):
        calls = [
            ToolCall(id=id, name="search", arguments={}) for id in draw(st.lists(st.sampled_from(["call_1", "c", ""])))
        ]
        extra = draw(st.sampled_from([{}, {}, *OUTSIDE]))
        if role == "tool":
            log.append(Message.tool(draw(contents), tool_call_id="call_1", failed=draw(st.booleans())))
        else:
            asked = calls[:2] if role == "assistant" else []
            log.append(Message(role=role, content=draw(contents), tool_calls=asked, extra=extra))
    return [message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)]
