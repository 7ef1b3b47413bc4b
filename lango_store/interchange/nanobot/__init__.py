"""nanobot's session files, in and out."""

from __future__ import annotations

from typing import Final

from lango_store.interchange.format import Format
from lango_store.interchange.nanobot import reading, writing
from lango_store.interchange.nanobot.names import NAME

NANOBOT: Final = Format(NAME, reading.recognises, reading.read, writing.write, reading.rank)
"""JSON lines, in three generations and the Go port's, back byte for byte."""
