"""The content blocks of LangChain (both generations), MCP and pydantic-ai."""

import itertools
from dataclasses import replace
from typing import Any, Final

from lango_store.content.form import ARRANGED, EVERY, Form, Note, left_out
from lango_store.content.media import full_type, media
from lango_store.content.parts import (
    Block,
    Call,
    Media,
    Native,
    Part,
    Refusal,
    Result,
    Source,
    Text,
    Thinking,
)
from lango_store.content.reading import read, written_result
from lango_store.content.text import as_object

_TEXTS: Final = (Text, Media)


def _kind(part: Media, *others: str) -> str:
    """Return the general kind of a media type, if it is one of these; otherwise the last of them."""
    kind = part.type.partition("/")[0]
    return kind if kind in others else others[-1]


def _silent(part: Part, _: Note) -> Block | None:
    """Write the part's text."""
    return {"type": "text", "text": part.text} if isinstance(part, Text | Refusal) else None


# LangChain

_MEDIA: Final = {"image": "image/", "audio": "audio/", "video": "video/", "file": ""}


def _langchain_media(block: Block) -> Media | None:
    data = block.get("base64") or (block.get("data") if "source_type" in block else None)
    url, file = block.get("url"), block.get("file_id") or (block.get("id") if "source_type" in block else None)
    if "mediaType" in block or not (data or url or file):
        return None
    kind = block.get("mime_type") or _MEDIA.get(block["type"], "")
    extra = block.get("extras") or block.get("metadata") or block
    name = extra.get("filename") or extra.get("name") if isinstance(extra, dict) else None
    issuer = "anthropic" if str(file).startswith("file_") else "openai"  # file_011C… and file-abc
    return media(block, kind, data=data, url=url, name=name, file=file, issuer=issuer)


def _google_media(block: Block) -> Media | None:
    """Read the attachments that LangChain's package for Gemini has besides the standard blocks."""
    if "mime_type" not in block:
        return None
    return media(block, block["mime_type"], data=block.get("data"), url=block.get("file_uri"))


def _langchain_text(block: Block) -> Part:
    if isinstance(text := block.get("text"), str):
        return Text(text, block)
    return media(block, "text/plain", data=block.get("base64"), url=block.get("url"), name=block.get("title"))


def _langchain_reasoning(block: Block) -> Thinking | None:
    if not isinstance(text := block.get("reasoning"), str):
        return None
    extras = block.get("extras")
    signature = extras.get("signature") if isinstance(extras, dict) else None
    issuer = "anthropic" if signature else None
    return Thinking(text, signature, issuer, block)


def _bedrock_reasoning(block: Block) -> Thinking:
    inner = block.get("reasoning_content")
    text = inner.get("text") if isinstance(inner, dict) else inner
    return Thinking(text if isinstance(text, str) else "", None, "bedrock", block)


def _langchain_call(block: Block) -> Call:
    return Call(str(block.get("id") or ""), str(block.get("name") or ""), block.get("args"), block=block)


def _server_call(block: Block) -> Native:
    return Native("langchain", block, _langchain_call(block))


def _server_result(block: Block) -> Native:
    id = block.get("tool_call_id")
    result = Result(id if isinstance(id, str) else None, None, block.get("output"), block.get("status") == "error")
    return Native("langchain", block, result)


def _wrapped(block: Block) -> tuple[Part, ...] | None:
    value = block.get("value")
    return tuple(read([value])) if isinstance(value, dict) else None


def _named(block: Block, part: Media) -> Block:
    return block | ({"filename": part.name} if part.name else {})


def _as_langchain(part: Media, _: Note) -> Block | None:
    kind = {"type": _kind(part, "image", "audio", "video", "file")}
    typed = {"mime_type": part.type} if part.type and not part.type.endswith("/") else {}
    if part.data and typed:
        return _named(kind | {"base64": part.data} | typed, part)
    return _named(kind | {"url": part.url} | typed, part) if part.url else None


def _as_langchain_thinking(part: Thinking, note: Note) -> Block:
    signed = part.signature and part.issuer == "anthropic"
    if part.signature and not signed:
        note("the signature of thinking is left out")
    extras = {"extras": {"signature": part.signature}} if signed else {}
    return {"type": "reasoning", "reasoning": part.text, **extras}


LANGCHAIN: Final = Form(
    "langchain",
    {
        **dict.fromkeys(_MEDIA, _langchain_media),
        "media": _google_media,
        "text-plain": _langchain_text,
        "reasoning": _langchain_reasoning,
        "reasoning_content": _bedrock_reasoning,
        "tool_call": _langchain_call,
        "invalid_tool_call": _langchain_call,
        "server_tool_call": _server_call,
        "server_tool_result": _server_result,
        "non_standard": _wrapped,
    },
    {
        Text: _silent,
        Media: _as_langchain,
        Call: lambda part, _: {
            "type": "tool_call", "id": part.id, "name": part.name, "args": as_object(part.arguments),
        },
        Result: left_out,
        Thinking: _as_langchain_thinking,
        Refusal: left_out,
        Source: left_out,
        Native: lambda part, _: {"type": "non_standard", "value": part.block} if part.form else None,
    },
    {"user": _TEXTS, "assistant": (*_TEXTS, Call, Thinking, Native), "tool": _TEXTS, "system": (Text,)},
)  # fmt: skip

# MCP


def _mcp_media(block: Block) -> Media | None:
    is_media = isinstance(block.get("data"), str) and "source_type" not in block
    return media(block, block.get("mimeType") or _MEDIA[block["type"]], data=block["data"]) if is_media else None


def _resource(block: Block) -> Part | None:
    body = block.get("resource") if block["type"] == "resource" else block
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("text"), str):
        return Text(body["text"], block)
    kind, name = body.get("mimeType"), body.get("name") or body.get("uri")
    if body.get("blob"):
        return media(block, kind, data=body["blob"], name=name)
    return media(block, kind, url=body.get("uri"), name=body.get("name"))


def _as_mcp(part: Media, _: Note) -> Block | None:
    name = part.name or "attachment"
    if part.url:
        typed = {"mimeType": kind} if (kind := full_type(part)) else {}
        return {"type": "resource_link", "uri": part.url, "name": name, **typed}
    if not part.data:
        return None
    if (kind := _kind(part, "image", "audio", "")) != "":
        return {"type": kind, "data": part.data, "mimeType": part.type}
    return {"type": "resource", "resource": {"uri": f"file:///{name}", "mimeType": part.type, "blob": part.data}}


MCP: Final = Form(
    "mcp",
    {"image": _mcp_media, "audio": _mcp_media, "resource": _resource, "resource_link": _resource},
    {
        Text: _silent,
        Media: _as_mcp,
        **dict.fromkeys((Call, Result, Thinking, Refusal, Source, Native), left_out),
    },
    dict.fromkeys(EVERY, _TEXTS),
)

# pydantic-ai, whose prompts are lists of texts and objects with a `kind`


def _binary(block: Block) -> Media | None:
    is_binary = isinstance(block.get("data"), str)
    name = block.get("identifier") if "." in str(block.get("identifier")) else None
    return media(block, block.get("media_type"), data=block["data"], name=name) if is_binary else None


def _url(block: Block) -> Media:
    kind = block["kind"].removesuffix("-url")
    known = {"document": "application/pdf"}.get(kind, f"{kind}/")
    return media(block, block.get("media_type") or block.get("_media_type") or known, url=block.get("url"))


def _uploaded(block: Block) -> Media:
    issuer = str(block.get("provider_name") or "")
    issuer = "gemini" if issuer.startswith("google") else issuer
    return media(block, block.get("media_type"), file=block.get("file_id"), issuer=issuer)


def _model_part(block: Block) -> Part | None:
    """Read a part of a model's answer, or of the request that follows it."""
    content, id, name = block.get("content"), str(block.get("tool_call_id") or ""), str(block.get("tool_name") or "")
    match block.get("part_kind"):
        case "text" if isinstance(content, str):
            return Text(content, block)
        case "thinking" if isinstance(content, str):
            return Thinking(content, block.get("signature"), block.get("provider_name"), block)
        case "tool-call":
            return Call(id, name, block.get("args"), block=block)
        case "tool-return" | "retry-prompt" as kind:
            return Result(id or None, name or None, content, kind != "tool-return" or "outcome" in block, block)
    return None


def _as_pydantic_thinking(part: Thinking, _: Note) -> Block:
    signed = {"signature": part.signature, "provider_name": part.issuer} if part.signature else {}
    return {"part_kind": "thinking", "content": part.text, **signed}


def _as_pydantic(part: Media, _: Note) -> Block | None:
    if part.data:
        return {"kind": "binary", "data": part.data, "media_type": part.type or "application/octet-stream"}
    typed = {} if part.type.endswith("/") or not part.type else {"media_type": part.type}
    kind = _kind(part, "image", "audio", "video", "document")
    return {"kind": f"{kind}-url", "url": part.url, **typed} if part.url else None


def _tool_return(part: Result, note: Note) -> Block:
    outcome = {"outcome": "failed"} if part.failed else {}
    content: Any = part.content
    if isinstance(content, list):
        content = written_result(PYDANTIC_AI, part, note)
    return {
        "part_kind": "tool-return",
        "tool_name": part.name or "",
        "tool_call_id": part.id or "",
        "content": content,
    } | outcome


PYDANTIC_AI: Final = Form(
    "pydantic-ai",
    {
        "binary": _binary,
        **dict.fromkeys(("image-url", "audio-url", "video-url", "document-url"), _url),
        "uploaded-file": _uploaded,
        "text-content": lambda block: Text(str(block.get("content") or ""), block),
        "": _model_part,
    },
    {
        Text: lambda part, _: {"kind": "text-content", "content": part.text},
        Media: _as_pydantic,
        Call: lambda part, _: {
            "part_kind": "tool-call", "tool_name": part.name, "tool_call_id": part.id, "args": part.arguments,
        },
        Result: _tool_return,
        Thinking: _as_pydantic_thinking,
        Refusal: left_out,
        Source: left_out,
        Native: left_out,
    },
    {"user": _TEXTS, "assistant": (*_TEXTS, Call, Thinking), "tool": (*_TEXTS, Result), "system": (Text,)},
)  # fmt: skip


def _arrange(rest: Any, found: list[Part], calls: list[Call]) -> list[Part] | None:
    """Put texts and calls where they were among the parts of a response, with its thinking between them."""
    if not isinstance(stored := rest.get("parts"), list):
        return None
    texts, asked, arranged = iter(found), iter(calls), list[Part]()
    for part in stored:
        kind, details = part.get("part_kind"), part.get("provider_details")
        if kind == "text" and "content" not in part:
            arranged += itertools.islice(texts, 1)
        elif kind == "thinking":
            issuer = part.get("provider_name")
            arranged.append(Thinking(str(part.get("content") or ""), part.get("signature"), issuer, None))
        elif kind in ("tool-call", "builtin-tool-call"):
            signature = details.get("thought_signature") if isinstance(details, dict) else None
            extra = {"thought_signature": signature} if isinstance(signature, str) else {}
            arranged += [replace(call, extra=call.extra | extra) for call in itertools.islice(asked, 1)]
        elif kind == "file":
            arranged += read([part.get("content")])
        elif kind == "speech" and isinstance(words := part.get("transcript"), str):
            arranged.append(Text(words))
    return [*arranged, *texts, *asked]


ARRANGED["pydantic_ai"] = _arrange
