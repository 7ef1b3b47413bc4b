"""`python -m benchmarks.large_strings [--rounds 5]`: what payloads save in size, time and memory.

Each measurement runs with payloads and without them (`payload_threshold=None`): a workflow whose pauses repeat all
earlier tool outputs, the end of a session with many images, and messages that have no large string.
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

from rich.console import Console
from rich.table import Table

from benchmarks.turns import databases
from lango_store import Conversation, Message, Store

PAUSES, OUTPUT = 100, 12_000
IMAGES, IMAGE = 73, 1_500_000
"""The numbers of images, and the bytes of each: 146 MB as data URIs."""

SHORT = 600


def _noise(size: int, seed: int) -> str:
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


def pause_often(conversation: Conversation) -> None:
    """Append records of a workflow: each repeats the outputs of all earlier ones."""
    outputs = {f"step {n}": {"output": _noise(OUTPUT, n)[:OUTPUT]} for n in range(PAUSES)}
    names = list(outputs)
    for number in range(PAUSES):
        state = {name: outputs[name] for name in names[: number + 1]}
        conversation.append_message(Message(role="record", extra={"state": state}))


def show_images(conversation: Conversation) -> None:
    """Append messages with images, and then short messages."""
    for number in range(IMAGES):
        url = f"data:image/png;base64,{_noise(IMAGE, number)}"
        conversation.append_message(Message.user([{"type": "image_url", "image_url": {"url": url}}]))
    say_little(conversation)


def say_little(conversation: Conversation) -> None:
    """Append short messages."""
    for number in range(SHORT):
        conversation.append_message(Message.user(f"message {number}"))


def _seconds(call: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return median(taken)


def _peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


Read = Callable[[Conversation], object]


def compare(url: str, rounds: int, table: Table, database: str) -> None:
    """Add rows with the figures of a database."""
    workloads: list[tuple[str, Callable[[Conversation], None], Read]] = [
        ("100 pauses: all", pause_often, lambda each: each.all_messages()),
        ("146 MB: history", show_images, lambda each: each.history(last=50)),
        ("short: history", say_little, lambda each: each.history(last=50)),
        ("short: get", say_little, lambda each: each.get()),
    ]
    for workload, fill, read in workloads:
        for least in (4096, None):
            with Store(url, payload_threshold=least) as store:
                before = store.stats().bytes
                conversation = store.open()
                filled = _seconds(partial(fill, conversation), 1)
                size = store.stats().bytes - before
                seconds = _seconds(partial(read, conversation), rounds)
                peak = _peak(partial(read, conversation))
                row = (f"{size / 1e6:.1f}", f"{filled:.2f}", f"{seconds * 1e3:.2f}", f"{peak / 1e6:.1f}")
                table.add_row(database, workload, "rows" if least is None else "payloads", *row)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    table = Table("database", "workload", "strings in", "MB stored", "s to append", "ms to read", "peak MB")
    with databases({"sqlite", "postgresql"}) as urls:
        for name, url in urls.items():
            compare(url, rounds, table, name)
    Console().print(table)


if __name__ == "__main__":
    main()
