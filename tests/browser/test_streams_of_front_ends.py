"""The streams of a turn, read by the published readers of both protocols: the messages equal the stored ones."""

import asyncio
import json
import os
import random
import subprocess
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, LeaseLost, Message, Session, ToolCall
from lango_store._rooms.turns_in_progress import running
from lango_store.ui import agui, agui_messages, aisdk, aisdk_messages

TURNS: Final = int(os.environ.get("LANGO_STORE_UI_TURNS", "300"))
AT_ONCE: Final = timedelta(0)
ANSWER: Final = running.id_prefix("t")
Stream = Callable[..., AsyncGenerator[str, None]]


class Reader:
    """A client that reads the stream of a turn, and is cut after each of a number of bytes.

    A client of the AI SDK begins again after each change of the log, because the protocol cannot take steps back.

    Attributes:
        received: What the client has received, one text for each connection.
    """

    def __init__(self, stream: Stream, conversation: AsyncConversation, cuts: list[int]) -> None:
        self.received: list[str] = []
        self._stream = stream
        self._conversation = conversation
        self._cuts = cuts

    async def read(self) -> None:
        position: str | None = None
        while True:
            most = self._cuts.pop() if self._cuts else None
            text, has_ended, has_changed = "", True, False
            frames = self._stream(self._conversation, "t", after=position, heartbeat=timedelta(milliseconds=20))
            async for frame in frames:
                text += frame
                has_changed = '"data-changed"' in frame
                if has_changed or (most is not None and len(text) >= most):
                    has_ended = False
                    break
            await frames.aclose()
            if has_changed:
                self.received, position = [], None
                continue
            has_ended = has_ended and (most is None or len(text) <= most)
            whole = text[:most].rpartition("\n\n")[0]
            if whole:
                self.received.append(f"{whole}\n\n")
            ids = [line[4:] for line in whole.split("\n") if line.startswith("id: ")]
            position = ids[-1] or None if ids else position
            if has_ended:
                return


class Exchange(NamedTuple):
    """The events that the readers of a turn have received, by protocol, and the stored session."""

    readers: dict[Stream, list[Reader]]
    session: Session
    suspensions: list[Any]


def call(choose: random.Random) -> ToolCall:
    return ToolCall(id=f"call-{choose.getrandbits(40)}", name="weather", arguments='{"city": "Oslo"}')


async def step(conversation: AsyncConversation, turn: AsyncRunningTurn, choose: random.Random) -> None:
    """Stream and append one answer of the model, with the results of its tool calls."""
    for _ in range(choose.randrange(4)):
        await turn.write(f"{choose.random()} ")
        if choose.random() < 0.5:
            await asyncio.sleep(0.03)
    content: Any = turn.draft_text or None
    if choose.random() < 0.2:
        content = f"another answer {choose.random()}"
    if choose.random() < 0.3:
        source = {"type": "source-url", "sourceId": "s1", "url": "https://example.com/"}
        thought = {"type": "thinking", "thinking": f"because {choose.random()}"}
        blocks = [{"type": "text", "text": content}] if content else []
        content = choose.choice([[thought, *blocks], [*blocks, source], [thought, *blocks, source]])
        if not blocks:
            content = [{"type": "text", "text": "found"}, source]
    calls = [call(choose) for _ in range(choose.choice([0, 0, 1, 2]))]
    asked = await turn.append(Message.assistant(content, tool_calls=calls))
    for position, each in enumerate(calls):
        if choose.random() < 0.2:
            await conversation.suspensions.create(calls=[(asked.seq, position)], reason="May I?")
        elif choose.random() < 0.3:
            await turn.append(Message.tool("it rains", tool_call_id=each.id, extra={"failed": True}))
        else:
            await turn.append(Message.tool({"degrees": 20}, tool_call_id=each.id))


async def interfere(conversation: AsyncConversation, choose: random.Random) -> None:
    """Edit a message, or append one, as another process."""
    messages = await conversation.all_messages()
    chosen = choose.choice(messages)
    match choose.choice(["update", "delete", "redact", "undo", "append", "image"]):
        case "update" if not chosen.tool_calls and chosen.role != "tool":
            await conversation.edits.update(chosen.seq, Message(role=chosen.role, content=f"edited {choose.random()}"))
        case "delete" if len(messages) > 1:
            await conversation.edits.delete(chosen.seq)
        case "redact":
            await conversation.edits.redact(chosen.seq)
        case "undo":
            await conversation.versions.undo()
        case "append":
            await conversation.append_message(Message.user("and Bergen?"))
        case "image":
            source = {"type": "url", "value": "https://example.com/a.png"}
            await conversation.append_message(Message.user([{"type": "image", "source": source}]))


async def attempt(conversation: AsyncConversation, choose: random.Random) -> bool:
    """Run an attempt of the turn; return True if the turn was saved."""
    end = choose.choice(["saved", "saved", "saved with a draft", "interrupted", "failed", "killed"])
    try:
        async with conversation.turn("t", flush=AT_ONCE) as turn:
            for _ in range(choose.randrange(1, 4)):
                await step(conversation, turn, choose)
                if choose.random() < 0.3:
                    await interfere(conversation, choose)
            if end != "saved":
                await turn.write("half of an ")
                await asyncio.sleep(choose.choice([0, 0.03]))
                if choose.random() < 0.3:
                    await interfere(conversation, choose)
            if end == "interrupted":
                await turn.interrupt()
            if end == "failed":
                raise ZeroDivisionError
            if end == "killed":
                await conversation.turns.release()
                await turn.append(Message.assistant("too late"))
            turn.usage = {"input_tokens": 9, "output_tokens": 4}
    except (ZeroDivisionError, LeaseLost):
        return False
    return True


async def exchange(store: AsyncStore, seed: int) -> Exchange:
    """Ask a question, and read the answer."""
    choose = random.Random(seed)
    conversation = await store.open(f"k{seed}")
    await conversation.append_message(Message.user("Weather?", id="question"))
    readers: dict[Stream, list[Reader]] = {aisdk: [], agui: []}
    reading: list[asyncio.Task[None]] = []

    def join(cuts: list[int]) -> None:
        for stream in readers:
            readers[stream].append(Reader(stream, conversation, cuts.copy()))
            reading.append(asyncio.create_task(readers[stream][-1].read()))

    join([])
    while True:
        join([choose.randrange(1, 900) for _ in range(choose.randrange(1, 6))])
        if await attempt(conversation, choose):
            break
    join([])  # readers that come late
    await asyncio.gather(*reading)
    return Exchange(readers, await store.get(f"k{seed}"), await conversation.suspensions.list())


@pytest.fixture(scope="module")
def exchanges(tmp_path_factory: pytest.TempPathFactory) -> list[Exchange]:
    async def work() -> list[Exchange]:
        results: list[Exchange] = []
        url = f"sqlite:///{tmp_path_factory.mktemp('turns')}/agent.db"
        async with AsyncStore(url, migrate=True, keep_removed=timedelta(days=1)) as store:
            for first in range(0, TURNS, 10):
                results += await asyncio.gather(*(exchange(store, seed) for seed in range(first, first + 10)))
        return results

    return asyncio.run(work())


def read(exchanges: list[Exchange], stream: Stream, program: str, folder: Path) -> list[tuple[int, Exchange, Any]]:
    """Run the reader of a protocol; return each result with the number of its turn."""
    readers = [(seed, each, reader) for seed, each in enumerate(exchanges) for reader in each.readers[stream]]
    streams = json.dumps([reader.received for _, _, reader in readers])
    done = subprocess.run(["node", program], cwd=folder, input=streams, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [(seed, each, result) for (seed, each, _), result in zip(readers, json.loads(done.stdout), strict=True)]


def normalized(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts without a step that has not begun, and without the ids of reasoning in the stream."""
    while parts and parts[-1]["type"] == "step-start":
        parts = parts[:-1]
    return [{k: v for k, v in part.items() if not (part["type"] == "reasoning" and k == "id")} for part in parts]


@pytest.mark.timeout(1800)
def test_reader_of_the_ai_sdk_rebuilds_the_stored_answer(exchanges: list[Exchange], front_end: Path) -> None:
    for seed, (_, session, suspensions), message in read(exchanges, aisdk, "read-aisdk.mjs", front_end):
        shown = aisdk_messages(session, suspensions)
        expected: list[dict[str, Any]] = next((each["parts"] for each in shown if each["id"] == ANSWER), [])
        assert message["id"] == ANSWER
        assert message["metadata"] == {"usage": {"input_tokens": 9, "output_tokens": 4}}
        assert normalized(message["parts"]) == normalized(expected), seed


@pytest.mark.timeout(1800)
def test_agent_of_ag_ui_rebuilds_the_stored_messages(exchanges: list[Exchange], front_end: Path) -> None:
    for seed, (_, session, suspensions), result in read(exchanges, agui, "read-agui.mjs", front_end):
        assert result["messages"] == agui_messages(session), seed
        assert result["last"]["type"] == "RUN_FINISHED"
        assert result["last"]["usage"] == [{"inputTokens": 9, "outputTokens": 4}]
        last = max((each.seq for each in session.messages if each.role == "user" and each.content), default=0)
        stored = {message.seq for message in session.messages if message.tool_calls and message.seq > last}
        asked = {each.id for each in suspensions if each.calls[0][0] in stored}
        assert {each["id"] for each in result["interrupts"]} == asked, seed
