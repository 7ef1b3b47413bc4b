"""Layout of the Markdown pages: wrapped lines, width of code blocks, length of README and changelog."""

import re
from collections.abc import Iterator

import pytest
from support.pages import PAGES

MARKER = re.compile(r"(\s*)(?:[-+*]\s|#{1,6}\s|>|=+\s*$|-+\s*$|(\d+)[.)]\s)")
"""The start of a list item, a heading, a quotation or the underline of a heading."""

CODE_WIDTH = 80


def numbered_lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the number of each line, the line, and whether it is inside a code block."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        else:
            yield number, line, in_code


def accidental_markers(text: str) -> list[int]:
    """Return the numbers of lines that continue a paragraph, but start with a marker.

    A list starts after an empty line or a heading. Its items are not indented, and their numbers are consecutive.
    """
    wrong = []
    in_block = in_list = False
    last_item = 0
    for number, line, in_code in numbered_lines(text):
        marker = None if in_code else MARKER.match(line)
        item = int(marker[2]) if marker and marker[2] else None
        if in_code or not line.strip() or line.startswith("#"):
            if line.startswith("#") and not in_code and in_block:
                wrong.append(number)
            in_block = False
        elif not in_block:
            in_block, in_list = True, marker is not None
            last_item = item or 0
        elif marker:
            indented = 0 < len(marker[1]) < 4
            if not in_list or indented or (item is not None and item != last_item + 1):
                wrong.append(number)
            last_item = item or 0
    return wrong


def test_wrapped_line_starts_with_no_list_or_heading_marker() -> None:
    wrong = [(page, number) for page, text in PAGES.items() for number in accidental_markers(text)]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("A year has about\n800. That is enough.\n", [2]),
        ("- An item of\n  800. That is enough.\n", [2]),
        ("Alice\n- and Bob\n", [2]),
        ("Alice\n+ Bob\n", [2]),
        ("Number\n# 5\n", [2]),
        ("9. Nine\n10. Ten\n\n- Alice\n- Bob\n\n# Title\n\n```\nA\n- B\n```\n", []),
    ],
)
def test_check_of_wrapped_lines_finds_accidental_markers(text: str, wrong: list[int]) -> None:
    assert accidental_markers(text) == wrong


def test_code_blocks_have_at_most_80_columns() -> None:
    for page, text in PAGES.items():
        code = [(number, line) for number, line, in_code in numbered_lines(text) if in_code]
        assert [(page, number, line) for number, line in code if len(line) > CODE_WIDTH] == []


def test_readme_has_at_most_90_lines() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 90


def test_changelog_has_at_most_80_lines() -> None:
    assert len(PAGES["CHANGELOG.md"].splitlines()) <= 80
