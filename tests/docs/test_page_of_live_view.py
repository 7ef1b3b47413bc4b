"""The chat on the page about live views: its events, and its access control."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.databases import MakeDatabase
from support.live_view import live_view
from support.streaming_model import PIECES, StreamingModel, streaming_model

pytestmark = pytest.mark.slow


@pytest.fixture
def model() -> Iterator[StreamingModel]:
    with streaming_model() as model:
        yield model


@pytest.fixture
def client(make_database: MakeDatabase, model: StreamingModel, tmp_path: Path) -> Iterator[httpx2.Client]:
    url = make_database(migrated=False)
    with live_view(url, model, tmp_path) as address, httpx2.Client(base_url=address, timeout=30) as client:
        yield client


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the id, the type and the data of each event of a stream, without beginnings and ends of turns."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        fields[name] = value
        if line == "" and "data" in fields:
            if not fields["event"].startswith("turn_"):
                yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def ask(client: httpx2.Client, id: str) -> None:
    assert client.post("/chats/chat-1/questions", json={"id": id, "text": "Hello"}).status_code == 202


def test_readers_see_the_answer_while_it_is_written(client: httpx2.Client, model: StreamingModel) -> None:
    assert client.get("/chats/chat-1").status_code == 200
    model.hold()
    with client.stream("GET", "/sessions/chat-1/events") as stream:
        seen = events(stream.iter_lines())
        ask(client, "q1")
        _, kind, data = next(seen)
        assert (kind, data["messages"][0]["content"]) == ("appended", "Hello")
        id, kind, data = next(seen)
        assert (kind, data["n"], data["text"]) == ("piece", 0, PIECES[0])
    model.release()
    with client.stream("GET", "/sessions/chat-1/events", headers={"Last-Event-ID": id}) as stream:
        text = PIECES[0]
        for _, kind, data in events(stream.iter_lines()):
            if kind == "appended":
                assert data["messages"][0]["content"] == "".join(PIECES)
                break
            assert data["n"] == len(text)
            text += data["text"]


def test_question_that_is_sent_twice_is_answered_once(client: httpx2.Client, model: StreamingModel) -> None:
    client.get("/chats/chat-1")
    for id in ("q1", "q1", "q2"):
        ask(client, id)
    with client.stream("GET", "/sessions/chat-1/events") as stream:
        contents: list[str] = []
        for _, kind, data in events(stream.iter_lines()):
            contents += [each["content"] for each in data["messages"]] if kind == "appended" else []
            if len(contents) == 4:
                break
    assert contents == ["Hello", "".join(PIECES)] * 2
    assert model.calls == {"Hello": 2}


def test_reader_without_access_is_refused(client: httpx2.Client) -> None:
    client.get("/chats/private")
    assert client.get("/sessions/private/events").status_code == 403
    assert client.get("/sessions/chat-missing/events").status_code == 404
