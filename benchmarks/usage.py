"""`python -m benchmarks.usage [--turns 1000000]`: the time of `Store.usage`, and of a loop by hand."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import Any

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.turns import databases
from lango_store import Store

USAGE = (
    '{"input_tokens": 1800, "output_tokens": 250, "total_tokens": 2050, '
    '"input_tokens_details": {"cached_tokens": 1024}, "output_tokens_details": {"reasoning_tokens": 64}}'
)
USERS, DAYS, TURNS_OF_A_SESSION = 1_000, 30, 20

NUMBERS = {
    "sqlite": "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c)",
    "postgresql": "(SELECT n FROM generate_series(1, {count}) AS n)",
}
TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000+00:00', {seconds}, 'unixepoch')",
    "postgresql": "to_timestamp({seconds})",
}
FILL = (
    "INSERT INTO lango_session (key, user_id, model, created_at, updated_at, turn_count, last_seq) "
    "SELECT 's' || n, 'user ' || (n % {users}), 'gpt-x', t, t, {length}, 0 "
    "FROM (SELECT n, {time} AS t FROM {numbers} c) d",
    "INSERT INTO lango_turn (session_key, turn_no, kind, first_seq, last_seq, usage, created_at) "
    "SELECT key, n, 'turn', 1, 0, '{usage}', created_at FROM lango_session, {numbers} c",
)

ROWS = {
    name: f"SELECT s.user_id, {day}, CAST(t.usage AS text) FROM lango_turn t "
    "JOIN lango_session s ON s.key = t.session_key"
    for name, day in {
        "sqlite": "substr(t.created_at, 1, 10)",
        "postgresql": "to_char(t.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    }.items()
}


def fill(engine: sa.Engine, turns: int) -> None:
    """Write sessions of some turns each, a thirtieth of them on each day."""
    name = engine.dialect.name
    sessions = turns // TURNS_OF_A_SESSION
    seconds = f"1750000000 + n * {DAYS * 86_400 // sessions}"
    with engine.begin() as connection:
        for statement, count in zip(FILL, (sessions, TURNS_OF_A_SESSION), strict=True):
            values = {"users": USERS, "length": TURNS_OF_A_SESSION, "usage": USAGE}
            values |= {"time": TIME[name].format(seconds=seconds), "numbers": NUMBERS[name].format(count=count)}
            connection.execute(sa.text(statement.format(**values).replace(":", r"\:")))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def by_hand(engine: sa.Engine) -> list[dict[str, Any]]:
    """Add up the usage by user and day with a loop over the rows of a driver."""
    with closing(engine.raw_connection()) as connection:
        cursor: Any = connection.cursor()
        cursor.execute(ROWS[engine.dialect.name])
        sums: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: {"turns": 0, "usage": {}})
        for user, day, usage in cursor:
            group = sums[user, day]
            group["turns"] += 1
            add(group["usage"], json.loads(usage))
    return list(sums.values())


def add(total: dict[str, Any], usage: dict[str, Any]) -> None:
    """Add the numbers of a usage."""
    for name, value in usage.items():
        if isinstance(value, dict):
            add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


def measure(store: Store, turns: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each report the seconds of each round, and the processor seconds of this process in it."""
    reports: dict[str, Callable[[], Collection[Any]]] = {
        ", ".join(by) or "all turns": partial(store.usage, by) for by in (("user_id", "day"), ("day",), ("key",), ())
    }
    reports["user_id, day by hand"] = partial(by_hand, store.engine)
    taken = defaultdict(list)
    for _ in range(rounds):
        for name, report in reports.items():
            started, processed = time.perf_counter(), time.process_time()
            rows = report()
            taken[name].append((time.perf_counter() - started, time.process_time() - processed))
            assert sum(row["turns"] if isinstance(row, dict) else row.turns for row in rows) == turns
    return taken


def main() -> None:
    """Measure on both databases, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.usage", description=__doc__)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    options = parser.parse_args()
    table = Table(title=f"usage of {options.turns:,} turns", title_justify="left")
    for column in ("database", "report", "seconds", "of them in this process"):
        table.add_column(column, justify="left" if column in ("database", "report") else "right")
    with databases(options.database) as urls:
        for name, url in urls.items():
            with Store(url) as store:
                fill(store.engine, options.turns)
                taken = measure(store, options.turns, options.rounds)
            for report, each in taken.items():
                elapsed, own = map(statistics.median, zip(*each, strict=True))
                table.add_row(name, report, f"{elapsed:.2f}", f"{own:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
