"""The service on the page about FastAPI: its tests, its units, retries, disconnects and crashes."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from support.databases import MakeDatabase
from support.pages import blocks
from support.paths import ROOT
from support.polling import until
from support.processes import PYTEST, run_program
from support.streaming_model import PIECES, StreamingModel, streaming_model

from lango_store import Message, Store

pytestmark = pytest.mark.slow

PAGE: Final = "docs/howto/fastapi.md"
PROGRAM, TESTS = blocks(PAGE, "python")
QUESTION: Final = {"id": "r1", "text": "Hello"}
ANSWER: Final = "I have read 1 messages . "


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> Path:
    """Write the program to the folder of the test."""
    path = tmp_path / "chat.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    return make_sqlite()


@pytest.fixture
def model(program: Path) -> Iterator[StreamingModel]:
    """Replace the model of the program with one that counts its calls."""
    with streaming_model() as model:
        program.write_text(PROGRAM + model.client)
        yield model


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [port if word == "8000" else word for word in command("chat.service", "ExecStart")]
    with (
        subprocess.Popen(words, env=environment(url), cwd=folder, stderr=subprocess.DEVNULL) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        try:
            until(lambda: is_answering(client))
            yield process, client
        finally:
            process.kill()


def is_answering(client: httpx2.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx2.ConnectError:
        return False


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-1]]


def ask(client: httpx2.Client, key: str, question: Any = QUESTION) -> list[dict[str, Any]]:
    answer = client.post(f"/chats/{key}/turns", json=question)
    assert answer.status_code == 200, answer.text
    return events(answer.text)


def leave_after_first_piece(client: httpx2.Client, key: str) -> None:
    with client.stream("POST", f"/chats/{key}/turns", json=QUESTION) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_text()) == 'data: {"text": "I "}\n\n'


def contents(store: Store, key: str) -> list[Any]:
    return [message.content for message in store.conversation(key).messages()]


def test_example_tests_on_the_fastapi_page_pass(url: str, tmp_path: Path) -> None:
    (tmp_path / "test_chat.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    variables = {name: value for name, value in environment(url).items() if name != "LANGO_STORE_TEST_POSTGRES"}
    words = ("-q", "-p", "no:cacheprovider", "test_chat.py")
    done = run_program(PYTEST, *words, folder=tmp_path, environment=variables)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_turn_is_finished_although_the_client_disconnects(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    url = make_sqlite(migrated=False)
    subprocess.run(command("chat.service", "ExecStartPre"), env=environment(url), cwd=tmp_path, check=True, timeout=60)
    with service(url, tmp_path) as (_, client), Store(url) as store:
        key = client.post("/chats").json()["key"]
        leave_after_first_piece(client, key)
        (event,) = ask(client, key)
        assert event["message"]["content"] == ANSWER
        assert contents(store, key) == ["Hello", ANSWER]


def test_stopped_service_keeps_the_draft_and_releases_the_lease(url: str, tmp_path: Path) -> None:
    with service(url, tmp_path) as (process, client), Store(url) as store:
        key = client.post("/chats").json()["key"]
        leave_after_first_piece(client, key)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        conversation = store.conversation(key)
        (draft,) = conversation.drafts.list()
        assert ANSWER.startswith(draft.text)
        assert conversation.turns.in_progress() is None
        assert conversation.turns.find("r1") is None


FAILS_ONCE: Final = """
prompts = []

async def complete(prompt):
    prompts.append(prompt)
    yield f"{len(prompts)} ", {}
    if len(prompts) == 1:
        raise ConnectionError("the model is overloaded")
"""


def test_question_is_answered_if_sent_again_after_a_model_error(url: str, program: Path, tmp_path: Path) -> None:
    program.write_text(PROGRAM + FAILS_ONCE)
    with service(url, tmp_path) as (_, client), Store(url) as store:
        key = client.post("/chats").json()["key"]
        assert ask(client, key) == [{"text": "1 "}, {"error": "ConnectionError"}]
        assert [draft["text"] for draft in client.get(f"/chats/{key}/drafts").json()] == ["1 "]
        assert ask(client, key)[-1]["message"]["content"] == "2 "
        assert contents(store, key) == ["Hello", "2 "]
        assert client.get(f"/chats/{key}/drafts").json() == []


# Two processes

SESSIONS: Final = 20
TURNS: Final = 4  # of each session


async def post(sender: httpx2.AsyncClient, url: str, question: dict[str, str]) -> str:
    """Ask a question as a client does, which sends it again after `Retry-After`."""
    while (answer := await sender.post(url, json=question)).status_code == 409:
        await asyncio.sleep(float(answer.headers["retry-after"]))
    assert answer.status_code == 200, answer.text
    return answer.text


async def ask_all(clients: list[httpx2.Client], keys: list[str], model: StreamingModel) -> list[str]:
    """Send each question to all processes at the same time, while the model is held."""
    model.hold()
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=60, limits=limits) as sender:
        requests = [
            asyncio.create_task(post(sender, f"{client.base_url}/chats/{key}/turns", question))
            for client in clients
            for key in keys
            for question in ({"id": f"r{number}", "text": f"{key} {number}"} for number in range(TURNS))
        ]
        async with asyncio.timeout(100):
            while model.calls.total() < len(keys):
                await asyncio.sleep(0.01)
            model.release()
            return await asyncio.gather(*requests)


def test_question_sent_to_two_processes_asks_the_model_once(
    make_database: MakeDatabase, model: StreamingModel, tmp_path: Path
) -> None:
    url = make_database()
    with Store(url) as store, ExitStack() as stack:
        keys = [store.create().key for _ in range(SESSIONS)]
        clients = [stack.enter_context(service(url, tmp_path))[1] for _ in range(2)]
        answers = asyncio.run(ask_all(clients, keys, model))
        assert len(answers) == 2 * SESSIONS * TURNS
        for answer in answers:
            *pieces, last = events(answer)
            assert last["message"]["content"] == "".join(PIECES)
            assert [piece["text"] for piece in pieces] in ([], [*PIECES, ""])
        assert model.calls == {f"{key} {number}": 1 for key in keys for number in range(TURNS)}
        for key in keys:
            conversation = store.conversation(key)
            assert sorted(str(turn.id) for turn in conversation.turns.list()) == [
                f"r{number}" for number in range(TURNS)
            ]
            log = contents(store, key)
            assert sorted(log[::2]) == [f"{key} {number}" for number in range(TURNS)]
            assert log[1::2] == ["".join(PIECES)] * TURNS
            assert conversation.drafts.list() == []


def test_stop_request_ends_a_turn_that_another_process_runs(url: str, model: StreamingModel, tmp_path: Path) -> None:
    model.hold()
    with ExitStack() as stack:
        (_, client), (_, other) = (stack.enter_context(service(url, tmp_path)) for _ in range(2))
        key = client.post("/chats").json()["key"]
        with client.stream("POST", f"/chats/{key}/turns", json=QUESTION) as answer:
            lines = answer.iter_lines()
            assert next(lines) == 'data: {"text": "I "}'
            stopped = other.post(f"/chats/{key}/stop").json()
            assert [message["content"] for message in stopped["messages"]] == ["Hello", "I "]
            model.release()
            assert [line for line in lines if line][-1] == 'data: {"error": "LeaseLost"}'
        (event,) = ask(client, key)
        assert event["message"]["extra"] == {"interrupted": True}
        assert other.post(f"/chats/{key}/stop").json() is None
        assert model.calls == {"Hello": 1}


# kill -9


@pytest.fixture
def short_lease(program: Path, model: StreamingModel) -> None:
    """Shorten the lease of a killed process to a second."""
    lease = "LEASE = timedelta(minutes=1)"
    assert lease in PROGRAM
    program.write_text(program.read_text().replace(lease, "LEASE = timedelta(seconds=1)"))


@contextmanager
def killed_and_restarted(url: str, folder: Path, model: StreamingModel) -> Iterator[tuple[httpx2.Client, str]]:
    """Kill the service in the middle of an answer; yield a client of a new one, and the key of the chat."""
    model.hold()
    with service(url, folder) as (process, client):
        key = client.post("/chats").json()["key"]
        leave_after_first_piece(client, key)
        process.kill()
        process.wait(60)
    model.release()
    with service(url, folder) as (_, client):
        (draft,) = client.get(f"/chats/{key}/drafts").json()
        assert (draft["turn_id"], draft["text"]) == ("r1", "I ")
        yield client, key


@pytest.mark.usefixtures("short_lease")
def test_restarted_service_answers_a_question_that_is_sent_again_after_a_kill(
    make_database: MakeDatabase, model: StreamingModel, tmp_path: Path
) -> None:
    url = make_database()
    with killed_and_restarted(url, tmp_path, model) as (client, key), Store(url) as store:
        *_, last = ask(client, key)
        assert last["message"]["content"] == "".join(PIECES)
        assert contents(store, key) == ["Hello", "".join(PIECES)]
        assert [turn.id for turn in store.conversation(key).turns.list()] == ["r1"]
        assert client.get(f"/chats/{key}/drafts").json() == []
        assert model.calls == {"Hello": 2}


def test_stored_answer_of_a_killed_attempt_is_saved_without_asking_the_model(
    url: str, model: StreamingModel, tmp_path: Path
) -> None:
    with service(url, tmp_path) as (_, client), Store(url) as store:
        key = store.create().key
        killed = store.conversation(key).turn("r1").begin()
        killed.append_messages([Message.user("Hello"), Message.assistant("I have read it.")])
        store.conversation(key).turns.release()
        assert [event["message"]["content"] for event in ask(client, key)] == ["I have read it."]
        assert store.conversation(key).turns.find("r1") is not None
        assert model.calls == {}


def test_stop_request_appends_the_draft_of_a_killed_service(url: str, model: StreamingModel, tmp_path: Path) -> None:
    with killed_and_restarted(url, tmp_path, model) as (client, key):
        stopped = client.post(f"/chats/{key}/stop").json()
        assert [message["content"] for message in stopped["messages"]] == ["Hello", "I "]
        assert [event["message"]["content"] for event in ask(client, key)] == ["I "]
        assert model.calls == {"Hello": 1}


@pytest.mark.usefixtures("short_lease")
def test_draft_of_a_killed_service_is_appended_before_the_next_question(
    url: str, model: StreamingModel, tmp_path: Path
) -> None:
    with killed_and_restarted(url, tmp_path, model) as (client, key), Store(url) as store:
        ask(client, key, {"id": "r2", "text": "And now?"})
        assert contents(store, key) == ["Hello", "I ", "And now?", "".join(PIECES)]
        assert store.conversation(key).messages()[1].extra == {"interrupted": True}


# Start, and expired chats


def test_service_does_not_start_without_tables(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    url = make_sqlite(migrated=False)
    words = [*command("chat.service", "ExecStart"), "--lifespan", "on"]
    done = subprocess.run(words, env=environment(url), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "lango-store db upgrade" in done.stderr


def test_timer_purges_expired_chats(url: str, tmp_path: Path) -> None:
    with Store(url, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC)) as store:
        store.create("old", ttl=timedelta(days=30))
    words = command("chat-expire.service", "ExecStart")
    done = subprocess.run(words, env=environment(url), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == 1
