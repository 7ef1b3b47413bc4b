"""`python -m benchmarks.leases [--rounds 30]`: what an append in a turn costs, compared with a plain append.

Plain appends and appends under a lease alternate in one process, first of messages without an id, then with one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from benchmarks.turns import databases, ratio
from lango_store import Conversation, Message, Store

APPENDS = 200

Append = Callable[[Message], object]


@contextmanager
def _plain(conversation: Conversation) -> Iterator[Append]:
    yield conversation.append_message


@contextmanager
def _in_turn(conversation: Conversation) -> Iterator[Append]:
    with conversation.turn() as turn:
        yield turn.append


def _measure(append: Append, *, ids: bool) -> tuple[float, float]:
    """Return the seconds and the processor seconds of the appends."""
    messages = [Message.user(f"message {n}", id=f"id-{n}" if ids else None) for n in range(APPENDS)]
    started, used = time.perf_counter(), time.process_time()
    for message in messages:
        append(message)
    return time.perf_counter() - started, time.process_time() - used


def compare(url: str, rounds: int) -> dict[bool, tuple[float, float]]:
    """Return the median ratios of time and processor time, for messages without and with an id."""
    ratios: dict[bool, tuple[float, float]] = {}
    with Store(url) as store:
        for ids in (False, True):
            taken: dict[str, list[tuple[float, float]]] = {"plain": [], "turn": []}
            for number in range(rounds + 1):
                for name, block in (("plain", _plain), ("turn", _in_turn))[:: 1 if number % 2 else -1]:
                    with block(store.open()) as append:
                        taken[name].append(_measure(append, ids=ids))
            columns = [zip(*values[1:], strict=True) for values in taken.values()]
            wall, cpu = (ratio(list(turn), list(plain)) for plain, turn in zip(*columns, strict=True))
            ratios[ids] = wall, cpu
    return ratios


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    table = Table("database", "message", "time", "processor time", title="append in a turn / plain append")
    with databases({"sqlite", "postgresql"}) as urls:
        for name, url in urls.items():
            for ids, (wall, cpu) in compare(url, rounds).items():
                table.add_row(name, "with an id" if ids else "without an id", f"{wall:.3f}", f"{cpu:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
