"""The contents of Gemini's generateContent in JSON, whose fields may have either spelling, and the events of ADK."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from lango_store.content.form import ARRANGED, ATTACHED, Entry, Form, Note, left_out, own
from lango_store.content.media import IMAGES, PDF, full_type, is_text, is_web, media
from lango_store.content.parts import Block, Call, Media, Native, Part, Refusal, Result, Source, Text, Thinking
from lango_store.content.reading import plain_result
from lango_store.content.text import as_object, as_text

SIGNATURES: Final = ("thought_signature", "thoughtSignature")
_KEPT: Final = ("video_metadata", "videoMetadata", "media_resolution", "mediaResolution")
_NATIVE: Final = (
    "executable_code", "executableCode", "code_execution_result", "codeExecutionResult", "tool_call", "toolCall",
    "tool_response", "toolResponse",
)  # fmt: skip
_READ: Final = (IMAGES - {"image/gif"}) | {"image/heic", "image/heif", PDF}
"""The types of images and documents that Gemini reads, besides audio and video."""
_FILES: Final = "https://generativelanguage.googleapis.com/"
_THOUGHTS: Final = frozenset({"text", "inline_data", "inlineData"})
"""The fields of which a thought has one: Gemini refuses a part without data."""
PLACEHOLDER: Final = b64encode(b"skip_thought_signature_validator").decode()
"""The documented signature of a call that another model made: newer models refuse a call of the current turn without
one."""


def signature_of(fields: Block) -> str | None:
    """Return Gemini's thought signature of a part or of the `extra` of a call."""
    for name in SIGNATURES:
        if isinstance(fields.get(name), str):
            return str(fields[name])
    inner = fields.get("google") if "google" in fields else fields.get("extra_content")
    return signature_of(inner) if isinstance(inner, dict) else None


def unsigned(fields: Block) -> Block:
    """Return a part or the `extra` of a call without its thought signature."""
    names = (*SIGNATURES, "google", "extra_content")
    return {name: value for name, value in fields.items() if name not in names}


def _part(block: Block) -> Part | None:
    """Read a part: it has no type, and one field that tells its kind."""
    if block.get("thought") is True:
        return Thinking(_name(block, "text"), signature_of(block), "gemini", block)
    for name in ("inline_data", "inlineData", "file_data", "fileData"):
        if isinstance(body := block.get(name), dict):
            kind = body.get("mime_type") or body.get("mimeType")
            url = body.get("file_uri") or body.get("fileUri")
            where = {"file" if str(url).startswith(_FILES) else "url": url}
            title = body.get("display_name") or body.get("displayName")
            return media(block, kind, data=body.get("data"), name=title, issuer="gemini", **where)
    for name in ("function_call", "functionCall"):
        if isinstance(body := block.get(name), dict):
            signature = signature_of(block)
            extra = {} if signature is None else {"thought_signature": signature}
            return Call(_name(body, "id"), _name(body, "name"), body.get("args"), extra, block)
    for name in ("function_response", "functionResponse"):
        if isinstance(body := block.get(name), dict):
            return _response(body, block)
    if any(isinstance(block.get(name), dict) for name in _NATIVE):
        return Native("gemini", block)
    return None


def has_error(response: Any) -> bool:
    """Return True for the response of a function that failed."""
    return isinstance(response, dict) and response.keys() == {"error"}


def _response(body: Block, block: Block) -> Result:
    """Read a response, which is an object: the only field of one is the error or the text that a tool returned."""
    content: Any = body.get("response")
    failed = has_error(content)
    if failed:
        content = content["error"]
    if isinstance(content, dict) and content.keys() == {"result"} and isinstance(content["result"], str):
        content = content["result"]
    content = _with_media(content, body.get("parts"))
    return Result(_name(body, "id") or None, _name(body, "name") or None, content, failed, block)


def _with_media(content: Any, media: Any) -> Any:
    """Return the content of a response together with its pictures and files."""
    if not isinstance(media, list):
        return content
    return [*([{"type": "text", "text": as_text(content)}] if content else []), *media]


def _name(body: Block, name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def _signed(block: Block, fields: Block) -> Block:
    signature = signature_of(fields)
    return block if signature is None else {**block, "thought_signature": signature}


def _written_text(part: Text, _: Note) -> Block | None:
    block = _signed({"text": part.text}, part.block or {})
    return block if part.text.strip() or len(block) > 1 else None  # a signature may come with an empty text


def _written_media(part: Media, _: Note) -> Block | None:
    kind = full_type(part)
    named = {"mime_type": kind} if kind else {}
    if kind and not (kind in _READ or kind.startswith(("audio/", "video/", "text/"))):
        return None
    if part.data and kind and not is_text(kind):
        written = {"inline_data": {**named, "data": part.data}}
    elif part.file and part.issuer == "gemini":
        written = {"file_data": {"file_uri": part.file, **named}}
    elif part.url and (is_web(part.url) or part.url.startswith("gs://")):
        written = {"file_data": {"file_uri": part.url, **named}}
    else:
        return None
    block = part.block or {}
    return _signed(written | {name: block[name] for name in _KEPT if name in block}, block)


def _written_thinking(part: Thinking, _: Note) -> Block | None:
    return part.block if part.issuer == "gemini" and part.block and not _THOUGHTS.isdisjoint(part.block) else None


def _written_call(part: Call, _: Note) -> Block:
    return _signed({"function_call": {"name": part.name, "args": as_object(part.arguments)}}, part.extra)


def _written_result(part: Result, note: Note) -> Block:
    content = part.content
    for name in ("function_response", "functionResponse"):
        own = part.block.get(name) if part.block else None
        if isinstance(own, dict) and isinstance(own.get("response"), dict) and isinstance(own.get("parts"), list):
            response = {"response": own["response"], "parts": own["parts"]}
            return {"function_response": {"name": part.name, **response}}
    if not isinstance(content, dict) or (part.failed and not has_error(content)):
        content = {"error" if part.failed else "result": plain_result(part, note)}
    return {"function_response": {"name": part.name, "response": content}}


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
            first["thought_signature"] = PLACEHOLDER
        # All results of a message are one content, and a call has to follow a user's content.
        if contents and contents[-1]["role"] == role and (is_result or is_model):
            contents[-1]["parts"] += blocks
        else:
            contents.append({"role": role, "parts": blocks})
    return contents


_ADMITTED: Final = (Text, Media, Call, Result)
GEMINI: Final = Form(
    "gemini",
    {"": _part},
    {
        Text: _written_text,
        Media: _written_media,
        Call: _written_call,
        Result: _written_result,
        Thinking: _written_thinking,
        Refusal: left_out,
        Source: left_out,
        Native: own("gemini"),
    },
    {"user": _ADMITTED, "assistant": (*_ADMITTED, Thinking, Native), "tool": (Text,), "system": (Text,)},
    render,
)
ADK: Final = replace(GEMINI, name="adk", readers={}, render=None)
"""The events of ADK, which have Gemini's parts."""


def _arrange(rest: Any, found: list[Part], calls: list[Call]) -> list[Part] | None:
    """Put calls where they were among the parts of an event, and give them their signatures."""
    content = rest.get("content")
    layout = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(layout, list) or sum(map(_is_call, layout)) != len(calls):
        return None
    if len(layout) != len(found) + len(calls):
        return None
    blocks, asked = iter(found), iter(calls)
    return [_with_signature(next(asked), each) if _is_call(each) else next(blocks) for each in layout]


def _is_call(rest: Any) -> bool:
    return isinstance(rest, dict)


def _with_signature(call: Call, rest: Block) -> Call:
    signature = signature_of(rest)
    return call if signature is None else replace(call, extra=call.extra | {"thought_signature": signature})


def _attach(rest: Any, results: list[Result]) -> list[Result]:
    """Give results the pictures and files of the event that they are from."""
    content = rest.get("content")
    layout = content.get("parts") if isinstance(content, dict) else None
    bodies = [each.get("function_response") for each in layout or () if isinstance(each, dict)]
    if len(bodies) != len(results):
        return results
    return [
        replace(
            result,
            content=_with_media(result.content, body["parts"]),
            block={"function_response": {"response": result.content, **body}},
        )
        if isinstance(body, dict) and isinstance(body.get("parts"), list)
        else result
        for result, body in zip(results, bodies, strict=True)
    ]


ARRANGED["google_adk"] = _arrange
ATTACHED["google_adk"] = _attach
