"""`lango_store.web.chat`: other users, hostile requests, stops, and streams that wait for a worker."""

import asyncio
import itertools
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final, cast

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.asgi import Request
from support.http_server import serving
from support.paths import ROOT
from support.polling import until

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, Store, ToolCall, ui
from lango_store.web import Chat, chat, single_user

REQUESTS: Final = 1_000
PAGES: Final = 200
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
WORKER: Final = """
import asyncio, sys
from datetime import timedelta
from lango_store import AsyncStore, Message

async def answer(conversation, turn):
    await turn.write("half ")
    await turn.flush()
    if sys.argv[2] == "dies":
        print("begun", flush=True)
        await asyncio.Event().wait()
    await turn.append(Message.assistant("half whole"))

async def main():
    async with AsyncStore(sys.argv[1]) as store:
        await store.work(answer, lease=timedelta(seconds=1), poll=timedelta(milliseconds=50))

asyncio.run(main())
"""


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    await turn.append(Message.assistant("Hi"))


def user(request: Any) -> str | None:
    name: str | None = request.headers.get("x-user")
    return name


def question(text: str = "Hello", id: str = "q1", key: str = "c", **fields: Any) -> dict[str, Any]:
    message = {"id": id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": key, "trigger": "submit-message", "messages": [message], **fields}


def run(key: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"threadId": key, "runId": "r1", "messages": messages, **fields}


@asynccontextmanager
async def client_of(app: Chat, name: str = "ann") -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app)  # raises what the application raises
    async with httpx2.AsyncClient(transport=transport, base_url="http://chat", headers={"x-user": name}) as client:
        yield client


def with_store(url: str, work: Callable[[AsyncStore], Coroutine[Any, Any, None]]) -> None:
    async def start() -> None:
        async with AsyncStore(url) as store:
            await work(store)

    asyncio.run(start())


def everything(store: Store) -> list[Any]:
    """Return all that requests could change."""
    conversations = [store.conversation(each.key) for each in store.iter_sessions()]
    return [
        (each.get(), each.inbox.list(), each.suspensions.list(), each.turns.list(), each.turns.in_progress())
        for each in conversations
    ]


def requests_about(key: str, suspension: str) -> Iterator[tuple[str, str, Any]]:
    """Yield one request for each route, and for each kind of body."""
    yield "GET", f"/api/agent/{key}/stream?follow=true", None
    for protocol in ("chat", "agent"):
        yield "GET", f"/api/{protocol}/{key}/stream", None
        yield "GET", f"/api/{protocol}/{key}/messages", None
        yield "POST", f"/api/{protocol}/{key}/stop", None
    yield "PATCH", f"/api/chat/{key}", {"title": "mine"}
    yield "DELETE", f"/api/chat/{key}", None
    user_message = question()["messages"][0]
    given = {"type": "tool-pay", "toolCallId": "p", "state": "approval-responded"}
    approved = {**given, "approval": {"id": suspension, "approved": True}}
    result = {"type": "tool-where", "toolCallId": "w", "state": "output-available", "output": "Oslo"}
    for part in (approved, result):
        answered = {"id": "a", "role": "assistant", "parts": [part]}
        yield "POST", "/api/chat", {"id": key, "messages": [user_message, answered]}
    yield "POST", "/api/chat", question(key=key, trigger="regenerate-message", messageId="a")
    resume = [{"interruptId": suspension, "status": "resolved", "payload": {"approved": True}}]
    yield "POST", "/api/agent", run(key, resume=resume)
    yield "POST", "/api/agent", run(key, {"id": "t", "role": "tool", "toolCallId": "w", "content": "Oslo"})


def test_requests_with_ids_of_another_user_get_404_with_equal_bodies(url: str, store: Store) -> None:
    suspensions = []
    for number in range(10):
        conversation = store.open(f"ann-{number}", user_id="ann", messages=[Message.user("Hello", id="q1")])
        with conversation.turn() as turn:
            calls = [ToolCall(id=name[0], name=name, arguments={}) for name in ("pay", "where")]
            asking = turn.append(Message.assistant(tool_calls=calls))
        suspensions.append(conversation.suspensions.create([(asking.seq, 0)]).id)
        conversation.inbox.put(Message.user("waiting", id="q2"))
    own = store.open("bobs", user_id="bob", messages=[Message.user("Hello", id="q1")])
    before, choose = everything(store), random.Random(0)

    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True, client_tools={"where"})
        async with client_of(app, "bob") as client:
            ids = zip([f"ann-{number}" for number in range(10)], suspensions, strict=True)
            about = [each for key, suspension in ids for each in requests_about(key, suspension)]
            about += [each for key in ("missing", "ann-0/child") for each in requests_about(key, suspensions[0])]
            about += [("POST", "/api/chat", question(key=f"ann-{number}", id="new")) for number in range(10)]
            about += [
                (method, path, {**body, **{name: own.key for name in ("id", "threadId") if name in body}})
                for method, path, body in requests_about("bobs", suspensions[1])
                if "approval-responded" in str(body) or "resume" in str(body)
            ]
            bodies = set()
            for method, path, body in itertools.islice(itertools.cycle(choose.sample(about, len(about))), REQUESTS):
                response = await client.request(method, path, json=body)
                assert response.status_code == 404, (method, path, body)
                bodies.add(response.content)
            assert len(bodies) == 1
            assert (await client.get("/api/chat")).json()["items"][0]["id"] == "bobs"

    with_store(url, work)
    assert everything(store) == before


def test_request_without_a_user_gets_401(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=lambda request: None)) as client:
            assert (await client.get("/api/chat")).status_code == 401
            assert (await client.post("/api/chat", json=question())).status_code == 401

    with_store(url, work)


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_bodies_get_no_500(url: str, data: st.DataObject) -> None:
    approval = st.fixed_dictionaries({"id": JSON, "approved": JSON})
    part = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["text", "file", "tool-x"]) | JSON,
            "text": JSON,
            "state": st.sampled_from(["approval-responded", "output-available", "output-error"]) | JSON,
            "toolCallId": JSON,
            "output": JSON,
            "approval": approval | JSON,
        },
    )
    message = st.fixed_dictionaries(
        {"id": st.just("q1") | JSON, "role": st.sampled_from(["user", "assistant", "tool"]) | JSON},
        optional={"parts": st.lists(part) | JSON, "content": st.lists(part) | JSON, "toolCallId": JSON},
    )
    body = st.fixed_dictionaries(
        {"id": st.just("c") | JSON, "threadId": st.just("c") | JSON, "messages": st.lists(message, max_size=3) | JSON},
        optional={
            "trigger": st.sampled_from(["submit-message", "regenerate-message"]) | JSON,
            "messageId": JSON,
            "runId": st.just("r") | JSON,
            "resume": JSON | st.lists(st.fixed_dictionaries({"interruptId": JSON, "status": JSON, "payload": JSON})),
            "title": JSON,
        },
    )
    content = json.dumps(data.draw(body)).encode()
    method, path = data.draw(st.sampled_from([("POST", "/api/chat"), ("POST", "/api/agent"), ("PATCH", "/api/chat/c")]))

    async def work(store: AsyncStore) -> None:
        async with chat(store, answer, user=user) as app, client_of(app) as client:
            headers = {"content-type": "application/json"}
            response = await client.request(method, path, content=content, headers=headers)
            assert response.status_code in (200, 204, 400, 404, 409)

    with_store(url, work)


def test_body_that_is_too_large_or_not_json_is_refused(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=user, background=True, max_body=1_000)) as client:
            large = await client.post("/api/chat", json=question("x" * 2_000))
            assert (large.status_code, large.json()) == (413, {"error": "The request is too large."})
            assert (await client.post("/api/chat", content=b"{}")).status_code == 415
            nested = b"[" * 490 + b"]" * 490
            headers = {"content-type": "application/json"}
            for content in (nested, b"\xff", b"{", b'{"id": NaN}'):
                assert (await client.post("/api/chat", content=content, headers=headers)).status_code == 400
            for cursor in ("x", "\0"):
                assert (await client.get("/api/chat", params={"cursor": cursor})).status_code == 400
            assert await store.count() == 0

    with_store(url, work)


def test_pages_that_wait_for_a_worker_hold_no_connection(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True)
        users = store.for_user("ann")
        streams = []
        for number in range(PAGES):
            conversation = await users.open(f"c-{number}")
            await conversation.inbox.put(Message.user("Hello", id="q1"))
            request = Request(app, f"/api/chat/c-{number}/stream", x_user="ann")
            frames = request.frames()
            assert await anext(frames) == ":"
            streams.append(frames)
        pool: Any = store.engine.pool
        assert pool.checkedout() == 0
        assert await store.turns.list_in_progress() == await store.turns.list_in_progress(limit=1)  # no lease
        await store.work(answer, once=True, concurrency=4)
        for frames in streams:
            assert "Hi" in "".join([frame async for frame in frames])

    with_store(url, work)


def worker(url: str, *, dies: bool) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WORKER, url, "dies" if dies else "answers"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_stream_follows_the_worker_that_continues_after_a_kill(url: str) -> None:
    app = chat(AsyncStore(url), answer, user=user, background=True)
    headers = {"x-user": "ann"}
    with (
        serving(app) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client,
        client.stream("POST", "/api/chat", json=question()) as asked,
        client.stream("GET", "/api/chat/c/stream") as joined,
    ):
        assert [each["metadata"] for each in client.get("/api/chat/c/messages").json()] == [{"waiting": True}]
        with worker(url, dies=True) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "begun\n"
            first.kill()
        with worker(url, dies=False) as second:
            for response in (asked, joined):
                text = response.read().decode()
                assert "whole" in text
                assert '"finish"' in text
            second.kill()
        shown = client.get("/api/chat/c/messages").json()
        assert [each["parts"][-1]["text"] for each in shown] == ["Hello", "half whole"]
        assert client.get("/api/chat/c/stream").status_code == 204


def test_stop_ends_an_answer_that_is_silent_and_a_question_that_waits(url: str) -> None:
    stopped: list[str] = []

    async def silent(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        await turn.write("half")
        await turn.flush()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(turn.id)

    async def work(store: AsyncStore) -> None:
        async with chat(store, silent, user=user) as app, client_of(app) as client:
            asking = asyncio.create_task(client.post("/api/chat", json=question()))
            while not await store.turns.list_in_progress() or "half" not in str(
                [await store.conversation("c").drafts.list()] if await store.exists("c") else ""
            ):
                await asyncio.sleep(0.01)
            for _ in range(2):
                assert (await client.post("/api/chat/c/stop")).status_code == 204
            response = await asking
            assert '"interrupted": true' in response.text
            (_, answered) = (await client.get("/api/chat/c/messages")).json()
            assert (answered["metadata"], answered["parts"][-1]["text"]) == ({"interrupted": True}, "half")
            (turn,) = await store.conversation("c").turns.list()
            assert turn.metadata["stopped"]["by"] == "ann"
        app = chat(store, silent, user=user, background=True)
        async with client_of(app) as client:
            await store.conversation("c").inbox.put(Message.user("Bye", id="q2"))
            assert (await client.post("/api/chat/c/stop")).status_code == 204
            assert [each["role"] for each in (await client.get("/api/chat/c/messages")).json()][-1] == "user"
            assert (await client.get("/api/chat/c/stream")).status_code == 204

    with_store(url, work)
    until(lambda: len(stopped) == 1)


def test_conversations_are_listed_renamed_and_deleted(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        await store.create("other", user_id="ann", agent_id="other")
        app = chat(store, answer, user=user, agent_id="chat", key_prefix="web:")
        async with app, client_of(app) as client:
            text = "Which of the many trains from Oslo to Bergen is the fastest one on a Saturday?"
            assert "Hi" in (await client.post("/api/chat", json=question(text))).text
            (item,) = (await client.get("/api/chat")).json()["items"]
            assert (item["id"], item["title"]) == ("c", "Which of the many trains from Oslo to Bergen is the fastest…")
            assert (await client.patch("/api/chat/c", json={"title": "Trains"})).status_code == 204
            assert (await store.get("web:c")).title == "Trains"
            for path in ("/api/chat/other/messages", "/api/chat/web:c/messages"):
                assert (await client.get(path)).status_code == 404
            assert [(await client.delete("/api/chat/c")).status_code for _ in range(2)] == [204, 404]
            assert (await client.get("/api/chat")).json() == {"items": [], "next": None}

    with_store(url, work)


def test_attachment_of_a_question_is_stored_and_shown(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with chat(store, answer, user=user) as app, client_of(app) as client:
            file = {"type": "file", "mediaType": "text/plain", "url": "data:text/plain;base64,SGk="}
            body = question()
            body["messages"][0]["parts"].append(file)
            for _ in range(2):
                assert (await client.post("/api/chat", json=body)).status_code == 200
            shown = (await client.get("/api/chat/c/messages")).json()
            assert [each["role"] for each in shown] == ["user", "assistant"]
            assert shown[0]["parts"][1] == file

    with_store(url, work)


def test_interrupt_is_given_again_to_an_agent_that_joins_later(url: str) -> None:
    async def pay(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        calls = [ToolCall(id="p", name="pay", arguments={})]
        asking = await turn.append(Message.assistant(tool_calls=calls))
        await conversation.suspensions.create([(asking.seq, 0)], reason="Pay?")

    async def work(store: AsyncStore) -> None:
        async with chat(store, pay, user=user) as app, client_of(app) as client:
            first = await client.post("/api/agent", json=run("c", {"id": "q1", "role": "user", "content": "Pay"}))
            later = await client.get("/api/agent/c/stream")
            for response in (first, later):
                assert '"outcome": {"type": "interrupt"' in response.text
            (call,) = await ui.open_calls(store.conversation("c"))
            assert (call.name, call.approved) == ("pay", None)

    with_store(url, work)


class Followed:
    """A client of AG-UI that stays attached to a conversation of ann."""

    def __init__(self, app: Chat, position: str | None = None) -> None:
        headers = {} if position is None else {"last_event_id": position}
        self.request = Request(app, "/api/agent/c/stream?follow=true", x_user="ann", **headers)
        self.frames = self.request.frames()
        self.position = position

    async def read(self, type: str) -> list[dict[str, Any]]:
        """Return the events up to one of a type."""
        events: list[dict[str, Any]] = []
        async for frame in self.frames:
            id, _, data = frame.rpartition("data: ")
            self.position = id.removeprefix("id: ").strip() or self.position
            events += [json.loads(data)] if data.startswith("{") else []
            if events and events[-1]["type"] == type:
                return events
        raise AssertionError(f"the stream has ended after {events}")

    async def run(self) -> tuple[str, list[Any]]:
        """Return the id of the next run, and the texts of the snapshot with which it begins and of its answer."""
        started, *events = await self.read("RUN_FINISHED")
        assert [started["type"], events[-1]["runId"]] == ["RUN_STARTED", started["runId"]]
        snapshots = [each["messages"] for each in events if each["type"] == "MESSAGES_SNAPSHOT"]
        return started["runId"], [m.get("content") for m in snapshots[-1]] + [
            e["delta"] for e in events if "delta" in e
        ]


def test_agent_that_follows_gets_the_runs_of_all_workers_until_the_deletion(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True)
        conversation = await store.for_user("ann").open("c")
        async with AsyncStore(url) as other:
            client = Followed(app)
            assert await anext(client.frames) == ":"
            pool = cast(Any, store.engine.pool)
            await asyncio.to_thread(until, lambda: pool.checkedout() == 0)
            assert (await store.turns.list_in_progress()).items == []
            ids, texts = [], []
            for number in range(2):
                await conversation.inbox.put(Message.user(f"question {number}"))
                await other.work(answer, once=True)
                id, shown = await client.run()
                ids.append(id)
                texts += [f"question {number}", "Hi"]
                assert shown == texts
            for id in ("t3", "t4"):  # begin and end between two reads of the client
                async with other.conversation("c").turn(id) as turn:
                    await turn.append(Message.assistant(id))
            assert [(await client.run())[0] for _ in range(2)] == ["t3", "t4"]
            assert ids == [each.id for each in await conversation.turns.list()][:2]
            await other.delete("c")
            assert [frame async for frame in client.frames if frame != ":"] == []
            assert await client.request.finish() == 200

    with_store(url, work)


def test_agent_that_follows_gets_the_run_after_one_that_failed(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True)
        conversation = await store.for_user("ann").open("c", messages=[Message.user("Hello")])
        client = Followed(app)
        with suppress(ZeroDivisionError):
            async with conversation.turn("failed"):
                assert (await client.read("RUN_STARTED"))[0]["runId"] == "failed"
                raise ZeroDivisionError
        await client.read("RUN_ERROR")
        async with conversation.turn("saved") as turn:
            await turn.append(Message.assistant("Hi"))
        assert await client.run() == ("saved", ["Hello", "Hi"])
        await client.request.disconnect()

    with_store(url, work)


def test_agent_that_follows_again_gets_the_last_run_that_it_has_missed(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True)
        conversation = await store.for_user("ann").open("c", messages=[Message.user("Hello")])
        first = Followed(app)
        async with conversation.turn("t1", flush=timedelta(0)) as turn:
            await turn.write("o")
            await first.read("TEXT_MESSAGE_CHUNK")
            await first.request.disconnect()
            again = Followed(app, first.position)
            assert (await again.read("RUN_STARTED"))[0]["runId"] == "t1"
            await turn.append(Message.assistant("one"))
        await again.read("RUN_FINISHED")
        await again.request.disconnect()
        for id in ("t2", "t3"):
            async with conversation.turn(id) as turn:
                await turn.append(Message.assistant(id))
        later = Followed(app, first.position)
        assert await later.run() == ("t3", ["Hello", "one", "t2", "t3"])
        async with conversation.turn("t4") as turn:
            await turn.append(Message.assistant("t4"))
        assert (await later.run())[0] == "t4"
        await later.request.disconnect()
        assert await Request(app, "/api/agent/c/stream?follow=true&after=x", x_user="ann").finish() == 400

    with_store(url, work)


def test_agent_that_follows_is_asked_the_question_that_waits(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True)
        conversation = await store.for_user("ann").open("c", messages=[Message.user("Pay")])
        async with conversation.turn("t1") as turn:
            asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="p", name="pay", arguments={})]))
            suspension = await conversation.suspensions.create([(asking.seq, 0)], reason="Pay?")
        client = Followed(app)
        outcome = (await client.read("RUN_FINISHED"))[-1]["outcome"]
        assert [each["id"] for each in outcome["interrupts"]] == [suspension.id]
        await conversation.suspensions.answer(suspension.id, {"approved": True})
        await store.work(answer, once=True)
        assert (await client.run())[1][-1] == "Hi"
        await client.request.disconnect()

    with_store(url, work)


def test_single_user_has_the_sessions_of_all_users_and_of_none(store: Store, url: str) -> None:
    store.open("of-nobody", messages=[Message.user("Hello", id="q1")])
    store.open("of-bob", user_id="bob")

    async def read(own: AsyncStore) -> None:
        async with chat(own, answer, user=single_user) as app, client_of(app) as client:
            listed = (await client.get("/api/chat")).json()["items"]
            assert {each["id"] for each in listed} == {"of-nobody", "of-bob"}
            assert (await client.post("/api/chat", json=question(key="new"))).status_code == 200
            stored = (await client.get("/api/chat/of-nobody/messages")).json()
            assert [each["id"] for each in stored] == ["q1"]

    with_store(url, read)
    assert store.get("new").user_id is None
