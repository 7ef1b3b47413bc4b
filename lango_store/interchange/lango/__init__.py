"""lango's database, read only."""

from __future__ import annotations

from typing import Final

from lango_store.interchange.format import Format
from lango_store.interchange.lango import reading
from lango_store.interchange.lango.database import recognises

LANGO: Final = Format(reading.NAME, recognises, reading.read)
"""A SQLite file with sessions and their messages."""
