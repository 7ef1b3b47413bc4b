"""`python -m benchmarks.expiry`: a million expired messages, against a bare batched DELETE of the same rows."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import sqlalchemy as sa

from benchmarks.figures import note
from benchmarks.turns import databases
from lango_store import Message, Store, create_engine

FILL = {
    "sqlite": (
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {sessions}) "
        "INSERT INTO lango_session (key, created_at, updated_at, expires_at, ttl_seconds, last_seq, message_count) "
        "SELECT 'old:' || n, t, t, t, 60, 10, 10 FROM (SELECT n, "
        "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 1750000000 + n, 'unixepoch') AS t FROM c)",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 10) "
        "INSERT INTO lango_message (session_key, seq, role, text, created_at) "
        "SELECT key, n, 'user', hex(zeroblob(150)), created_at FROM lango_session, c "
        "WHERE key LIKE 'old:%'",
    ),
    "postgresql": (
        "INSERT INTO lango_session (key, created_at, updated_at, expires_at, ttl_seconds, last_seq, message_count) "
        "SELECT 'old:' || n, t, t, t, 60, 10, 10 FROM (SELECT n, to_timestamp(1750000000 + n) AS t "
        "FROM generate_series(1, {sessions}) AS n) AS x",
        "INSERT INTO lango_message (session_key, seq, role, text, created_at) "
        "SELECT key, n, 'user', repeat('0', 300), created_at FROM lango_session, generate_series(1, 10) AS n "
        "WHERE key LIKE 'old:%%'",
    ),
}

BARE = (
    "DELETE FROM lango_session WHERE key IN "
    "(SELECT key FROM lango_session WHERE expires_at <= {now} ORDER BY expires_at LIMIT 500)"
)
NOW = {"sqlite": "'2100-01-01'", "postgresql": "now()"}

PURGE = """
import json, resource, sys, time
from lango_store import Store
with Store(sys.argv[1]) as store:
    first = []
    def on_batch(report):
        if report.batches == 5:
            first.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    report = store.expire(on_batch=on_batch)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first[0] if first else 0
    print(json.dumps({"seconds": report.seconds, "sessions": report.sessions, "messages": report.messages,
                      "grown_mb": grown / 1024, "batches": report.batches}))
"""


def fill(engine: sa.Engine, sessions: int) -> None:
    """Write expired sessions of ten messages each."""
    with engine.begin() as connection:
        for statement in FILL[engine.dialect.name]:
            connection.exec_driver_sql(statement.replace("{sessions}", str(sessions)))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def bare(engine: sa.Engine) -> float:
    """Delete the expired sessions with plain statements, batch by batch; return the seconds."""
    start = time.perf_counter()
    statement = BARE.format(now=NOW[engine.dialect.name])
    while True:
        with engine.begin() as connection:
            if not connection.exec_driver_sql(statement).rowcount:
                return time.perf_counter() - start


def purged(url: str, messages: int) -> dict[str, float]:
    """Purge the expired sessions with the store, in a separate process; return the report."""
    done = subprocess.run([sys.executable, "-c", PURGE, url], check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, float] = json.loads(done.stdout)
    assert report["messages"] == messages
    return report


def longest_append(store: Store, stop: threading.Event) -> list[float]:
    """Append to another session during the purge; return the seconds of each append."""
    store.open("other")
    taken = []
    while not stop.wait(0.01):
        start = time.perf_counter()
        store.append_message("other", Message(role="user", content="hi"))
        taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    """Measure on both databases, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.expiry", description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000, help="of ten messages each")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--write", action="store_true", help="put the ratios into docs/figures.json and the pages")
    options = parser.parse_args()
    with databases(options.database) as urls:
        for name, url in urls.items():
            engine = create_engine(url)
            ratios, reports, waits = [], [], []
            fill(engine, options.sessions)
            bare(engine)  # not measured: it grows the file to its final size
            for number in range(options.rounds):
                by_hand = 0.0
                for mine in (True, False) if number % 2 else (False, True):
                    fill(engine, options.sessions)
                    if mine:
                        report = purged(url, options.sessions * 10)
                    else:
                        by_hand = bare(engine)
                ratios.append(report["seconds"] / by_hand)
                reports.append(report)
            fill(engine, options.sessions // 4)
            stop = threading.Event()
            with Store(url) as store:
                appending = threading.Thread(target=lambda: waits.extend(longest_append(store, stop)))  # noqa: B023
                appending.start()
                ends = [time.perf_counter()]
                store.expire(on_batch=lambda _: ends.append(time.perf_counter()))  # noqa: B023
                stop.set()
                appending.join()
            batches = [end - start for start, end in pairwise(ends)]
            print(
                f"{name}: {reports[0]['sessions']:,} sessions, {reports[0]['messages']:,} messages in "
                f"{statistics.median(r['seconds'] for r in reports):.1f} s, "
                f"{statistics.median(ratios):.2f} of a bare batched DELETE; memory grew by "
                f"{max(r['grown_mb'] for r in reports):.1f} MB; the longest append meanwhile took "
                f"{max(waits) * 1e3:.0f} ms, the longest batch {max(batches) * 1e3:.0f} ms"
            )
            if options.write:
                what = f"purge of {options.sessions * 10:,} messages against a bare batched DELETE"
                note(name, what, statistics.median(ratios))
            engine.dispose()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
