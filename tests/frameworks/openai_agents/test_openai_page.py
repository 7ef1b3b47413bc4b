"""What the page about OpenAI Agents shows, runs and prints that."""

from __future__ import annotations

import re
from pathlib import Path

from framework_pages import blocks, started

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "frameworks" / "openai-agents.md").read_text()


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    (program,) = blocks("openai-agents", "python")
    printed, shown = blocks("openai-agents", "text")
    assert started("-W", "error", "-c", program, folder=tmp_path) == printed

    told = started(
        "-m", "lango_store.cli", "sessions", "show", "user-123", "--url", "sqlite:///agents.db", folder=tmp_path
    )
    times = re.compile(r"\d\d:\d\d:\d\d")
    assert times.sub("", shown) in times.sub("", told)
