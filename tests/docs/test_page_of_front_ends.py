"""Requests to the chat service that are repeated, edited or refused, in both protocols."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from support.chat_page_programs import HEADERS, chat_service
from support.pages import blocks
from support.polling import until
from support.processes import run_program
from support.streaming_model import PIECES, StreamingModel, streaming_model

from lango_store import Store

pytestmark = pytest.mark.slow
ANSWER = "".join(PIECES)


@pytest.fixture
def model() -> Iterator[StreamingModel]:
    with streaming_model() as model:
        yield model


@pytest.fixture
def client(url: str, model: StreamingModel, tmp_path: Path) -> Iterator[httpx2.Client]:
    with (
        chat_service(url, model, tmp_path) as address,
        httpx2.Client(base_url=address, headers=HEADERS, timeout=30) as client,
    ):
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


def test_edited_and_repeated_questions(client: httpx2.Client, model: StreamingModel) -> None:
    for text in ("Oslo?", "Oslo?", "Bergen?", "Bergen?", "Oslo?"):
        assert client.post("/api/chat", json=question(text)).status_code == 200
        assert shown(client) == [text, ANSWER]
    assert model.calls == {"Oslo?": 1, "Bergen?": 1}  # the last edit shows the first version again


def test_requests_during_a_turn(client: httpx2.Client, model: StreamingModel) -> None:
    model.hold()
    hello = {"id": "q1", "role": "user", "content": "Hello"}
    bodies = [("/api/chat", question("Hello"))] * 2 + [("/api/agent", run("r2", hello))]
    with ExitStack() as stack:
        responses = [stack.enter_context(client.stream("POST", path, json=body)) for path, body in bodies]
        until(lambda: model.calls == {"Hello": 1})  # a worker that finds both questions answers them together
        waiting = stack.enter_context(client.stream("POST", "/api/chat", json=question("Bye", "q2")))
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


def test_conversations_are_listed_with_their_titles(client: httpx2.Client) -> None:
    client.post("/api/chat", json=question("Hello"))
    assert client.get("/api/chat").json()["items"][0]["title"] == "Hello"


def test_first_step_answers_and_has_a_page(url: str, model: StreamingModel, tmp_path: Path) -> None:
    with (
        chat_service(url, model, tmp_path, "chat:app") as address,
        httpx2.Client(base_url=address, timeout=30) as client,
    ):
        assert "<html" in client.get("/").text
        assert "finish" in client.post("/api/chat", json=question("Hello")).text
        assert shown(client) == ["Hello", ANSWER]


FRONT: Final = next(each for each in blocks("docs/howto/front-ends.md", "python") if each.startswith("# front.py"))
ASKING: Final = """
import asyncio, sys, httpx2

sys.path.insert(0, "")
import front

async def main():
    async with front.lifespan(front.app):
        transport = httpx2.ASGITransport(front.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://chat", timeout=30) as client:
            picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="}
            for text, files in (("Hello", [picture]), ("Pay", [])):
                question = {"id": text, "role": "user", "parts": [{"type": "text", "text": text}, *files]}
                body = {"id": "c", "trigger": "submit-message", "messages": [question]}
                assert (await client.post("/api/chat", json=body)).status_code == 200
            shown = (await client.get("/api/chat/c/messages")).json()
    print(shown[1]["parts"][-1]["text"], shown[3]["parts"][-1]["state"])

asyncio.run(main())
"""


def test_chat_for_one_person_answers_and_asks_for_an_approval(tmp_path: Path) -> None:
    (tmp_path / "front.py").write_text(FRONT, "utf-8")
    done = run_program(ASKING, folder=tmp_path)
    assert done.stdout == "Done. approval-requested\n", done.stderr
