"""The contents of Gemini's generateContent in JSON, whose fields may have either spelling, and the events of ADK."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from lango_store.content.form import Entry, Form, Note, left_out, own
from lango_store.content.media import media
from lango_store.content.parts import Block, Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import plain, read
from lango_store.content.text import as_object

_SIGNATURES: Final = ("thought_signature", "thoughtSignature")
_KEPT: Final = ("video_metadata", "videoMetadata", "media_resolution", "mediaResolution")
_NATIVE: Final = ("executable_code", "executableCode", "code_execution_result", "codeExecutionResult")
_PLACEHOLDER: Final = b64encode(b"skip_thought_signature_validator").decode()
"""The documented signature of a call that another model made: newer models refuse a call of the current turn without
one."""


def signature_of(fields: Block) -> str | None:
    """Return Gemini's thought signature of a part or of the `extra` of a call."""
    for name in _SIGNATURES:
        if isinstance(fields.get(name), str):
            return str(fields[name])
    inner = fields.get("google") if "google" in fields else fields.get("extra_content")
    return signature_of(inner) if isinstance(inner, dict) else None


def _part(block: Block) -> Part | None:
    """Read a part: it has no type, and one field that tells its kind."""
    if block.get("thought") is True:
        return Thinking(_name(block, "text"), signature_of(block), "gemini", block)
    for name in ("inline_data", "inlineData", "file_data", "fileData"):
        if isinstance(body := block.get(name), dict):
            kind = body.get("mime_type") or body.get("mimeType")
            url = body.get("file_uri") or body.get("fileUri")
            return media(block, kind, data=body.get("data"), url=url, name=body.get("display_name"))
    for name in ("function_call", "functionCall"):
        if isinstance(body := block.get(name), dict):
            signature = signature_of(block)
            extra = {} if signature is None else {"thought_signature": signature}
            return Call(_name(body, "id"), _name(body, "name"), body.get("args"), extra, block)
    for name in ("function_response", "functionResponse"):
        if isinstance(body := block.get(name), dict):
            response = body.get("response")
            failed = has_error(response)
            content = response["error"] if failed else response  # type: ignore[index]
            return Result(_name(body, "id") or None, _name(body, "name") or None, content, failed, block)
    if any(name in block for name in _NATIVE):
        return Native("gemini", block)
    return None


def has_error(response: Any) -> bool:
    """Return True for the response of a function that failed."""
    return isinstance(response, dict) and response.keys() == {"error"}


def _name(body: Block, name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def _signed(block: Block, fields: Block) -> Block:
    signature = signature_of(fields)
    return block if signature is None else {**block, "thought_signature": signature}


def _written_text(part: Text, _: Note) -> Block:
    return _signed({"text": part.text}, part.block or {})


def _written_media(part: Media, _: Note) -> Block | None:
    named = {} if part.type.endswith("/") or not part.type else {"mime_type": part.type}
    if part.data and named:
        written = {"inline_data": {**named, "data": part.data}}
    elif part.url:
        written = {"file_data": {"file_uri": part.url, **named}}
    else:
        return None
    block = part.block or {}
    return _signed(written | {name: block[name] for name in _KEPT if name in block}, block)


def _written_call(part: Call, _: Note) -> Block:
    return _signed({"function_call": {"name": part.name, "args": as_object(part.arguments)}}, part.extra)


def _written_result(part: Result, note: Note) -> Block:
    content = part.content
    if not isinstance(content, dict) or (part.failed and not has_error(content)):
        text = plain(read(content, is_data=True), _silent if _is_data(content) else note)
        content = {"error" if part.failed else "result": text}
    return {"function_response": {"name": part.name, "response": content}}


def _is_data(content: Any) -> bool:
    found = read(content, is_data=True)
    return len(found) == 1 and isinstance(found[0], Native) and not found[0].form


def _silent(_: str) -> None:
    """The output of a tool may be any JSON, which is no repair."""


def render(entries: Sequence[Entry]) -> list[Block]:
    """Return the contents of a request."""
    contents: list[Block] = []
    names: dict[str | None, str] = {}
    for entry in entries:
        is_model, is_result = entry.role == "assistant", entry.role == "tool"
        role = "model" if is_model else "user"
        parts = entry.parts
        if is_result:
            parts = [replace(part, name=names[part.id]) for part in parts if isinstance(part, Result)]
        calls = entry.calls
        names |= {call.id: call.name for call in calls}
        blocks = GEMINI.write(parts, role if role == "user" else "assistant", entry.note)
        first = next((block for block in blocks if "function_call" in block), None)
        if first is not None and "thought_signature" not in first:
            first["thought_signature"] = _PLACEHOLDER
        # All results of a message are one content, and a call has to follow a user's content.
        if contents and contents[-1]["role"] == role and (is_result or is_model):
            contents[-1]["parts"] += blocks
        else:
            contents.append({"role": role, "parts": blocks})
    return contents


_ADMITTED: Final = (Text, Media, Call, Result, Native)
GEMINI: Final = Form(
    "gemini",
    {"": _part},
    {
        Text: _written_text,
        Media: _written_media,
        Call: _written_call,
        Result: _written_result,
        Thinking: lambda part, _: part.block if part.issuer == "gemini" else None,
        Refusal: left_out,
        Source: left_out,
        Native: own("gemini"),
    },
    {"user": _ADMITTED, "assistant": (*_ADMITTED, Thinking), "tool": (Text,), "system": (Text,)},
    render,
    has_blank_text=False,
)
ADK: Final = replace(GEMINI, name="adk", readers={}, render=None)
"""The events of ADK, which have Gemini's parts."""
