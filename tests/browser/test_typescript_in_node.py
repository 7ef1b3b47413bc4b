"""The page "From TypeScript": its programs in Node, against a server of the Conversations API."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support.http_server import serving
from support.pages import blocks

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Message, Store
from lango_store.web import bearer_tokens, chat, conversations

PROGRAMS: Final = {block.split()[1]: block for block in blocks("docs/howto/typescript.md", "ts")}
Run = Callable[..., str]

SESSION: Final = """
import { OpenAIConversationsSession } from "@openai/agents";
import OpenAI from "openai";

const session = new OpenAIConversationsSession();
const items = [...Array(45).keys()].map((number) => ({ role: "user", content: `question ${number}` }));
for (let first = 0; first < 45; first += 20) await session.addItems(items.slice(first, first + 20));
await session.addItems([
  { type: "function_call", callId: "c1", name: "add", arguments: "{}", status: "completed" },
  { type: "function_call_result", callId: "c1", name: "add", status: "completed", output: { type: "text", text: "3" } },
]);
const texts = (all) => all.map((item) => item.content?.[0]?.text ?? item.type);
const all = texts(await session.getItems());
const last = texts(await session.getItems(3));
const popped = [(await session.popItem()).type, (await session.popItem()).name];
const remaining = texts(await session.getItems());
const id = await session.getSessionId();
await session.clearSession();
const status = await new OpenAI().conversations.retrieve(id).catch((error) => error.status);
const same = all.slice(0, 45).every((text, number) => text === `question ${number}`);
console.log(JSON.stringify({ count: all.length, same, last, popped, remaining: remaining.length, status }));
"""

TWO_SESSIONS: Final = """
import { OpenAIConversationsSession } from "@openai/agents";
import OpenAI from "openai";

const one = new OpenAIConversationsSession();
const conversationId = await one.getSessionId();
const other = new OpenAIConversationsSession({ conversationId, client: new OpenAI() });
const items = (name) => [...Array(20).keys()].map((number) => ({ role: "user", content: `${name} ${number}` }));
await Promise.all([0, 1, 2].flatMap(() => [one.addItems(items("one")), other.addItems(items("other"))]));
const texts = async (session) => (await session.getItems()).map((item) => item.content[0].text);
const [seen, same] = [await texts(one), await texts(other)];
const batches = [...Array(6).keys()].map((number) => seen.slice(20 * number, 20 * number + 20));
const whole = batches.filter((batch) => batch.every((text, number) => text === `${batch[0].split(" ")[0]} ${number}`));
const popped = (await other.popItem()).content[0].text === seen[119];
const remaining = (await texts(one)).length;
await other.clearSession();
const status = await one.getItems().catch((error) => error.status);
console.log(JSON.stringify([String(seen) === String(same), whole.length, popped, remaining, status]));
"""

APPROVAL: Final = """
import { Agent, OpenAIConversationsSession, Usage, run, setTracingDisabled, tool } from "@openai/agents";

setTracingDisabled(true);
const seen = [];
const properties = { city: { type: "string" } };
const weather = tool({
  name: "weather",
  description: "Returns the weather.",
  parameters: { type: "object", properties, required: ["city"], additionalProperties: false },
  needsApproval: true,
  execute: async ({ city }) => `rain in ${city}`,
});
const model = {
  async getResponse({ input }) {
    seen.push(input.map((item) => item.role ?? item.type));
    const last = input.at(-1);
    const call = { type: "function_call", callId: `c${seen.length}`, name: "weather", status: "completed" };
    const content = [{ type: "output_text", text: `It is ${last.output?.text}.` }];
    const output = last.role === "user"
      ? { ...call, arguments: '{"city": "Oslo"}' }
      : { type: "message", role: "assistant", status: "completed", content };
    return { usage: new Usage(), output: [output] };
  },
};
const agent = new Agent({ name: "Forecaster", model, tools: [weather] });
const asked = new OpenAIConversationsSession();
const stopped = await run(agent, "Oslo?", { session: asked });
stopped.state.approve(stopped.interruptions[0]);
const answers = [(await run(agent, stopped.state, { session: asked })).finalOutput];
const later = new OpenAIConversationsSession({ conversationId: await asked.getSessionId() });
const again = await run(agent, "And now?", { session: later });
again.state.reject(again.interruptions[0]);
answers.push((await run(agent, again.state, { session: later })).finalOutput);
console.log(JSON.stringify({ answers, seen: seen.at(-1), id: await later.getSessionId() }));
"""

LOST_ANSWER: Final = """
import OpenAI from "openai";

let lost = 0;
async function losing(url, init) {
  const answer = await fetch(url, init);
  if (init.method === "POST" && lost++ % 2 === 0) throw new Error("the answer is lost");
  return answer;
}
const client = new OpenAI({ fetch: losing, maxRetries: 2 });
client.idempotencyHeader = "Idempotency-Key";
const { id } = await client.conversations.create();
await client.conversations.items.create(id, { items: [{ type: "message", role: "user", content: "once" }] });
const page = await client.conversations.items.list(id);
console.log(lost, page.data.length, id);
"""

HISTORY: Final = """
const client = new OpenAI();
const { id } = await client.conversations.create();
const said = (role, id, text) => ({ message: { id, role, content: [{ type: "text", text }] } });
const adapter = history(client, id);
for (const each of [said("user", "a", "Hi"), said("user", "a", "Hi"), said("assistant", "b", "Hello")]) {
  await adapter.append(each);
}
const loaded = await adapter.load();
console.log(loaded.headId, ...loaded.messages.map((each) => `${each.parentId}:${each.message.content[0].text}`));
"""


THREADS: Final = """
const url = process.env.OPENAI_BASE_URL.replace("/v1", "/api/chat");
const headers = { authorization: "Bearer token-of-ann", "content-type": "application/json" };
const adapter = threads(url, headers);
const { remoteId } = await adapter.initialize("t1");
const question = { id: "q1", role: "user", parts: [{ type: "text", text: "Oslo?" }] };
const body = JSON.stringify({ id: remoteId, trigger: "submit-message", messages: [question] });
await (await fetch(url, { method: "POST", headers, body })).text();
const chunks = [];
for await (const chunk of await adapter.generateTitle(remoteId)) chunks.push(chunk.textDelta ?? "");
await adapter.rename(remoteId, "Weather");
const first = await adapter.list();
const next = await adapter.list({ after: first.nextCursor });
const fetched = await adapter.fetch(remoteId);
const statuses = [];
for (const change of [adapter.archive, adapter.unarchive]) {
  await change(remoteId);
  statuses.push((await adapter.fetch(remoteId)).status);
}
await adapter.delete(remoteId);
const missing = await adapter.fetch(remoteId).catch((error) => error.message);
const counts = [first.threads.length, next.threads.length];
console.log(JSON.stringify([chunks.join(""), first.threads[0], fetched.title, counts, missing, statuses]));
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        yield store


async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
    await turn.append(Message.assistant("It rains"))


@pytest.fixture
def node(store: Store, front_end: Path) -> Iterator[Run]:
    """Yield a function that runs a program in Node as the user ann, and returns its output."""
    app = conversations(AsyncStore(store), user=bearer_tokens({"token-of-ann": "ann"}))
    chats = chat(AsyncStore(store), answer, user=bearer_tokens({"token-of-ann": "ann"}))
    with serving(Starlette(routes=[Mount("/v1", app), Mount("/", chats)])) as port:
        environment = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "token-of-ann"}

        def run(source: str) -> str:
            (front_end / "program.ts").write_text(source)
            options = ["--format=esm", "--outfile=program.mjs", "--log-level=warning"]
            subprocess.run(["node_modules/.bin/esbuild", "program.ts", *options], cwd=front_end, check=True)
            done = subprocess.run(
                ["node", "program.mjs"],
                cwd=front_end,
                env=os.environ | environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run


def test_client_stores_an_item_once(node: Run, store: Store) -> None:
    assert node(PROGRAMS["conversations.ts"]) == "msg_1 [ { type: 'input_text', text: 'Oslo?' } ]\n"
    (info,) = store.list_sessions(user_id="ann").items
    assert info.metadata == {"topic": "weather"}
    assert store.conversation(info.key).history() == [{"role": "user", "content": "Oslo?"}]


def test_session_of_the_agents_sdk_stores_its_items(node: Run, store: Store) -> None:
    key, _, items = node(PROGRAMS["agents.ts"]).partition(" ")
    assert ("Oslo?" in items, "It rains." in items) == (True, True)
    prompt = [{"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "It rains."}]
    assert store.conversation(key).history() == prompt


def test_session_of_the_agents_sdk_reads_pages_pops_and_clears(node: Run, store: Store) -> None:
    assert node(SESSION) == (
        '{"count":47,"same":true,"last":["question 44","function_call","function_call_result"],'
        '"popped":["function_call_result","add"],"remaining":45,"status":404}\n'
    )
    assert store.count() == 0


def test_two_sessions_of_the_agents_sdk_share_a_conversation(node: Run, store: Store) -> None:
    assert json.loads(node(TWO_SESSIONS)) == [True, 6, True, 119, 404]
    assert store.count() == 0


def test_agent_that_waits_for_an_approval_is_continued_in_its_session(node: Run, store: Store) -> None:
    done = json.loads(node(APPROVAL))
    assert done["answers"][0] == "It is rain in Oslo."
    turn = ["user", "function_call", "function_call_result"]
    assert done["seen"] == [*turn, "assistant", *turn]
    roles = [str(message.role) for message in store.get(done["id"]).messages]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2


def test_client_that_loses_answers_stores_an_item_once(node: Run, store: Store) -> None:
    lost, count, key = node(LOST_ANSWER).split()
    assert (lost, count) == ("4", "1")
    assert [info.key for info in store.list_sessions().items] == [key]


def test_history_of_assistant_ui_is_stored(node: Run, store: Store) -> None:
    assert node(PROGRAMS["history.ts"] + HISTORY) == "b null:Hi a:Hello\n"
    (info,) = store.list_sessions().items
    assert [each.content for each in store.get(info.key).messages] == ["Hi", "Hello"]


def test_threads_of_assistant_ui_are_listed_renamed_and_deleted(node: Run, store: Store) -> None:
    for number in range(50):
        store.create(f"other-{number}", user_id="ann")
    title, first, fetched, counts, missing, statuses = json.loads(node(PROGRAMS["threads.ts"] + THREADS))
    assert first == {"status": "regular", "remoteId": "t1", "title": "Weather"}
    assert (title, fetched, counts) == ("Oslo?", "Weather", [50, 1])
    assert (missing, statuses) == ("404 for /t1/messages", ["archived", "regular"])
    assert not store.exists("t1")


def test_programs_of_the_page_are_short() -> None:
    assert set(PROGRAMS) == {"conversations.ts", "agents.ts", "history.ts", "threads.ts"}
    assert all(len(program.splitlines()) <= 30 for program in PROGRAMS.values())
