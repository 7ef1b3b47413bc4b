"""`python -m benchmarks`: a table of ratios to the floor, contenders taking turns, medians over rounds."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import payload
from benchmarks.peers import PEER_WORKS, PEERS, peer_agrees
from benchmarks.picture import Curve, draw
from benchmarks.works import CURVE_SIZES, SCALES, WORKS, contents_agree
from lango_store import schema

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from postgres_server import PostgresServer


class Worker:
    """A contender in a process of its own."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.worker", name, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, **order: Any) -> Any:
        """Give an order and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} died at {order}: what it said stands above")
        return json.loads(answer)

    def stop(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def in_turns(workers: list[Worker], rounds: int) -> dict[str, list[float]]:
    """Run the prepared work in turns, so that a machine whose speed drifts drifts for all."""
    found: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for worker in workers:
        worker.say(run=0)  # not counted
    for number in range(rounds):
        for worker in workers if number % 2 else workers[::-1]:
            found[worker.name].append(worker.say(run=number))
    return found


def ratio(of: list[float], to: list[float]) -> float:
    """Give the median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


@contextmanager
def databases(chosen: list[str]) -> Iterator[dict[str, str]]:
    """Make the databases, durable: fsync is on for everybody."""
    with tempfile.TemporaryDirectory(prefix="lango-bench-") as folder:
        urls = {"SQLite": f"sqlite:///{folder}/bench.db"} if "sqlite" in chosen else {}
        server = PostgresServer(fsync=True) if "postgresql" in chosen else None
        try:
            if server is not None:
                urls["PostgreSQL"] = server.url()
            for url in urls.values():
                schema.upgrade(url)
            yield urls
        finally:
            if server is not None:
                server.stop()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all works, more rounds, the curves up to 100,000 messages")
    parser.add_argument("--only", nargs="+", choices=list(WORKS), help="these works only")
    parser.add_argument("--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--rounds", type=int, help="that many rounds of each work")
    parser.add_argument("--orm", action="store_true", help="measure the naive ORM way too")
    parser.add_argument("--peers", action="store_true", help=f"measure {' and '.join(PEERS)} too, if installed")
    parser.add_argument("--picture", type=Path, help="draw the growth curves into this SVG file")
    options = parser.parse_args()
    console = Console()
    names = ["floor", "lango_store", *(["orm"] if options.orm else []), *(PEERS if options.peers else [])]
    with databases(options.database) as urls:
        for database, url in urls.items():
            console.print(f"{database}: {contents_agree(url)} messages compared field by field, all equal")
            for name in PEERS if options.peers else ():
                console.print(
                    f"{name}: {peer_agrees(PEERS[name](url), payload.messages(40))} contents compared, all equal"
                )
            workers = [Worker(name, url) for name in names]
            console.print(measured(database, workers, options))
            if options.picture:
                curves = list(grown(workers, CURVE_SIZES if options.full else CURVE_SIZES[:-1]))
                target = options.picture.with_stem(f"{options.picture.stem}-{database.lower()}")
                target.write_text(draw(database, curves))
                console.print(f"drawn: {target}")
            for worker in workers:
                worker.stop()


def measured(database: str, workers: list[Worker], options: argparse.Namespace) -> Table:
    """Run the works, and make a table of them."""
    table = Table(title=f"{database}, median ratio to the floor (fsync on)", title_justify="left")
    for column in ("work", "floor", *(worker.name for worker in workers[1:]), "bar", "rounds"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for name, work in WORKS.items():
        rounds = options.rounds or (work.full if options.full else work.rounds)
        if (options.only and name not in options.only) or not rounds:
            continue
        able = [worker for worker in workers if worker.name not in PEERS or name in PEER_WORKS]
        for worker in able:
            worker.say(prepare=name)
        found = in_turns(able, rounds)
        floor = found["floor"]
        ratios = [f"{ratio(found[w.name], floor):.2f}" if w in able else "" for w in workers[1:]]
        shown = f"{statistics.median(floor) * SCALES[work.unit]:.4g} {work.unit}"
        bar = work.bars[0 if database == "SQLite" else 1]
        table.add_row(work.title, shown, *ratios, f"{bar:.2f}", str(rounds))
    return table


def grown(workers: list[Worker], sizes: tuple[int, ...]) -> Iterator[Curve]:
    """Measure how append and load grow with the session."""
    for what in ("append", "load"):
        points: dict[str, list[tuple[int, float]]] = {worker.name: [] for worker in workers}
        for size in sizes:
            for worker in workers:
                worker.say(curve=[what, size])
            for name, seconds in in_turns(workers, 3 if size >= 100_000 else 7).items():
                points[name].append((size, statistics.median(seconds)))
        yield Curve(what, points)


if __name__ == "__main__":
    main()
