"""A file format for tests: each test sets the drafts that are read from the files."""

from typing import Any

from lango_store.interchange.draft import Part, SessionDraft
from lango_store.interchange.format import Format


def given_format(*drafts: SessionDraft) -> Format:
    """Make a format that reads any file as these drafts."""
    return Format("given", lambda path: path.suffix == ".given", lambda path, skipped: drafts)


def draft(key: str, *parts: Part, **fields: Any) -> SessionDraft:
    """Make a session of these parts."""
    return SessionDraft(key=key, parts=list(parts), **fields)
