"""What a page about a framework shows, taken from it and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent


def blocks(page: str, kind: str) -> list[str]:
    """Return the code blocks of a kind on the page of that name."""
    text = (ROOT / "docs" / "frameworks" / f"{page}.md").read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def started(*words: str, folder: Path, timeout: float = 100) -> str:
    """Run Python with these words, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout
