"""The rules by which the APIs of providers refuse prompts, as checks, and damaged logs to try prompts on.

Each check returns the reasons for which the provider answers with an error; an empty list means that it accepts the
prompt. The rules are those of the providers' API references and of public reports of refused requests. They are a lower
bound: a provider also refuses prompts for its model's limits.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from hypothesis import strategies as st

from lango_store import Message, ToolCall

FORMATS: Final = ("openai", "openai-responses", "anthropic", "gemini")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PARTICIPANT: Final = re.compile(r"[^\s<|\\/>]{1,64}")
_CALLS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


def faults(prompt: Sequence[dict[str, Any]], format: str) -> list[str]:
    """Return the reasons for which the provider of a format refuses a prompt."""
    json.dumps(prompt)
    return list(_CHECKS[format](prompt))


def _is_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError):
        return False


def _openai(prompt: Sequence[dict[str, Any]]) -> Iterator[str]:
    open_ids: list[str] = []
    for number, message in enumerate([*prompt, {"role": "end", "content": ""}]):
        role, content = message["role"], message["content"]
        if role == "tool":
            if message.get("tool_call_id") not in open_ids:
                yield f"{number}: a result without a call, or a second result"
            else:
                open_ids.remove(message["tool_call_id"])
            if not isinstance(content, str) and not _has_only(content, "text"):
                yield f"{number}: content of a result is not text"
            continue
        if open_ids:
            yield f"{number}: calls {open_ids} have no result"
        open_ids = [call["id"] for call in message.get("tool_calls", ())]
        if role == "assistant":
            yield from _openai_calls(number, message)
            if content is None or (isinstance(content, str) and not content.strip()):
                if not open_ids:
                    yield f"{number}: an answer without content and calls"
            elif not isinstance(content, str) and not _has_only(content, "text", "refusal"):
                yield f"{number}: content of an answer"
        elif role in ("system", "developer"):
            if not (isinstance(content, str) and content.strip()) and not _has_only(content, "text"):
                yield f"{number}: content of instructions"
        elif role == "user":
            if not (isinstance(content, str) and content.strip()) and not _has_only(
                content, "text", "image_url", "input_audio", "file"
            ):
                yield f"{number}: content of a user"
        elif role != "end":
            yield f"{number}: role {role}"
        if "tool_calls" in message and role != "assistant":
            yield f"{number}: calls of another role"
        if not _PARTICIPANT.fullmatch(message.get("name", "x")):
            yield f"{number}: name {message['name']!r}"


def _openai_calls(number: int, message: dict[str, Any]) -> Iterator[str]:
    calls = message.get("tool_calls", [])
    if "tool_calls" in message and not calls:
        yield f"{number}: tool_calls is empty"
    ids = [call["id"] for call in calls]
    if len(set(ids)) < len(ids) or not all(0 < len(id) <= 40 for id in ids):
        yield f"{number}: ids {ids}"
    for call in calls:
        body = call[call["type"]]
        if not _NAME.fullmatch(body["name"]):
            yield f"{number}: name of a tool {body['name']!r}"
        if call["type"] == "function" and not _is_object(body["arguments"]):
            yield f"{number}: arguments {body['arguments']!r}"


def _has_only(content: Any, *types: str) -> bool:
    return isinstance(content, list) and bool(content) and all(block.get("type") in types for block in content)


def _responses(items: Sequence[dict[str, Any]]) -> Iterator[str]:
    open_ids: dict[str, str] = {}
    seen: set[str] = set()
    for number, item in enumerate([*items, {"type": "end"}]):
        kind = item.get("type", "message")
        if kind in _CALLS.values():
            if open_ids.pop(item["call_id"], None) != kind:
                yield f"{number}: an output without a call"
            if not isinstance(item["output"], str) and not _has_only(
                item["output"], "input_text", "input_image", "input_file"
            ):
                yield f"{number}: output {item['output']!r}"
            continue
        is_made_by_model = kind not in ("message", "end") or item.get("role") == "assistant"
        if open_ids and not is_made_by_model:
            yield f"{number}: calls {open_ids} have no output"
        if kind in _CALLS:
            if item["call_id"] in seen or not 0 < len(item["call_id"]) <= 64:
                yield f"{number}: id {item['call_id']!r}"
            if not _NAME.fullmatch(item["name"]):
                yield f"{number}: name {item['name']!r}"
            if kind == "function_call" and not _is_object(item["arguments"]):
                yield f"{number}: arguments {item['arguments']!r}"
            open_ids[item["call_id"]] = _CALLS[kind]
            seen.add(item["call_id"])
        elif kind == "message":
            content = item["content"]
            if item["role"] not in ("system", "developer", "user", "assistant"):
                yield f"{number}: role {item['role']}"
            written = ("output_text", "refusal") if item["role"] == "assistant" else ("input_image", "input_file")
            if not (isinstance(content, str) and content.strip()) and not _has_only(content, "input_text", *written):
                yield f"{number}: content {content!r}"
        elif kind == "reasoning" and (number + 1 == len(items) or items[number + 1].get("role", "assistant") == "user"):
            yield f"{number}: reasoning without the item that follows it"


_RAN: Final = ("web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution", "mcp")
_ANTHROPIC: Final[dict[str, set[str]]] = {
    "user": {"text", "image", "document", "search_result", "tool_result", "container_upload"},
    "assistant": {
        "text", "tool_use", "thinking", "redacted_thinking", "container_upload", "server_tool_use", "mcp_tool_use",
        "compaction", "fallback", "mcp_tool_listing", *(f"{name}_tool_result" for name in _RAN),
    },
}  # fmt: skip
"""The blocks of the messages of a request, by role."""


def _anthropic(prompt: Sequence[dict[str, Any]]) -> Iterator[str]:
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for role, group in groupby(prompt, lambda message: message["role"]):
        if role not in ("user", "assistant"):
            yield f"role {role}"
        contents: list[Any] = [message["content"] for message in group]
        blocks: list[Any] = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents]
        if not all(blocks):
            yield "a message without content"
        turns.append((role, [block for each in blocks for block in each]))
    if turns and turns[0][0] != "user":
        yield "the first message is not the user's"
    asked: list[str] = []
    seen: set[str] = set()
    for number, (role, blocks) in enumerate([*turns, ("end", [])]):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(asked) or [block["type"] for block in blocks[: len(asked)]] != [
            "tool_result" for _ in asked
        ]:
            yield f"{number}: calls {asked}, results {results}"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if seen & set(asked) or len(set(asked)) < len(asked) or not all(map(_NAME.fullmatch, asked)):
            yield f"{number}: ids {asked}"
        seen |= set(asked)
        if asked and role != "assistant":
            yield f"{number}: calls of a user"
        for block in blocks:
            yield from _anthropic_block(number, role, block)
        if blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            yield f"{number}: thinking at the end"
    last = turns[-1] if turns else ("user", [])
    if last[0] == "assistant" and last[1][-1].get("text", "x") != last[1][-1].get("text", "x").rstrip():
        yield "white space at the end of the final answer"


def _anthropic_block(number: int, role: str, block: dict[str, Any]) -> Iterator[str]:
    if block["type"] == "text" and not block["text"].strip():
        yield f"{number}: blank text"
    if block["type"] == "tool_use" and not (isinstance(block["input"], dict) and _NAME.fullmatch(block["name"])):
        yield f"{number}: call {block}"
    if block["type"] == "thinking" and not block.get("signature"):
        yield f"{number}: thinking without a signature"
    if block["type"] == "tool_result":
        content = block["content"]
        if not isinstance(content, str) and not _has_only(content, "text", "image", "document", "search_result"):
            yield f"{number}: result {content!r}"
        for each in content if isinstance(content, list) else ():
            yield from _anthropic_block(number, role, each)
    if block["type"] not in _ANTHROPIC[role]:
        yield f"{number}: block {block['type']} of the role {role}"


def _gemini(contents: Sequence[dict[str, Any]]) -> Iterator[str]:
    if contents and contents[0]["role"] != "user":
        yield "the first content is not the user's"
    asked: list[str] = []
    for number, content in enumerate([*contents, {"role": "end", "parts": [{"text": "x"}]}]):
        parts = content["parts"]
        answered = [part["function_response"]["name"] for part in parts if "function_response" in part]
        if answered != asked:
            yield f"{number}: calls {asked}, responses {answered}"
        asked = [part["function_call"]["name"] for part in parts if "function_call" in part]
        if asked and (content["role"] != "model" or number == 0 or contents[number - 1]["role"] != "user"):
            yield f"{number}: calls that do not follow a user's content"
        if not parts:
            yield f"{number}: no parts"
        kinds = {"text", "inline_data", "file_data", "function_call", "function_response"}
        if content["role"] == "model":
            kinds |= {"executable_code", "executableCode", "code_execution_result", "codeExecutionResult"}
            kinds |= {"tool_call", "toolCall", "tool_response", "toolResponse"}
        for part in parts:
            if kinds.isdisjoint(part):
                yield f"{number}: part {part}"
            if part.get("text") == "" and "thought_signature" not in part:
                yield f"{number}: empty text"
            if not isinstance(part.get("function_call", {"args": {}})["args"], dict):
                yield f"{number}: arguments"
            if not isinstance(part.get("function_response", {"response": {}})["response"], dict):
                yield f"{number}: response"


_CHECKS: Final[dict[str, Callable[[Sequence[dict[str, Any]]], Iterator[str]]]] = {
    "openai": _openai,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}

# Damaged logs

_IDS: Final = st.sampled_from(["call_0", "call_1", "", "view:66", "x" * 70, "call_3_0", "é", "a b"])
_NAMES: Final = st.sampled_from(["search", "pay", "mcp.read", "get weather", "", "n" * 70, "1st"])
_ARGUMENTS: Final = st.sampled_from([{}, {"city": "Oslo"}, '{"city": "Oslo"}', "", "{broken", None, [1], 7, "[]"])
_IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
_BLOCKS: Final = st.sampled_from(
    [
        {"type": "text", "text": "look"},
        {"type": "text", "text": " "},
        {"text": "from Gemini", "thoughtSignature": "c2ln"},
        {"type": "input_text", "text": "from responses"},
        {"type": "refusal", "refusal": "no"},
        _IMAGE,
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "redacted_thinking", "data": "c2ln"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"text": "a thought", "thought": True},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "x"}},
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found", "is_error": True},
        {"functionCall": {"name": "search", "args": {"q": "x"}}, "thoughtSignature": "c2ln"},
        {"functionResponse": {"name": "search", "response": {"found": 1}}},
        {"type": "unknown", "value": 1},
    ]
)
contents: Final = st.one_of(
    st.sampled_from(["hello", "", "  ", None, "done \n", "ünï ⛷", 7, {"ok": True}, [], ["a"]]),
    st.lists(_BLOCKS, min_size=1, max_size=3),
)


@st.composite
def damaged_logs(draw: st.DrawFn, max_size: int = 12) -> list[Message]:
    """Messages as a session holds them after crashes, retries, edits, late results and careless programs."""
    log: list[Message] = []
    for kind in draw(st.lists(st.sampled_from("ssuuuaacccrrrx"), min_size=1, max_size=max_size)):
        content, id, name = draw(contents), draw(_IDS), draw(_NAMES)
        if kind == "s":
            log.append(draw(st.sampled_from([Message.system, Message.user]))(content))
        elif kind == "u":
            log.append(Message.user(content, name=name or None))
        elif kind == "a":
            log.append(Message.assistant(content, extra=draw(st.sampled_from([{}, {"interrupted": True}]))))
        elif kind == "c":
            asked = [
                ToolCall(id=draw(_IDS), name=draw(_NAMES), arguments=draw(_ARGUMENTS))
                for _ in range(draw(st.integers(1, 3)))
            ]
            log.append(Message.assistant(content, tool_calls=asked))
            log += [
                Message.tool(draw(contents), tool_call_id=call.id or None, name=call.name or None)
                for call in asked
                if draw(st.booleans())
            ]
        elif kind == "r":
            log.append(Message.tool(content, tool_call_id=id or None, name=name or None))
        else:
            log.append(Message.assistant(content, tool_calls=[ToolCall(id=id, name=name, output=draw(contents))]))
    return log
