"""`python -m benchmarks.terminal FILE.svg`: what the commands look like in a terminal, drawn from a real run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lango_store import Store
from lango_store.cli.demo import CONVERSATION

COMMANDS = (
    "sessions show telegram:1028 --last 5",
    "stats",
    "expire --dry-run",
    "expire --archive cold.db --batch-size 4",
)
WIDTH = 100


def fill(url: str) -> None:
    """Write thirty sessions over forty days."""
    now = datetime.now(UTC)
    time = [now]
    with Store(url, migrate=True, clock=lambda: time[0]) as store:
        for n in range(30):
            time[0] = now - timedelta(days=40 - n, hours=3)
            store.create(
                f"telegram:{1000 + n}",
                agent_id=("planner", "support", None)[n % 3],
                user_id=f"user{n % 4}",
                title=("A free Saturday", "Router on fire", None)[n % 3],
                ttl=timedelta(days=30) if n % 2 else timedelta(days=7) if n % 3 == 0 else None,
                messages=CONVERSATION[: 3 + n % 8],
            )


def main() -> None:
    """Run the commands in an empty folder, and draw what they print."""
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        url = "sqlite:///agent.db"
        os.chdir(folder)
        fill(url)
        console = Console(record=True, width=WIDTH, file=io.StringIO())
        environment = os.environ | {
            "LANGO_STORE_URL": url,
            "FORCE_COLOR": "1",
            "COLUMNS": str(WIDTH),
            "TERM": "xterm-256color",
        }
        for command in COMMANDS:
            done = subprocess.run(
                [sys.executable, "-m", "lango_store.cli", *command.split()],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            )
            console.print(Text.assemble(("$ ", "bold"), (f"lango-store {command}", "bold")))
            console.print(Text.from_ansi(done.stdout))
    console.save_svg(str(target), title="lango-store")


main()
