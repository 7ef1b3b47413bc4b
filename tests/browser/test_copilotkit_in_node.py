"""CopilotKit's client in Node, with `web.chat` as its runtime: threads, runs, and connections that stay."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from support.http_server import serving

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, Store
from lango_store.ui import agui_messages
from lango_store.web import bearer_tokens, chat

PROGRAM: Final = """
import { CopilotKitCore, ɵcreateThreadStore } from "@copilotkit/core";

const [url, token, ...words] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const print = (value) => console.log(JSON.stringify(value));

globalThis.window = globalThis; // without it, the client takes Node for the rendering of a page on a server

async function connected(properties = {}) {
  const core = new CopilotKitCore({ runtimeUrl: url, headers, properties });
  await new Promise((resolve, reject) => {
    const onRuntimeConnectionStatusChanged = ({ status }) => {
      if (status === "connected") resolve();
      if (status === "error") reject(new Error(status));
    };
    core.subscribe({ onRuntimeConnectionStatusChanged });
    if (core.runtimeConnectionStatus === "connected") resolve();
  });
  const agent = core.getAgent("default");
  agent.threadId = words[1];
  return { core, agent };
}

const actions = {
  async connect() {
    const { core, agent } = await connected();
    await core.connectAgent({ agent });
    print(agent.messages);
  },
  async ask() {
    const { core, agent } = await connected();
    await core.connectAgent({ agent });
    agent.addMessage({ id: words[2], role: "user", content: words[2] });
    await core.runAgent({ agent });
    print(agent.messages);
  },
  async follow() {
    const { core, agent } = await connected({ follow: true });
    let runs = 0;
    const onRunFinishedEvent = () => void setTimeout(() => print({ runs: ++runs, messages: agent.messages }));
    agent.subscribe({ onRunFinishedEvent });
    await core.connectAgent({ agent });
    print({ ended: true });
  },
  async threads() {
    const store = ɵcreateThreadStore({ fetch });
    async function list(options) {
      store.setContext({ runtimeUrl: url, headers, agentId: "default", ...options });
      for (;;) {
        const { isLoading, isFetchingNextPage, error, threads, nextCursor } = store.getState();
        if (error) return error.message;
        if (!isLoading && !isFetchingNextPage && !nextCursor) {
          return threads.map(({ id, agentId, name, archived }) => [id, agentId, name, archived]);
        }
        if (!isLoading && !isFetchingNextPage) store.fetchNextPage();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    }
    store.start();
    print(await list());
    await store.renameThread("t2", "Weather");
    await store.archiveThread("t2");
    print([await list(), await list({ includeArchived: true, limit: 1 })]);
    await store.unarchiveThread("t2");
    await store.deleteThread("t1");
    print(await list());
    print(await store.deleteThread("missing").catch((error) => error.message));
    store.stop();
  },
};
await actions[words[0]]();
process.exit();
"""


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    for word in ("It ", "rains"):
        await turn.write(word)
        await turn.flush()
    await turn.append(Message.assistant("It rains"))


class Client:
    """Runs of the client in Node, each in its own process."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{port}/api/copilotkit"
        (folder / "copilotkit.mjs").write_text(PROGRAM)

    @contextmanager
    def start(self, *words: str, token: str = "token-of-ann") -> Iterator[subprocess.Popen[str]]:
        command = ["node", "copilotkit.mjs", self._url, token, *words]
        with subprocess.Popen(command, cwd=self._folder, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *words: str, token: str = "token-of-ann") -> list[Any]:
        with self.start(*words, token=token) as process:
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            return [json.loads(line) for line in output.splitlines()]


def read(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        yield store


@pytest.fixture
def client(store: Store, front_end: Path) -> Iterator[Client]:
    users = bearer_tokens({"token-of-ann": "ann", "token-of-bob": "bob"})
    with serving(chat(AsyncStore(store), answer, user=users)) as port:
        yield Client(front_end, port)


def test_client_asks_and_loads_the_thread_again(client: Client, store: Store) -> None:
    assert client.run("connect", "t1") == [[]]
    (shown,) = client.run("ask", "t1", "Oslo?")
    assert [(each["role"], each["content"]) for each in shown] == [("user", "Oslo?"), ("assistant", "It rains")]
    assert shown == agui_messages(store.get("t1"))
    assert client.run("connect", "t1") == [shown]
    assert client.run("connect", "t1", token="token-of-bob") == [[]]


def test_connection_stays_for_runs_of_other_processes(client: Client, store: Store, tmp_path: Path) -> None:
    store.create("t1", user_id="ann", messages=[Message.user("Hi", id="q0"), Message.assistant("Hello", id="a0")])
    with client.start("follow", "t1") as first:
        assert read(first) == {"runs": 1, "messages": agui_messages(store.get("t1"))}
        client.run("ask", "t1", "Oslo?")
        assert read(first) == {"runs": 2, "messages": agui_messages(store.get("t1"))}
        asyncio.run(ask_without_client(f"sqlite:///{tmp_path}/agent.db"))
        seen = read(first)
        assert seen == {"runs": 3, "messages": agui_messages(store.get("t1"))}
        assert len(seen["messages"]) == 6
        store.delete("t1")
        assert read(first) == {"ended": True}


async def ask_without_client(url: str) -> None:
    async with AsyncStore(url) as store:
        await store.conversation("t1").inbox.put(Message.user("Bergen?"))


def test_client_lists_and_changes_threads(client: Client, store: Store) -> None:
    for name in ("t1", "t2"):
        store.create(name, user_id="ann", title=name, metadata={"kept": 1})
    store.create("t3", user_id="bob")
    threads, both, last, error = client.run("threads")
    first, second = ["t1", "default", "t1", False], ["t2", "default", "t2", False]
    assert sorted(threads) == [first, second]
    archived = ["t2", "default", "Weather", True]
    assert (both[0], sorted(both[1])) == ([first], [first, archived])
    assert last == [["t2", "default", "Weather", False]]
    assert error == "Request failed: 404"
    assert store.conversation("t2").info().metadata == {"kept": 1, "archived": False}
    assert [info.key for info in store.iter_sessions()] == ["t2", "t3"]
