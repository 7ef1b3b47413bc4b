"""Adapters that write in a turn: `in_turn` makes their appends need its lease."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from frameworks.adapters import FRAMEWORKS, Framework, GoogleAdk

from lango_store import AsyncStore, LeaseLost, Store
from lango_store.integrations.google_adk import StaleSessionError
from lango_store.ui import aisdk, aisdk_messages

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: type(framework).__name__),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"),
]

LOST = (LeaseLost, StaleSessionError)  # ADK's contract names its own error


async def test_adapter_in_turn_appends_and_extends_the_lease(framework: Framework, store: Store) -> None:
    adapter = framework.make(store)
    await framework.say(adapter, "first")
    async with AsyncStore(store) as awaited, awaited.conversation(framework.key).turn("run") as turn:
        before = store.conversation(framework.key).turns.in_progress()
        await framework.say(adapter.in_turn(turn), "second")
        after = store.conversation(framework.key).turns.in_progress()
        assert before is not None
        assert after is not None
        assert after.until > before.until
    assert await framework.texts(adapter) == ["first", "second"]
    assert store.conversation(framework.key).turns.find("run") is not None


async def test_messages_of_an_adapter_are_part_of_the_stream_of_the_turn(framework: Framework, store: Store) -> None:
    if isinstance(framework, GoogleAdk):
        await framework.say(framework.make(store), "first")  # ADK creates its sessions before a run
    else:
        store.open(framework.key)
    async with AsyncStore(store) as awaited:
        conversation = awaited.conversation(framework.key)
        before = (await conversation.info()).last_seq
        async with conversation.turn("run") as turn:
            await framework.say(framework.make(store).in_turn(turn), "Oslo")
            turn.usage = {"output_tokens": 1}
        stored = await conversation.get()
        written = [each for each in stored.messages if each.seq > before]
        assert written
        assert {each._taken_by for each in written} == {"run"}
        frames = [frame async for frame in aisdk(conversation, "run")]
        answers = [each for each in aisdk_messages(stored) if each["role"] == "assistant"]
    texts = [part["text"] for each in answers for part in each["parts"] if part["type"] == "text"]
    chunks = [json.loads(each[6:]) for frame in frames for each in frame.split("\n") if each.startswith("data: {")]
    assert "".join(each["delta"] for each in chunks if each["type"] == "text-delta") == "".join(texts)
    assert [each["id"] for each in answers] == [chunks[0]["messageId"]] * bool(answers)


async def test_adapter_whose_lease_is_lost_stores_nothing(framework: Framework, store: Store) -> None:
    adapter = framework.make(store)
    await framework.say(adapter, "first")
    async with AsyncStore(store) as awaited:
        turn = awaited.conversation(framework.key).turn("run")
        await turn.__aenter__()
        in_turn = adapter.in_turn(turn)
        store.conversation(framework.key).turns.release()
        before = store.conversation(framework.key).info()
        with pytest.raises(LOST):
            await framework.say(in_turn, "late")
        assert store.conversation(framework.key).info() == before
    await framework.say(adapter, "second")
    assert await framework.texts(adapter) == ["first", "second"]


async def test_run_that_is_requested_twice_runs_once(framework: Framework, store: Store) -> None:
    adapter = framework.make(store)
    await framework.say(adapter, "first")
    runs = 0

    async def run(awaited: AsyncStore, name: str) -> None:
        nonlocal runs
        async with awaited.conversation(framework.key).turn(name, wait=timedelta(seconds=60)) as turn:
            if not turn.replayed:
                runs += 1
                await framework.say(adapter.in_turn(turn), name)

    async with AsyncStore(store) as awaited:
        await asyncio.gather(*(run(awaited, name) for name in ["a", "b"] * 4))
    assert runs == 2
    assert sorted(await framework.texts(adapter)) == ["a", "b", "first"]


async def test_first_run_of_opened_session_can_be_a_turn(framework: Framework, store: Store) -> None:
    if isinstance(framework, GoogleAdk):
        pytest.skip("ADK creates its sessions before a run")
    adapter: Any = framework.make(store)
    store.open(framework.key)
    async with AsyncStore(store) as awaited, awaited.conversation(framework.key).turn("run") as turn:
        await framework.say(adapter.in_turn(turn), "first")
    assert await framework.texts(adapter) == ["first"]
