"""The service on the page about front ends: requests that are repeated, edited or refused, in both protocols."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.databases import MakeDatabase
from support.live_view import live_view
from support.pages import blocks
from support.polling import until
from support.streaming_model import PIECES, StreamingModel, streaming_model

from lango_store import Store

pytestmark = pytest.mark.slow
ANSWER = "".join(PIECES)


@pytest.fixture
def model() -> Iterator[StreamingModel]:
    with streaming_model() as model:
        yield model


@pytest.fixture
def url(make_database: MakeDatabase) -> str:
    return make_database(migrated=False)


@pytest.fixture
def client(url: str, model: StreamingModel, tmp_path: Path) -> Iterator[httpx2.Client]:
    with live_view(url, model, tmp_path, "front") as address, httpx2.Client(base_url=address, timeout=30) as client:
        yield client


def question(text: str, id: str = "q1", **fields: Any) -> dict[str, Any]:
    message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": "chat-1", "trigger": "submit-message", "messages": [message], **fields}


def run(run_id: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"threadId": "chat-1", "runId": run_id, "messages": messages, **fields}


def shown(client: httpx2.Client) -> list[str]:
    """Return the parts of the stored messages, each as a text."""
    messages = client.get("/api/chat/chat-1/messages").json()
    parts = [part for message in messages for part in message["parts"] if part["type"] != "step-start"]
    return [part.get("text") or f"{part['type']} {part.get('output') or part['state']}" for part in parts]


def last_message(client: httpx2.Client) -> dict[str, Any]:
    message: dict[str, Any] = client.get("/api/chat/chat-1/messages").json()[-1]
    return message


def test_first_program_answers_and_is_that_of_the_readme(url: str, model: StreamingModel, tmp_path: Path) -> None:
    (program,) = [block for block in blocks("README.md", "python") if block.startswith("# chats.py")]
    assert program in blocks("docs/howto/front-ends.md", "python")
    with live_view(url, model, tmp_path, "chats") as address, httpx2.Client(base_url=address, timeout=30) as client:
        assert "finish" in client.post("/api/chat", json=question("Hello")).text
        assert shown(client) == ["Hello", ANSWER]
        assert client.get("/api/chat").json()["items"][0]["title"] == "Hello"


def test_edited_and_repeated_questions(client: httpx2.Client, model: StreamingModel) -> None:
    for text in ("Oslo?", "Oslo?", "Bergen?", "Bergen?", "Oslo?"):
        assert client.post("/api/chat", json=question(text)).status_code == 200
        assert shown(client) == [text, ANSWER]
    assert model.calls == {"Oslo?": 2, "Bergen?": 1}


def test_requests_during_a_turn(client: httpx2.Client, model: StreamingModel) -> None:
    model.hold()
    hello = {"id": "q1", "role": "user", "content": "Hello"}
    bodies = [("/api/chat", question("Hello"))] * 2 + [("/api/agent", run("r2", hello))]
    with ExitStack() as stack:
        responses = [stack.enter_context(client.stream("POST", path, json=body)) for path, body in bodies]
        waiting = stack.enter_context(client.stream("POST", "/api/chat", json=question("Bye", "q2")))
        until(lambda: model.calls == {"Hello": 1})
        assert shown(client) == ["Hello", "Bye"]
        assert last_message(client)["metadata"] == {"waiting": True}
        model.release()
        for response in (*responses, waiting):
            assert response.status_code == 200
            assert json.dumps(PIECES[0])[1:-1] in response.read().decode()
    assert shown(client) == ["Hello", ANSWER, "Bye", ANSWER]
    assert model.calls == {"Hello": 1, "Bye": 1}


def test_approval_is_applied_once_also_after_a_crash(client: httpx2.Client, url: str) -> None:
    client.post("/api/chat", json=question("Pay"))
    assert shown(client) == ["Pay", "tool-pay approval-requested"]
    with Store(url) as store:  # the process dies after it has stored the answer
        conversation = store.conversation("chat-1")
        conversation.suspensions.answer(conversation.suspensions.list()[0].id, {"approved": True})
    answer = last_message(client)
    assert answer["parts"][-1]["state"] == "approval-responded"
    body = {"id": "chat-1", "messages": [*question("Pay")["messages"], answer]}
    for _ in range(2):
        assert client.post("/api/chat", json=body).status_code == 200
        assert shown(client) == ["Pay", "tool-pay paid", ANSWER]
    resume = [
        {"interruptId": answer["parts"][-1]["approval"]["id"], "status": "resolved", "payload": {"approved": True}}
    ]
    assert client.post("/api/agent", json=run("r2", resume=resume)).status_code == 200
    assert shown(client) == ["Pay", "tool-pay paid", ANSWER]


@pytest.mark.parametrize("protocol", ["aisdk", "agui"])
def test_tool_of_the_page_continues_the_answer(client: httpx2.Client, protocol: str) -> None:
    client.post("/api/chat", json=question("Where am I?"))
    assert shown(client) == ["Where am I?", "tool-where input-available"]
    path, messages = "/api/chat", client.get("/api/chat/chat-1/messages").json()
    messages[-1]["parts"][-1] |= {"state": "output-available", "output": "Oslo"}
    body: dict[str, Any] = {"id": "chat-1", "messages": messages}
    if protocol == "agui":
        path, messages = "/api/agent", client.get("/api/agent/chat-1/messages").json()
        result = {"id": "t1", "role": "tool", "toolCallId": messages[-1]["toolCalls"][0]["id"], "content": "Oslo"}
        body = run("r2", *messages, result)
    for _ in range(2):
        assert client.post(path, json=body).status_code == 200
        assert shown(client) == ["Where am I?", "tool-where Oslo", ANSWER]


def test_refused_requests_have_a_status(client: httpx2.Client) -> None:
    assert client.post("/api/chat/chat-1/stop").status_code == 404
    assert client.post("/api/chat", json={}).status_code == 400
    assert client.post("/api/chat", json={**question("Hello"), "id": ""}).status_code == 400
    assert client.post("/api/agent", content="{").status_code == 415
    json_type = {"content-type": "application/json"}
    assert client.post("/api/agent", content="{", headers=json_type).status_code == 400
    resume = [{"interruptId": "missing", "status": "resolved"}]
    assert client.post("/api/agent", json=run("r1", resume=resume)).status_code == 404
    assert client.post("/api/chat", json=question("Hello")).status_code == 200
    assert [client.post("/api/chat/chat-1/stop").status_code for _ in range(2)] == [204, 204]
