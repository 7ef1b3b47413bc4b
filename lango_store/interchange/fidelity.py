"""Round-trip differences: the parts of a foreign JSON object that our fields cannot represent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from lango_store._operations.rows import encode_message
from lango_store._rows.encoding import checked_key, encode_id, encode_json, encode_text
from lango_store._values.model import Message, MessageRole
from lango_store.errors import InvalidValue

_ROLES: Final = {role.value: role for role in MessageRole if role is not MessageRole.RECORD}
"""The roles of other systems. A record is ours alone: their messages with that role have to be exported again."""


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values have the same text; with `==`, true equals 1 and 1 equals 1.0."""
    return one is other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def difference(original: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return what turns the object that we would write into the original: `fields` to set, names that are `absent`."""
    fields = {name: value for name, value in original.items() if name not in written or not same(value, written[name])}
    absent = [name for name in written if name not in original]
    return ({"fields": fields} if fields else {}) | ({"absent": absent} if absent else {})


def restored(written: Mapping[str, Any], difference: Mapping[str, Any]) -> dict[str, Any]:
    """Return the original, from what we would write and the difference."""
    absent = difference.get("absent") or ()
    return {
        name: value for name, value in {**written, **mapping(difference.get("fields"))}.items() if name not in absent
    }


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged, an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def known_role(word: Any) -> MessageRole | None:
    """Return the role that a word stands for, None if it is not one of ours."""
    return _ROLES.get(word) if isinstance(word, str) else None


def check_key(key: Any) -> str:
    """Return a key that a session can have; `InvalidKey` for any other value."""
    return checked_key(key)


def check_message(message: Message) -> None:
    """Raise `InvalidMessage` if a message cannot be stored."""
    encode_message(message)


def is_storable_json(value: Any) -> bool:
    """Return whether a value can be stored as JSON."""
    try:
        encode_json(value, "value")
    except InvalidValue:
        return False
    return True


def is_storable_text(value: Any) -> bool:
    """Return whether a value is a text that a column can store."""
    try:
        return isinstance(value, str) and encode_text(value, "text") is not None
    except InvalidValue:
        return False


def storable_text(value: Any) -> str | None:
    """Return a text that a column can store, None for any other value, the empty text too."""
    return value if value and is_storable_text(value) else None


def storable_id(value: Any) -> str | None:
    """Return an id that an index can hold, None for any other value."""
    try:
        return encode_id(value) if isinstance(value, str) else None
    except InvalidValue:
        return None
