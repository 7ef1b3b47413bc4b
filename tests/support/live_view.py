"""The program on the page about live views, as a service with the model of a test."""

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

PROGRAM: Final = next(block for block in blocks("docs/howto/live-view.md", "python") if block.startswith("# live.py\n"))


@contextmanager
def live_view(url: str, model: StreamingModel, folder: Path) -> Iterator[str]:
    """Start the program, and yield its address."""
    client = model.client.replace("yield json.loads(line), {}", "yield json.loads(line)")
    client = client.replace('yield "", {"calls": 1}', "pass")
    (folder / "live.py").write_text(f"{PROGRAM}\nimport json\n{client}")
    environment = os.environ | {"LANGO_STORE_URL": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "uvicorn", "live:app", "--port", "0", "--timeout-graceful-shutdown", "1"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        yield next(found[1] for line in lines if (found := re.search(r"running on (http://\S+)", line)))
        process.terminate()
