"""The programs on the pages about live views and front ends, as services with the model of a test."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.pages import blocks
from support.paths import ROOT
from support.streaming_model import StreamingModel

_FRONT: Final = "docs/howto/front-ends.md"
PROGRAMS: Final = {"live": "docs/howto/live-view.md", "front": _FRONT, "chats": _FRONT}


@contextmanager
def live_view(url: str, model: StreamingModel, folder: Path, name: str = "live") -> Iterator[str]:
    """Start a program, and yield its address."""
    program = next(block for block in blocks(PROGRAMS[name], "python") if block.startswith(f"# {name}.py\n"))
    client = model.client.replace("yield json.loads(line), {}", "yield json.loads(line)")
    client = client.replace('yield "", {"calls": 1}', "pass")
    (folder / f"{name}.py").write_text(f"{program}\nimport json\n{client}")
    environment = os.environ | {"LANGO_STORE_URL": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "uvicorn", f"{name}:app", "--port", "0", "--timeout-graceful-shutdown", "1"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        yield next(found[1] for line in lines if (found := re.search(r"running on (http://\S+)", line)))
        process.terminate()
