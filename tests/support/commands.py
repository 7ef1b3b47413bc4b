"""The command line in this process, as a process of its own, and on a terminal."""

import fcntl
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
    """Run `lango-store` with these words, with no URL of ours in its environment, and with what a user answers.

    In this process, where everything is loaded already; `run_process` shows what a process of its own does otherwise.
    """
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    code = 0
    with (
        chdir(folder or Path.cwd()),
        mock.patch.dict(os.environ, {"COLUMNS": "200"} | _environment(environment), clear=True),
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
    """Run `lango-store` as `run` does, as a process of its own."""
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
    """Run `lango-store` on a terminal of so many columns, and give what it shows there and its exit code.

    `answer` is what a user types; `watch` sees what is shown so far, and the process's number; `before` is source that
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
        except OSError:  # how a terminal says on Linux that nobody has it open any more
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
