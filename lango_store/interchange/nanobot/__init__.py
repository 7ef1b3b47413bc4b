"""nanobot's session files: JSON lines, in three generations and the Go port's, in and out, byte for byte.

A time without a zone is this machine's, as nanobot writes it: run where nanobot ran, or set TZ. Its text is kept, and
comes back as it was. Under `extra["nanobot"]` a session keeps its `key`, `generation` and `stem` (the file's name),
the `metadata` line and the `provider_state` line (or, where they were written unlike nanobot does, their text under
`metadata_line` and `provider_state_line`), and how many messages stood before them, if any.
"""

from __future__ import annotations

from pathlib import Path

from lango_store.interchange.nanobot.heads import NAME
from lango_store.interchange.nanobot.names import SUFFIX, decoded, file_name
from lango_store.interchange.nanobot.reading import read
from lango_store.interchange.nanobot.writing import write

__all__ = ["NAME", "file_name", "rank", "read", "recognises", "write"]


def recognises(path: Path) -> bool:
    """Take any file of JSON lines, damaged ones too; formats that are told by their first line are asked first."""
    return path.suffix == SUFFIX


def rank(path: Path) -> int:
    """Read the names of today's nanobot first: where it left an older file behind, that one is out of date."""
    return int(decoded(path.stem) is None)
