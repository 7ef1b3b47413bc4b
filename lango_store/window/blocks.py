"""Content blocks of OpenAI, Anthropic and Gemini, and how each of them is written in the form of another provider.

The forms are those of the providers' API references: OpenAI's chat completions and responses, Anthropic's messages, and
Gemini's generateContent in JSON, whose fields may have either spelling (`inlineData`, `inline_data`).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lango_store._values.tool_blocks import SIGNATURES, signature_of

Format = Literal["openai", "openai-responses", "anthropic", "gemini"]
"""A format of prompts: that of OpenAI's chat completions (and of compatible servers), of OpenAI's responses, of
Anthropic's messages or of Gemini's contents."""

Note = Callable[[str], None]
_TEXTS: Final = frozenset({"text", "input_text", "output_text"})
_THOUGHTS: Final = {"thinking": "anthropic", "redacted_thinking": "anthropic", "reasoning": "openai-responses"}
_OWN: Final[dict[str, dict[str, frozenset[str]]]] = {
    "openai": {
        "user": frozenset({"text", "image_url", "input_audio", "file"}),
        "assistant": frozenset({"text", "refusal"}),
        "tool": frozenset({"text"}),
        "system": frozenset({"text"}),
    },
    "openai-responses": {
        "user": frozenset({"input_text", "input_image", "input_file"}),
        "tool": frozenset({"input_text", "input_image", "input_file"}),
        "system": frozenset({"input_text"}),
    },
    "anthropic": {
        "user": frozenset({"text", "image", "document", "search_result"}),
        "assistant": frozenset({"text", "thinking", "redacted_thinking"}),
        "tool": frozenset({"text", "image", "document", "search_result"}),
    },
    "gemini": {},
}
"""The types of blocks that each format admits in the messages of a role."""
_DATA_URI: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_PDF: Final = "application/pdf"
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_AUDIO: Final = {"audio/wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}


@dataclass(frozen=True)
class Media:
    """An image, a document or a recording, as its data in base64 or its URL; without either, only a provider has it."""

    type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None

    @property
    def is_image(self) -> bool:
        """If it is an image."""
        return self.type.startswith("image/")

    @property
    def uri(self) -> str | None:
        """The URL, or a data URI of the data."""
        return f"data:{self.type};base64,{self.data}" if self.data else self.url

    @property
    def label(self) -> str:
        """The name of the attachment for a model that does not get it."""
        return f"{self.type.strip('/') or 'file'} attachment" + (f" {self.name}" if self.name else "")


def is_list_of_dicts(content: Any) -> bool:
    """Return True for a list of blocks that is not empty."""
    return isinstance(content, list) and bool(content) and all(isinstance(block, dict) for block in content)


def text_of_block(block: dict[str, Any]) -> str | None:
    """Return the text of a text block, a refusal, a text document and Gemini's text part; None for any other block."""
    kind, source = block.get("type"), block.get("source")
    if kind == "refusal":
        text = block.get("refusal")
    elif kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        text = source.get("data")
    else:
        text = block.get("text") if kind in _TEXTS or (kind is None and _is_bare(block)) else None
    return text if isinstance(text, str) else None


def _is_bare(block: dict[str, Any]) -> bool:
    return {name for name, value in block.items() if value is not None} <= {"text", *SIGNATURES}


def is_thought(block: dict[str, Any]) -> bool:
    """Return True for a block of thinking or reasoning, which only its own provider reads."""
    return block.get("type") in _THOUGHTS or block.get("thought") is True


def is_blank(content: Any) -> bool:
    """Return True for a content without anything to send: no text besides white space, and no attachment."""
    if isinstance(content, str):
        return not content.strip()
    if is_list_of_dicts(content):
        return all(is_thought(block) or _is_blank_text(text_of_block(block)) for block in content)
    return content in (None, [], {})


def _is_blank_text(text: str | None) -> bool:
    return text is not None and not text.strip()


def converted(content: Any, format: Format, role: str, note: Note) -> Any:
    """Return a content in the form of a provider: text, or a list of its blocks.

    Args:
        content: Any content of a message.
        format: The format of the result.
        role: The role of the message: user, assistant, tool or system.
        note: Called with a description of each part that the format cannot express.
    """
    if content is None or isinstance(content, str) or (content in ([], {}) and role != "tool"):
        return content or ""
    if not is_list_of_dicts(content):
        if role != "tool":
            note("content that is neither text nor blocks is sent as JSON text")
        return json.dumps(content, ensure_ascii=False)
    if all(_is_own(block, format, role) for block in content):
        return content
    blocks = [_block(block, format, role, note) for block in content]
    return [block for block in blocks if block is not None] or ""


def plain(content: Any, note: Note) -> str:
    """Return a content as text, a paragraph per block, in which the names of attachments stand for them."""
    written = converted(content, "openai", "tool", note)
    return written if isinstance(written, str) else "\n\n".join(block["text"] for block in written)


def _block(block: dict[str, Any], format: Format, role: str, note: Note) -> dict[str, Any] | None:
    if is_thought(block):
        owner = _THOUGHTS.get(block.get("type", ""), "gemini")
        if owner == format and role == "assistant" and _is_sendable(block):
            return block
        note("thinking that another provider wrote, or that is not signed, is left out")
        return None
    text = text_of_block(block)
    if text is not None:
        if _is_blank_text(text) and format in ("anthropic", "gemini") and not signature_of(block):
            return None
        return block if _is_own(block, format, role) else _text(text, format, signature_of(block))
    media = media_of(block)
    if media is None:
        note(f"a block of type {block.get('type')!r} is sent as JSON text")
        return _text(json.dumps(block, ensure_ascii=False), format)
    written = block if _is_own(block, format, role) else _WRITERS[format](media)
    if written is None or not (format == "gemini" or _is_own(written, format, role)):
        note(f"{media.label} is named by a text, since the format has no form for it here")
        return _text(f"[{media.label}]", format)
    return written


def _is_own(block: dict[str, Any], format: Format, role: str) -> bool:
    return block.get("type") in _OWN[format].get(role, ()) and (format != "anthropic" or _is_sendable(block))


def _is_sendable(block: dict[str, Any]) -> bool:
    """Return True unless Anthropic refuses the block: blank text, or thinking without its signature."""
    if block.get("type") == "thinking":
        return bool(block.get("signature"))
    return not _is_blank_text(text_of_block(block))


def _text(text: str, format: Format, signature: str | None = None) -> dict[str, Any]:
    if format == "gemini":
        return {"text": text, **({} if signature is None else {"thought_signature": signature})}
    return {"type": "input_text" if format == "openai-responses" else "text", "text": text}


# Attachments


def media_of(block: dict[str, Any]) -> Media | None:
    """Return the attachment in a block of any provider; None for any other block."""
    for name in ("inline_data", "inlineData", "file_data", "fileData"):
        part = block.get(name)
        if isinstance(part, dict):
            mime_type = str(part.get("mime_type") or part.get("mimeType") or "")
            return Media(mime_type, part.get("data"), part.get("file_uri") or part.get("fileUri"))
    source, kind = block.get("source"), block.get("type")
    if kind in ("image", "document") and isinstance(source, dict):
        return Media(source.get("media_type") or f"{kind}/", source.get("data"), source.get("url"), block.get("title"))
    audio = block.get("input_audio")
    if isinstance(audio, dict):
        return Media(f"audio/{audio.get('format', '')}", audio.get("data"))
    image = block.get("image_url")
    if image is not None or kind == "input_image":
        return _from_url(image.get("url") if isinstance(image, dict) else image, "image/")
    file = block.get("file") if kind == "file" else block if kind == "input_file" else None
    if isinstance(file, dict):
        media = _from_url(file.get("file_data") or file.get("file_url"), "application/pdf")
        return replace(media, name=file.get("filename"))
    return None


def _from_url(url: Any, kind: str) -> Media:
    matched = _DATA_URI.fullmatch(url) if isinstance(url, str) else None
    if matched is not None:
        return Media(matched[1] or kind, matched[2])
    return Media(kind, url=url if isinstance(url, str) else None)


def _openai(media: Media) -> dict[str, Any] | None:
    if media.is_image and media.uri:
        return {"type": "image_url", "image_url": {"url": media.uri}}
    if media.type in _AUDIO and media.data:
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": _AUDIO[media.type]}}
    if media.type == _PDF and media.data:
        return {"type": "file", "file": {"filename": media.name or "document.pdf", "file_data": media.uri}}
    return None


def _responses(media: Media) -> dict[str, Any] | None:
    if media.is_image and media.uri:
        return {"type": "input_image", "image_url": media.uri, "detail": "auto"}
    if media.type == _PDF and media.data:
        return {"type": "input_file", "filename": media.name or "document.pdf", "file_data": media.uri}
    return {"type": "input_file", "file_url": media.url} if media.type == _PDF and media.url else None


def _anthropic(media: Media) -> dict[str, Any] | None:
    kind = "image" if media.is_image else "document" if media.type == _PDF else None
    if kind is not None and media.url:
        return {"type": kind, "source": {"type": "url", "url": media.url}}
    if kind is not None and media.data and (media.type in _IMAGES or media.type == _PDF):
        return {"type": kind, "source": {"type": "base64", "media_type": media.type, "data": media.data}}
    return None


def _gemini(media: Media) -> dict[str, Any] | None:
    named = {} if media.type.endswith("/") else {"mime_type": media.type}
    if media.data and named:
        return {"inline_data": {**named, "data": media.data}}
    return {"file_data": {"file_uri": media.url, **named}} if media.url else None


_WRITERS: Final[dict[str, Callable[[Media], dict[str, Any] | None]]] = {
    "openai": _openai,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
