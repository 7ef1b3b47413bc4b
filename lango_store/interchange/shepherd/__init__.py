"""Shepherd's session files, in and out."""

from __future__ import annotations

from pathlib import Path

from lango_store.backup.files import LONGEST_LINE
from lango_store.interchange.draft import Draft, Skipped
from lango_store.interchange.format import WritableDraftFormat
from lango_store.interchange.shepherd import reading, writing
from lango_store.interchange.shepherd.names import NAME


class Shepherd(WritableDraftFormat):
    """One JSON object for each provider."""

    name = NAME

    def recognises(self, path: Path) -> bool:
        return reading.recognises(path)

    def read(self, path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
        return reading.read(path, skipped, longest_line)

    def write(self, draft: Draft, folder: Path, *, replace: bool = False) -> Path:
        return writing.write(draft, folder, replace=replace)
