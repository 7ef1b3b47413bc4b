"""Attachments: media types, base64 and data URIs."""

import re
from mimetypes import guess_type
from typing import Any, Final

from lango_store.content.parts import Block, Media

PDF: Final = "application/pdf"
IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The types of images that each provider reads."""

_DATA_URI: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
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

    A data URI becomes data; data become standard base64, and the type its common name. Many forms name only the URL of
    an image: its type is then that of its file extension.
    """
    type = type if isinstance(type, str) else ""
    if isinstance(url, str) and url[:5].lower() == "data:" and (match := _DATA_URI.fullmatch(url)):
        type, data, url = match[1] or type, match[2], None
    kind = type.partition(";")[0].strip().lower()
    if isinstance(url, str) and (not kind or kind.endswith("/")):
        guessed = guess_type(url.partition("?")[0])[0] or ""
        kind = guessed if guessed.startswith(kind) else kind
    data, url, name, file = (each if isinstance(each, str) and each else None for each in (data, url, name, file))
    issuer = issuer if file else None
    return Media(_ALIASES.get(kind, kind), data and _standard(data), url, name, file, issuer, block)


def _standard(data: str) -> str:
    """Return base64 in the standard alphabet, with padding, without line breaks."""
    if "-" in data or "_" in data:
        data = data.translate(_TO_STANDARD)
    if "\n" in data:
        data = "".join(data.split())
    return data + "=" * (-len(data) % 4)


def full_type(part: Media) -> str | None:
    """Return the media type, guessed from the URL if only its beginning is known; None if it cannot be guessed."""
    if part.type and not part.type.endswith("/"):
        return part.type
    guessed = guess_type(part.url)[0] if part.url else None
    return guessed if guessed and guessed.startswith(part.type) else None


def is_web(url: str | None) -> bool:
    """Return True for a URL that any provider can load."""
    return url is not None and url.startswith(("https://", "http://"))
