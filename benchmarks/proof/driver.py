"""The driver: runs trials, in which two workers write and a reader reads, and faults happen as a seed decides."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa

from benchmarks.proof import worker
from benchmarks.proof.adapter import LEASE
from benchmarks.proof.checker import check
from benchmarks.proof.proxy import Proxy
from benchmarks.proof.stores import STORES
from benchmarks.proof.worker import IN_EFFECTS, Record, note
from benchmarks.turns import databases, fast_folder

_CONTEXT = get_context("forkserver")
_PATIENCE = 0.4
"""The seconds after which an operation that waits for a stopped process lets it continue."""
_LONGEST = 60.0
FAULTS = {
    "sqlite": ("stop", "stop", "kill", "kill", "disk", "clock"),
    "postgresql": ("stop", "stop", "kill", "cut", "clock"),
}
STEPS = 24
"""Faults happen in the first that many steps of an append: calls of the SQLite driver, or packets."""


class Hand:
    """A worker process, which is started again when it was killed."""

    def __init__(self, who: str, bench: Bench, proxy: Proxy | None) -> None:
        self.who, self._bench, self._proxy = who, bench, proxy
        self._fault, self._op = "", (0, "")
        self._start()

    def _start(self) -> None:
        url = self._bench.url if self._proxy is None else self._proxy.url(self._bench.url)
        self._pipe, theirs = _CONTEXT.Pipe()
        arguments = (self._bench.name, url, self._bench.mutant, self.who, theirs)
        self._process = _CONTEXT.Process(target=worker.run, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._receive(_LONGEST)
        warm = f"w{next(_numbers)}"
        for do, *data in ("open",), ("append", ["w"]), ("read",):  # the first calls of a process take more steps
            self._pipe.send((self._bench.folder / "warm", 0, do, [warm, *data], "", 0))
            self._receive(_LONGEST)

    def run(self, do: str, *data: Any, fault: str = "", at: int = 0, seconds: float = _LONGEST) -> str:
        """Run an operation on the session of the trial, and return its state, as `wait` does."""
        self._bench.op += 1
        self._op, self._fault = (self._bench.op, do), fault
        if fault:
            self._note("fault", [fault, at])
        if self._proxy is not None and fault in ("kill", "stop", "cut"):
            self._proxy.arm(fault, at, self._process.pid or 0)
        path = self._bench.folder / f"{self.who}.jsonl"
        self._pipe.send((path, *self._op, [self._bench.key, *data], fault, at))
        return self.wait(seconds)

    def wait(self, seconds: float = _LONGEST) -> str:
        """Return how the operation ended: "ok", "error", "killed", or that it is "stopped", or "late"."""
        state, self.result = self._receive(seconds)
        if state in ("killed", "stopped"):
            self._note(state)
        if self._proxy is not None and state not in ("stopped", "late"):
            self._proxy.arm("", 0, 0)
        if state == "killed" or (self._fault == "cut" and state == "error"):
            self._pipe.close()  # ends the process; an application would open a new connection
            self._start()
        return state

    def go_on(self) -> None:
        """Continue after a stop."""
        pid = self._process.pid or 0
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.001)
        self._note("continued")
        os.kill(pid, signal.SIGCONT)
        if self._proxy is not None:
            self._proxy.go_on()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()

    def renew(self) -> None:
        """Start a new process, so that a trial does not depend on earlier ones."""
        self.kill()
        self._start()

    def _receive(self, seconds: float) -> tuple[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._proxy is not None and self._proxy.stopped.is_set():
                self._proxy.stopped.clear()
                return "stopped", None
            if self._pipe.poll(0.001):
                try:
                    return self._pipe.recv()  # type: ignore[no-any-return]
                except (EOFError, ConnectionResetError):
                    return "killed", None
        if seconds == _LONGEST:
            raise TimeoutError(f"{self.who}: {self._op} has taken a minute, seed {self._bench.seed}")
        return "late", None

    def _note(self, state: str, data: Any = None) -> None:
        note(self._bench.folder / "driver.jsonl", self.who, *self._op, state, data)


class Bench:
    """A store on a database, with three processes that use it: `a` and `b` write, `r` reads."""

    def __init__(self, name: str, url: str, folder: Path, mutant: str | None = None) -> None:
        self.name, self.url, self.mutant, self._folder = name, url, mutant, folder
        self.database = sa.make_url(url).get_backend_name()
        self.can = STORES[name].load().can
        self.op = self.seed = 0
        self._begin(0)
        self.r = Hand("r", self, None)  # first, because it creates the tables
        self.a, self.b = (Hand(who, self, Proxy(url) if self.database == "postgresql" else None) for who in "ab")

    def _begin(self, seed: int) -> None:
        self.seed, self.op, self._texts, self._cursor = seed, 0, itertools.count(1), None
        self.key = f"s{seed}x{next(_numbers)}"
        self.folder = self._folder / self.key
        self.folder.mkdir()
        self._random = random.Random(seed)

    def trial(self, seed: int) -> tuple[dict[str, str | None], list[Record]]:
        """Run a trial; return what each property of the store came to, and the history."""
        self._begin(seed)
        for hand in (self.a, self.b):
            hand.renew()
        self.r.run("open")
        kinds = [self._appends] * 2 + [self._turn] * 2 * ("turn" in self.can) + [self._answers] * ("answer" in self.can)
        self._random.choice(kinds)()
        self._read()
        lines = [line for log in self.folder.glob("*.jsonl") for line in log.read_text().splitlines()]
        history = sorted(Record(*json.loads(line)) for line in lines)
        return check(history, self.can), history

    def _fault(self, steps: int = STEPS) -> dict[str, Any]:
        at = self._random.randint(1, self._random.choice((4, steps)))  # an append may be a single packet
        return {"fault": self._random.choice(("", *FAULTS[self.database])), "at": at}

    def _new(self) -> list[str]:
        size = self._random.choice((1, 1, 3)) if "batch" in self.can else 1
        return [f"m{next(self._texts)}" for _ in range(size)]

    def _read(self) -> None:
        self.r.run("read")
        if "follow" in self.can:
            self.r.run("follow", self._cursor)
            self._cursor = self.r.result[1]

    def _appends(self) -> None:
        """Append with a fault, while another process appends too; send again what was not acknowledged."""
        for _ in range(self._random.randint(1, 3)):
            texts = self._new()
            state = self.a.run("append", texts, **self._fault())
            others = [self._new() for _ in range(self._random.randint(0, 2))]
            if "ids" in self.can and self._random.random() < 0.3:
                others.append(texts)
            if state == "stopped":
                self._meanwhile([("append", each) for each in others])
                state = self.a.wait()
            else:
                for each in others:
                    self.b.run("append", each)
            self._read()
            if state != "ok" and "ids" in self.can:
                self.b.run("append", texts)
                self._read()

    def _meanwhile(self, operations: list[Any]) -> None:
        """Run operations of the other process while the first one is stopped; it continues if one waits for it."""
        state = "ok"
        for do, *data in operations:
            if do == "pause":
                time.sleep(LEASE * 1.2)
                continue
            state = self.b.run(do, *data, seconds=_PATIENCE)
            if state == "late":
                break
        else:
            self._read()
        self.a.go_on()
        if state == "late":
            self.b.wait()

    def _turn(self) -> None:
        """Run a turn with a fault, send its request again, and let another process finish it."""
        again = [("turn", "t1")] if "request" in self.can and self._random.random() < 0.7 else []
        fault = self._fault(3 * STEPS)
        if self._random.random() < 0.5:
            fault |= {"fault": self._random.choice(("stop", "kill")), "at": self._random.choice([*IN_EFFECTS.values()])}
        pause = [("pause",), ("finish",)] * ("request" in self.can and (fault["at"] < 1 or self._random.random() < 0.5))
        state = self.a.run("turn", "t1", **fault)
        if state == "stopped":
            self._meanwhile(again + pause)
            state = self.a.wait()
        else:
            for each in again:
                self.b.run(*each)
        self._read()
        if state == "error" and "request" in self.can:
            self.b.run("turn", "t1")
        elif state == "killed":
            time.sleep(LEASE * 1.2)
        for _ in range(3):
            if self.r.run("finish") == "ok" and not self.r.result:
                break
            time.sleep(LEASE * 1.2)
        if again:
            self.b.run(*again[0])

    def _answers(self) -> None:
        """Answer a suspension twice."""
        self.r.run("ask")
        state = self.a.run("answer", "yes", **self._fault())
        if state == "stopped":
            self._meanwhile([("answer", "no")])
            self.a.wait()
        self.b.run("answer", "no")


_numbers = itertools.count()


@contextmanager
def bench(name: str, database: str, mutant: str | None = None) -> Iterator[Bench]:
    """Make a database for one store, with a folder for the logs, and start the processes."""
    with databases([database], [database]) as urls, TemporaryDirectory(dir=fast_folder()) as folder:
        made = Bench(name, next(iter(urls.values())), Path(folder), mutant)
        yield made
        for hand in (made.a, made.b, made.r):
            hand.kill()


def preload(modules: list[str]) -> None:
    """Import the stores once, so that their processes start fast."""
    _CONTEXT.set_forkserver_preload(["benchmarks.proof.clock", *modules])
