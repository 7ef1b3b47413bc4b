"""`python -m benchmarks.terminal FILE.svg`: draw the output of some commands as it looks in a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from lango_store import Store
from lango_store.cli.demo import CONVERSATION

COMMANDS: Final = ("sessions list", "expire --dry-run")
WIDTH: Final = 64


def fill(url: str) -> None:
    """Store five sessions, of which two have expired."""
    now = datetime.now(UTC)
    time = [now]
    with Store(url, migrate=True, clock=lambda: time[0]) as store:
        for n in range(5):
            time[0] = now - timedelta(days=20 - 4 * n, hours=3)
            store.create(
                f"telegram:{1000 + n}",
                agent_id=("planner", "support")[n % 2],
                title=("A free Saturday", "Router on fire")[n % 2],
                ttl=timedelta(days=14),
                messages=CONVERSATION[: 3 + n],
            )


def terminal_output(command: str, environment: dict[str, str]) -> str:
    """Run a command with a terminal as its stdout, and return what it prints."""
    reader, writer = pty.openpty()
    program = [sys.executable, "-m", "lango_store.cli", *command.split()]
    with os.fdopen(reader, "rb", buffering=0) as output:
        process = subprocess.Popen(program, env=environment, stdout=writer, stderr=writer)
        os.close(writer)
        chunks = []
        while True:
            try:
                chunk = output.read(65_536)
            except OSError:  # on Linux, the end of the output of a terminal
                break
            if not chunk:
                break
            chunks.append(chunk)
        if process.wait():
            raise RuntimeError(f"{command}: exit code {process.returncode}")
    return b"".join(chunks).decode().replace("\r\n", "\n").strip("\n")


def main() -> None:
    """Run the commands in an empty folder, and draw their output."""
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        url = "sqlite:///agent.db"
        fill(url)
        console = Console(record=True, width=WIDTH, file=io.StringIO())
        environment = os.environ | {"LANGO_STORE_URL": url, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
        for command in COMMANDS:
            console.print(Text(f"$ lango-store {command}", style="bold"))
            console.print(Text.from_ansi(terminal_output(command, environment)))
    console.save_svg(str(target), title="lango-store")


main()
