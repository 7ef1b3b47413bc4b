"""The command line as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lango_store import schema


def run(
    *words: str,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    answer: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `lango-store` with these words, with no URL of ours in its environment, and with what a user answers."""
    inherited = {name: value for name, value in os.environ.items() if name not in schema.URL_VARIABLES}
    return subprocess.run(
        [sys.executable, "-m", "lango_store.cli", *words],
        cwd=folder,
        env=inherited | {"COLUMNS": "200", "NO_COLOR": "1"} | (environment or {}),
        input=answer,
        capture_output=True,
        text=True,
        timeout=60,
    )
