"""Find the part of a value that is not JSON."""

import json
from typing import Any, Final

from lango_store.errors import InvalidValue

_MAX_SHOWN: Final = 60

JSON_REMEDY: Final = (
    "JSON holds text, numbers, true, false, null, lists and dicts with text keys, at most 200 levels deep: "
    "convert it first (model_dump(mode='json'), str(), list())"
)


def no_json(value: Any, field: str, reason: str) -> InvalidValue:
    """Return the error for a value that is not JSON, with the path of the first part that is not."""
    path, part, reason = _first_fault(value) or ("", value, reason)
    return InvalidValue(field, f"{type(part).__name__} {reason}; {JSON_REMEDY}", place=path)


def _first_fault(value: Any) -> tuple[str, Any, str] | None:
    """Return path, value and reason of the first part that is not JSON; None if every part is."""
    if not isinstance(value, dict | list):
        reason = _fault_of_scalar(value)
        return ("", value, reason) if reason else None
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(name, str):
            return "", value, f"has the key {_shortened(repr(name))}, not text"
        if fault := _first_fault(item):
            path, part, reason = fault
            return _step(name) + path, part, reason
    return None


def _fault_of_scalar(value: Any) -> str | None:
    try:
        return None if json.loads(json.dumps(value, allow_nan=False)) == value else "does not survive as JSON"
    except (ValueError, TypeError, RecursionError) as error:
        return f"is not JSON ({error})"


def _step(name: str | int) -> str:
    is_short_name = isinstance(name, str) and name.isidentifier() and len(name) <= _MAX_SHOWN
    return f".{name}" if is_short_name else f"[{_shortened(repr(name))}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def levels_within(value: Any, limit: int) -> bool:
    """Return True if lists and dicts are nested at most `limit` levels deep."""
    level = [value]
    for _ in range(limit):
        nested = {  # by id, so that a value that contains another value many times is not counted many times
            id(item): item
            for container in level
            if isinstance(container, (dict, list))
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, (dict, list))
        }
        if not nested:
            return True
        level = list(nested.values())
    return False
