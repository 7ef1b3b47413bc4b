"""A file of the package is short enough to be read at once, unless a reason stands here."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "lango_store"

LONGEST = 350

LONGER = {
    "store.py": "verbs with their docstrings, each a few lines of code: in two files they would be looked for twice",
    "conversation.py": "the same, for one session",
    "operations/appends.py": "the ways an append can go, from one statement to a replay, which have to agree",
}


def test_a_file_is_short_or_its_length_has_a_reason() -> None:
    lines = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name for name, count in lines.items() if count > LONGEST} == LONGER.keys()
