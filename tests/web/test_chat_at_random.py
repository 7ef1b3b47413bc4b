"""Random requests to `lango_store.web.chat`, from two tabs, while attempts fail: nothing is asked or paid twice."""

import asyncio
import os
import random
from collections import Counter
from datetime import timedelta
from typing import Any, Final

import httpx2
import pytest

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, ToolCall, ui
from lango_store.web import chat

RUNS: Final = max(int(os.environ.get("LANGO_STORE_UI_TURNS", "300")) // 50, 1)
ACTIONS: Final = 25
WORK: Final[dict[str, Any]] = {"attempts": 50, "backoff": timedelta(0), "poll": timedelta(milliseconds=20)}


class Service:
    """The handler of the worker, which fails at random and counts what it does."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self.payments: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    async def answer(self, conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        """Answer a turn, and die at one of the steps."""
        if (last := (await conversation.messages(last=1))[-1]).role == "user":
            names = [name for name in ("pay", "where") if name in str(last.content)]
            if names:
                calls = [ToolCall(id=f"{turn.id}-{name}", name=name, arguments={}) for name in names]
                await turn.append(Message.assistant(tool_calls=calls))
        await self._fail()
        for call in await ui.open_calls(conversation):
            place = (call.seq, call.position)
            if call.name == "pay" and call.suspension is None:
                await conversation.suspensions.create([place], reason="Pay?")
            elif call.approved is not None:
                async with turn.call(*place) as effect:
                    if not effect.replayed:
                        self.payments[effect.key] += 1
                        effect.output = "paid" if call.approved else "not paid"
        if await ui.open_calls(conversation):
            return
        await self._fail()
        if (await conversation.messages(last=1))[-1].role != "assistant":
            for piece in ("one ", "two "):
                await turn.write(piece)
                await turn.flush()
                await self._fail()
            await turn.append(Message.assistant(turn.draft_text))
            self.answers[turn.id] += 1

    async def _fail(self) -> None:
        await asyncio.sleep(self._choose.random() * 0.01)
        if self._choose.random() < 0.1:
            raise ConnectionError("the model is away")


async def act(client: httpx2.AsyncClient, choose: random.Random, number: int) -> None:
    """Send one request, as a page does that shows the stored messages."""
    response = await client.get("/api/chat/c/messages")
    shown = response.json() if response.status_code == 200 else []
    questions = [each for each in shown if each["role"] == "user"]
    action = choose.choice(
        [
            "send",
            "send",
            "again",
            "edit",
            "regenerate",
            "stop",
            "answer",
            "answer",
            "resume",
            "agent",
            "switch",
            "switch",
        ]
    )
    text = choose.choice(["Hello", "pay", "where", "pay where"])
    new = {"id": f"q{number}", "role": "user", "parts": [{"type": "text", "text": text}]}
    path = "/api/chat"
    body: dict[str, Any] = {"id": "c", "trigger": "submit-message", "messages": [new]}
    if action == "stop":
        path = "/api/chat/c/stop"
    elif action == "resume":
        assert (await client.get("/api/chat/c/stream")).status_code in (200, 204, 404)
        return
    elif action == "switch":
        known = [id for each in shown for id in each.get("metadata", {}).get("alternatives", {}).get("ids", [])]
        path, body = "/api/chat/c/switch", {"alternative": choose.choice([*known, number])}
    elif action == "agent":
        path, body = "/api/agent", {"threadId": "c", "runId": f"r{number}", "messages": [{**new, "content": text}]}
    elif questions and action == "again":
        body["messages"] = [questions[-1]]
    elif questions and action == "edit":
        body["messages"] = [{**choose.choice(questions), "parts": new["parts"]}]
    elif questions and action == "regenerate":
        body |= {"trigger": "regenerate-message", "messages": [questions[-1]], "messageId": shown[-1]["id"]}
    elif action == "answer" and shown and shown[-1]["role"] == "assistant":
        for part in shown[-1]["parts"]:
            if part.get("state") == "approval-requested":
                part |= {"state": "approval-responded", "approval": {**part["approval"], "approved": True}}
            elif part["type"] == "tool-where" and part["state"] == "input-available":
                part |= {"state": "output-available", "output": "Oslo"}
        body["messages"] = shown
    for _ in range(choose.choice([1, 1, 2])):  # some requests are repeated
        answered = await client.post(path, json=body)
        assert answered.status_code in (200, 204, 400, 404, 409), answered.text


@pytest.mark.parametrize("seed", range(RUNS))
def test_pages_show_the_log_and_nothing_is_paid_twice(url: str, seed: int) -> None:
    choose = random.Random(seed)
    service = Service(choose)

    async def run() -> None:
        async with AsyncStore(url) as store:
            app = chat(store, service.answer, user=lambda request: "ann", background=True, client_tools={"where"})
            worker = asyncio.create_task(store.work(service.answer, **WORK))
            transport = httpx2.ASGITransport(app)  # raises what the application raises
            async with httpx2.AsyncClient(transport=transport, base_url="http://chat", timeout=60) as client:
                for number in range(0, ACTIONS, 2):
                    tabs = [asyncio.create_task(act(client, choose, number + tab)) for tab in range(2)]
                    if choose.random() < 0.2:  # the worker is stopped in the middle, and another one begins
                        worker.cancel()
                        await asyncio.wait([worker])
                        worker = asyncio.create_task(store.work(service.answer, **WORK))
                    async with asyncio.timeout(60):
                        await asyncio.gather(*tabs)
                while (await client.get("/api/chat/c/stream")).status_code == 200:
                    pass  # each stream waits for an answer
                shown = (await client.get("/api/chat/c/messages")).json()
            worker.cancel()
            await asyncio.wait([worker])
            conversation = store.conversation("c")
            assert await conversation.inbox.list() == []
            suspensions, alternatives = await conversation.suspensions.list(), await conversation.alternatives()
            assert shown == ui.aisdk_messages(await conversation.get(), suspensions, (), alternatives)
            seen: set[int] = set()
            while new := [each.id for each in alternatives if not each.is_shown and each.id not in seen]:
                results = Counter(each.tool_call_id for each in await conversation.all_messages() if each.tool_call_id)
                assert max(results.values(), default=1) == 1
                seen.add(new[0])
                await conversation.switch(new[0])
                alternatives = await conversation.alternatives()

    asyncio.run(run())
    assert max(service.payments.values(), default=1) == 1
    assert max(service.answers.values(), default=1) == 1
