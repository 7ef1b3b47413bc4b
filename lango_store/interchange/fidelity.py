"""Lossless conversion of JSON from other systems: strict parsing, checks, and data that has no field of ours."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from lango_store import Message, MessageRole
from lango_store.errors import InvalidValue, quoted
from lango_store.interchange.draft import Skipped
from lango_store.rows import (
    MAX_LEVELS,
    checked_key,
    encode_json,
    encode_message,
    levels_within,
    mapping,
    reject_constant,
)

_ROLES: Final = {role.value: role for role in MessageRole if role is not MessageRole.RECORD}
"""The roles of messages of other systems. `record` is excluded: as a record, such a message would not be exported."""


def same(one: Any, other: Any) -> bool:
    """Return True if two JSON values have the same text. With `==`, true would equal 1, and 1 would equal 1.0."""
    return one is other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def difference(original: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that turn `written` into the original object: `fields` to set, `absent` names to remove."""
    fields = {name: value for name, value in original.items() if name not in written or not same(value, written[name])}
    absent = [name for name in written if name not in original]
    return ({"fields": fields} if fields else {}) | ({"absent": absent} if absent else {})


def restored(written: Mapping[str, Any], difference: Mapping[str, Any]) -> dict[str, Any]:
    """Return the original object, from the object that we would write and its difference from the original."""
    absent = difference.get("absent") or ()
    return {
        name: value for name, value in {**written, **mapping(difference.get("fields"))}.items() if name not in absent
    }


def known_role(word: Any) -> MessageRole | None:
    """Return the role with this name, None if the role is unknown."""
    return _ROLES.get(word) if isinstance(word, str) else None


def read_role(word: Any, skipped: list[Skipped], line: int, subject: str) -> MessageRole:
    """Return the role with this name. An unknown role is reported in `skipped`, and `user` is returned."""
    role = known_role(word)
    if role is None:
        skipped.append(Skipped(line, f"{subject}: the role {quoted(word)} is unknown: stored as user"))
    return role or MessageRole.USER


def is_call(value: Any) -> bool:
    """Return True if a value is a tool call in OpenAI's form, with an id and the name of a function."""
    function = mapping(mapping(value).get("function"))
    return isinstance(mapping(value).get("id"), str) and isinstance(function.get("name"), str)


def as_text(value: Any) -> str:
    """Return a text unchanged, "" for None, and any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_bytes(text: str) -> bytes:
    """Encode JSON as UTF-8. A lone surrogate, which UTF-8 cannot encode, becomes an escape of JSON."""
    return text.encode("utf-8", "backslashreplace")


def check_key(key: Any) -> str:
    """Return a valid session key unchanged. Raises `InvalidKey` for any other value."""
    return checked_key(key)


def check_message(message: Message) -> None:
    """Raise `InvalidMessage` if a message cannot be stored."""
    encode_message(message)


def is_storable_json(value: Any) -> bool:
    """Return True if a value can be stored as JSON."""
    try:
        encode_json(value, "value")
    except InvalidValue:
        return False
    return True


LEVELS: Final = MAX_LEVELS + 10
"""The maximum nesting of a line or member: the maximum of a field, and the levels around the field."""


class NotJson(ValueError):
    """A text is not valid JSON, for example because it is incomplete."""


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has a name twice")
    return value


STRICT: Final[dict[str, Any]] = {
    "parse_constant": reject_constant,
    "parse_float": _finite,
    "object_pairs_hook": _unique_names,
}
"""Options of a JSON decoder that reject NaN, numbers too large for a float, and objects with duplicate names."""


def read_json(text: str, *, levels: int = LEVELS, strict: bool = True) -> Any:
    """Return the value of a JSON text. Raises `NotJson`, or another ValueError if the value cannot be stored.

    Without `strict`, Python's NaN and Infinity are accepted, and the last of several equal names counts.
    """
    with json_errors(levels):
        value = json.loads(text, **(STRICT if strict else {}))
    check_levels(value, text, 0, len(text), levels)
    return value


@contextmanager
def json_errors(levels: int) -> Iterator[None]:
    """Translate the errors of a JSON decoder, see `read_json`."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise NotJson(f"is not JSON ({error})") from None
    except ValueError as error:
        raise ValueError(f"cannot be read ({error})") from None
    except RecursionError:
        raise _too_deep(levels) from None


def check_levels(value: Any, text: str, start: int, end: int, levels: int = LEVELS) -> None:
    """Raise ValueError if a value, which was read from a part of a text, is nested too deep."""
    if text.count("[", start, end) + text.count("{", start, end) > levels and not levels_within(value, levels):
        raise _too_deep(levels)


def _too_deep(levels: int) -> ValueError:
    return ValueError(f"is nested more than {levels} levels deep")
