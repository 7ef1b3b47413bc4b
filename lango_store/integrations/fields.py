"""Helpers for adapters.

They compare JSON values, and build session keys from a framework's ids.
"""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from lango_store.rows import key_level, storable_text

_ABSENT: Final = object()

_ESCAPED: Final = re.compile("[:%/\0\ud800-\udfff]")


def turn_metadata(models: Iterable[Any]) -> dict[str, Any] | None:
    """Return a turn's metadata, with the last of these models for `Store.usage`; None if no model is known."""
    names = [name for name in map(storable_text, models) if name]
    return {"model": names[-1]} if names else None


def same_json(one: Any, other: Any) -> bool:
    """Return True if two JSON values have the same text, ignoring the order of names.

    With `==`, true would equal 1, and 1 would equal 1.0. Parts that are the same Python object are not compared, so
    values with shared parts compare quickly.
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        if len(one) != len(other):
            return False
        for name, value in one.items():
            counterpart = other.get(name, _ABSENT)
            if counterpart is not value and not same_json(value, counterpart):
                return False
        return True
    if kind is list:
        return len(one) == len(other) and all(map(same_json, one, other))
    if kind is float:
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)


def joined_key(*parts: str, prefix: str = "") -> str:
    """Return a session key made of several ids: `prefix`, then the escaped ids, separated by `:`."""
    return prefix + ":".join(map(escaped, parts))


def split_key(key: str, prefix: str = "") -> list[str]:
    """Return the ids of a key that `joined_key` made with this prefix."""
    return [unquote(part, errors="surrogatepass") for part in key.removeprefix(prefix).split(":")]


def level_key(id: str, prefix: str = "") -> str:
    """Return a session key with the id as one level: `prefix`, then the id with `%` and `/` escaped."""
    return prefix + key_level(id)


def level_id(key: str, prefix: str = "") -> str | None:
    """Return the id of a key that `level_key` made; None for a key with another prefix or with more levels."""
    id = unquote(key.removeprefix(prefix))
    return id if level_key(id, prefix) == key else None


def escaped(part: str, characters: re.Pattern[str] = _ESCAPED) -> str:
    """Percent-escape characters of a text, by default those that an id in a key must not contain."""
    return characters.sub(_percent, part)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
