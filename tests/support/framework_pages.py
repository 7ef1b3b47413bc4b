"""Running the programs on the pages about frameworks."""

import os
import subprocess
import sys
from pathlib import Path

from support.pages import blocks
from support.paths import ROOT
from support.processes import run_program


def started(*words: str, folder: Path, timeout: float = 100) -> str:
    """Run Python with these arguments, and return what it prints. Programs of `-c` alone start with packages loaded."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "80"}
    if words[0] == "-c":
        done = run_program(*words[1:], folder=folder, environment=environment, timeout=timeout)
    else:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_replacement(page: str, folder: Path, first: str = "") -> None:
    """Run the old and the new lines of each replacement on a page, each after the lines `first`."""
    for diff in blocks(page, "diff"):
        for sign in "-+":
            lines = [line[1:] for line in diff.splitlines() if line.startswith((sign, " "))]
            assert any(line.startswith(sign) for line in diff.splitlines())
            started("-c", "\n".join([first, *lines]), folder=folder, timeout=200)


def write_program(page: str, block: str, file: Path) -> None:
    """Write a block of a page that continues the first program of the page."""
    file.with_name("program.py").write_text(blocks(page, "python")[0])
    file.write_text(f"from program import *\n{block}")
