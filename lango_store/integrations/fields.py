"""JSON and texts of a framework: compared, and as values and keys that a database can hold."""

import re
from typing import Any, Final
from urllib.parse import unquote

_MAX_ID_BYTES: Final = 512
_ABSENT: Final = object()

_ESCAPED: Final = re.compile("[:%/\0\ud800-\udfff]")
_LEVELS: Final = re.compile("[%/]")


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged, an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def storable_text(value: Any) -> str | None:
    """Return a text that a column can store, None for any other value and for the empty text."""
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    return value if value.encode("utf-8", "replace").decode() == value else None


def storable_id(value: Any) -> str | None:
    """Return an id that an index can hold, None for any other value."""
    text = storable_text(value)
    return text if text is not None and len(text.encode()) <= _MAX_ID_BYTES else None


def same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values have the same text, with names in any order; with `==`, true equals 1 equals 1.0.

    Parts that are the same object are not compared, so that values with shared parts compare quickly.
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
            found = other.get(name, _ABSENT)
            if found is not value and not same_json(value, found):
                return False
        return True
    if kind is list:
        return len(one) == len(other) and all(map(same_json, one, other))
    if kind is float:
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)


def joined_key(*parts: str, prefix: str = "") -> str:
    """Return the key of several ids: `prefix`, then the parts, escaped, with `:` between them."""
    return prefix + ":".join(map(escaped, parts))


def split_key(key: str, prefix: str = "") -> list[str]:
    """Return the parts that a key with this prefix was joined of."""
    return [unquote(part, errors="surrogatepass") for part in key.removeprefix(prefix).split(":")]


def level_key(id: str, prefix: str = "") -> str:
    """Return the key of an id that is one level of a key: `prefix`, then the id with `%` and `/` escaped."""
    return prefix + escaped(id, _LEVELS)


def level_id(key: str, prefix: str = "") -> str | None:
    """Return the id that `level_key` made a key of; None for a key of another prefix or with levels below."""
    id = unquote(key.removeprefix(prefix))
    return id if level_key(id, prefix) == key else None


def escaped(part: str, characters: re.Pattern[str] = _ESCAPED) -> str:
    """Return a text with some characters percent-escaped, by default those that a part of a key must not contain."""
    return characters.sub(_percent, part)


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
