"""The names of nanobot's files: lossy once, base64url today."""

from __future__ import annotations

import base64
import re
from typing import Final

NAME: Final = "nanobot"
SUFFIX: Final = ".jsonl"

_UNSAFE: Final = re.compile(r'[<>:"/\\|?*]')


def file_name(key: str, generation: str) -> str:
    """Return the name under which a generation of nanobot looks for a session."""
    stem = _encoded(key) if generation == "g2" else _UNSAFE.sub("_", key).strip()
    return f"{stem}{SUFFIX}"


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def decoded(stem: str) -> str | None:
    """Return the key that a name of today says, None if it is not such a name."""
    try:
        key = base64.urlsafe_b64decode(stem + "=" * (-len(stem) % 4)).decode()
    except ValueError:
        return None
    return key if key and _encoded(key) == stem else None


def key_of_name(stem: str, generation: str) -> str:
    """Guess the key of a file that does not say it, as its generation does."""
    if generation == "g0":
        return stem.replace("_", ":")
    return decoded(stem) or stem.replace("_", ":", 1)
