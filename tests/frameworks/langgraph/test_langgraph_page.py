"""The program on the page is killed, resumes, waits for an approval and prints what the page says."""

import os
import subprocess
import sys
from pathlib import Path

from support.pages import blocks

PAGE = "docs/frameworks/langgraph.md"


def run(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    command = [sys.executable, "-W", "ignore", name, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_program_killed_in_a_tool_resumes_and_waits_for_an_approval(tmp_path: Path) -> None:
    trip, workers, bookings = blocks(PAGE, "python")
    resumed, approved = blocks(PAGE, "text")
    (tmp_path / "trip.py").write_text(trip)
    killed = run(tmp_path, "trip.py", "--crash")
    assert (killed.returncode, killed.stdout) == (9, "")
    for expected in (resumed, approved):
        done = run(tmp_path, "trip.py")
        assert (done.stdout, done.stderr) == (expected, "")
    for name, block in (("workers.py", workers), ("bookings.py", bookings)):
        (tmp_path / name).write_text(block)
        assert run(tmp_path, name).returncode == 0
