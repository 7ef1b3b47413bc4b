"""The content blocks and messages of Anthropic, and the transcripts of Claude, which have the same blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from lango_store.content.form import ARRANGED, Entry, Form, Note, kept, left_out, own
from lango_store.content.media import IMAGES, PDF, is_web, media
from lango_store.content.parts import Block, Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import read, written, written_result
from lango_store.content.text import as_object

_MARK: Final = "cache_control"
_MAX_MARKS: Final = 4
_TEXTS: Final = ("document", "search_result")
_RAN: Final = tuple(
    f"{name}_tool_result"
    for name in (
        "web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution",
        "tool_search", "advisor", "mcp",
    )
)  # fmt: skip
"""The results of tools that the provider runs. They follow their calls in the same message."""


def _image(block: Block) -> Media | None:
    source = block.get("source")
    if not isinstance(source, dict) or source.keys().isdisjoint(("data", "url", "file_id")):
        return None
    kind = PDF if block["type"] == "document" else "image/"
    return media(
        block, source.get("media_type") or kind, data=source.get("data"), url=source.get("url"),
        name=block.get("title"), file=source.get("file_id"), issuer="anthropic",
    )  # fmt: skip


def _document(block: Block) -> Media | Text | None:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
        return Text(source["data"], block)
    if isinstance(source, dict) and source.get("type") == "content":
        return _words(block, source.get("content"))
    return _image(block)


def _words(block: Block, content: Any) -> Text:
    texts = [part.text for part in read(content) if isinstance(part, Text)]
    return Text("\n\n".join(texts), block)


def _thinking(block: Block) -> Thinking:
    signature, thinking = block.get("signature") or block.get("data"), block.get("thinking")
    if isinstance(thinking, list):  # of Mistral
        return Thinking(_words(block, thinking).text, None, "mistral", block)
    return Thinking(str(thinking or ""), signature or None, "anthropic", block)


def _call(block: Block) -> Call:
    return Call(_text(block, "id"), _text(block, "name"), block.get("input"), block=block)


def _result(block: Block) -> Result:
    id = _text(block, "tool_use_id") or None
    return Result(id, None, block.get("content"), block.get("is_error") is True, block)


def _server_call(block: Block) -> Native | None:
    return Native("anthropic", block, _call(block)) if isinstance(block.get("id"), str) else None


def _server_result(block: Block) -> Native | None:
    content = block.get("content")
    if not isinstance(block.get("tool_use_id"), str):
        return None
    failed = block.get("is_error") is True or (isinstance(content, dict) and "error_code" in content)
    return Native("anthropic", block, Result(_text(block, "tool_use_id"), None, content, failed))


def _compaction(block: Block) -> Native:
    content = block.get("content")
    return Native("anthropic", block, Text(content) if isinstance(content, str) else None)


def _text(block: Block, name: str) -> str:
    value = block.get(name)
    return value if isinstance(value, str) else ""


READERS: Final = {
    "image": _image,
    "document": _document,
    "search_result": lambda block: _words(block, block.get("content")),
    "thinking": _thinking,
    "redacted_thinking": _thinking,
    "tool_use": _call,
    "tool_result": _result,
    "server_tool_use": _server_call,
    "mcp_tool_use": _server_call,
    "compaction": lambda block: _compaction(block) if "encrypted_content" not in block else None,
    "container_upload": lambda block: Native("anthropic", block),
    "fallback": lambda block: Native("anthropic", block) if "from" in block else None,
    "mcp_tool_listing": lambda block: Native("anthropic", block),
    **dict.fromkeys(_RAN, _server_result),
}


def _written_text(part: Text, _: Note) -> Block | None:
    block = part.block
    if block and block.get("type") in _TEXTS:
        return block
    if not part.text.strip():  # which is refused
        return None
    return kept({"type": "text", "text": part.text}, part, _MARK, "citations")


def _written_media(part: Media, _: Note) -> Block | None:
    kind = "image" if part.is_image else "document" if part.type == PDF else None
    if part.file and part.issuer == "anthropic":
        source: Block = {"type": "file", "file_id": part.file}
        kind = "image" if part.is_image else "document"
    elif is_web(part.url):
        source = {"type": "url", "url": part.url}
    elif part.data and (part.type in IMAGES or part.type == PDF):
        source = {"type": "base64", "media_type": part.type, "data": part.data}
    else:
        return None
    return (
        None if kind is None else kept({"type": kind, "source": source}, part, "title", "context", "citations", _MARK)
    )


def _written_thinking(part: Thinking, _: Note) -> Block | None:
    if part.issuer != "anthropic" or not part.signature:
        return None
    if part.block and part.block.get("type") == "redacted_thinking":
        return {"type": "redacted_thinking", "data": part.signature}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _written_call(part: Call, _: Note) -> Block:
    use = {"type": "tool_use", "id": part.id, "name": part.name, "input": as_object(part.arguments)}
    return kept(use, part, _MARK)


def _written_result(part: Result, note: Note) -> Block:
    # The content of a failed result may only be text.
    content = written_result(ANTHROPIC, part, note, "system" if part.failed else "tool")
    block = {"type": "tool_result", "tool_use_id": part.id, "content": content}
    return kept(block | {"is_error": True} if part.failed else block, part, _MARK)


def render(entries: Sequence[Entry], marks: int = 0) -> list[Block]:
    """Return the messages of a request, whose instructions and tools have this many marks for the cache."""
    messages: list[Block] = []
    marked: list[tuple[Block, Note]] = []
    for entry in entries:
        if entry.role == "tool":
            if not messages or messages[-1]["role"] == "assistant":  # all results of its calls are one message
                messages.append({"role": "user", "content": []})
            blocks: Any = ANTHROPIC.write(entry.parts, "user", entry.note)
            messages[-1]["content"] += blocks
        elif entry.role == "assistant":
            blocks = _answer(entry) or [{"type": "text", "text": "(The message was empty.)"}]  # nothing is refused
            messages.append({"role": "assistant", "content": blocks})
        else:
            blocks = written(ANTHROPIC, entry.parts, "user", entry.note)
            messages.append({"role": "user", "content": blocks})
        if type(blocks) is list:
            marked += ((block, entry.note) for block in _marked(blocks))
    for block, note in marked[: max(len(marked) + marks - _MAX_MARKS, 0)]:
        del block[_MARK]
        note(f"a mark for the cache is left out, since a request may have {_MAX_MARKS}")
    return messages


def _marked(blocks: list[Block]) -> Iterator[Block]:
    for block in blocks:
        if block["type"] == "tool_result" and isinstance(block["content"], list):
            yield from _marked(block["content"])
        if _MARK in block:
            yield block


def _is_document(part: Part) -> bool:
    return type(part) is Text and part.block is not None and part.block.get("type") in _TEXTS


def _answer(entry: Entry) -> Any:
    # Only a user's message may have documents and search results.
    parts = [Text(part.text) if _is_document(part) else part for part in entry.parts]
    content = written(ANTHROPIC, parts, "assistant", entry.note)
    if isinstance(content, str):
        return content.rstrip()
    ran = {block.get("id") for block in content}
    alone = [block for block in content if block["type"] in _RAN and block.get("tool_use_id") not in ran]
    if alone:
        entry.note("the result of a tool that the provider ran is left out, since its call is missing")
        content = [block for block in content if block not in alone]
    while content and content[-1]["type"] in ("thinking", "redacted_thinking"):  # may not be the last block
        content.pop()
    if content and content[-1]["type"] == "text":  # a final answer may not end with white space
        content[-1] = content[-1] | {"text": content[-1]["text"].rstrip()}
    return [block for block in content if block.get("text") != ""]


ANTHROPIC: Final = Form(
    "anthropic",
    READERS,
    {
        Text: _written_text,
        Media: _written_media,
        Call: _written_call,
        Result: _written_result,
        Thinking: _written_thinking,
        Refusal: left_out,
        Source: left_out,
        Native: own("anthropic"),
    },
    {
        "user": (Text, Media, Result),
        "assistant": (Text, Thinking, Call, Native),
        "tool": (Text, Media),
        "system": (Text,),
    },
    render,
)
CLAUDE: Final = replace(ANTHROPIC, name="claude", readers={}, render=None)
"""The transcripts of Claude."""


def _arrange(rest: Any, found: list[Part], calls: list[Call]) -> list[Part] | None:
    places = rest.get("places")
    if not isinstance(places, list) or len(places) != len(calls):
        return None
    arranged = list(found)
    for place, call in zip(places, calls, strict=True):
        arranged.insert(place, call)
    return arranged


ARRANGED["claude_agent_sdk"] = _arrange
