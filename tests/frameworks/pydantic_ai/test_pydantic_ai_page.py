"""What the page about pydantic-ai shows, runs and prints that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "frameworks" / "pydantic-ai.md").read_text()


STRICT = ("-W", "error", "-W", "ignore:SelectableGroups:DeprecationWarning")  # OpenTelemetry's, of 2.66's time


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def started(*words: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_print_what_the_page_says(tmp_path: Path) -> None:
    talking, stepping = blocks("python")
    printed, shown, stepped = blocks("text")
    assert started(*STRICT, "-c", talking, folder=tmp_path) == printed
    assert started(*STRICT, "-c", stepping, folder=tmp_path) == stepped

    url = ("--url", "sqlite:///agents.db")
    told = started("-m", "lango_store.cli", "sessions", "show", "chat-1", *url, folder=tmp_path)
    times = re.compile(r"\d\d:\d\d:\d\d")
    assert times.sub("", shown) in times.sub("", told)
    assert "chat-1" in started("-m", "lango_store.cli", "sessions", "list", "--user", "ann", *url, folder=tmp_path)
