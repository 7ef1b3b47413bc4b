"""`python -m benchmarks.large_strings [--rounds 5]`: what payloads save in size, time and memory.

Each measurement runs with the default, with payloads from 4,096 characters, and without payloads, in turns: a workflow
whose pauses repeat all earlier tool outputs, the end of a session with many images, a session with outputs of tools of
4 to 16 kB, and messages that have no large string.
"""

from __future__ import annotations

import argparse
import base64
import random
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.turns import databases
from lango_store import UNSET, Conversation, Message, Store, Unset

PAUSES, OUTPUT = 100, 12_000
IMAGES, IMAGE = 73, 1_500_000
"""The numbers of images, and the bytes of each: 146 MB as data URIs."""

SHORT, OUTPUTS = 600, 1_000

THRESHOLDS: Final[dict[str, int | None | Unset]] = {"default": UNSET, "4,096": 4_096, "no payloads": None}


def _noise(size: int, seed: int) -> str:
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


def pauses() -> list[Message]:
    """Make records of a workflow: each repeats the outputs of all earlier ones."""
    outputs = {f"step {n}": {"output": _noise(OUTPUT, n)[:OUTPUT]} for n in range(PAUSES)}
    names = list(outputs)
    states = [{name: outputs[name] for name in names[: number + 1]} for number in range(PAUSES)]
    return [Message(role="record", extra={"state": state}) for state in states]


def images() -> list[Message]:
    """Make messages with images, and then short messages."""
    urls = [f"data:image/png;base64,{_noise(IMAGE, number)}" for number in range(IMAGES)]
    return [Message.user([{"type": "image_url", "image_url": {"url": url}}]) for url in urls] + short()


def outputs() -> list[Message]:
    """Make outputs of tools that differ, 18 % of them with 4 to 16 kB and the others with 1 kB."""
    sizes = [random.Random(n).randrange(4_096, 16_000) if n % 50 < 9 else 1_000 for n in range(OUTPUTS)]
    return [Message.user(_noise(size, number)[:size]) for number, size in enumerate(sizes)]


def short() -> list[Message]:
    """Make short messages."""
    return [Message.user(f"message {number}") for number in range(SHORT)]


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _append(conversation: Conversation, messages: list[Message]) -> None:
    for message in messages:
        conversation.append_message(message)


WORKLOADS: Final[dict[str, tuple[Callable[[], list[Message]], Callable[[Conversation], object]]]] = {
    "100 pauses: all": (pauses, lambda each: each.all_messages()),
    "146 MB: history": (images, lambda each: each.history(last=50)),
    "146 MB: get": (images, lambda each: each.get()),
    "outputs: get": (outputs, lambda each: each.get()),
    "short: history": (short, lambda each: each.history(last=50)),
    "short: get": (short, lambda each: each.get()),
}


def compare(url: str, rounds: int, table: Table, database: str) -> None:
    """Add rows with the figures of a database."""
    stores = {name: Store(url, payload_threshold=threshold) for name, threshold in THRESHOLDS.items()}
    for workload, (make, read) in WORKLOADS.items():
        messages = make()
        conversations, sizes = {name: store.open() for name, store in stores.items()}, {}
        filled: dict[str, list[float]] = {name: [] for name in stores}
        taken: dict[str, list[float]] = {name: [] for name in stores}
        for number in range(max(rounds // 2, 1)):
            for name, store in list(stores.items())[:: 1 if number % 2 else -1]:
                before = store.stats().bytes
                conversations[name] = conversation = store.open()
                filled[name].append(_seconds(partial(_append, conversation, messages)))
                sizes[name] = store.stats().bytes - before
        for number in range(rounds):
            for name in list(stores)[:: 1 if number % 2 else -1]:
                taken[name].append(_seconds(partial(read, conversations[name])))
        for name, conversation in conversations.items():
            seconds = f"{min(filled[name]):.2f}", f"{median(filled[name]):.2f}"
            read_ms = f"{min(taken[name]) * 1e3:.2f}", f"{median(taken[name]) * 1e3:.2f}"
            peak = _peak(partial(read, conversation)) / 1e6
            table.add_row(database, workload, name, f"{sizes[name] / 1e6:.1f}", *seconds, *read_ms, f"{peak:.1f}")
    for store in stores.values():
        store.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    table = Table("database", "workload", "payloads", "MB stored", "s to append", "median", "ms to read", "median")
    table.add_column("peak MB")
    with databases({"sqlite", "postgresql"}) as urls:
        for name, url in urls.items():
            compare(url, rounds, table, name)
    console = Console()
    console.width = max(console.width, 120)  # also if the output is a file
    console.print(table)


if __name__ == "__main__":
    main()
