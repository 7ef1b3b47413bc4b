"""The agent of AG-UI in Node, which follows a conversation: the runs of workers arrive on one connection."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any, Final

from support.http_server import serving

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, Store
from lango_store.ui import agui_messages
from lango_store.web import bearer_tokens, chat

FOLLOW: Final = """
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";

const headers = { authorization: `Bearer ${process.argv[3]}` };
let connections = 0, status;
class Agent extends HttpAgent {
  connect() {
    return transformHttpEventStream(runHttpRequest(async () => {
      connections += 1;
      const response = await fetch(this.url, { headers });
      status = response.status;
      if (response.ok) console.log(JSON.stringify({ connected: connections }));
      return response;
    }));
  }
}
const agent = new Agent({ url: process.argv[2] });
const events = [];
const show = () => console.log(JSON.stringify({ connections, events, messages: agent.messages }));
const onEvent = ({ event }) => void events.push(event.type);
agent.subscribe({ onEvent, onRunFinishedEvent: () => void setTimeout(show) });
await agent.connectAgent().catch(() => {});
console.log(JSON.stringify({ status, ended: true }));
"""


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    for word in ("It ", "rains"):
        await turn.write(word)
        await turn.flush()
    await turn.append(Message.assistant("It rains"))


def work(url: str, text: str) -> None:
    """Ask a question, and answer it in another store."""

    async def start() -> None:
        async with AsyncStore(url) as store:
            await store.conversation("c").inbox.put(Message.user(text))
            assert await store.work(answer, once=True) == 1

    asyncio.run(start())


def test_two_runs_of_workers_arrive_on_one_connection(front_end: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    (front_end / "follow.mjs").write_text(FOLLOW)
    users = bearer_tokens({"token-of-ann": "ann", "token-of-bob": "bob"})

    def follow(port: int, token: str) -> subprocess.Popen[str]:
        address = f"http://127.0.0.1:{port}/api/agent/c/stream?follow=true"
        words = ["node", "follow.mjs", address, token]
        return subprocess.Popen(words, cwd=front_end, stdout=subprocess.PIPE, text=True)

    def read(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line: dict[str, Any] = json.loads(process.stdout.readline())
        return line

    with (
        Store(url, migrate=True) as store,
        serving(chat(AsyncStore(store), answer, user=users, background=True)) as port,
    ):
        store.create("c", user_id="ann")
        with follow(port, "token-of-bob") as other:
            assert read(other) == {"status": 404, "ended": True}
        with follow(port, "token-of-ann") as process:
            assert read(process) == {"connected": 1}
            for number in range(2):
                work(url, f"question {number}")
                shown = read(process)
                assert shown["connections"] == 1
                assert shown["events"].count("RUN_STARTED") == shown["events"].count("RUN_FINISHED") == number + 1
                assert shown["messages"] == agui_messages(store.get("c"))
            store.delete("c")
            assert read(process) == {"status": 200, "ended": True}
