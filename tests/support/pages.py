"""The documentation pages and their code blocks."""

import re
import shlex
from collections.abc import Iterator
from typing import Final

from support.paths import ROOT

PAGES: Final = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
}


def blocks(page: str, kind: str) -> list[str]:
    """Return the code blocks of a kind on a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def blocks_by_place(kind: str) -> dict[str, str]:
    """Return the code blocks of a kind on all pages, by page and number."""
    return {f"{page}-{number}": block for page in PAGES for number, block in enumerate(blocks(page, kind))}


def commands(script: str) -> Iterator[list[str]]:
    """Return the words of each command, without redirections and pipes."""
    for line in script.splitlines():
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word in ("&&", "|"):
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words[: words.index(">")] if ">" in words else words
