"""What the page about OpenAI Agents shows, runs and prints that."""

from __future__ import annotations

import re
from pathlib import Path

from support.framework_pages import run_replacement, started
from support.pages import blocks

PAGE = "docs/frameworks/openai-agents.md"


def test_what_stands_in_the_place_of_the_frameworks_own_store_is_there(tmp_path: Path) -> None:
    run_replacement(PAGE, tmp_path)


def test_the_program_prints_what_the_page_says(tmp_path: Path) -> None:
    (program,) = blocks(PAGE, "python")
    printed, shown = blocks(PAGE, "text")
    assert started("-W", "error", "-c", program, folder=tmp_path) == printed

    told = started(
        "-m", "lango_store.cli", "sessions", "show", "user-123", "--url", "sqlite:///agents.db", folder=tmp_path
    )
    times = re.compile(r"\d\d:\d\d:\d\d")
    assert times.sub("", shown) in times.sub("", told)
