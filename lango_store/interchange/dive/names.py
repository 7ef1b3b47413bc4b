"""Dive's ids: names of files, so that what no file name holds is percent-escaped in them, and read back."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = "dive"

_UNSAFE: Final = re.compile(r"[/\\]|^\.$|(?<=\.)\.|%(?=2F|5C|2E|25)")
_ESCAPED: Final = re.compile(r"%(2F|5C|2E|25)")


def id_of(key: str) -> str:
    """Return the id under which Dive finds a session: its key, with `/`, `\\` and `..` escaped."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", key)


def key_of(id: str) -> str:
    """Return the key that an id stands for: itself, unless `id_of` made it."""
    key = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), id)
    return key if id_of(key) == id else id


def id_fault(id: object) -> str | None:
    """Return why Dive takes no such id, None if it takes it."""
    if not isinstance(id, str) or id in ("", "."):
        return "is not an id"
    return next((f"holds {part!r}" for part in ("..", "/", "\\") if part in id), None)
