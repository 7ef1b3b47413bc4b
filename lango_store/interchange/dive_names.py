"""Dive's ids: names of files, so that what no file name holds is percent-escaped in them, and read back."""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile(r"[/\\]|^\.$|(?<=\.)\.|%(?=2F|5C|2E|25)")
_ESCAPED: Final = re.compile(r"%(2F|5C|2E|25)")


def id_of(key: str) -> str:
    """Give the id under which Dive finds a session: its key, with `/`, `\\` and `..` escaped."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", key)


def key_of(id: str) -> str:
    """Give the key that an id stands for: itself, unless `id_of` made it."""
    key = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), id)
    return key if id_of(key) == id else id
