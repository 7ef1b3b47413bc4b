"""The figures on the pages: `--write` saves them to a file and updates the pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
FILE: Final = ROOT / "docs" / "figures.json"
PAGES: Final = (ROOT / "docs" / "why" / "speed.md",)
DATABASES: Final = ("SQLite", "PostgreSQL")

Figures = dict[str, dict[str, float]]
"""Ratios by measurement, then by database."""


def noted() -> Figures:
    """Read the figures that the benchmarks have saved."""
    figures: Figures = json.loads(FILE.read_text()) if FILE.exists() else {}
    return figures


def note(database: str, what: str, ratio: float) -> None:
    """Save a ratio instead of the previous one, and update the pages."""
    figures = noted()
    figures.setdefault(what, {})[database] = round(ratio, 2)
    FILE.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    for page in PAGES:
        page.write_text(with_figures(page.read_text(), figures))


def with_figures(text: str, figures: Figures) -> str:
    """Return a page with these figures in the table rows whose first cell names the measurement."""

    def row(found: re.Match[str]) -> str:
        measured = figures.get(found[1])
        if measured is None:
            return found[0]
        return " | ".join([f"| {found[1]}", *(f"{measured[name]:.2f}" for name in DATABASES)]) + " |"

    return re.sub(r"^\| ([^|]+) \| [\d.]+ \| [\d.]+ \|$", row, text, flags=re.MULTILINE)


def write_table(database: str, rows: list[list[str]]) -> None:
    """Write the comparison with other stores to its page."""
    page = PAGES[0]
    page.write_text(with_table(page.read_text(), database, rows))


def with_table(text: str, database: str, rows: list[list[str]]) -> str:
    """Return a page with these rows in the table below the heading with a database's name."""
    header, *others = rows
    lines = [header, ["---"] * len(header), *others]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    pattern = rf"(?<=^### {database}\n\n)(?:\|.*\n)+"
    return re.sub(pattern, lambda _: table, text, count=1, flags=re.MULTILINE)
