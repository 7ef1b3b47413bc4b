"""`python -m benchmarks.prompts [FILE ...]`: how much of each prompt a provider's cache recognizes, and at what cost.

It also prints the time of `history` in the format of each provider, compared with reading the messages.

The sessions are one of 600 messages, and each JSON file given: a list of messages with a role and a content.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from benchmarks import payload
from benchmarks.turns import databases
from lango_store import Conversation, Message, Store, window

CACHE_SECONDS = 300
CACHED_PRICE = 0.1
SETTINGS: tuple[dict[str, Any], ...] = (
    {"last": 120},
    {"last": 120, "step": 8},
    {"last": 120, "step": 32},
    {"last": 16},
    {"last": 16, "step": 8},
    {"last": 16, "step": 16},
)


def prompts(messages: Sequence[Message], conversation: Conversation, **settings: Any) -> Iterator[str]:
    """Append the messages to an empty session, and yield the prompt of each model call as JSON."""
    for message in messages:
        if message.role.canonical == "assistant":
            yield json.dumps(conversation.history(**settings), ensure_ascii=False)
        conversation.append_message(message)


def shared(before: str, after: str) -> int:
    """Return the length of `before` without its closing bracket if `after` starts with it, otherwise 0."""
    return len(before) - 1 if before and after.startswith(before[:-1]) else 0


def reuse(texts: Sequence[str]) -> float:
    """Return the share of all characters that the previous prompt already had in the same position."""
    hits = sum(shared(before, after) for before, after in pairwise(texts))
    return hits / sum(len(text) for text in texts)


def cost(texts: Sequence[str], source: random.Random) -> float:
    """Return the price of the prompts with a cache of prefixes, as a share of the price without one.

    A prefix is cached until 300 seconds after its last use. Model calls follow each other after 2 to 60 seconds, and
    every tenth after 10 minutes. Cached characters cost a tenth.
    """
    now, used, before, price = 0.0, -1e9, "", 0.0
    for text in texts:
        now += 600 if source.random() < 0.1 else source.uniform(2, 60)
        hit = shared(before, text) if now - used <= CACHE_SECONDS else 0
        price += (len(text) - hit) + hit * CACHED_PRICE
        used, before = now, text
    return price / sum(len(text) for text in texts)


def read_ratio(conversation: Conversation, rounds: int = 201) -> float:
    """Return the median time of `history(last=120, step=32)`, as a multiple of that without `step`."""
    ratios: list[float] = []
    for number in range(rounds):
        times: dict[int, float] = {}
        for step in (0, 32) if number % 2 else (32, 0):
            start = time.perf_counter()
            conversation.history(last=120, step=step or None)
            times[step] = time.perf_counter() - start
        ratios.append(times[32] / times[0])
    return statistics.median(ratios)


def format_times(conversation: Conversation, rounds: int = 51) -> dict[str, float]:
    """Return the median seconds to read the messages only, and of `history` in each format."""
    reads: dict[str, Callable[[], Any]] = {"messages()": conversation.messages}
    for format in get_args(window.Format):
        reads[f"history(format={format!r})"] = partial(conversation.history, format=format)
    times: dict[str, list[float]] = {name: [] for name in reads}
    for _ in range(rounds):
        for name, read in reads.items():
            start = time.perf_counter()
            read()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompts", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="conversations, each a JSON list of messages")
    options = parser.parse_args()
    sessions = {"600 messages": [Message.model_validate(each) for each in payload.messages(600)]}
    for file in options.files:
        each = json.loads(file.read_text())
        sessions[file.stem] = [Message(role=message["role"], content=message["content"]) for message in each]
    console = Console()
    with databases(["sqlite", "postgresql"], ["sqlite", "postgresql"]) as urls:
        for name, messages in sessions.items():
            table = Table(title=f"{name}: prompts with a cache", title_justify="left")
            for column in ("history(…)", "messages", "reused", "cost"):
                table.add_column(column, justify="left" if column == "history(…)" else "right")
            with Store(urls["SQLite"]) as store:
                for settings in SETTINGS:
                    texts = list(prompts(messages, store.open(), **settings))
                    lengths = [len(json.loads(text)) for text in texts]
                    shown = ", ".join(f"{name}={value}" for name, value in settings.items())
                    table.add_row(
                        shown,
                        f"{statistics.mean(lengths):.0f}",
                        f"{reuse(texts):.1%}",
                        f"{cost(texts, random.Random(1)):.2f}",
                    )
            console.print(table)
        for database, url in urls.items():
            with Store(url) as store:
                conversation = store.open(messages=sessions["600 messages"])
                console.print(
                    f"{database}: history(last=120, step=32) takes {read_ratio(conversation):.2f} of last=120"
                )
                thousand = store.open(messages=list(map(Message.model_validate, payload.messages(1_000))))
                for read, seconds in format_times(thousand).items():
                    console.print(f"{database}: {read} of 1,000 messages takes {seconds * 1000:.1f} ms")


if __name__ == "__main__":
    main()
