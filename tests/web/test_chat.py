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
from functools import partial
from typing import Any, Final, cast

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.asgi import Request
from support.http_server import serving
from support.paths import ROOT
from support.polling import until

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Budget, Message, Store, ToolCall, ui
from lango_store.web import Chat, chat, conversations, single_user
from lango_store.web.chats import _owe_turn

REQUESTS: Final = 1_000
PAGES: Final = 200
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
ROUTES: Final = [
    ("POST", "/api/chat"),
    ("POST", "/api/agent"),
    ("PATCH", "/api/chat/c"),
    ("POST", "/api/copilotkit/agent/default/connect"),
    ("POST", "/api/copilotkit/threads/c/archive"),
]
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
        (
            each.get(),
            each.inbox.list(),
            each.suspensions.list(),
            each.turns.list(),
            each.turns.in_progress(),
            each.shares(),
        )
        for each in conversations
    ]


def requests_about(key: str, suspension: str) -> Iterator[tuple[str, str, Any]]:
    """Yield one request for each route, and for each kind of body."""
    yield "GET", f"/api/agent/{key}/stream?follow=true", None
    for protocol in ("chat", "agent"):
        yield "GET", f"/api/{protocol}/{key}/stream", None
        yield "GET", f"/api/{protocol}/{key}/messages", None
        yield "POST", f"/api/{protocol}/{key}/stop", None
        yield "POST", f"/api/{protocol}/{key}/switch", {"alternative": 1}
        yield "POST", f"/api/{protocol}/{key}/drop", {"message": "m"}
    yield "PATCH", f"/api/chat/{key}", {"title": "mine"}
    yield "PATCH", f"/api/chat/{key}", {"archived": True}
    yield "DELETE", f"/api/chat/{key}", None
    yield "POST", f"/api/chat/{key}/share", {}
    yield "DELETE", f"/api/chat/{key}/share", None
    yield "POST", f"/api/copilotkit/agent/default/stop/{key}", {}
    yield "POST", f"/api/copilotkit/threads/{key}/archive", {}
    yield "PATCH", f"/api/copilotkit/threads/{key}", {"name": "mine"}
    yield "DELETE", f"/api/copilotkit/threads/{key}", None
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
        app = chat(store, answer, user=user, background=True, client_tools={"where"}, shares=True)
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
            threads = (await client.get("/api/copilotkit/threads?includeArchived=true")).json()["threads"]
            assert [each["id"] for each in threads] == ["bobs"]
            for key in ("ann-0", "missing"):
                for properties in ({}, {"follow": True}):
                    body = run(key, forwardedProps=properties)
                    response = await client.post("/api/copilotkit/agent/default/connect", json=body)
                    assert (response.status_code, response.content) == (200, b"")

    with_store(url, work)
    assert everything(store) == before


def test_user_shares_a_conversation_with_people_without_access(url: str, store: Store) -> None:
    conversation = store.open(
        "c", user_id="ann", messages=[Message.user("planted-question"), Message.tool("planted-result")]
    )
    other = store.open("other", user_id="bob").share()

    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, background=True, shares=True)
        async with client_of(app) as client, client_of(app, "") as colleague:
            assert (await client.get("/api/chat")).json()["shares"] is True
            shared = [(await client.post("/api/chat/c/share", json=body)).json() for body in ({}, {"tools": True})]
            shared_conversation = store.conversation("c")
            await shared_conversation.append_message(Message.user("later"))
            found = [await colleague.get(f"/{each['path']}") for each in shared]
            assert [each.status_code for each in found] == [200, 200]
            assert ["planted-result" in each.text for each in found] == [False, True]
            assert all("planted-question" in each.text and "later" not in each.text for each in found)
            assert [each.shared_by for each in (await shared_conversation.shares()).items] == ["ann", "ann"]
            assert (await colleague.post("/api/chat/c/share", json={})).status_code == 401
            assert (await client.post("/api/chat/c/share", content="{}")).status_code == 415
            assert (await client.post("/api/chat/c/share", json=[])).status_code == 400
            assert (await client.delete("/api/chat/c/share")).status_code == 204
            missing = {(await colleague.get(f"/{each['path']}")).content for each in shared}
            missing.add((await colleague.get("/s/unknown")).content)
            assert len(missing) == 1
            assert (await colleague.get(f"/s/{other.token}")).status_code == 200

    with_store(url, work)
    assert conversation.shares().items == []


def test_chat_without_shares_creates_and_shows_no_link(url: str, store: Store) -> None:
    share = store.open("c", user_id="ann").share()

    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=user, background=True)) as client:
            assert "shares" not in (await client.get("/api/chat")).json()
            assert (await client.post("/api/chat/c/share", json={})).status_code == 405
            assert (await client.delete("/api/chat/c/share")).status_code == 404
            assert (await client.get(f"/s/{share.token}")).status_code == 404

    with_store(url, work)
    assert len(store.conversation("c").shares().items) == 1


def test_edits_and_other_answers_are_kept_and_can_be_shown_again(url: str) -> None:
    answers = itertools.count(1)

    async def count(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        await turn.append(Message.assistant(f"answer {next(answers)}"))

    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, count, user=user)) as client:

            async def send(body: dict[str, Any]) -> None:
                assert (await client.post("/api/chat", json=body)).status_code == 200

            async def shown() -> list[tuple[str, list[int] | None, int | None]]:
                page = (await client.get("/api/chat/c/messages")).json()
                branches = [each.get("metadata", {}).get("alternatives", {}) for each in page]
                texts = [each["parts"][-1]["text"] for each in page]
                return [(text, each.get("ids"), each.get("shown")) for text, each in zip(texts, branches, strict=True)]

            async def switch(alternative: Any) -> int:
                response = await client.post("/api/chat/c/switch", json={"alternative": alternative})
                return response.status_code

            await send(question())
            again = question(trigger="regenerate-message", messageId="a")
            page = (await client.get("/api/chat/c/messages")).json()
            again["messageId"] = page[-1]["id"]
            for _ in range(2):  # the second request is a repetition
                await send(again)
            assert await shown() == [("Hello", None, None), ("answer 2", [2, 4], 1)]
            for _ in range(2):
                await send(question("Goodbye"))
            first = [("Hello", [1, 6], 0), ("answer 2", [2, 4], 1)]
            assert await shown() == [("Goodbye", [1, 6], 1), ("answer 3", None, None)]
            assert await switch(1) == 204
            assert await shown() == first
            await send(question("Goodbye"))  # the same edit again shows the answers after it
            assert await shown() == [("Goodbye", [1, 6], 1), ("answer 3", None, None)]
            await send(question("Good day"))  # from a page that knows only the first id of the question
            assert [text for text, *_ in await shown()] == ["Good day", "answer 4"]
            assert (await shown())[0][1:] == ([1, 6, 15], 2)
            for _ in range(2):  # the first text is shown again, with its answers
                await send(question("Hello"))
            assert await shown() == [("Hello", [1, 6, 15], 0), ("answer 2", [2, 4], 1)]
            assert await switch(2) == 204
            assert await shown() == [("Hello", [1, 6, 15], 0), ("answer 1", [2, 4], 0)]
            assert [await switch(each) for each in (77, "1", None, True)] == [404, 400, 400, 400]
            assert [each.status_code for each in [await client.post("/api/chat/c/switch", json=[])]] == [400]

    with_store(url, work)
    assert next(answers) == 5


@pytest.mark.parametrize("has_reminder", [False, True])
def test_approval_of_a_version_that_is_shown_again_is_asked_again(url: str, has_reminder: bool) -> None:
    async def ask(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        if (last := (await conversation.messages(last=1))[-1]).role == "user" and last.content == "pay":
            await turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="pay", arguments={})]))
        for call in await ui.open_calls(conversation):
            if call.suspension is None:
                await conversation.suspensions.create([(call.seq, call.position)], reason="Pay?")
            elif call.approved is not None:
                async with turn.call(call.seq, call.position) as effect:
                    effect.output = "paid"
        if not await ui.open_calls(conversation):
            await turn.append(Message.assistant("done"))

    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, ask, user=user)) as client:

            async def last() -> dict[str, Any]:
                while (await client.get("/api/chat/c/stream")).status_code == 200:
                    pass  # each stream waits for an answer
                page: list[dict[str, Any]] = (await client.get("/api/chat/c/messages")).json()
                return [each for each in page if "waiting" not in each.get("metadata", {})][-1]

            await client.post("/api/chat", json=question("pay"))
            if has_reminder:
                await store.conversation("c").inbox.put(Message.user("Call Bob"), in_=timedelta(days=1))
            assert (await last())["parts"][-1]["state"] == "approval-requested"
            await client.post("/api/chat", json=question("Hello"))
            assert (await last())["parts"][-1]["text"] == "done"
            assert (await client.post("/api/chat/c/switch", json={"alternative": 1})).status_code == 204
            asked = await last()
            part = asked["parts"][-1]
            assert part["state"] == "approval-requested"
            part |= {"state": "approval-responded", "approval": {**part["approval"], "approved": True}}
            await client.post("/api/chat", json={"id": "c", "messages": [question("pay")["messages"][0], asked]})
            assert [each.get("output") or each.get("text") for each in (await last())["parts"][-3:]] == [
                "paid",
                None,
                "done",
            ]

    with_store(url, work)


def test_reminder_has_its_time_until_it_is_dropped(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.open("c", user_id="ann")
        reminder = await conversation.inbox.put(Message.user("Call Bob", id="m"), in_=timedelta(days=1))
        assert reminder.due_at is not None
        async with client_of(chat(store, answer, user=user, background=True)) as client:
            (shown,) = (await client.get("/api/chat/c/messages")).json()
            assert shown["metadata"] == {"waiting": True, "dueAt": reminder.due_at.isoformat()}
            bodies = {"other": 204, "m": 204, 5: 400, None: 400}
            for id, status in bodies.items():
                assert (await client.post("/api/chat/c/drop", json={"message": id})).status_code == status
        assert await conversation.inbox.list() == []
        assert (await store.owed(future=True)).items == []

    with_store(url, work)


def test_question_of_a_page_that_shows_another_version_is_refused(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=user)) as client:
            for body in (question(), question("More", "q2"), question("Goodbye")):
                assert (await client.post("/api/chat", json=body)).status_code == 200
            stale = await client.post("/api/chat", json=question("Even more", "q2"))
            assert (stale.status_code, stale.json()) == (
                409,
                {"error": "message 'q2' is not in the conversation as it is shown: load it again"},
            )
            assert (await client.post("/api/chat", json=question("More", "q2"))).status_code == 200
            page = (await client.get("/api/chat/c/messages")).json()
            assert [each["parts"][-1]["text"] for each in page] == ["Goodbye", "Hi"]

    with_store(url, work)


def test_question_with_text_that_a_title_cannot_have_is_answered_and_shown(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=user)) as client:
            headers = {"content-type": "application/json"}
            for key, text in (("c1", "a NUL\0 here"), ("c2", "half \ud83d of a pair"), ("c3", "\ud83d")):
                content = json.dumps(question(text, key=key))
                assert "Hi" in (await client.post("/api/chat", content=content, headers=headers)).text
                for protocol, field in (("chat", "parts"), ("agent", "content")):
                    shown = (await client.get(f"/api/{protocol}/{key}/messages")).json()[0][field]
                    assert shown in (text, [{"type": "text", "text": text}])
            titles = [each["title"] for each in (await client.get("/api/chat")).json()["items"]]
            assert titles == [None, "half of a pair", "a NUL here"]

    with_store(url, work)


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
            "archived": JSON,
            "forwardedProps": JSON,
        },
    )
    content = json.dumps(data.draw(body)).encode()
    method, path = data.draw(st.sampled_from(ROUTES))

    async def work(store: AsyncStore) -> None:
        async with chat(store, answer, user=user) as app, client_of(app) as client:
            headers = {"content-type": "application/json"}
            response = await client.request(method, path, content=content, headers=headers)
            assert response.status_code in (200, 204, 400, 404, 409)

    with_store(url, work)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_site_cannot_stop_an_answer(url: str, site: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=user, background=True)) as client:
            conversation = await store.for_user("ann").open("c")
            await conversation.inbox.put(Message.user("Hello", id="q1"))
            sent_by_a_form = {"sec-fetch-site": site, "content-type": "text/plain"}
            assert (await client.post("/api/chat/c/stop", headers=sent_by_a_form)).status_code == 415
            assert len(await conversation.inbox.list()) == 1
            assert (await client.post("/api/chat/c/stop", headers={"sec-fetch-site": "same-origin"})).status_code == 204
            assert await conversation.inbox.list() == []

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
            queries = [{"cursor": "x"}, {"cursor": "\0"}, {"limit": "0"}, {"limit": "x"}, {"limit": "9" * 5_000}]
            for query in (*queries, {"status": "deleted"}):
                assert (await client.get("/api/chat", params=query)).status_code == 400
                if "status" not in query:
                    assert (await client.get("/api/copilotkit/threads", params=query)).status_code == 400
            assert (await client.post("/api/copilotkit/threads/c/archive", content=b"{}")).status_code == 415
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
        async with asyncio.timeout(60):
            while pool.checkedout():  # a page may be looking for changes right now
                await store.ping()
        assert await store.turns.list_in_progress() == await store.turns.list_in_progress(limit=1)  # no lease
        await store.work(answer, once=True, concurrency=4)
        for frames in streams:
            assert "Hi" in "".join([frame async for frame in frames])

    with_store(url, work)


def test_stream_says_that_a_turn_waits_for_its_budget(url: str) -> None:
    async def limit_of(conversation: AsyncConversation) -> Budget:
        return Budget(f"user:{(await conversation.info()).user_id}", 100, per="day", reserve=60)

    async def spends(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        await answer(conversation, turn)
        turn.usage = {"output_tokens": 60}

    async def work(store: AsyncStore) -> None:
        app = chat(store, spends, user=user, budget=limit_of, heartbeat=timedelta(milliseconds=50))
        async with app, client_of(app) as client:
            assert '"finish"' in (await client.post("/api/chat", json=question())).text
            assert "data-waiting" not in (await client.post("/api/chat", json=question())).text
            await store.for_user("ann").conversation("c").inbox.put(Message.user("More", id="q2"))
            for part in ('"scope": "user:ann", "until": "', '"transient": true'):
                frames = Request(app, "/api/chat/c/stream", x_user="ann").frames()
                assert part in await anext(each async for each in frames if "data-waiting" in each)
            assert await store.budgets.reset("user:ann")
            assert '"finish"' in "".join([each async for each in frames])
            (state,) = (await store.budgets.list()).items
            assert (state.scope, state.spent) == ("user:ann", 60)

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


def test_page_does_not_wait_for_a_turn_at_a_later_time(url: str) -> None:
    async def waits(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        if turn.messages[0].content == "Hello":
            asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="c1", name="report", arguments={})]))
            async with turn.call(asking, 0) as effect:
                effect.wait({"job": 1}, until=timedelta(hours=1))
        else:
            await turn.append(Message.assistant("Hi"))

    async def work(store: AsyncStore) -> None:
        async with chat(store, waits, user=user, busy="refuse") as app, client_of(app) as client:
            assert "report" in (await client.post("/api/chat", json=question())).text
            assert [each.handle for each in (await store.calls.waiting()).items] == [{"job": 1}]
            assert (await client.get("/api/chat/c/stream")).status_code == 204
            shown = (await client.get("/api/chat/c/messages")).json()
            assert shown[-1]["parts"][-1]["state"] == "input-available"
            assert "Hi" in (await client.post("/api/chat", json=question("Are you there?", "q2"))).text
            await store.calls.finish({"job": 1}, "12 pages")
            stream = await client.get("/api/chat/c/stream")
            assert stream.status_code in (200, 204)  # the worker may have been faster
            while len(await store.conversation("c").turns.list()) < 3:
                await asyncio.sleep(0.01)
            assert "12 pages" in (await client.get("/api/chat/c/messages")).text

    with_store(url, work)


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


def test_conversations_are_archived(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        own = store.for_user("ann")
        for key, metadata in (("c1", {"kept": 1}), ("c2", {"archived": "by another program"})):
            await own.create(key, title=key, metadata=metadata)

        async def change(body: dict[str, Any]) -> None:
            assert (await client.patch("/api/chat/c1", json=body)).status_code == 204

        async def listed(query: str = "") -> list[str]:
            items = (await client.get(f"/api/chat?{query}")).json()["items"]
            assert all((each["status"] == "archived") == (each["id"] in archived) for each in items)
            return sorted(each["id"] for each in items)

        async with client_of(chat(store, answer, user=user, background=True)) as client:
            for archived in (["c1"], []):
                await change({"archived": bool(archived)})
                assert await listed() == ["c1", "c2"]
                assert await listed("status=archived") == archived
                assert await listed("status=regular") == [key for key in ("c1", "c2") if key not in archived]
                info = await own.conversation("c1").info()
                assert (info.title, info.metadata) == ("c1", {"kept": 1, "archived": bool(archived)})
            await change({"archived": True, "title": None})
            assert (await own.conversation("c1").info()).title is None
            await change({})
            for body in ({"archived": 1}, {"archived": "yes", "title": "x"}, {"archived": True, "title": 1}):
                assert (await client.patch("/api/chat/c2", json=body)).status_code == 400
            info = await own.conversation("c2").info()
            assert (info.title, info.metadata) == ("c2", {"archived": "by another program"})

    with_store(url, work)


def test_conversation_on_hold_is_not_deleted(url: str, store: Store) -> None:
    store.create("c", user_id="ann")
    store.conversation("c").update(hold="case 17")

    async def delete(asynchronous: AsyncStore) -> None:
        async with client_of(chat(asynchronous, answer, user=user, background=True)) as client:
            for path in ("/api/chat/c", "/api/copilotkit/threads/c"):
                refused = await client.delete(path)
                assert (refused.status_code, "on hold" in refused.text, "case 17" in refused.text) == (409, True, False)

    with_store(url, delete)
    assert store.exists("c")


def test_error_of_the_function_that_finds_the_user_is_not_shown(url: str) -> None:
    def broken(_: Any) -> str:
        raise ValueError("the secret")

    async def ask(store: AsyncStore) -> None:
        chats = chat(store, answer, user=broken, background=True)
        apps: dict[str, Any] = {"/api/chat": chats, "/conversations/x": conversations(store, user=broken)}
        for path, app in apps.items():
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://chat") as client:
                failed = await client.get(path)
                assert (failed.status_code, "secret" in failed.text) == (500, False)

    with_store(url, ask)


def test_runtime_of_copilotkit_has_the_name_of_the_agent(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        app = chat(store, answer, user=user, agent_id="weather", key_prefix="web:")
        async with app, client_of(app) as client:
            assert list((await client.get("/api/copilotkit/info")).json()["agents"]) == ["weather"]
            asked = run("c", {"id": "q1", "role": "user", "content": "Oslo?"})
            assert (await client.post("/api/copilotkit/agent/default/run", json=asked)).status_code == 404
            ran = await client.post("/api/copilotkit/agent/weather/run", json=asked)
            connected = await client.post("/api/copilotkit/agent/weather/connect", json=run("c"))
            for response in (ran, connected):
                assert "Hi" in response.text
                assert response.text.count('"threadId": "c"') == 2
            (thread,) = (await client.get("/api/copilotkit/threads")).json()["threads"]
            assert (thread["id"], thread["agentId"], thread["name"]) == ("c", "weather", "Oslo?")
            assert (await client.post("/api/copilotkit/threads/c/archive", json={})).status_code == 204
            assert (await client.get("/api/copilotkit/threads")).json()["threads"] == []
            await store.create("web:other", user_id="ann", agent_id="other")
            connected = await client.post("/api/copilotkit/agent/weather/connect", json=run("other"))
            assert (connected.status_code, connected.content) == (200, b"")

    with_store(url, work)


def test_connection_of_copilotkit_ends_with_the_turn_that_is_owed(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        conversation = await store.for_user("ann").open("c", messages=[Message.user("Hello")])
        connect = "/api/copilotkit/agent/default/connect"
        async with client_of(chat(store, answer, user=user, background=True)) as client:
            idle = await client.post(connect, json=run("c"))
            assert [idle.text.count(each) for each in ("RUN_STARTED", "RUN_FINISHED", "Hello")] == [1, 1, 1]
            await conversation.inbox.put(Message.user("Oslo?"))
            connecting = asyncio.create_task(client.post(connect, json=run("c")))
            await store.work(answer, once=True)
            owed = (await connecting).text
            assert "Hi" in owed
            assert owed.rstrip().rpartition("data: ")[2].startswith('{"type": "RUN_FINISHED"')
            async with conversation.turn("t") as turn:
                asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="p", name="pay", arguments={})]))
                await conversation.suspensions.create([(asking.seq, 0)], reason="Pay?")
            assert '"outcome": {"type": "interrupt"' in (await client.post(connect, json=run("c"))).text

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


def test_no_approval_is_asked_for_before_another_question(url: str) -> None:
    async def work(store: AsyncStore) -> None:
        async with client_of(chat(store, answer, user=user, background=True)) as client:
            conversation = await store.for_user("ann").open("c", messages=[Message.user("Pay")])
            async with conversation.turn() as turn:
                asking = await turn.append(Message.assistant(tool_calls=[ToolCall(id="p", name="pay", arguments={})]))
                await conversation.suspensions.create([(asking.seq, 0)], reason="Pay?")
            for state, status in (("approval-requested", 200), ("input-available", 204)):
                assert (await client.get("/api/chat/c/messages")).json()[1]["parts"][-1]["state"] == state
                assert (await client.get("/api/agent/c/stream")).status_code == status
                await conversation.append_messages([Message.user("Hello"), Message.assistant("Hi")])

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


def test_turn_is_owed_for_a_version_without_dropping_waiting_messages(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("q"), Message.assistant("a")])
    conversation.inbox.put(Message.user("waits", id="w"))
    store.transact(partial(_owe_turn, "k"))
    assert [each.id for each in conversation.inbox.list()] == ["w"]
    conversation.inbox.delete("w")
    assert not store.owed().items
    store.transact(partial(_owe_turn, "k"))
    assert [each.key for each in store.owed().items] == ["k"]
    assert len(conversation.messages()) == 2
