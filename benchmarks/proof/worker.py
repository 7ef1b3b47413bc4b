"""A worker process: it uses a store, and logs each call and each acknowledgement outside of the store."""

import json
import logging
import os
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.proof.stores import STORES

_DRIVER = (sqlite3.Connection, sqlite3.Cursor)
IN_EFFECTS = {"model": 0, "tool": -1}
"""In place of the number of a step: the fault happens in the model or in the tool."""
_SMALLEST = 16_384  # bytes: the log of a trial is always shorter


class Record(NamedTuple):
    """A line of a log: the monotonic time, the process, the number and name of the operation, and what happened."""

    time: int
    who: str
    op: int
    do: str
    state: str
    data: Any = None


def note(path: Path, *record: Any) -> None:
    """Append a record to a log, and wait for the disk."""
    log = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(log, json.dumps((time.monotonic_ns(), *record)).encode() + b"\n")
    os.fsync(log)
    os.close(log)


class Steps:
    """Kills or stops the process in the model, in the tool, or at a call of the SQLite driver."""

    def __init__(self, pipe: Connection, url: str) -> None:
        self._pipe, self._kind, self._at = pipe, "", 0
        self._counts = url.startswith("sqlite")  # for PostgreSQL, the proxy counts
        if self._counts:
            threading.setprofile(self.count)  # the threads that the store starts

    def arm(self, kind: str, at: int) -> None:
        """Choose the call at which a fault happens; without a kind, none does."""
        self._kind, self._at = (kind, at) if kind in ("kill", "stop") else ("", 0)
        if self._counts:
            sys.setprofile(self.count if self._kind else None)

    def count(self, _: FrameType, event: str, function: Any) -> None:
        """Count a call of the SQLite driver."""
        if self._at > 0 and event[:2] == "c_" and isinstance(getattr(function, "__self__", None), _DRIVER):
            self._at -= 1
            if self._at == 0:
                self.happen()

    def reach(self, kind: str) -> None:
        """Reach the model or the tool."""
        if self._kind and self._at == IN_EFFECTS[kind]:
            self.happen()

    def happen(self) -> None:
        """Kill or stop the process."""
        kind, self._kind = self._kind, ""
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "stop":
            self._pipe.send(("stopped", None))
            os.kill(os.getpid(), signal.SIGSTOP)


class Effects:
    """The model and the tool of a turn."""

    def __init__(self, log: Callable[..., None], who: str, steps: Steps) -> None:
        self._log, self._who, self._steps = log, who, steps

    def _run(self, kind: str, request: str) -> str:
        result = f"{kind} of {self._who} to {request}"
        self._log(kind, [request, result])
        self._steps.reach(kind)
        return result

    def model(self, request: str) -> str:
        return self._run("model", request)

    def tool(self, request: str) -> str:
        return self._run("tool", request)

    def stored(self, kind: str, request: str) -> None:
        self._log(f"{kind} stored", [request])


def _limit_files(url: str, share: float) -> None:
    """Refuse writes after a share of the size of the largest file of a database; 0: none."""
    folder = Path(url.removeprefix("sqlite:///")).parent
    largest = max(file.stat().st_size for file in folder.iterdir())
    limit = max(int(largest * share), _SMALLEST) if share else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def run(name: str, url: str, mutant: str | None, who: str, pipe: Connection) -> None:
    """Run the operations that arrive, until the pipe is closed."""
    from benchmarks.proof import clock  # not in the driver

    logging.disable()

    if mutant:
        from benchmarks.proof import mutants

        mutants.MUTANTS[mutant]()
    steps = Steps(pipe, url)
    store = STORES[name].load()(url)
    pipe.send(("ok", None))
    while True:
        try:
            path, op, do, data, kind, at = pipe.recv()
        except EOFError:
            os._exit(0)  # threads of the store may wait

        def log(state: str, data: Any = None, path: Path = path, op: int = op, do: str = do) -> None:
            note(path, who, op, do, state, data)

        arguments = [*data, Effects(log, who, steps)] if do in ("turn", "finish") else data
        log("call", data[1:])
        clock.skew = -3600.0 if kind == "clock" else 0.0
        if kind == "disk":
            _limit_files(url, at / 20)
        steps.arm(kind, at)
        try:
            result = getattr(store, do)(*arguments)
            state = "ok"
        except Exception as error:
            state, result = "error", f"{type(error).__name__}: {error}".splitlines()[0][:100]
        steps.arm("", 0)
        if kind == "disk":
            _limit_files(url, 0)
        clock.skew = 0.0
        log(state, result)
        pipe.send((state, result))
