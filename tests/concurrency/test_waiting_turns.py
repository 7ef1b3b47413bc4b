"""Many requests that wait for the turn of one session in one event loop."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from support.factories import message

from lango_store import AsyncConversation, AsyncStore, create_engine

pytestmark = pytest.mark.slow

TURNS = 80
POOL = 16


async def answer(conversation: AsyncConversation, turn_id: str, calls: Counter[str]) -> str:
    """Answer a question, or return the stored answer."""
    async with conversation.turn(turn_id, wait=timedelta(minutes=2)) as turn:
        if not turn.replayed:
            calls[turn_id] += 1
            await turn.append(message(f"answer to {turn_id}", role="assistant"))
    return str(turn.messages[-1].content)


def test_turns_that_wait_for_a_lease_delay_neither_appends_nor_drafts(url: str) -> None:
    calls: Counter[str] = Counter()

    async def work() -> None:
        engine = create_engine(url, pool_size=POOL)
        async with AsyncStore(engine) as store, asyncio.timeout(100):
            conversation, other = await store.open("k"), await store.open("other")
            async with conversation.turn("running") as running:
                ids = [f"turn {number}" for number in range(TURNS)] * 2
                waiting = [asyncio.create_task(answer(conversation, each, calls)) for each in ids]
                for number in range(50):
                    await other.append_message(message(f"{number}"))
                    await running.write("piece ")
                assert not any(each.done() for each in waiting)
            assert await asyncio.gather(*waiting) == [f"answer to {each}" for each in ids]
            assert (await conversation.info()).turn_count == TURNS + 1
        engine.dispose()

    asyncio.run(work())
    assert calls == dict.fromkeys((f"turn {number}" for number in range(TURNS)), 1)
