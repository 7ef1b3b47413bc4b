"""The program for pandas on the page about analysing a store."""

from pathlib import Path

from support.framework_pages import started
from support.pages import blocks


def test_program_prints_answer_times(tmp_path: Path) -> None:
    program, _ = blocks("docs/howto/queries.md", "python")
    lines = started("-W", "error", "-c", program, folder=tmp_path).splitlines()
    assert lines[0].split() == ["count", "1.0"]
    assert [line.split()[0] for line in lines if "%" in line] == ["50%", "95%"]
