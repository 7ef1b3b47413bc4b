"""The programs on the page about a chat service, with the model of a test."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.pages import blocks
from support.paths import ROOT
from support.processes import Program
from support.streaming_model import StreamingModel

from lango_store import schema

PAGE: Final = "docs/howto/chat.md"
PROGRAMS: Final = {block.split()[1]: block for block in blocks(PAGE, "python")}
TOKEN: Final = "token-of-ann"
TOKENS: Final = {TOKEN: "ann"}
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}


def write_programs(folder: Path, model: StreamingModel | None = None) -> None:
    """Write the programs to a folder, perhaps with a model that counts its calls."""
    for name in ("chat.py", "service.py", "tools.py", "worker.py"):
        (folder / name).write_text(PROGRAMS[name])
    if model is not None:
        client = model.client.replace("yield json.loads(line), {}", "yield json.loads(line)")
        client = client.replace('yield "", {"calls": 1}', "pass")
        (folder / "chat.py").write_text(f"{PROGRAMS['chat.py']}\nimport json\n{client}")


def environment(url: str) -> dict[str, str]:
    return os.environ | {"LANGO_STORE_URL": url, "CHAT_TOKENS": json.dumps(TOKENS), "PYTHONPATH": str(ROOT)}


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, (path.name, old)
    path.write_text(text.replace(old, new))


@contextmanager
def chat_service(url: str, model: StreamingModel, folder: Path, app: str = "service:app") -> Iterator[str]:
    """Start the service and a worker with the changes of the last step, and yield the address."""
    write_programs(folder, model)
    for name in ("service.py", "worker.py"):
        change(folder / name, "from chat import answer, store", "from chat import store\nfrom tools import answer")
    change(folder / "service.py", "user=user,", "user=user, background=True,")
    schema.upgrade(url)
    options: dict[str, Any] = {"folder": folder, "environment": environment(url)}
    serve = "import runpy; runpy.run_module('uvicorn', run_name='__main__', alter_sys=True)"
    work = "import runpy; runpy.run_path('worker.py', run_name='__main__')"
    with (
        Program(work, keep_stderr=False, **options) as worker,
        Program(serve, app, "--port", 0, "--timeout-graceful-shutdown", 1, **options) as process,
    ):
        try:
            lines = iter(process.stderr.readline, "")
            yield next(found[1] for line in lines if (found := re.search(r"running on (http://\S+)", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            worker.kill()
