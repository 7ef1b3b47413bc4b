"""The usage of turns, which is free JSON: summed, and as text for people."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def total(usages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sum usages field by field, nested ones too; of fields that are not numbers the last value is returned."""
    summed: dict[str, Any] = {}
    for usage in usages:
        _add(summed, usage)
    return summed


def _add(summed: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for name, value in usage.items():
        there = summed.get(name)
        if isinstance(value, dict):
            if there is None:
                there = summed[name] = {}
            if isinstance(there, dict):
                _add(there, value)
        elif _is_number(value) and _is_number(there):
            summed[name] = there + value
        elif there is None or not (value is None or _is_number(there) or isinstance(there, dict)):
            summed[name] = value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def describe(usage: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each field as its name and value, nested ones by their path: `input_tokens 4,950`, `cost.usd 0.3`."""
    for name, value in usage.items():
        if isinstance(value, dict):
            yield from describe(value, f"{prefix}{name}.")
        elif _is_number(value):
            yield f"{prefix}{name} {value if isinstance(value, int) else round(value, 6):,}"
        else:
            yield f"{prefix}{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
