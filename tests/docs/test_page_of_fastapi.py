"""The service on the page about FastAPI: its tests, its units, and clients that disconnect."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from support.pages import blocks
from support.paths import ROOT
from support.processes import PYTEST, run_program

from lango_store import Store

PAGE: Final = "docs/howto/fastapi.md"
PROGRAM, TESTS = blocks(PAGE, "python")
QUESTION: Final = {"id": "r1", "text": "Hello", "after": 0}
ANSWER: Final = "I have read 1 messages . "


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Write the program to the folder of the test, and return the URL of an empty database."""
    (tmp_path / "chat.py").write_text(PROGRAM)
    return f"sqlite:///{tmp_path}/agent.db"


def unit(name: str) -> str:
    """Return a unit of systemd on the page."""
    (text,) = blocks(PAGE, "ini")
    files = re.split(r"^# (\S+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(files[::2], files[1::2], strict=True))[name].replace("\\\n", "")


def command(name: str, option: str) -> list[str]:
    """Return a command of a unit, with the programs of this virtual environment."""
    (line,) = re.findall(rf"^{option}=/opt/chat/bin/(.*)$", unit(name), re.MULTILINE)
    program, *words = shlex.split(line)
    module = {"lango-store": "lango_store.cli", "uvicorn": "uvicorn"}[program]
    return [sys.executable, "-m", module, *words]


def environment(url: str) -> dict[str, str]:
    return os.environ | {"LANGO_STORE_URL": url, "PYTHONPATH": str(ROOT)}


@contextmanager
def service(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx2.Client]]:
    """Start the service as its unit does, on a free port."""
    subprocess.run(command("chat.service", "ExecStartPre"), env=environment(url), cwd=folder, check=True, timeout=60)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [port if word == "8000" else word for word in command("chat.service", "ExecStart")]
    with (
        subprocess.Popen(words, env=environment(url), cwd=folder, stderr=subprocess.DEVNULL) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        try:
            wait_until(lambda: answers(client))
            yield process, client
        finally:
            process.kill()


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx2.ConnectError:
        return False


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def leave_after_first_piece(client: httpx2.Client, key: str) -> None:
    with client.stream("POST", f"/chats/{key}/turns", json=QUESTION) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_text()) == 'data: {"text": "I "}\n\n'


def test_example_tests_on_fastapi_page_pass(url: str, tmp_path: Path) -> None:
    (tmp_path / "test_chat.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    variables = {name: value for name, value in environment(url).items() if name != "LANGO_STORE_TEST_POSTGRES"}
    words = ("-q", "-p", "no:cacheprovider", "test_chat.py")
    done = run_program(PYTEST, *words, folder=tmp_path, environment=variables)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_turn_is_stored_whole_after_the_client_disconnects(url: str, tmp_path: Path) -> None:
    with service(url, tmp_path) as (_, client), Store(url) as store:
        key = client.post("/chats").json()["key"]
        leave_after_first_piece(client, key)
        wait_until(lambda: store.conversation(key).find_turn("r1"))
        assert [message.content for message in store.messages(key)] == ["Hello", ANSWER]
        again = client.post(f"/chats/{key}/turns", json=QUESTION)
        assert again.text.endswith('data: {"finished": true, "last_seq": 2}\n\n')


def test_stopped_service_stores_the_partial_answer(url: str, tmp_path: Path) -> None:
    with service(url, tmp_path) as (process, client), Store(url) as store:
        key = client.post("/chats").json()["key"]
        leave_after_first_piece(client, key)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        turn = store.conversation(key).find_turn("r1")
        assert turn is not None
        assert turn.metadata == {"finished": False}
        assert ANSWER.startswith(str(store.messages(key)[-1].content))


def test_service_does_not_start_without_tables(url: str, tmp_path: Path) -> None:
    words = [*command("chat.service", "ExecStart"), "--lifespan", "on"]
    done = subprocess.run(words, env=environment(url), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "lango-store db upgrade" in done.stderr


def test_timer_purges_expired_chats(url: str, tmp_path: Path) -> None:
    with Store(url, migrate=True, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC)) as store:
        store.create("old", ttl=timedelta(days=30))
    words = command("chat-expire.service", "ExecStart")
    done = subprocess.run(words, env=environment(url), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == 1
