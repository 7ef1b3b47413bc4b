"""Long answers on a terminal, in a pager."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress


def through_pager(parts: Iterable[str]) -> None:
    """Show text in `$PAGER`, else in `less`; in a pipe, or where there is neither, print it.

    The parts are asked for as they are read, and no longer when the reader has seen enough.
    """
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not sys.stdout.isatty() or not command or shutil.which(command[0]) is None:
        for part in parts:
            sys.stdout.write(part)
        return
    sys.stdout.flush()
    environment = {"LESS": "-FRX"} | os.environ  # short text stays on the screen, colours are colours
    pager = subprocess.Popen(
        command, stdin=subprocess.PIPE, env=environment, encoding=sys.stdout.encoding, errors=sys.stdout.errors
    )
    assert pager.stdin is not None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager, which stays
    try:
        with suppress(BrokenPipeError), pager.stdin as pipe:  # the reader may leave
            for part in parts:
                pipe.write(part)
    finally:
        pager.wait()
        signal.signal(signal.SIGINT, before)
