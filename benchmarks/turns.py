"""Contenders in separate processes, with interleaved rounds on temporary databases."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lango_store import schema

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.places import fast_folder as fast_folder
from support.postgres_server import PostgresServer


class Worker:
    """A contender in a separate process, for `works` or for `lines`."""

    def __init__(self, kind: str, name: str, url: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.worker", kind, name, url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, **order: Any) -> Any:
        """Send a command to the process, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} died at {order}: see its output above")
        return json.loads(answer)

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def in_turns(workers: list[Worker], rounds: int) -> dict[str, list[float]]:
    """Run the prepared work of the workers in turns, so that a drift of the machine's speed affects all of them."""
    found: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for worker in workers:
        worker.say(run=0)  # not counted
    for number in range(rounds):
        for worker in workers if number % 2 else workers[::-1]:
            found[worker.name].append(worker.say(run=number))
    return found


def ratio(of: list[float], to: list[float]) -> float:
    """Return the median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


@contextmanager
def databases(chosen: Collection[str], without_fsync: Collection[str] = ()) -> Iterator[dict[str, str]]:
    """Make the databases, equally durable for all: on a disk with fsync, or without what an fsync costs.

    Without fsync, the files are in memory, where an fsync has nothing to do, whichever library calls it. PostgreSQL
    also has a setting for it.
    """
    where = fast_folder() if "sqlite" in without_fsync else None
    with tempfile.TemporaryDirectory(prefix="lango-bench-", dir=where) as folder:
        urls = {"SQLite": f"sqlite:///{folder}/bench.db"} if "sqlite" in chosen else {}
        server = PostgresServer(fsync="postgresql" not in without_fsync) if "postgresql" in chosen else None
        try:
            if server is not None:
                urls["PostgreSQL"] = server.url()
            for url in urls.values():
                schema.upgrade(url)
            yield urls
        finally:
            if server is not None:
                server.stop()
