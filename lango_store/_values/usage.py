"""Sum up the usage of turns, which is any JSON, and format it for people."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final


def total(usages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up usages field by field, including nested fields. For a field without numbers, return its last value."""
    summed: dict[str, Any] = {}
    for usage in usages:
        add_usage(summed, usage)
    return summed


def add_usage(summed: dict[str, Any], usage: Mapping[str, Any]) -> None:
    """Add a usage to a total. If only some usages have a number in a field, its total is the sum of these."""
    for name, value in usage.items():
        existing = summed.get(name)
        if type(value) in _NUMBERS:
            summed[name] = existing + value if type(existing) in _NUMBERS else value
        elif type(existing) in _NUMBERS:
            continue
        elif type(value) is dict:
            if type(existing) is not dict:
                existing = summed[name] = {}
            add_usage(existing, value)
        elif type(existing) is not dict and (value is not None or existing is None):
            summed[name] = value


_NUMBERS: Final = {int, float}


def numbers_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the fields of a usage that are numbers, including those in nested fields."""
    return {
        name: numbers_of(value) if type(value) is dict else value
        for name, value in usage.items()
        if type(value) is dict or type(value) in _NUMBERS
    }


def numbers_by_path(usage: Mapping[str, Any], prefix: str = "") -> dict[str, int | float]:
    """Return the numbers of a usage by dotted names, such as `input_tokens_details.cached_tokens`."""
    numbers: dict[str, int | float] = {}
    for name, value in usage.items():
        if type(value) in _NUMBERS:
            numbers[prefix + name] = value
        elif type(value) is dict:
            numbers |= numbers_by_path(value, f"{prefix}{name}.")
    return numbers


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
"""For each name of ours, the names that OpenAI, Anthropic, Google and pydantic-ai use."""

TOKENS: Final = tuple(_SPELLINGS)

_COSTS: Final = ("cost_usd", "total_cost_usd")


def tokens(numbers: Mapping[str, int | float]) -> list[int]:
    """Return the count of each kind in `TOKENS`; `numbers` may be sums of usages with the same field names."""
    return [int(next((numbers[name] for name in names if name in numbers), 0)) for names in _SPELLINGS.values()]


def cost(numbers: Mapping[str, int | float], prices: Mapping[str, float] | None) -> float | None:
    """Return the stored cost in dollars, or the cost at these prices per million units; None without either."""
    if stored := [float(numbers[name]) for name in _COSTS if name in numbers]:
        return stored[0]
    return None if prices is None else sum(numbers.get(name, 0) * price for name, price in prices.items()) / 1_000_000


def describe(usage: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each field as text, such as `input_tokens 4,950` or `cost $0.30`, with the path of nested fields."""
    for name, value in usage.items():
        if isinstance(value, dict):
            yield from describe(value, f"{prefix}{name}.")
        elif type(value) in _NUMBERS and prefix + name in _COSTS:
            yield "cost $" + (f"{value:.6f}".rstrip("0").rstrip(".") if 0 < value < 0.1 else f"{value:,.2f}")
        elif type(value) in _NUMBERS:
            yield f"{prefix}{name} {value if isinstance(value, int) else round(value, 6):,}"
        else:
            yield f"{prefix}{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
