"""The UI message stream, read by the published reader of the AI SDK: the message equals the stored one."""

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, LeaseLost, Message, Session, ToolCall
from lango_store.ui import aisdk, aisdk_messages

TURNS: Final = int(os.environ.get("LANGO_STORE_UI_TURNS", "300"))
AT_ONCE: Final = timedelta(0)


class Reader:
    """A client that reads the stream of a turn, and is cut after each of a number of bytes.

    Attributes:
        received: What the client has received, one text for each connection.
    """

    def __init__(self, conversation: AsyncConversation, turn_id: str, cuts: list[int]) -> None:
        self.received: list[str] = []
        self._conversation = conversation
        self._turn_id = turn_id
        self._cuts = cuts

    async def read(self) -> None:
        position: str | None = None
        while True:
            most = self._cuts.pop() if self._cuts else None
            text = ""
            frames = aisdk(self._conversation, self._turn_id, after=position, heartbeat=timedelta(milliseconds=20))
            async for frame in frames:
                text += frame
                if most is not None and len(text) >= most:
                    break
            await frames.aclose()
            has_ended = text.endswith("data: [DONE]\n\n") and (most is None or len(text) <= most)
            whole = text[:most].rpartition("\n\n")[0]
            if whole:
                self.received.append(f"{whole}\n\n")
            ids = [line[4:] for line in whole.split("\n") if line.startswith("id: ")]
            position = ids[-1] if ids else position
            if has_ended:
                return


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


async def attempt(conversation: AsyncConversation, turn_id: str, choose: random.Random) -> bool:
    """Run an attempt of a turn; return True if the turn was saved."""
    end = choose.choice(["saved", "saved", "interrupted", "failed", "killed"])
    try:
        async with conversation.turn(turn_id, flush=AT_ONCE) as turn:
            for _ in range(choose.randrange(1, 4)):
                await step(conversation, turn, choose)
            if end != "saved":
                await turn.write("half of an ")
                await asyncio.sleep(choose.choice([0, 0.03]))
            if end == "interrupted":
                await turn.interrupt()
            if end == "failed":
                raise ZeroDivisionError
            if end == "killed":
                await conversation.turns.release()
                await turn.append(Message.assistant("too late"))
            turn.usage = {"output_tokens": 4}
    except (ZeroDivisionError, LeaseLost):
        return False
    return True


async def exchange(store: AsyncStore, seed: int) -> tuple[list[Reader], Session, list[Any]]:
    """Ask a question; return the readers of the answer, and the stored session with its suspensions."""
    choose = random.Random(seed)
    conversation = await store.open(f"k{seed}")
    await conversation.append_message(Message.user("Weather?", id="question"))
    readers: list[Reader] = []
    reading: list[asyncio.Task[None]] = []

    def join(cuts: list[int]) -> None:
        readers.append(Reader(conversation, "t", cuts))
        reading.append(asyncio.create_task(readers[-1].read()))

    join([])
    while True:
        join([choose.randrange(1, 900) for _ in range(choose.randrange(1, 6))])
        if await attempt(conversation, "t", choose):
            break
    join([])  # a reader that comes late
    await asyncio.gather(*reading)
    return readers, await store.get(f"k{seed}"), await conversation.suspensions.list()


def normalized(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts without a step that has not begun, and without the ids of reasoning in the stream."""
    while parts and parts[-1]["type"] == "step-start":
        parts = parts[:-1]
    return [{k: v for k, v in part.items() if not (part["type"] == "reasoning" and k == "id")} for part in parts]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.mark.timeout(1800)
def test_reader_of_the_ai_sdk_rebuilds_the_stored_message(front_end: Path, tmp_path: Path) -> None:
    async def work() -> list[tuple[list[Reader], Session, list[Any]]]:
        async with AsyncStore(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
            results = []
            for first in range(0, TURNS, 10):
                results += await asyncio.gather(*(exchange(store, seed) for seed in range(first, first + 10)))
            return results

    exchanges = run(work())
    streams = [reader.received for readers, _, _ in exchanges for reader in readers]
    command = ["node", "read.mjs"]
    done = subprocess.run(command, cwd=front_end, input=json.dumps(streams), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = iter(json.loads(done.stdout))
    for seed, (readers, session, suspensions) in enumerate(exchanges):
        expected = aisdk_messages(session, suspensions)[-1]
        for number, _ in enumerate(readers):
            message = next(read)
            assert message["id"] == expected["id"]
            assert message["metadata"] == {"usage": {"output_tokens": 4}}
            assert normalized(message["parts"]) == normalized(expected["parts"]), (seed, number)
