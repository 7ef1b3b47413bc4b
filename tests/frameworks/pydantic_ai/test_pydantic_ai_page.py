"""What the page about pydantic-ai shows, runs and prints that."""

from __future__ import annotations

import re
from pathlib import Path

from support.framework_pages import run_replacement, started
from support.pages import blocks

PAGE = "docs/frameworks/pydantic-ai.md"
STRICT = ("-W", "error", "-W", "ignore:SelectableGroups:DeprecationWarning")  # OpenTelemetry's, of 2.66's time


def test_what_stands_in_the_place_of_the_frameworks_own_store_is_there(tmp_path: Path) -> None:
    run_replacement(PAGE, tmp_path)


def test_the_programs_print_what_the_page_says(tmp_path: Path) -> None:
    talking, stepping = blocks(PAGE, "python")
    printed, shown, stepped = blocks(PAGE, "text")
    assert started(*STRICT, "-c", talking, folder=tmp_path) == printed
    assert started(*STRICT, "-c", stepping, folder=tmp_path) == stepped

    url = ("--url", "sqlite:///agents.db")
    told = started("-m", "lango_store.cli", "sessions", "show", "chat-1", *url, folder=tmp_path)
    times = re.compile(r"\d\d:\d\d:\d\d")
    assert times.sub("", shown) in times.sub("", told)
    assert "chat-1" in started("-m", "lango_store.cli", "sessions", "list", "--user", "ann", *url, folder=tmp_path)
