"""The items of OpenAI's responses."""

from collections.abc import Sequence
from typing import Final

from lango_store.content.form import Entry, Form, Note, left_out, own
from lango_store.content.media import PDF, is_web
from lango_store.content.openai_chat import image_of, note_failure, written_call
from lango_store.content.parts import Block, Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import plain, read, written, written_result

_REASONING: Final = ("id", "type", "summary", "content", "encrypted_content", "status")
_NATIVE: Final = (
    "web_search_call", "file_search_call", "computer_call", "code_interpreter_call", "image_generation_call",
    "local_shell_call", "shell_call", "apply_patch_call", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "tool_search_call", "tool_search_output", "computer_call_output", "local_shell_call_output", "shell_call_output",
    "apply_patch_call_output", "mcp_approval_response", "item_reference",
)  # fmt: skip

_ANSWERED: Final = ("computer_call", "local_shell_call", "shell_call", "apply_patch_call")
"""Calls of the provider's tools that the application answers: one without its output is refused, as is the reverse."""


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


def _message(block: Block) -> tuple[Part, ...] | None:
    """Read the item with the words of an answer, as the list `output` of a response has it."""
    return tuple(read(block.get("content"))) if _is_text(block, "role") else None


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
    fields: Block = {name: part.block[name] for name in _REASONING if name in part.block}
    for name in ("summary", "content"):  # whose texts have an index after a stream of LangChain
        if fields.get(name):
            fields[name] = [{"type": each.get("type"), "text": each["text"]} for each in fields[name]]
    return fields


def _written_call(part: Call, _: Note) -> Block:
    entry = written_call(part)
    body = entry.get("function") or entry["custom"]
    return {"type": "custom_tool_call" if entry["type"] == "custom" else "function_call", "call_id": part.id, **body}


def _written_result(part: Result, note: Note, kind: str = "function_call_output") -> Block:
    note_failure(part, note)
    return {"type": kind, "call_id": part.id, "output": written_result(RESPONSES, part, note)}


def paired(entries: Sequence[Entry], *, close: bool) -> list[Entry]:
    """Leave out outputs of the provider's tools without their call and, to close them, calls without their output."""
    unanswered: list[tuple[Entry, Native]] = []
    removed: list[tuple[Entry, Native]] = []
    for entry in entries:
        for part in entry.parts if entry.role in ("assistant", "user") else ():
            kind = str(part.block.get("type")) if isinstance(part, Native) and part.form == RESPONSES.name else ""
            if kind in _ANSWERED:
                unanswered.append((entry, part))
            elif kind.removesuffix("_output") in _ANSWERED:
                call = next((each for each in unanswered if _answers(part.block, each[1].block)), None)
                if call is None:
                    removed.append((entry, part))
                else:
                    unanswered.remove(call)
    removed += unanswered if close else ()
    for entry, part in removed:
        entry.parts = [each for each in entry.parts if each is not part]
        entry.note(f"a block of type {part.block['type']!r} is left out: its call or its output is missing")
    touched = {id(entry) for entry, _ in removed}
    return [
        entry
        for entry in entries
        if id(entry) not in touched or any(RESPONSES.sends(part, entry.role) for part in entry.parts)
    ]


def _answers(output: Block, call: Block) -> bool:
    """Return True for the output of a call. Older outputs of local shells have the id of their call in `id`."""
    ids = ({value for name in ("call_id", "id") if isinstance(value := each.get(name), str)} for each in (output, call))
    return output["type"] == f"{call['type']}_output" and not next(ids).isdisjoint(next(ids))


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
            own = [part for part in entry.parts if isinstance(part, Native) and part.form == RESPONSES.name]
            items += [part.block for part in own]  # outputs of computers and shells
            content = written(RESPONSES, [part for part in entry.parts if part not in own], role, entry.note)
            if content or not own:
                items.append({"role": entry.role, "content": content})
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
        "message": _message,
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
        "user": (Text, Media, Native),
        "assistant": (Text, Call, Thinking, Native),
        "tool": (Text, Media),
        "system": (Text,),
    },
    render,
    records="openai_agents",
)
