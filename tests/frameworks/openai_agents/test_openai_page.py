"""What the page about OpenAI Agents shows, runs and prints that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "frameworks" / "openai-agents.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def started(*words: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    (program,) = blocks("python")
    printed, shown = blocks("text")
    assert started("-W", "error", "-c", program, folder=tmp_path) == printed

    told = started(
        "-m", "lango_store.cli", "sessions", "show", "user-123", "--url", "sqlite:///agents.db", folder=tmp_path
    )
    times = re.compile(r"\d\d:\d\d:\d\d")
    assert times.sub("", shown) in times.sub("", told)
