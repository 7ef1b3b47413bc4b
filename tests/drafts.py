"""A format whose files hold nothing: what they give was told before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lango_store.interchange.draft import Draft, Part, Skipped


class Given:
    """Reads any file as these drafts."""

    NAME = "given"

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = list(drafts)

    def recognises(self, path: Path) -> bool:
        return path.suffix == ".given"

    def read(self, path: Path, skipped: list[Skipped], longest_line: int) -> list[Draft]:
        return self.drafts


def draft(key: str, *parts: Part, **fields: Any) -> Draft:
    """Make a session of these parts."""
    return Draft(key=key, parts=lambda: iter(parts), **fields)
