"""Sum up the usage of turns, which is any JSON, and format it for people."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final


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


def add_usages(summed: dict[str, Any], usages: Sequence[Mapping[str, Any]]) -> None:
    """Add the numbers of many usages to a sum, field by field; other values are left out."""
    for name in sorted({*chain.from_iterable(usages)}):
        try:
            values = [*map(itemgetter(name), usages)]  # the fastest way, if each usage has the field
        except KeyError:
            values = [usage[name] for usage in usages if name in usage]
        kinds = {*map(type, values)}
        if numbers := values if kinds <= _NUMBERS else [value for value in values if type(value) in _NUMBERS]:
            before = summed.get(name, 0)
            summed[name] = sum(numbers) + (before if _is_number(before) else 0)
        if dict in kinds and isinstance(below := summed.setdefault(name, {}), dict):
            add_usages(below, [value for value in values if isinstance(value, dict)])


_NUMBERS: Final = {int, float}

_SPELLINGS: Final = {
    "input_tokens": ("input_tokens", "prompt_tokens", "request_tokens", "prompt_token_count", "promptTokenCount"),
    "output_tokens": (
        "output_tokens",
        "completion_tokens",
        "response_tokens",
        "candidates_token_count",
        "candidatesTokenCount",
    ),
    "cached_tokens": (
        "input_tokens_details.cached_tokens",
        "prompt_tokens_details.cached_tokens",
        "cache_read_input_tokens",
        "cache_read_tokens",
        "cached_content_token_count",
        "cachedContentTokenCount",
    ),
    "reasoning_tokens": (
        "output_tokens_details.reasoning_tokens",
        "completion_tokens_details.reasoning_tokens",
        "details.reasoning_tokens",
        "thoughts_token_count",
        "thoughtsTokenCount",
    ),
}
"""By our name: the names of OpenAI, Anthropic, Google and pydantic-ai."""

_COSTS: Final = ("cost_usd", "total_cost_usd")


def tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the token counts by common names, of a usage or of the sum of usages with the same fields."""
    return {name: int(_first(usage, paths) or 0) for name, paths in _spellings(tuple(usage)).items()}


@lru_cache
def _spellings(names: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the paths that a usage with these fields can have: the sums of many groups have the same fields."""
    return {
        name: [path for path in paths if path.partition(".")[0] in names or path in names]
        for name, paths in _SPELLINGS.items()
    }


def cost(usage: Mapping[str, Any], prices: Mapping[str, float] | None) -> float | None:
    """Return the cost in dollars: the stored cost, or by prices per million units of the fields."""
    stored = _first(usage, _COSTS)
    if stored is not None or prices is None:
        return None if stored is None else float(stored)
    return sum((number_at(usage, path) or 0) * price for path, price in prices.items()) / 1_000_000


def _first(usage: Mapping[str, Any], paths: Sequence[str]) -> int | float | None:
    return next((number for path in paths if (number := number_at(usage, path)) is not None), None)


def number_at(usage: Mapping[str, Any], path: str) -> int | float | None:
    """Return the number at a dotted path of a usage; None without one. A name may contain dots too."""
    if path in usage:
        return usage[path] if _is_number(usage[path]) else None
    name, _, rest = path.partition(".")
    below = usage.get(name)
    return number_at(below, rest) if rest and isinstance(below, dict) else None


def describe(usage: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each field as text: `input_tokens 4,950`, for a nested field with its path, and `cost $0.30`."""
    for name, value in usage.items():
        if isinstance(value, dict):
            yield from describe(value, f"{prefix}{name}.")
        elif _is_number(value) and prefix + name in _COSTS:
            yield f"cost ${value:,.2f}" if value >= 1 else f"cost ${value:.2g}"
        elif _is_number(value):
            yield f"{prefix}{name} {value if isinstance(value, int) else round(value, 6):,}"
        else:
            yield f"{prefix}{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
