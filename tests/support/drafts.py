"""A format whose files are empty: a test says beforehand what is read from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lango_store.backup.files import LONGEST_LINE
from lango_store.interchange.draft import Draft, Part, Skipped
from lango_store.interchange.format import DraftFormat


class Given(DraftFormat):
    """Reads any file as these drafts."""

    name = "given"

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = list(drafts)

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".given"

    def read(self, path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
        return self.drafts


def draft(key: str, *parts: Part, **fields: Any) -> Draft:
    """Make a session of these parts."""
    return Draft(key=key, parts=lambda: (replace(part, messages=[*part.messages]) for part in parts), **fields)
