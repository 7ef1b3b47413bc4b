"""`python -m benchmarks.search`: the cost of the search index for appends, and the time of searches."""

from __future__ import annotations

import argparse
import random
import statistics
import time

import sqlalchemy as sa

from benchmarks import payload
from benchmarks.turns import databases
from lango_store import Message, Store, schema

RARE = 100
"""The number of messages that contain the rare word."""

FILL = {
    "sqlite": (
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {messages}) "
        "INSERT INTO lango_message (session_key, seq, role, text, created_at) SELECT 'many:' || (n % 1000), n, 'user', "
        "{text}, '2026-11-22T12:00:00.000000+00:00' FROM c"
    ),
    "postgresql": (
        "INSERT INTO lango_message (session_key, seq, role, text, created_at) SELECT 'many:' || (n % 1000), n, 'user', "
        "{text}, '2026-11-22T12:00:00+00:00' FROM generate_series(1, {messages}) AS n"
    ),
}


def texts(number: int) -> str:
    """Return SQL for the text of message n: words that vary with n and, in some messages, a rare word."""
    words = [f"'word' || (n * {factor} % {vocabulary})" for factor, vocabulary in ((7, 50), (11, 997), (13, 9_973))]
    filler = payload.text(random.Random(number), 200)
    return " || ' ' || ".join([*words, f"'{filler}'", f"CASE WHEN n % {number // RARE} = 0 THEN 'needle' ELSE '' END"])


def fill(store: Store, number: int) -> None:
    """Write that many messages of 1,000 sessions."""
    for session in range(1_000):
        store.create(f"many:{session}")
    with store.engine.begin() as connection:
        statement = FILL[store.engine.dialect.name].format(messages=number, text=texts(number))
        connection.execute(sa.text(statement.replace(":' ||", r"\:' ||")))
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def appended(store: Store, key: str, number: int) -> float:
    """Append messages one by one; return the seconds of each."""
    messages = [Message.model_validate(each) for each in payload.messages(number)]
    start = time.perf_counter()
    for message in messages:
        store.append_message(key, message)
    return (time.perf_counter() - start) / number


def costs(bare: Store, indexed: Store, rounds: int) -> list[tuple[float, float]]:
    """Return the times of appends without and with the index, interleaved."""
    found = []
    for store in (bare, indexed):
        store.create("appended")
        appended(store, "appended", 100)  # not counted
    for number in range(rounds):
        took = {}
        for store in (bare, indexed) if number % 2 else (indexed, bare):
            took[store] = appended(store, "appended", 100)
        found.append((took[bare], took[indexed]))
    return found


def main() -> None:
    """Measure on both databases, and print some lines for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    options = parser.parse_args()
    with databases(options.database) as urls, databases(options.database) as others:
        for name, url in urls.items():
            with Store(url) as store, Store(others[name]) as indexed:
                schema.enable_search(indexed.engine)
                pairs = costs(store, indexed, options.rounds)
                ratio = statistics.median(indexed / bare for bare, indexed in pairs)
                bare = statistics.median(bare for bare, _ in pairs)
                print(f"{name}: an append takes {bare * 1e6:.0f} µs, with the index {ratio:.2f} of that (fsync on)")
                engine = store.engine
                fill(store, options.messages)
                start = time.perf_counter()
                made = schema.enable_search(engine)
                took = time.perf_counter() - start
                print(
                    f"{name}: {made.indexed:,} messages indexed in {took:.0f} s, {made.indexed / took:,.0f} per second"
                )
                for words in ("needle", "word1 needle", '"word1 word2"', "word1"):
                    times = []
                    for _ in range(21):
                        start = time.perf_counter()
                        store.search(words)
                        times.append(time.perf_counter() - start)
                    print(f"{name}: {words} is found in {statistics.median(times) * 1e3:.1f} ms at the median")
                fresh = store.conversation("appended")
                fresh.append_messages([Message.user("written since") for _ in range(1_000)])
                start = time.perf_counter()
                fresh.search("since")
                print(f"{name}: a search after 1,000 appends takes {(time.perf_counter() - start) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
