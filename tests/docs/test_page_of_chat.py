"""The service on the page about a chat service: its tests, its units, disconnects, stops and crashes."""

import asyncio
import json
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
from support.chat_page_programs import HEADERS, PAGE, change, environment, write_programs
from support.databases import MakeDatabase
from support.pages import blocks
from support.polling import until
from support.streaming_model import PIECES, StreamingModel, streaming_model

from lango_store import Message, Store, create_engine
from lango_store.tables import VERSION_TABLE, Base

pytestmark = pytest.mark.slow

KEY: Final = "chat-1"
ANSWER: Final = "".join(PIECES)


@pytest.fixture(autouse=True)
def programs(tmp_path: Path) -> None:
    """Write the programs to the folder of the test."""
    write_programs(tmp_path)


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    return make_sqlite()


@pytest.fixture
def model(programs: None, tmp_path: Path) -> Iterator[StreamingModel]:
    """Replace the model of the program with one that counts its calls."""
    with streaming_model() as model:
        write_programs(tmp_path, model)
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


@contextmanager
def service(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx2.Client]]:
    """Start the service as its unit does, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [port if word == "8000" else word for word in command("chat.service", "ExecStart")]
    with (
        subprocess.Popen(words, env=environment(url), cwd=folder, stderr=subprocess.DEVNULL) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=30) as client,
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


def question(key: str = KEY) -> dict[str, Any]:
    return {"id": key, "messages": [{"id": "q1", "role": "user", "parts": [{"type": "text", "text": f"Hello {key}"}]}]}


def ask(client: httpx2.Client) -> str:
    response = client.post("/api/chat", json=question())
    assert response.status_code == 200, response.text
    return response.text


def read_first_piece(lines: Iterator[str]) -> None:
    assert any('"delta":"I "' in line.replace(": ", ":") for line in lines)


def leave_after_first_piece(client: httpx2.Client) -> None:
    with client.stream("POST", "/api/chat", json=question()) as response:
        read_first_piece(response.iter_lines())


def contents(store: Store) -> list[Any]:
    return [message.content for message in store.conversation(KEY).messages()]


def test_turn_is_finished_although_the_client_disconnects(
    make_sqlite: MakeDatabase, model: StreamingModel, tmp_path: Path
) -> None:
    url = make_sqlite(migrated=False)
    subprocess.run(command("chat.service", "ExecStartPre"), env=environment(url), cwd=tmp_path, check=True, timeout=60)
    model.hold()
    with service(url, tmp_path) as (_, client), Store(url) as store:
        leave_after_first_piece(client)
        model.release()
        until(lambda: contents(store) == ["Hello chat-1", ANSWER])
        session = store.conversation(KEY).info()
        assert session.user_id == "ann"
        assert session.expires_at is not None
        assert session.expires_at - session.updated_at == timedelta(days=30)


def test_stopped_service_keeps_the_draft_and_releases_the_lease(
    url: str, model: StreamingModel, tmp_path: Path
) -> None:
    model.hold()
    with service(url, tmp_path) as (process, client), Store(url) as store:
        leave_after_first_piece(client)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        conversation = store.conversation(KEY)
        (draft,) = conversation.drafts.list()
        assert draft.text == "I "
        assert conversation.turns.in_progress() is None
        assert conversation.turns.list() == []
        assert [owed.key for owed in store.owed().items] == [KEY]


# Two processes

SESSIONS: Final = 12  # two processes run up to 16 turns


async def ask_all(clients: list[httpx2.Client], keys: list[str], model: StreamingModel) -> list[str]:
    """Send each question to all processes at the same time, while the model is held."""
    model.hold()
    async with httpx2.AsyncClient(timeout=60, headers=clients[0].headers) as sender:
        requests = [
            asyncio.create_task(sender.post(f"{client.base_url}/api/chat", json=question(key)))
            for client in clients
            for key in keys
        ]
        async with asyncio.timeout(100):
            while model.calls.total() < len(keys):
                await asyncio.sleep(0.01)
            model.release()
            return [(await request).text for request in requests]


def test_question_sent_to_two_processes_asks_the_model_once(
    make_database: MakeDatabase, model: StreamingModel, tmp_path: Path
) -> None:
    url = make_database()
    keys = [f"chat-{number}" for number in range(SESSIONS)]
    with Store(url) as store, ExitStack() as stack:
        clients = [stack.enter_context(service(url, tmp_path))[1] for _ in range(2)]
        answers = asyncio.run(ask_all(clients, keys, model))
        assert [answer for answer in answers if "[DONE]" not in answer or '"finish"' not in answer] == []
        assert model.calls == {f"Hello {key}": 1 for key in keys}
        for key in keys:
            conversation = store.conversation(key)
            assert [message.content for message in conversation.messages()] == [f"Hello {key}", ANSWER]
            assert len(conversation.turns.list()) == 1
            assert conversation.drafts.list() == []


def test_stop_request_ends_a_turn_that_another_process_runs(url: str, model: StreamingModel, tmp_path: Path) -> None:
    model.hold()
    with ExitStack() as stack:
        (_, client), (_, other) = (stack.enter_context(service(url, tmp_path)) for _ in range(2))
        store = stack.enter_context(Store(url))
        with client.stream("POST", "/api/chat", json=question()) as response:
            lines = response.iter_lines()
            read_first_piece(lines)
            assert other.post(f"/api/chat/{KEY}/stop").status_code == 204
            assert "data: [DONE]" in list(lines)
        assert contents(store) == ["Hello chat-1", "I "]
        assert store.conversation(KEY).messages()[-1].extra == {"interrupted": True}
        ask(other)
        assert model.calls == {"Hello chat-1": 1}


# kill -9


@pytest.fixture
def short_lease(model: StreamingModel, tmp_path: Path) -> None:
    """Shorten the lease of a killed process to a second."""
    lease = "user=user, lease=__import__('datetime').timedelta(seconds=1),"
    change(tmp_path / "service.py", "user=user,", lease)


def kill_during_an_answer(url: str, folder: Path, model: StreamingModel) -> None:
    """Kill the service after the first piece of an answer is stored."""
    model.hold()
    with service(url, folder) as (process, client):
        leave_after_first_piece(client)
        process.kill()
        process.wait(60)
    model.release()


@pytest.mark.usefixtures("short_lease")
def test_restarted_service_answers_after_a_kill_without_a_request(
    make_database: MakeDatabase, model: StreamingModel, tmp_path: Path
) -> None:
    url = make_database()
    kill_during_an_answer(url, tmp_path, model)
    with Store(url) as store:
        (draft,) = store.conversation(KEY).drafts.list()
        assert draft.text == "I "
        with service(url, tmp_path):
            until(lambda: contents(store) == ["Hello chat-1", ANSWER])
            until(lambda: len(store.conversation(KEY).turns.list()) == 1)
        assert store.conversation(KEY).drafts.list() == []
        assert model.calls == {"Hello chat-1": 2}


def test_stored_answer_of_a_killed_attempt_is_saved_without_asking_the_model(
    url: str, model: StreamingModel, tmp_path: Path
) -> None:
    with Store(url) as store:
        conversation = store.open(KEY, user_id="ann")
        conversation.inbox.put(Message.user("Hello chat-1", id="q1"))
        killed = conversation.turn().begin()
        killed.take_inbox()
        killed.append(Message.assistant(ANSWER))
        conversation.turns.release()
        with service(url, tmp_path) as (_, client):
            ask(client)
            until(lambda: len(conversation.turns.list()) == 1)
        assert contents(store) == ["Hello chat-1", ANSWER]
        assert model.calls == {}


def test_stop_request_appends_the_draft_of_a_killed_service(url: str, model: StreamingModel, tmp_path: Path) -> None:
    kill_during_an_answer(url, tmp_path, model)
    with service(url, tmp_path) as (_, client), Store(url) as store:
        assert client.post(f"/api/chat/{KEY}/stop").status_code == 204
        assert contents(store) == ["Hello chat-1", "I "]
        ask(client)
        assert model.calls == {"Hello chat-1": 1}


# Start, and expired chats


def test_service_does_not_start_without_tables(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    url = make_sqlite(migrated=False)
    words = [*command("chat.service", "ExecStart"), "--lifespan", "on"]
    done = subprocess.run(words, env=environment(url), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "lango-store db upgrade" in done.stderr


def test_health_check_fails_if_the_tables_are_gone(url: str, tmp_path: Path) -> None:
    with service(url, tmp_path) as (_, client):
        engine = create_engine(url)
        Base.metadata.drop_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {VERSION_TABLE}")
        engine.dispose()
        response = client.get("/health")
        assert (response.status_code, response.json()) == (503, {"detail": "SchemaOutOfDate"})


def test_timer_purges_expired_chats(url: str, tmp_path: Path) -> None:
    with Store(url, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC)) as store:
        store.create("old", ttl=timedelta(days=30))
    words = command("chat-expire.service", "ExecStart")
    done = subprocess.run(words, env=environment(url), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == 1
