"""Attachments: media types, base64 and data URIs."""

import re
from base64 import b64encode
from mimetypes import guess_type
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from lango_store.content.parts import Block, Media

PDF: Final = "application/pdf"
IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The types of images that each provider reads."""

_DATA_URI: Final = re.compile(r"data:([^,]*?)(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)
_BASE64: Final = re.compile("[A-Za-z0-9+/]+={0,2}")
_TEXTS: Final = re.compile(
    r"text/.*|image/svg\+xml|application/(.*[+])?(json|xml|yaml)"
    r"|application/(x-)?(javascript|ecmascript|typescript|toml|sql|sh|ndjson|jsonl|jsonlines|yaml)"
)
_BEGINNINGS: Final = {
    "iVBORw0KGg": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "JVBERi0": "application/pdf",
}  # fmt: skip
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    **dict.fromkeys(("audio/x-wav", "audio/wave", "audio/vnd.wave"), "audio/wav"),
}
_TO_STANDARD: Final = str.maketrans("-_", "+/")


def media(
    block: Block,
    type: Any,
    *,
    data: Any = None,
    url: Any = None,
    name: Any = None,
    file: Any = None,
    issuer: Any = None,
) -> Media:
    """Return an attachment.

    A data URI becomes data; data become standard base64, and the type its common name, or for an image that of the
    data: providers compare them. What is no base64 is left out. Many forms name only the URL of an image: its type is
    then that of its file extension.
    """
    type = type if isinstance(type, str) else ""
    if isinstance(url, str) and url[:5].lower() == "data:" and (match := _DATA_URI.fullmatch(url)):
        type, data, url = match[1] or type or "text/plain", match[3], None
        if not match[2] or "%" in data:
            decoded = unquote_to_bytes(data.encode("utf-8", "surrogatepass"))
            data = decoded.decode("ascii", "replace") if match[2] else b64encode(decoded).decode()
    kind = type.partition(";")[0].strip().lower()
    if isinstance(url, str) and (not kind or kind.endswith("/")):
        guessed = guess_type(url.partition("?")[0])[0] or ""
        kind = guessed if guessed.startswith(kind) else kind
    data, url, name, file = (each if isinstance(each, str) and each else None for each in (data, url, name, file))
    issuer = issuer if file else None
    data = data and _standard(data)
    if data and (kind.startswith("image/") or kind in ("", "application/octet-stream")):
        kind = _type_of(data) or kind
    return Media(_ALIASES.get(kind, kind), data, url, name, file, issuer, block)


def _standard(data: str) -> str | None:
    """Return base64 in the standard alphabet, with padding, without white space; None if it is no base64."""
    if "-" in data or "_" in data:
        data = data.translate(_TO_STANDARD)
    if "\n" in data or " " in data:
        data = "".join(data.split())
    data += "=" * (-len(data) % 4)
    return data if _BASE64.fullmatch(data) else None


def _type_of(data: str) -> str | None:
    """Return the media type of data that begin with the bytes of an image or a PDF."""
    if data.startswith("UklGR") and data[12:16] == "RUJQ":  # RIFF, then its size and WEBP
        return "image/webp"
    return next((kind for beginning, kind in _BEGINNINGS.items() if data.startswith(beginning)), None)


def is_text(type: str) -> bool:
    """Return True for a media type whose data are text, which a model can read as such."""
    return _TEXTS.fullmatch(type) is not None


def full_type(part: Media) -> str | None:
    """Return the media type, guessed from the URL if only its beginning is known; None if it cannot be guessed."""
    if part.type and not part.type.endswith("/"):
        return part.type
    guessed = guess_type(part.url)[0] if part.url else None
    return guessed if guessed and guessed.startswith(part.type) else None


def is_web(url: str | None) -> bool:
    """Return True for a URL that any provider can load."""
    return url is not None and url.startswith(("https://", "http://"))
