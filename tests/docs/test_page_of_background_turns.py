"""The programs on the page about background turns: a route that stores a question, and a worker that answers it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from support.factories import contents
from support.pages import blocks
from support.paths import ROOT
from support.polling import until
from support.processes import Program

from lango_store import Store

pytestmark = pytest.mark.slow

APP, WORKER, LATER, SCHEDULE = blocks("docs/howto/background-turns.md", "python")
QUESTION = {"id": "request-1", "text": "Hello"}


def is_answering(client: httpx2.Client) -> bool:
    try:
        return client.get("/docs").status_code == 200
    except httpx2.ConnectError:
        return False


def test_question_of_a_route_is_answered_by_a_worker_and_followed_by_a_browser(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    environment = os.environ | {"LANGO_STORE_URL": url, "PYTHONPATH": str(ROOT)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "-m", "uvicorn", "app:app", "--port", port, "--log-level", "error"]
    with (
        subprocess.Popen(words, env=environment, cwd=tmp_path) as service,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        Store(url) as store,
    ):
        try:
            until(lambda: is_answering(client))
            for _ in range(2):
                assert client.post("/questions/ann", json=QUESTION).status_code == 202
            assert [each.key for each in store.owed().items] == ["ann"]
            with Program(WORKER, environment=environment, folder=tmp_path) as worker:
                until(lambda: len(store.conversation("ann").turns.list()) == 1)
                worker.send_signal(signal.SIGTERM)
                assert worker.communicate()[1] == ""
            assert worker.returncode == 0
            assert contents(store.conversation("ann").messages()) == ["Hello", "I have read 1 messages. "]
            with client.stream("GET", "/chats/ann/events") as stream:
                lines = stream.iter_lines()
                until(lambda: "I have read 1 messages" in next(lines))
        finally:
            service.kill()


def test_programs_put_messages_for_later_and_of_a_schedule(tmp_path: Path) -> None:
    for program in (LATER, SCHEDULE, SCHEDULE):
        subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True
        )
    with Store(f"sqlite:///{tmp_path}/agent.db") as store:
        assert contents(store.conversation("ann").inbox.list()) == ["Congratulate me.", "Write the report of the day."]
