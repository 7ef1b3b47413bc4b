"""Runs in turns: the framework's runner on a `LangoSession` whose writes need the lease of a turn."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from agents import Runner

from lango_store import AsyncStore, LeaseLost, Store
from lango_store.integrations.openai_agents import LangoSession
from lango_store.testing import Clock

from .scripted import Item, agent, asks, says, total, words

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

LONG = timedelta(seconds=60)
ASKED = ["Weather?", "get_weather?call_Oslo", "call_Oslo=-3 in Oslo"]


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as opened:
        yield opened


async def run(store: AsyncStore, id: str, asked: Any, question: str, *, streamed: bool = False) -> None:
    """Run an agent in a turn, unless the turn is stored already."""
    conversation = await store.open("k")
    async with conversation.turn(id, wait=LONG) as turn:
        if turn.replayed:
            return
        session = LangoSession("k", store).in_turn(turn)
        if streamed:
            running = Runner.run_streamed(asked, question, session=session)
            async for _ in running.stream_events():
                pass
        else:
            await Runner.run(asked, question, session=session)


def taking_over(store: Store, clock: Clock, taken: list[Any]) -> Callable[[list[Item]], None]:
    """Return a watcher of the model that lets another turn take over during the second call."""

    def watch(items: list[Item]) -> None:
        if len(items) > 1:
            clock.move(minutes=3)
            other = store.conversation("k").turn("other")
            other.__enter__()
            taken.append(other)

    return watch


async def test_concurrent_runs_of_one_session_execute_one_after_another(store: Store) -> None:
    seen: list[list[str]] = []
    asked = agent(says("A."), says("B."), seen=lambda items: seen.append(words(items)))
    async with AsyncStore(store) as awaited:
        await asyncio.gather(run(awaited, "one", asked, "Hello"), run(awaited, "two", asked, "Hello"))
    assert seen == [["Hello"], ["Hello", "A.", "Hello"]]
    assert store.conversation("k").total_usage() == total(20, 20)


async def test_run_that_is_requested_twice_calls_the_model_once(store: Store) -> None:
    seen: list[list[Item]] = []
    asked = agent(says("Cold."), says("Again."), seen=seen.append)
    async with AsyncStore(store) as awaited:
        await asyncio.gather(*(run(awaited, "request", asked, "Weather?") for _ in range(3)))
    assert len(seen) == 1
    assert words(await LangoSession("k", store).get_items()) == ["Weather?", "Cold."]


@pytest.mark.parametrize("streamed", [False, True], ids=["run", "run_streamed"])
async def test_run_whose_lease_was_taken_over_stores_nothing_more(store: Store, clock: Clock, streamed: bool) -> None:
    taken: list[Any] = []
    asked = agent(asks("Oslo"), says("Late."), seen=taking_over(store, clock, taken))
    async with AsyncStore(store) as awaited:
        with pytest.raises(LeaseLost):
            await run(awaited, "slow", asked, "Weather?", streamed=streamed)
        (other,) = taken
        open_turn = store.conversation("k").turns.in_progress()
        assert open_turn is not None
        assert open_turn.id == "other"
        other.__exit__(None, None, None)
        assert words(await LangoSession("k", awaited).get_items()) == ASKED
        assert [turn.id for turn in store.conversation("k").turns.list()] == [None, "other"]
        assert store.conversation("k").total_usage() == total(10)
    assert store.conversation("k").info().message_count == 3


async def test_item_is_not_popped_after_the_lease_was_taken_over(store: Store) -> None:
    async with AsyncStore(store) as awaited:
        turn = (await awaited.open("k")).turn("slow")
        await turn.__aenter__()
        session = LangoSession("k", awaited).in_turn(turn)
        await session.add_items([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        assert await session.pop_item() == {"role": "user", "content": "b"}
        store.conversation("k").turns.release()
        with pytest.raises(LeaseLost):
            await session.pop_item()
        assert words(await session.get_items()) == ["a"]


async def test_failed_run_is_continued_without_sending_its_question_again(store: Store) -> None:
    seen: list[list[str]] = []

    def fail(items: list[Item]) -> None:
        seen.append(words(items))
        if len(seen) == 2:
            raise ConnectionError("the model is away")

    async with AsyncStore(store) as awaited:
        asked: Any = agent(asks("Oslo"), says("Lost."), seen=fail)
        with pytest.raises(ConnectionError):
            await run(awaited, "request", asked, "Weather?")
        conversation = awaited.conversation("k")
        async with conversation.turn("request") as turn:
            assert not turn.replayed
            session = LangoSession("k", awaited).in_turn(turn)
            await Runner.run(agent(says("Cold."), seen=fail), [], session=session)
        assert words(await LangoSession("k", awaited).get_items()) == [*ASKED, "Cold."]
    assert seen == [["Weather?"], ASKED, ASKED]
