"""Session keys and scopes for what a framework names by several ids, so that no two of them meet."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from lango_store import InvalidKey

_MAX_KEY_LENGTH: Final = 512

_ESCAPED: Final = re.compile("[:%/\0\ud800-\udfff]")


def joined_key(prefix: str = "", **parts: str) -> str:
    """Return the key of what has several ids, in their order: `prefix`, then the parts with `:` between them.

    In each part `:`, `%`, `/`, NUL and lone surrogates are percent-escaped. `InvalidKey` names the longest part if the
    key gets too long.
    """
    key = prefix + ":".join(map(escaped, parts.values()))
    if len(key) > _MAX_KEY_LENGTH:
        longest = max(parts, key=lambda name: len(escaped(parts[name])))
        raise InvalidKey(
            f"session key: has {len(key)} characters, {longest} alone {len(escaped(parts[longest]))} of them; "
            f"a key has at most {_MAX_KEY_LENGTH}: shorten {longest}"
        )
    return key


def split_key(key: str, prefix: str = "") -> list[str]:
    """Return the parts that a key was joined of; ValueError if it does not begin with `prefix`."""
    if not key.startswith(prefix):
        raise ValueError(f"{key!r} does not begin with {prefix!r}")
    return [unquote(part, errors="surrogatepass") for part in key[len(prefix) :].split(":")]


def escaped(part: str, characters: re.Pattern[str] = _ESCAPED) -> str:
    """Return a text with some characters percent-escaped, by default those that a part of a key must not contain."""
    return characters.sub(_percent, part)


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
