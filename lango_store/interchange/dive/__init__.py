"""Dive's session files, in and out."""

from __future__ import annotations

from typing import Final

from lango_store.interchange.dive import reading, writing
from lango_store.interchange.dive.names import NAME
from lango_store.interchange.format import Format

DIVE: Final = Format(NAME, reading.recognises, reading.read, writing.write)
"""A header line, then a line for each event, a turn or a compaction."""
