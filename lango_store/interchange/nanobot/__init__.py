"""nanobot's session files, in and out."""

from __future__ import annotations

from pathlib import Path

from lango_store.backup.files import LONGEST_LINE
from lango_store.interchange.draft import Draft, Skipped
from lango_store.interchange.format import WritableDraftFormat
from lango_store.interchange.nanobot import reading, writing
from lango_store.interchange.nanobot.names import NAME


class Nanobot(WritableDraftFormat):
    """JSON lines, in three generations and the Go port's, back byte for byte."""

    name = NAME

    def recognises(self, path: Path) -> bool:
        return reading.recognises(path)

    def rank(self, path: Path) -> int:
        return reading.rank(path)

    def read(self, path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
        return reading.read(path, skipped, longest_line)

    def write(self, draft: Draft, folder: Path, *, replace: bool = False) -> Path:
        return writing.write(draft, folder, replace=replace)
