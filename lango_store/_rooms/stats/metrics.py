"""Metrics in the text format of Prometheus."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from lango_store._rooms.stats.values import Stats
from lango_store._rooms.usage.values import UsageRow

_HELP: Final = {
    "sessions": "Sessions, live and expired.",
    "expired": "Sessions whose TTL has passed, and that are not purged yet.",
    "turns": "Turns, including compactions.",
    "messages": "Messages, without records.",
    "records": "Records.",
    "tokens": "Tokens of messages, without records.",
    "bytes": "Size of the tables and their indexes on disk.",
    "payload_bytes": "Size of the large strings that are stored separately from messages.",
    "owed_turns": "Turns that wait for a worker: see lango-store owed.",
    "oldest_owed_seconds": "How long the first of these turns has been due. If it grows, start more workers.",
    "given_up_turns": "Turns that were given up. Find the cause with lango-store owed, then run turns retry.",
    "unknown_calls": "Tool calls that may have run and have no result. List them with lango-store calls.",
    "unanswered_suspensions": "Suspensions that wait for an answer. List them with lango-store suspensions.",
    "input_tokens": "Tokens of prompts in the usage of turns.",
    "output_tokens": "Tokens of answers in the usage of turns.",
    "cached_tokens": "Tokens of prompts that were read from a cache, in the usage of turns.",
    "reasoning_tokens": "Tokens of answers that are reasoning, in the usage of turns.",
    "cost_usd": "Cost in dollars that is stored with the usage of turns.",
}
_USAGE: Final = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost_usd")


def tokens_and_cost(row: UsageRow) -> dict[str, int | float]:
    """Return the token counts and the cost of a row by their names, without zeros."""
    return {name: number for name in _USAGE if (number := getattr(row, name))}


def print_metrics(totals: Stats, rows: Sequence[UsageRow]) -> None:
    """Print each metric with its help text. All are gauges, because a purge deletes turns, which decreases the sums."""
    now = datetime.now(UTC)
    age = max(0.0, (now - (totals.owed_since or now)).total_seconds())  # a turn may wait for its next attempt
    used = dict.fromkeys(_USAGE, 0) | (tokens_and_cost(rows[0]) if rows else {})
    values = dict(totals) | used | {"oldest_owed_seconds": age}
    for name, text in _HELP.items():
        metric = f"lango_store_usage_{name}" if name in used else f"lango_store_{name}"
        print(f"# HELP {metric} {text}\n# TYPE {metric} gauge\n{metric} {values.get(name, 0)}")
