"""Encode and decode roles, JSON, texts and times, in the same way for all databases."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from pydantic_core import PydanticSerializationError, from_json, to_json

from lango_store._values.json_faults import JSON_REMEDY, levels_within, no_json
from lango_store._values.model import MessageRole
from lango_store.errors import InvalidKey, InvalidValue, quoted

MAX_KEY_LENGTH: Final = 512
MAX_ID_BYTES: Final = 512  # with the longest key, an index row of PostgreSQL can still hold it (2,704 bytes)
MAX_NAME_BYTES: Final = 2_600  # of a value's name plus its session key or scope, for the same reason
MAX_LEVELS: Final = 200
NO_CONTENT: Final = "null"
_TEXT_REMEDY: Final = "a database cannot store it in text: remove it, or store the text in `extra`"

# Roles


def encode_role(role: MessageRole | str) -> str:
    """Return the text that a database stores for a role."""
    if type(role) is MessageRole:
        return role._value_  # faster than the property `value`
    try:
        return MessageRole(role).value
    except ValueError:
        raise InvalidValue("role", f"{quoted(role)} is not one of {', '.join(MessageRole)}") from None


def decode_role(text: str) -> MessageRole:
    """Return the role of a stored text; raise ValueError for an unknown role."""
    return MessageRole(text)


# Texts


def encode_text(text: str | None, field: str) -> str | None:
    """Return a text or None; raise `InvalidValue` for a NUL, a lone surrogate or a value of another type."""
    if text is None or (type(text) is str and text.isascii() and "\0" not in text):  # fast path for most texts
        return text
    if fault := _text_fault(text):
        raise InvalidValue(field, f"{fault}; {_TEXT_REMEDY if isinstance(text, str) else 'give text, or None'}")
    return text


def encode_id(text: str | None) -> str | None:
    """Return an id or None; raise `InvalidValue` unless the id has 1 to 512 bytes in UTF-8."""
    if encode_text(text, "id") is not None and not 0 < len(str(text).encode()) <= MAX_ID_BYTES:
        raise InvalidValue(
            "id", f"has {len(str(text).encode())} bytes; an id has 1 to {MAX_ID_BYTES}: use a digest of it"
        )
    return text


def checked_key(key: str, kind: str = "session key") -> str:
    """Return a session key, scope or name, or raise `InvalidKey`."""
    if type(key) is str and 0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and "\0" not in key:
        return key  # fast path for most keys
    fault = _text_fault(key)
    if fault is None and not 0 < len(key) <= MAX_KEY_LENGTH:
        fault = f"has {len(key)} characters"
    if fault is not None:
        noun = kind.removeprefix("session ")
        raise InvalidKey(f"{kind}: {fault}; a {noun} is 1 to {MAX_KEY_LENGTH} characters of text without NUL")
    return key


def checked_keys(keys: Iterable[str], kind: str = "session key") -> list[str]:
    """Return session keys or scopes, each once, or raise `InvalidKey`."""
    if isinstance(keys, str):
        raise TypeError(f"{kind}s: {quoted(keys)} is one text: give a list")
    return list(dict.fromkeys(checked_key(key, kind) for key in keys))


def checked_name(owner: str, name: str, owner_kind: str = "session key") -> str:
    """Return the name of a value, or raise `InvalidKey` for the name or for its session key or scope."""
    checked_key(owner, owner_kind)
    checked_key(name, "name")
    if (size := len(owner.encode()) + len(name.encode())) > MAX_NAME_BYTES:
        raise InvalidKey(
            f"{owner_kind} and name {quoted(name)}: have {size:,} bytes together, more than {MAX_NAME_BYTES:,}: "
            "shorten one of them"
        )
    return name


def encode_content(content: Any) -> tuple[str | None, str | None]:
    """Return the values of the columns `text` and `content` for the content of a message; one of them is None."""
    if isinstance(content, str) and _text_fault(content) is None:
        return content if type(content) is str else str.__str__(content), None
    return None, encode_json(content, "content")


def content_fault(text: object, content: object) -> tuple[str, str] | None:
    """Return which of the columns `text` and `content` is damaged, and why; None if both are sound."""
    if text is None:
        return ("content", "is NULL, and so is text") if content is None else None
    if content is not None:
        return "content", "is not NULL, and neither is text"
    return None if isinstance(text, str) else ("text", f"is {_described(text)}, not text")


def _text_fault(text: object) -> str | None:
    if not isinstance(text, str):
        return f"is {type(text).__name__}, not text"
    if "\0" in text:
        return "holds a NUL"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds a lone surrogate"
    return None


# JSON


def encode_json(value: Any, field: str) -> str:
    """Encode a value as JSON text that decodes to an equal value, or raise `InvalidValue`.

    `to_json` accepts values that JSON does not have (tuples, sets, bytes, numbers as keys, NaN) and values that
    `from_json` cannot read (too many levels or digits), so the text is decoded again and compared. Lone surrogates,
    which `to_json` refuses, are encoded with json.dumps. The error names the path inside the value:
    `content.items[3].when`.
    """
    try:
        if type(value) is str:
            return to_json(value).decode()
        # In a list, which adds one level: from_json reads 201 levels, and we promise 200.
        text = to_json([value])
        if from_json(text, allow_inf_nan=False) != [value]:
            raise no_json(value, field, "does not survive as JSON")
        return str(memoryview(text)[1:-1], "utf-8")  # a memoryview, which does not copy a large text
    except (PydanticSerializationError, ValueError, RecursionError, TypeError) as error:
        if isinstance(error, InvalidValue):
            raise
        return _encode_surrogates(value, field)


def _encode_surrogates(value: Any, field: str) -> str:
    if not levels_within(value, MAX_LEVELS):
        raise InvalidValue(field, f"{type(value).__name__} has more than {MAX_LEVELS} levels; {JSON_REMEDY}")
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        if json.loads(text) == value:
            return text
        reason = "does not survive as JSON"
    except (ValueError, TypeError, RecursionError) as error:
        reason = f"is not JSON ({error})"
    raise no_json(value, field, reason)


def decode_json(text: str) -> Any:
    """Decode the JSON text that `encode_json` returned; raise ValueError if it is damaged."""
    if not isinstance(text, str):
        raise ValueError(f"is {_described(text)}, not text")
    try:
        return from_json(text)
    except ValueError:  # lone surrogates, or too many levels for from_json
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("is nested too deeply") from None


def reject_constant(word: str) -> Any:
    """Refuse NaN and Infinity, which are not JSON but which Python's decoder accepts."""
    raise ValueError(f"{word} is not JSON")


def _described(stored: object) -> str:
    """Describe a stored value that should be text but is not: SQLite's columns accept values of any type."""
    if not isinstance(stored, bytes):
        return type(stored).__name__
    try:
        stored.decode()
        return "bytes"
    except UnicodeDecodeError as error:
        return f"not UTF-8 ({error.reason} at byte {error.start + 1})"


# Times


@lru_cache(maxsize=16)  # rows of a batch have the same times
def encode_time_text(moment: datetime | None) -> str | None:
    """Encode a time as text for SQLite: in UTC and with six digits, so that the text sorts by time. None stays None."""
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="microseconds")


def decode_time(stored: datetime | str) -> datetime:
    """Decode a stored time to UTC; raise ValueError if it is not a time."""
    if isinstance(stored, str):
        moment = datetime.fromisoformat(stored)
    elif isinstance(stored, datetime):
        moment = stored
    else:
        raise ValueError(f"is {_described(stored)}, not a time")
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{moment} is outside the years 1 to 9999 in UTC") from None


def aware(moment: datetime, name: str) -> datetime:
    """Convert an argument to UTC; raise ValueError if it is not an aware datetime in the years 1 to 9999."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(
            f"{name}={quoted(moment)} is not a datetime with a time zone: pass one, such as "
            "datetime(2026, 1, 1, tzinfo=UTC)"
        )
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name}={moment} is outside the years 1 to 9999 in UTC: give a time within them") from None


def end_of_prefix(prefix: str) -> str:
    """Return the exclusive end of the range of keys or names that begin with a prefix."""
    for length in range(len(prefix), 0, -1):
        following = ord(prefix[length - 1]) + 1
        if following <= 0x10FFFF:
            return prefix[: length - 1] + chr(0xE000 if following == 0xD800 else following)
    return chr(0x10FFFF) * (MAX_KEY_LENGTH + 1)
