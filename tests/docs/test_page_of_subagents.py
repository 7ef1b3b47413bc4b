"""The program on the page about child sessions for subagents."""

from pathlib import Path
from typing import Final

import pytest
from support.pages import blocks
from support.processes import run_program

pytestmark = pytest.mark.slow

PAGE: Final = "docs/howto/subagents.md"


def test_program_on_the_subagents_page_prints_the_output_on_the_page(tmp_path: Path) -> None:
    (program,), (printed,) = blocks(PAGE, "python"), blocks(PAGE, "text")
    done = run_program(program, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
