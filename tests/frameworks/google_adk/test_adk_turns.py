"""Runs in turns: ADK's runner on a service whose writes need the lease of a turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest
from frameworks.google_adk.adk_events import WHERE, texts
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from lango_store import AsyncStore, LeaseLost, Store
from lango_store.integrations.google_adk import LangoSessionService, StaleSessionError
from lango_store.testing import Clock

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

KEY = "weather:ann:trip"
LONG = timedelta(seconds=60)


class Watched(BaseLlm):
    """A model that answers "Cold."; `watch` is called with the texts of each call."""

    watch: Callable[[list[str]], None]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.watch([part.text or "" for content in llm_request.contents for part in content.parts or []])
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Cold.")]))


async def run(store: AsyncStore, id: str, watch: Callable[[list[str]], None]) -> None:
    """Run an agent in a turn, unless the turn is stored already."""
    async with store.conversation(KEY).turn(id, wait=LONG) as turn:
        if turn.replayed:
            return
        agent = LlmAgent(name="agent", model=Watched(model="watched", watch=watch))
        runner = Runner(app_name="weather", agent=agent, session_service=LangoSessionService(store).in_turn(turn))
        question = types.Content(role="user", parts=[types.Part(text="Oslo?")])
        async for _ in runner.run_async(user_id="ann", session_id="trip", new_message=question):
            pass


async def stored_texts(store: AsyncStore) -> list[str]:
    return texts(await LangoSessionService(store).get_session(**WHERE, session_id="trip"))


async def test_concurrent_runs_of_one_session_execute_one_after_another(store: Store) -> None:
    seen: list[list[str]] = []
    async with AsyncStore(store) as awaited:
        await LangoSessionService(awaited).create_session(**WHERE, session_id="trip")
        await asyncio.gather(*(run(awaited, str(number), seen.append) for number in range(3)))
        assert await stored_texts(awaited) == ["Oslo?", "Cold."] * 3
    assert seen == [["Oslo?", "Cold."] * number + ["Oslo?"] for number in range(3)]


async def test_run_that_is_requested_twice_calls_the_model_once(store: Store) -> None:
    seen: list[list[str]] = []
    async with AsyncStore(store) as awaited:
        await LangoSessionService(awaited).create_session(**WHERE, session_id="trip")
        await asyncio.gather(*(run(awaited, "request", seen.append) for _ in range(3)))
        assert await stored_texts(awaited) == ["Oslo?", "Cold."]
    assert seen == [["Oslo?"]]


async def test_run_whose_lease_was_taken_over_stores_nothing_more(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        other: Any = store.conversation(KEY).turn("other")

        def take_over(_: list[str]) -> None:
            clock.move(minutes=3)
            other.__enter__()

        async with AsyncStore(store) as awaited:
            await LangoSessionService(awaited).create_session(**WHERE, session_id="trip")
            with pytest.raises(StaleSessionError) as raised:
                await run(awaited, "slow", take_over)
            assert isinstance(raised.value.__cause__, LeaseLost)
            other.__exit__(None, None, None)
            assert await stored_texts(awaited) == ["Oslo?"]
        assert [turn.id for turn in store.conversation(KEY).turns.list()] == ["other"]
