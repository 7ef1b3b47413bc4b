"""Programs in separate processes, forked from a process that has loaded the package so that they start fast.

Use `subprocess` to test the start of a process, such as its imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_LOADED: Final = [
    "lango_store.interchange.copying",
    "lango_store.cli",
    "lango_store.interchange",
    "lango_store.schema",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "lango_store.web",
    "rich.progress",
    "rich.table",
    "typer",
    "urllib.request",
    "uvicorn.protocols.http.h11_impl",
]
_CONTEXT.set_forkserver_preload(_LOADED)


def load(*modules: str) -> None:
    """Let programs begin with these modules loaded, too. Call this before the first program starts."""
    _CONTEXT.set_forkserver_preload([*_LOADED, *modules])


PYTEST: Final = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
"""The source of a program that runs pytest."""

LANGO_STORE: Final = "import sys; from lango_store.cli import main; sys.argv[0] = 'lango-store'; main()"
"""The source of `lango-store`."""


def start(
    source: str,
    *words: object,
    ends: Sequence[Connection[Any, Any]],
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    strict: bool = False,
) -> ForkServerProcess:
    """Start a program with these file descriptors as stdin, stdout and stderr; `strict` turns warnings into errors."""
    arguments = (source, [str(word) for word in words], str(folder or Path.cwd()), dict(environment), strict, ends)
    process = _CONTEXT.Process(target=_run, args=arguments, daemon=True)
    process.start()
    for each in ends:
        each.close()
    return process


class Program:
    """A running program with the interface of `subprocess.Popen`."""

    def __init__(self, source: str, *words: object, keep_stderr: bool = True, **options: Any) -> None:
        """Start it, with the options of `start`; with `keep_stderr=False`, its errors are those of the tests."""
        theirs_in, ours_in = _CONTEXT.Pipe(duplex=False)
        ours_out, theirs_out = _CONTEXT.Pipe(duplex=False)
        ours_error, theirs_error = _CONTEXT.Pipe(duplex=False)
        ends = (theirs_in, theirs_out, *([theirs_error] if keep_stderr else []))
        self._process = start(source, *words, ends=ends, **options)
        self.stdin, self.stdout, self.stderr = _file(ours_in, "w"), _file(ours_out, "r"), _file(ours_error, "r")
        if not keep_stderr:
            theirs_error.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float = 60) -> int:
        """Wait for the end, and return the exit code, or -n for signal n."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise subprocess.TimeoutExpired("program", timeout)
        return self._process.exitcode

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Wait for the end, and return the remaining output and errors."""
        self.stdin.close()
        shown = ["", ""]

        def read(place: int, file: TextIO) -> None:
            shown[place] = file.read()

        readers = [
            threading.Thread(target=read, args=each, daemon=True) for each in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self.close()
        return shown[0], shown[1]

    def close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            file.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stdin.close()
        self.wait()
        self.close()


def run_program(source: str, *words: object, timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with the options of `start`."""
    program = Program(source, *words, **options)
    out, error = program.communicate(timeout)
    return subprocess.CompletedProcess([str(word) for word in words], program.wait(), out, error)


def _file(connection: Connection[Any, Any], mode: str) -> Any:
    file = os.fdopen(os.dup(connection.fileno()), mode)
    connection.close()
    return file


def _run(
    source: str,
    words: list[str],
    folder: str,
    environment: dict[str, str],
    strict: bool,
    ends: Sequence[Connection[Any, Any]],
) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup make check &` starts with SIGINT ignored
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = ["-c", *words]
    sys.path.insert(0, "")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if strict:
        warnings.simplefilter("error")
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
