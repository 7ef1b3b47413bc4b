"""The parts of UI messages of the AI SDK, and of the messages of AG-UI."""

import json
import re
from typing import Final

from lango_store.content.form import Form, Note, left_out
from lango_store.content.media import PDF, media
from lango_store.content.parts import Block, Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import plain_result

# The AI SDK


_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S", re.IGNORECASE)


def _file(block: Block) -> Media | None:
    kind, url, data = block.get("mediaType") or block.get("mimeType"), block.get("url"), block.get("data")
    if isinstance(data, str) and data.startswith(("http://", "https://", "data:")):
        url, data = data, None
    if not isinstance(kind, str):
        if not isinstance(url, str) or not url.startswith("data:"):
            return None
        kind = ""  # the URI has the type
    return media(block, kind.replace("*", ""), data=data, url=url, name=block.get("filename"))


def _reasoning(block: Block) -> Thinking | None:
    return Thinking(block["text"], block=block) if isinstance(block.get("text"), str) else None


def _tool(block: Block) -> tuple[Part, ...] | None:
    if not isinstance(id := block.get("toolCallId"), str):
        return None
    name = str(block.get("toolName") or block["type"].removeprefix("tool-"))
    call = Call(id, name, block.get("input"), block=block)
    if block.get("state") == "output-error":
        return call, Result(id, name, block.get("errorText"), True, block)
    return (call, Result(id, name, block.get("output"), False, block)) if "output" in block else (call,)


def _tool_call(block: Block) -> Call:
    return Call(str(block.get("toolCallId") or ""), str(block.get("toolName") or ""), block.get("input"), block=block)


def _tool_result(block: Block) -> Result:
    output = block.get("output")
    kind = output.get("type") if isinstance(output, dict) else None
    value = output.get("value") if isinstance(output, dict) and "value" in output else output
    failed = kind in ("error-text", "error-json")
    return Result(str(block.get("toolCallId") or ""), str(block.get("toolName") or ""), value, failed, block)


def _source(block: Block) -> Source:
    url, title = block.get("url"), block.get("title")
    return Source(url if isinstance(url, str) else None, title if isinstance(title, str) else None, block)


def _written_file(part: Media, _: Note) -> Block | None:
    if part.uri is None or not _URI.match(part.uri):
        return None
    kind = f"{part.type}*" if part.type.endswith("/") else part.type or "application/octet-stream"
    named = {"filename": part.name} if part.name else {}
    return {"type": "file", "mediaType": kind, "url": part.uri, **named}


_DOCUMENT: Final = {"sourceId": "", "mediaType": "application/octet-stream", "title": ""}
"""The fields without which the AI SDK refuses a page with a `source-document`."""


def _written_source(part: Source, _: Note) -> Block:
    block = part.block or {}
    valid = {
        name: value for name, value in block.items() if isinstance(value, dict if name == "providerMetadata" else str)
    }
    if valid.get("type") == "source-document":
        return _DOCUMENT | valid
    titled = {"title": part.title} if part.title else {}
    return {"type": "source-url", "sourceId": valid.get("sourceId") or part.url or "", "url": part.url or "", **titled}


def tool_part(call: Call, id: str | None = None) -> Block:
    """Return a call as a part of a UI message, with another id if it is not None."""
    arguments = call.arguments
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:  # a model can write text that is not JSON
        arguments = call.arguments
    id = call.id if id is None else id
    return {"type": f"tool-{call.name}", "toolCallId": id, "input": arguments, "state": "input-available"}


def output(result: Result, note: Note) -> Block:
    """Return the fields that a result adds to the part of its call."""
    if result.failed:
        return {"state": "output-error", "errorText": plain_result(result, note)}
    return {"state": "output-available", "output": result.content}


def _ran(part: Native, _: Note) -> Block | None:
    """Return a call of a tool that the provider itself ran."""
    if part.form == "aisdk":
        return part.block  # type: ignore[no-any-return]
    return tool_part(part.like) | {"providerExecuted": True} if isinstance(part.like, Call) else None


AISDK: Final = Form(
    "aisdk",
    {
        "file": _file,
        "reasoning": _reasoning,
        "source-url": _source,
        "source-document": _source,
        "tool-call": _tool_call,
        "tool-result": _tool_result,
        "tool-*": _tool,
        "dynamic-tool": _tool,
        "step-start": lambda _: (),
        "data-*": lambda block: Native("aisdk", block) if "data" in block else None,
    },
    {
        Text: lambda part, _: {"type": "text", "text": part.text},
        Media: _written_file,
        Call: lambda part, _: tool_part(part),
        Result: lambda part, note: tool_part(Call(part.id or "", part.name or "tool")) | output(part, note),
        Thinking: lambda part, _: {"type": "reasoning", "text": part.text} if part.text else None,
        Refusal: left_out,
        Source: _written_source,
        Native: _ran,
    },
    {
        "user": (Text, Media),
        "assistant": (Text, Media, Call, Result, Thinking, Source, Native),
        "tool": (Text, Media),
        "system": (Text,),
    },
)

# AG-UI

_KINDS: Final = {"image": "image/", "audio": "audio/", "video": "video/", "document": PDF}


def _input(block: Block) -> Media | None:
    source = block.get("source")
    if not isinstance(source, dict) or not isinstance(value := source.get("value"), str):
        return None
    field = "url" if source.get("type") == "url" else "data"
    name = block.get("metadata", {}).get("filename") if isinstance(block.get("metadata"), dict) else None
    return media(block, source.get("mimeType") or _KINDS[block["type"]], name=name, **{field: value})


def _binary(block: Block) -> Media | None:
    if not isinstance(kind := block.get("mimeType"), str):
        return None
    return media(block, kind, data=block.get("data"), url=block.get("url"), name=block.get("filename"))


def _written_input(part: Media, _: Note) -> Block | None:
    if part.uri is None:
        return None
    kind = part.type.partition("/")[0]
    source = {"type": "data", "value": part.data} if part.data else {"type": "url", "value": part.url}
    typed = {"mimeType": part.type} if not part.type.endswith("/") and part.type else {}
    if part.data and not typed:
        return None
    named = {"metadata": {"filename": part.name}} if part.name else {}
    return {"type": kind if kind in _KINDS else "document", "source": source | typed, **named}


def agui_call(part: Call, id: str) -> Block:
    """Return a call of an answer, with its id on the page."""
    arguments = part.arguments if isinstance(part.arguments, str) else json.dumps(part.arguments)
    return {"id": id, "type": "function", "function": {"name": part.name, "arguments": arguments}}


def agui_result(part: Result, id: str | None, note: Note) -> Block:
    """Return a result as a message without an id, for the call with an id on the page."""
    written = {"role": "tool", "toolCallId": id or "", "content": plain_result(part, note)}
    return written | {"metadata": {"failed": True}} if part.failed else written


AGUI: Final = Form(
    "agui",
    {**dict.fromkeys(_KINDS, _input), "binary": _binary},
    {
        Text: lambda part, _: {"type": "text", "text": part.text},
        Media: _written_input,
        Call: lambda part, _: agui_call(part, part.id),
        Result: lambda part, note: agui_result(part, part.id, note),
        Thinking: lambda part, _: {"role": "reasoning", "content": part.text} if part.text else None,
        Refusal: left_out,
        Source: left_out,
        Native: left_out,
    },
    {
        "user": (Text, Media),
        "assistant": (Text, Call, Result, Thinking),
        "tool": (Text,),
        "system": (Text,),
    },
)
