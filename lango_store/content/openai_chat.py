"""The messages of OpenAI's chat completions, and of the servers that are compatible with them."""

import json
from collections.abc import Sequence
from typing import Any, Final

from lango_store.content.form import Entry, Form, Note, kept, left_out
from lango_store.content.media import IMAGES, PDF, is_web, media
from lango_store.content.parts import Block, Call, Media, Native, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import written, written_result

_AUDIO: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}
_ARGUMENTS: Final = {"function": "arguments", "custom": "input"}


_LINKED: Final = {"image_url": "image/", "video_url": "video/", "audio_url": "audio/", "document_url": PDF}
"""Attachments by URL, in the form of OpenAI or of compatible servers."""


def _linked(block: Block) -> Media | None:
    kind = "image_url" if block["type"] == "input_image" else block["type"]
    value = block.get(kind)
    url = value.get("url") if isinstance(value, dict) else value
    return media(block, _LINKED[kind], url=url, file=block.get("file_id"), issuer="openai")


def _audio(block: Block) -> Media | None:
    audio = block.get("input_audio")
    return media(block, f"audio/{audio.get('format', '')}", data=audio.get("data")) if isinstance(audio, dict) else None


def _file(block: Block) -> Media | None:
    file = block.get("file") if block["type"] == "file" else block
    if not isinstance(file, dict):
        return None
    data, url = file.get("file_data"), file.get("file_url")
    if isinstance(data, str) and data[:5].lower() == "data:":
        data, url = None, data
    name, id = file.get("filename"), file.get("file_id")
    return media(block, PDF, data=data, url=url, name=name, file=id, issuer="openai")


def _nested_call(block: Block) -> Call | None:
    body = block.get(kind := block["type"])
    if not isinstance(body, dict):
        return None
    extra = {"type": "custom"} if kind == "custom" else {}
    arguments = body.get(_ARGUMENTS[kind])
    return Call(str(block.get("id") or ""), str(body.get("name") or ""), arguments, extra, block)


def image_of(part: Media) -> str | None:
    """Return the URL or the data URI of an image that OpenAI can load."""
    is_known = part.is_image and (is_web(part.url) or (part.data and part.type in IMAGES))
    return part.uri if is_known else None


def _written_media(part: Media, _: Note) -> Block | None:
    if uri := image_of(part):
        image = part.block.get("image_url") if part.block else None
        detail = {"detail": image["detail"]} if isinstance(image, dict) and "detail" in image else {}
        return kept({"type": "image_url", "image_url": {"url": uri, **detail}}, part, "cache_control")
    if part.type in _AUDIO and part.data:
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": _AUDIO[part.type]}}
    if part.file and part.issuer == "openai" and not part.is_image:
        return {"type": "file", "file": {"file_id": part.file}}
    if part.type == PDF and part.data:
        return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": part.uri}}
    return None


def written_call(part: Any, _: Note | None = None) -> Block:
    """Return a call in its nested form, with the fields of its `extra`."""
    extra = {name: value for name, value in part.extra.items() if name != "failed"}
    kind = "custom" if extra.get("type") == "custom" else "function"
    value = {} if part.arguments is None and kind == "function" else part.arguments
    arguments = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    body = {"name": part.name, _ARGUMENTS[kind]: arguments} | extra.pop(kind, {})
    return {"id": part.id, "type": kind, kind: body} | extra


def note_failure(part: Result, note: Note) -> None:
    """Name a failure, for which OpenAI has no field."""
    if part.failed:
        note("only the text of the result says that the tool failed")


def _written_result(part: Result, note: Note) -> Block:
    note_failure(part, note)
    block = {"role": "tool", "content": written_result(OPENAI, part, note), "tool_call_id": part.id, "name": part.name}
    return {name: value for name, value in block.items() if value or name == "content"}


def render(entries: Sequence[Entry]) -> list[Block]:
    """Return the messages of a request."""
    return [
        _written_result(entry.parts[0], entry.note) if entry.role == "tool" else _message(entry) for entry in entries
    ]


def _message(entry: Entry) -> Block:
    parts, calls, thinking = entry.parts, [], {}
    role = "system" if entry.role == "developer" else entry.role
    if role == "assistant" and not (len(parts) == 1 and type(parts[0]) is Text):
        calls = [written_call(part) for part in parts if type(part) is Call]
        own = [part for part in parts if type(part) is Thinking and part.issuer == "openai"]
        if text := "\n\n".join(part.text for part in own if not part.block):
            thinking["reasoning_content"] = text
        thinking |= {name: value for part in own if part.block for name, value in part.block.items()}
        parts = [part for part in parts if type(part) is not Call and part not in own]
    content = written(OPENAI, parts, role, entry.note)
    message: Block = {"role": entry.role, "content": content or (None if calls and entry.message.content != "" else "")}
    message |= thinking
    if calls:
        message["tool_calls"] = calls
    if entry.name:
        message["name"] = entry.name
    return message


OPENAI: Final = Form(
    "openai",
    {
        **dict.fromkeys((*_LINKED, "input_image"), _linked),
        "input_audio": _audio,
        "file": _file,
        "input_file": _file,
        "function": _nested_call,
        "custom": _nested_call,
        "refusal": lambda block: Refusal(block["refusal"], block) if isinstance(block.get("refusal"), str) else None,
    },
    {
        Text: lambda part, _: kept({"type": "text", "text": part.text}, part, "cache_control"),
        Media: _written_media,
        Call: written_call,
        Result: _written_result,
        Thinking: left_out,
        Refusal: lambda part, _: {"type": "refusal", "refusal": part.text},
        Source: left_out,
        Native: left_out,
    },
    {"user": (Text, Media), "assistant": (Text, Refusal, Call), "tool": (Text,), "system": (Text,)},
    render,
)
