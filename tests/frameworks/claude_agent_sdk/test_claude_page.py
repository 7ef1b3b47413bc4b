"""The program on the page runs as it stands, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.commands import run
from support.framework_pages import run_replacement
from support.pages import blocks

from lango_store import Store

PAGE = "docs/frameworks/claude-agent-sdk.md"


def test_what_stands_in_the_place_of_the_frameworks_own_store_is_there(tmp_path: Path) -> None:
    run_replacement(PAGE, tmp_path, "from claude_agent_sdk import ClaudeAgentOptions; url = 'sqlite:///agent.db'")


def test_the_program_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    for name, program in zip(("model.py", "agent.py"), blocks(PAGE, "python"), strict=True):
        (tmp_path / name).write_text(program)
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    printed, shown = blocks(PAGE, "text")
    assert (done.returncode, done.stdout) == (0, printed), done.stderr

    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url) as store:
        (info,) = store.iter_sessions()
    log = run("sessions", "show", "--url", url, info.key, environment={"COLUMNS": "80"}).stdout
    assert panels(shown) < panels(log)


def panels(text: str) -> set[str]:
    """Find what is shown of messages, without their times and numbers: not all versions write as many entries."""
    found = re.findall(r"^╭.*?╯$", re.sub(r"\d\d:\d\d:\d\d", "00:00:00", text), re.MULTILINE | re.DOTALL)
    return {re.sub(r"^╭─ \d+ (\w+) ─+╮", r"\1", panel) for panel in found}
