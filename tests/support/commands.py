"""Running the command line in this process, in a separate process, and on a terminal."""

import fcntl
import gc
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

from support.processes import LANGO_STORE, start

from lango_store._engine.url import URL_VARIABLES
from lango_store.cli import main

_NOT_INHERITED = {*URL_VARIABLES, "COLUMNS", "LINES"}  # a test runner's own width is not the terminal's


def _environment(more: dict[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return inherited | {"NO_COLOR": "1"} | (more or {})


def run(
    *words: str,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    answer: str | None = None,
    encoding: str = "utf-8",
) -> subprocess.CompletedProcess[str]:
    """Run `lango-store` with these arguments, without a database URL in the environment, and with a user's answer.

    Runs in this process, where modules are loaded already; `run_process` starts a separate process.
    """
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    code = 0
    with (
        chdir(folder or Path.cwd()),
        mock.patch.dict(os.environ, {"COLUMNS": "200"} | _environment(environment), clear=True),
        mock.patch.object(gc, "freeze"),  # it would keep what other tests leave to the garbage collector
        mock.patch.object(sys, "argv", ["lango-store", *words]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO((answer or "").encode()), "utf-8")),
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    shown = (stream.buffer.getvalue().decode(encoding) for stream in (out, error))
    return subprocess.CompletedProcess(words, code, *shown)


def run_process(
    *words: str,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    answer: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `lango-store` like `run`, but in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "lango_store.cli", *words],
        cwd=folder,
        env={"COLUMNS": "200"} | _environment(environment),
        input=answer or "",
        capture_output=True,
        text=True,
        timeout=60,
    )


def run_on_terminal(
    *words: str,
    columns: int = 80,
    environment: dict[str, str] | None = None,
    answer: str = "",
    watch: Callable[[str, int], None] | None = None,
    before: str = "",
) -> tuple[str, int]:
    """Run `lango-store` on a terminal of this width, and return its output and exit code.

    `answer` is typed by the user; `watch` gets the output so far and the process id; `before` is Python source that
    runs first.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = start(
        f"{before}\n{LANGO_STORE}",
        *words,
        ends=[Connection(os.dup(theirs)) for _ in range(3)],
        environment={"TERM": "xterm", "PAGER": "cat"} | _environment(environment),
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # on Linux, reading a terminal that all processes have closed raises this error
            break
        if not part:
            break
        shown += part
        if watch is not None:
            assert process.pid is not None
            watch(shown.decode(errors="replace"), process.pid)
    os.close(ours)
    process.join(60)
    assert process.exitcode is not None
    return shown.decode().replace("\r\n", "\n"), process.exitcode
