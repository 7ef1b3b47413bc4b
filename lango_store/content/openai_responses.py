"""The items of OpenAI's responses."""

from collections.abc import Sequence
from typing import Final

from lango_store.content.form import Entry, Form, Note, left_out, own
from lango_store.content.media import PDF, is_web
from lango_store.content.openai_chat import image_of, note_failure, written_call
from lango_store.content.parts import Block, Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import plain, written, written_result

_REASONING: Final = ("id", "type", "summary", "content", "encrypted_content", "status")
_NATIVE: Final = (
    "web_search_call", "file_search_call", "computer_call", "code_interpreter_call", "image_generation_call",
    "local_shell_call", "shell_call", "apply_patch_call", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "item_reference",
)  # fmt: skip


def _is_text(block: Block, name: str) -> bool:
    return isinstance(block.get(name), str)


def _reasoning(block: Block) -> Thinking | None:
    if not isinstance(block.get("summary"), list):
        return None
    items = [*block["summary"], *(block.get("content") or [])]
    texts = [each.get("text") for each in items if isinstance(each, dict)]
    text = "\n\n".join(each for each in texts if isinstance(each, str))
    is_valid = len(texts) == len(items) and all(isinstance(each, str) for each in texts) and _is_text(block, "id")
    issuer = "openai-responses" if is_valid else None
    return Thinking(text, block.get("encrypted_content"), issuer, block)


def _call(block: Block) -> Call | None:
    id, name = block.get("call_id"), block.get("name")
    is_custom = block["type"] == "custom_tool_call"
    arguments = block.get("input" if is_custom else "arguments")
    return Call(
        id if isinstance(id, str) else "", name if isinstance(name, str) else "", arguments,
        {"type": "custom"} if is_custom else {}, block,
    )  # fmt: skip


def _result(block: Block) -> Result:
    id = block.get("call_id")
    return Result(id if isinstance(id, str) else None, None, block.get("output"), block=block)


def _written_media(part: Media, _: Note) -> Block | None:
    if part.file and part.issuer == "openai":
        return {"type": "input_image" if part.is_image else "input_file", "file_id": part.file}
    if uri := image_of(part):
        detail = part.block.get("detail") if part.block else None
        return {"type": "input_image", "image_url": uri, "detail": detail or "auto"}
    if part.type == PDF and part.data:
        return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": part.uri}
    return {"type": "input_file", "file_url": part.url} if part.type == PDF and is_web(part.url) else None


def _written_thinking(part: Thinking, _: Note) -> Block | None:
    if part.issuer != "openai-responses" or not part.block:
        return None
    return {name: part.block[name] for name in _REASONING if name in part.block}


def _written_call(part: Call, _: Note) -> Block:
    entry = written_call(part)
    body = entry.get("function") or entry["custom"]
    return {"type": "custom_tool_call" if entry["type"] == "custom" else "function_call", "call_id": part.id, **body}


def _written_result(part: Result, note: Note, kind: str = "function_call_output") -> Block:
    note_failure(part, note)
    return {"type": kind, "call_id": part.id, "output": written_result(RESPONSES, part, note)}


def render(entries: Sequence[Entry]) -> list[Block]:
    """Return the items of a request."""
    items: list[Block] = []
    custom: set[str | None] = set()
    for entry in entries:
        if entry.role == "assistant":
            items += _answer(entry)
            custom |= {call.id for call in entry.calls if call.extra.get("type") == "custom"}
        elif entry.role == "tool":
            for part in entry.parts:
                prefix = "custom_tool" if part.id in custom else "function"
                items.append(_written_result(part, entry.note, f"{prefix}_call_output"))
        else:
            role = "user" if entry.role == "user" else "system"
            items.append({"role": entry.role, "content": written(RESPONSES, entry.parts, role, entry.note)})
    return items


def _answer(entry: Entry) -> list[Block]:
    """Return the items of an answer. Adjacent texts are one item; reasoning belongs to the item that follows it."""
    items: list[Block] = []
    texts: list[Part] = []
    for part in [*entry.parts, None]:
        if part is not None and not isinstance(part, Call | Thinking | Native):
            texts.append(part)
            continue
        if (text := plain(texts, entry.note)).strip():
            items.append({"role": "assistant", "content": text})
        texts = []
        if isinstance(part, Native) and part.form != RESPONSES.name and part.like:
            texts.append(part)
        elif part is not None and (block := RESPONSES.block(part, "assistant", entry.note)):
            items.append(block)
    while items and items[-1].get("type") == "reasoning":
        items.pop()
        entry.note("reasoning without the item that follows it is left out")
    return items


RESPONSES: Final = Form(
    "openai-responses",
    {
        "reasoning": _reasoning,
        "function_call": _call,
        "custom_tool_call": _call,
        "function_call_output": _result,
        "custom_tool_call_output": _result,
        "compaction": lambda block: Native("openai-responses", block) if _is_text(block, "encrypted_content") else None,
        **dict.fromkeys(_NATIVE, lambda block: Native("openai-responses", block)),
    },
    {
        Text: lambda part, _: {"type": "input_text", "text": part.text},
        Media: _written_media,
        Call: _written_call,
        Result: _written_result,
        Thinking: _written_thinking,
        Refusal: left_out,
        Source: left_out,
        Native: own("openai-responses"),
    },
    {
        "user": (Text, Media),
        "assistant": (Text, Call, Thinking, Native),
        "tool": (Text, Media),
        "system": (Text,),
    },
    render,
    records="openai_agents",
)
