"""The messages that nanobot sends to the model after its process was killed in the middle of a turn."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.base import Tool
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from nanobot.session.manager import SessionManager
from support.nanobots import KEY
from support.prompt_rules import faults

from lango_store import Message, Store, ToolCall

pytestmark = pytest.mark.one_database

CITIES = ("Oslo", "Rome")

Reach = Callable[[str], Awaitable[None]]
"""A function that is awaited at each point of a turn where the process may be killed."""


async def go_on(point: str) -> None:
    pass


class Model(LLMProvider):  # type: ignore[misc]
    """A model that asks for the weather in two cities, and answers everything else."""

    def __init__(self, reach: Reach = go_on) -> None:
        super().__init__(provider_name="scripted")
        self.seen: list[list[dict[str, Any]]] = []
        self._reach = reach

    def get_default_model(self) -> str:
        return "scripted"

    async def chat(self, messages: list[dict[str, Any]], *_: Any, **__: Any) -> LLMResponse:
        self.seen.append(copy.deepcopy(messages))
        await self._reach(f"request {len(self.seen)}")
        if messages[-1]["content"] != "Weather?":
            return LLMResponse("Cold.")
        calls = [ToolCallRequest(f"call_{city}", Weather.name, {"city": city}) for city in CITIES]
        return LLMResponse("I will look.", calls, "tool_calls")


class Weather(Tool):  # type: ignore[misc]
    name = "get_weather"
    description = "The weather in a city"
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}  # noqa: RUF012

    def __init__(self, reach: Reach = go_on) -> None:
        self._reach = reach

    async def execute(self, city: str) -> str:
        await self._reach(city)
        return f"-3 °C in {city}"


def agent(sessions: SessionManager, workspace: Path, reach: Reach = go_on) -> tuple[AgentLoop, Model]:
    model = Model(reach)
    loop = AgentLoop(MessageBus(), model, workspace, session_manager=sessions, tools_config=Config().tools)
    loop.tools.register(Weather(reach))
    return loop, model


@pytest.mark.slow
@pytest.mark.parametrize("point", ["request 1", *CITIES, "request 2"])
def test_model_gets_a_result_of_each_call_after_a_killed_turn(
    start: Callable[[], SessionManager], store: Store, tmp_path: Path, point: str
) -> None:
    async def main() -> list[dict[str, Any]]:
        reached = asyncio.Event()

        async def stop_at_point(each: str) -> None:
            if each == point:
                reached.set()
                await asyncio.Event().wait()

        first, _ = agent(start(), tmp_path, stop_at_point)
        killed = asyncio.create_task(first.process_direct("Weather?", session_key=KEY))
        await asyncio.wait_for(reached.wait(), 30)
        before = store.conversation(KEY).messages()
        second, model = agent(start(), tmp_path)
        await second.process_direct("And now?", session_key=KEY)
        assert store.conversation(KEY).messages()[: len(before)] == before
        killed.cancel()
        return model.seen[0]

    prompt = asyncio.run(main())
    assert faults(prompt, "openai") == []
    assert prompt[-1]["content"].endswith("And now?")


@pytest.mark.slow
@pytest.mark.parametrize("stored", range(1, 5))
def test_model_gets_a_result_of_each_call_of_another_program(
    start: Callable[[], SessionManager], store: Store, tmp_path: Path, stored: int
) -> None:
    calls = [ToolCall(id=f"call_{city}", name=Weather.name, arguments={"city": city}) for city in CITIES]
    results = [Message.tool("-3 °C", tool_call_id=call.id, name=call.name) for call in calls]
    log = [Message.user("Weather?"), Message.assistant("I will look.", tool_calls=calls), *results]
    store.create(KEY, messages=log[:stored])
    before = store.conversation(KEY).messages()
    loop, model = agent(start(), tmp_path)
    asyncio.run(loop.process_direct("And now?", session_key=KEY))
    assert faults(model.seen[0], "openai") == []
    assert store.conversation(KEY).messages()[:stored] == before
