"""Sum up the usage of turns, which is any JSON, and format it for people."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def total(usages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add up usages field by field, including nested fields. For a field without numbers, return its last value."""
    summed: dict[str, Any] = {}
    for usage in usages:
        _add(summed, usage)
    return summed


def _add(summed: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for name, value in usage.items():
        existing = summed.get(name)
        if isinstance(value, dict):
            if existing is None:
                existing = summed[name] = {}
            if isinstance(existing, dict):
                _add(existing, value)
        elif _is_number(value) and _is_number(existing):
            summed[name] = existing + value
        elif existing is None or not (value is None or _is_number(existing) or isinstance(existing, dict)):
            summed[name] = value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe(usage: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each field as text: `input_tokens 4,950`, or for a nested field with its path `cost.usd 0.3`."""
    for name, value in usage.items():
        if isinstance(value, dict):
            yield from describe(value, f"{prefix}{name}.")
        elif _is_number(value):
            yield f"{prefix}{name} {value if isinstance(value, int) else round(value, 6):,}"
        else:
            yield f"{prefix}{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
