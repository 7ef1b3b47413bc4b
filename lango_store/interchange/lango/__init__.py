"""lango's database, read only."""

from __future__ import annotations

from pathlib import Path

from lango_store.backup.files import LONGEST_LINE
from lango_store.interchange.draft import Draft, Skipped
from lango_store.interchange.format import DraftFormat
from lango_store.interchange.lango import reading
from lango_store.interchange.lango.database import recognises
from lango_store.interchange.lango.reading import NAME


class Lango(DraftFormat):
    """A SQLite file with sessions and their messages."""

    name = NAME

    def recognises(self, path: Path) -> bool:
        return recognises(path)

    def read(self, path: Path, skipped: list[Skipped], longest_line: int = LONGEST_LINE) -> list[Draft]:
        return reading.read(path, skipped)
