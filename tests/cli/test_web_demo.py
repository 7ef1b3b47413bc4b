"""`lango-store demo --web` as a process: an answer that survives its worker, and children that end with the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support.paths import ROOT
from support.polling import until
from support.processes import LANGO_STORE, run_program

QUESTION = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}


@pytest.fixture
def demo() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", LANGO_STORE, "demo", "--web", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        yield process
        process.kill()


def get(address: str, path: str, method: str = "GET", body: object = None) -> Any:
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(address + path, data, headers, method=method), timeout=30) as answer:
        return json.loads(answer.read()) if method == "GET" else answer.readline()


def worker_processes(process: "subprocess.Popen[str]") -> list[int]:
    """Return the processes that the command has started."""
    files = Path(f"/proc/{process.pid}/task").glob("*/children")  # a file for each thread
    return [int(pid) for each in files for pid in each.read_text().split()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def texts(address: str) -> list[str]:
    messages = get(address, "api/chat/chat-1/messages")
    return ["".join(part.get("text", "") for part in each["parts"]) for each in messages]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_answer_survives_the_kill_button_and_children_end_with_the_command(
    demo: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    assert demo.stdout is not None
    address = demo.stdout.readline().split()[0]
    with urlopen(address) as page:
        assert "demo.js" in page.read().decode()
    get(address, "api/chat", "POST", {"id": "chat-1", "trigger": "submit-message", "messages": [QUESTION]})
    until(lambda: get(address, "worker?id=chat-1")["pid"] is not None)
    killed = get(address, "worker?id=chat-1")["pid"]
    get(address, "worker?id=chat-1", "POST")
    assert not is_running(killed)
    until(lambda: len(texts(address)) == 2 and texts(address)[1].endswith("your browser runs."))
    workers = worker_processes(demo)
    assert len(workers) == 2
    demo.send_signal(number)
    demo.wait(30)
    until(lambda: not any(map(is_running, workers)))


def test_demo_without_the_extra_names_what_to_install() -> None:
    done = run_program(f"import sys; sys.modules['uvicorn'] = None\n{LANGO_STORE}", "demo", "--web")
    assert done.returncode == 1
    assert "pip install 'lango-store[web]'" in done.stderr
