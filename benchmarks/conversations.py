"""`python -m benchmarks.conversations`: forks, histories and saved turns, compared with simpler calls."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from benchmarks import payload
from benchmarks.figures import note
from benchmarks.turns import databases
from lango_store import Conversation, Message, Store
from lango_store.tables import Base

Work = Callable[[], object]

_numbers = itertools.count()


def timed(work: Work) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(rounds: int, ours: Work, other: Work, after: Work) -> tuple[float, float]:
    """Return the medians of `ours / other` and of the seconds of `ours`; `after` cleans up, and is not measured."""
    found: list[tuple[float, float]] = []
    for number in range(rounds + 2):
        first, second = (ours, other) if number % 2 else (other, ours)
        times = {first: timed(first)}
        after()
        times[second] = timed(second)
        after()
        found.append((times[ours], times[other]))
    median = statistics.median(mine / theirs for mine, theirs in found[2:])
    return median, statistics.median(mine for mine, _ in found[2:])


def filled(store: Store, key: str, number: int) -> Conversation:
    """Open a session with that many messages."""
    conversation = store.open(key)
    if not conversation.info().message_count:
        for start in range(0, number, 1_000):
            made = [Message.model_validate(each) for each in payload.messages(min(1_000, number - start), start)]
            conversation.append_messages(made)
    return conversation


def copied_by_hand(engine: sa.Engine, source: str) -> None:
    """Copy a session with two statements, as a person would in a database shell."""
    new = f"copy:{next(_numbers)}"
    with engine.begin() as connection:
        for table, key in (("lango_session", "key"), ("lango_message", "session_key")):
            listed = ", ".join(column.name for column in Base.metadata.tables[table].c if column.name != key)
            connection.exec_driver_sql(
                f"INSERT INTO {table} ({key}, {listed}) SELECT '{new}', {listed} FROM {table} WHERE {key} = '{source}'"
            )


def fork(conversation: Conversation) -> None:
    """Fork a session to a key like those of `copied_by_hand`."""
    conversation.fork(f"copy:{next(_numbers)}")


def nothing() -> None:
    """Do nothing: there is nothing to clean up."""


def main() -> None:
    """Measure on both databases, and print a line for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversations", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--write", action="store_true", help="put the ratios into docs/figures.json and the pages")
    options = parser.parse_args()
    with databases(options.database) as urls:
        for name, url in urls.items():
            with Store(url) as store:
                small, middle, large = (filled(store, f"{n}", n) for n in (100, 10_000, 100_000))
                turns, appends = store.open("turns"), store.open("appends")
                two = [Message.model_validate(each) for each in payload.messages(2)]

                works: dict[str, tuple[Work, Work, Work, int]] = {
                    "fork of 10,000 messages against a bare INSERT … SELECT": (
                        partial(fork, middle),
                        partial(copied_by_hand, store.engine, middle.key),
                        partial(store.delete_where, key_prefix="copy:"),
                        1,
                    ),
                    "history(last=50) of 100,000 messages against 100": (
                        partial(large.history, last=50),
                        partial(small.history, last=50),
                        nothing,
                        10,
                    ),
                    "save_turn of two messages with usage against append_messages": (
                        partial(turns.save_turn, two, {"input_tokens": 10, "output_tokens": 5}),
                        partial(appends.append_messages, two),
                        nothing,
                        10,
                    ),
                }
                for what, (ours, other, tidy, times) in works.items():
                    found, seconds = ratio(options.rounds * times, ours, other, tidy)
                    print(f"{name}: {what}: {found:.2f} ({seconds * 1e3:.2f} ms)")
                    if options.write:
                        note(name, what, found)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
