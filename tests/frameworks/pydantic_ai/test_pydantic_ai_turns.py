"""Runs in turns: agents whose conversations are saved under the lease of a turn."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from lango_store import AsyncStore, LeaseLost, Store
from lango_store.integrations.pydantic_ai import LangoConversationStore
from lango_store.testing import Clock

from .talking import said, texts, texts_of

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

LONG = timedelta(seconds=60)


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as opened:
        yield opened


def agent(watch: Callable[[list[Any]], None]) -> Agent[None, str]:
    """Return an agent that answers "Cold."; `watch` is called with the texts of each model call."""

    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        watch(texts(messages))
        return said("Cold.")

    return Agent(FunctionModel(answer))


async def run(store: AsyncStore, id: str, asked: Agent[None, str], question: str) -> None:
    """Run an agent in a turn, unless the turn is stored already."""
    conversation = await store.open("c")
    async with conversation.turn(id, wait=LONG) as turn:
        if not turn.replayed:
            conversations = LangoConversationStore(store).in_turn(turn)
            talk = await conversations.load("c", scope="ann") or Conversation(conversation_id="c")
            await conversations.save(await asked.run(question, conversation=talk), scope="ann")


async def test_concurrent_runs_of_one_conversation_execute_one_after_another(store: Store) -> None:
    seen: list[list[Any]] = []
    asked = agent(seen.append)
    async with AsyncStore(store) as awaited:
        await asyncio.gather(*(run(awaited, str(number), asked, "Oslo?") for number in range(3)))
        assert await texts_of(LangoConversationStore(awaited), "c", scope="ann") == ["Oslo?", "Cold."] * 3
    assert seen == [["Oslo?", "Cold."] * number + ["Oslo?"] for number in range(3)]


async def test_run_that_is_requested_twice_calls_the_model_once(store: Store) -> None:
    seen: list[list[Any]] = []
    asked = agent(seen.append)
    async with AsyncStore(store) as awaited:
        await asyncio.gather(*(run(awaited, "request", asked, "Oslo?") for _ in range(3)))
        assert await texts_of(LangoConversationStore(awaited), "c") == ["Oslo?", "Cold."]
    assert seen == [["Oslo?"]]


async def test_run_whose_lease_was_taken_over_stores_nothing(store: Store, clock: Clock) -> None:
    other = store.open("c").turn("other")

    def take_over(_: list[Any]) -> None:
        clock.move(minutes=3)
        other.__enter__()

    async with AsyncStore(store) as awaited:
        with pytest.raises(LeaseLost):
            await run(awaited, "slow", agent(take_over), "Oslo?")
        other.__exit__(None, None, None)
        assert await LangoConversationStore(awaited).load("c") is None
    assert [turn.id for turn in store.conversation("c").turns.list()] == ["other"]


async def test_session_without_a_saved_conversation_is_not_loaded_as_a_conversation(store: Store) -> None:
    store.open("c")
    store.conversation("c").values.set({"color": "blue"})
    conversations = LangoConversationStore(store)
    assert await conversations.load("c") is None
    await conversations.save(Conversation(conversation_id="c"), scope="ann")
    assert await texts_of(conversations, "c", scope="ann") == []
    assert store.conversation("c").values.get(prefix="color") == {"color": "blue"}
    await conversations.close()
