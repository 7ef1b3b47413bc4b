"""What the page about pydantic-ai shows, runs and prints that."""

from __future__ import annotations

import re
from pathlib import Path

from framework_pages import blocks, started

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "frameworks" / "pydantic-ai.md").read_text()


STRICT = ("-W", "error", "-W", "ignore:SelectableGroups:DeprecationWarning")  # OpenTelemetry's, of 2.66's time


def test_the_programs_print_what_the_page_says(tmp_path: Path) -> None:
    talking, stepping = blocks("pydantic-ai", "python")
    printed, shown, stepped = blocks("pydantic-ai", "text")
    assert started(*STRICT, "-c", talking, folder=tmp_path) == printed
    assert started(*STRICT, "-c", stepping, folder=tmp_path) == stepped

    url = ("--url", "sqlite:///agents.db")
    told = started("-m", "lango_store.cli", "sessions", "show", "chat-1", *url, folder=tmp_path)
    times = re.compile(r"\d\d:\d\d:\d\d")
    assert times.sub("", shown) in times.sub("", told)
    assert "chat-1" in started("-m", "lango_store.cli", "sessions", "list", "--user", "ann", *url, folder=tmp_path)
