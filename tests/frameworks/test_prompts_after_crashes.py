"""The messages that a framework's runner sends to the model after a program ended in the middle of a turn."""

from collections.abc import Callable
from typing import Any

import pytest
from agents import Runner
from frameworks.google_adk import adk_events
from frameworks.openai_agents import scripted
from frameworks.openai_agents.responses import ANSWER_OSLO, ANSWER_ROME, CALL_OSLO, CALL_ROME, QUESTION, REASONING
from frameworks.pydantic_ai import talking
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.genai import types
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support.strict_rules import Request, strict_faults

from lango_store import AsyncStore, Store
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.integrations.openai_agents import LangoSession
from lango_store.integrations.pydantic_ai import LangoConversationStore

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:\\[EXPERIMENTAL\\]:UserWarning"),
    pytest.mark.one_database,
]


@pytest.mark.parametrize("stored", [1, 4, 5, 6])
async def test_model_of_openai_agents_gets_no_open_call(store: Store, stored: int) -> None:
    session = LangoSession("k", store)
    await session.add_items([QUESTION, REASONING, CALL_OSLO, CALL_ROME, ANSWER_OSLO, ANSWER_ROME][:stored])
    before = await session.get_items()
    seen: list[Any] = []
    await Runner.run(scripted.agent(scripted.says("Cold."), seen=seen.append), "And now?", session=session)
    assert strict_faults(Request("openai-responses", "openai", "gpt-6", seen[0])) == []
    assert (await session.get_items())[:stored] == before


class Watched(BaseLlm):
    watch: Callable[[Any], None]

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        self.watch([each.model_dump(mode="json", exclude_none=True) for each in llm_request.contents])
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Cold.")]))


@pytest.mark.parametrize("stored", range(1, 4))
async def test_model_of_adk_gets_as_many_responses_as_calls(store: Store, stored: int) -> None:
    async with AsyncStore(store) as awaited:
        service = LangoSessionService(awaited)
        session = await service.create_session(**adk_events.WHERE, session_id="trip")
        events = [adk_events.said("Oslo?"), adk_events.called("f", city="Oslo"), adk_events.answered("f", celsius=-3)]
        for event in events[:stored]:
            await service.append_event(session, event)
        seen: list[Any] = []
        agent = LlmAgent(name="agent", model=Watched(model="watched", watch=seen.append))
        question = types.Content(role="user", parts=[types.Part(text="And now?")])
        runner = AdkRunner(app_name="weather", agent=agent, session_service=service)
        async for _ in runner.run_async(user_id="ann", session_id="trip", new_message=question):
            pass
        assert strict_faults(Request("gemini", "google", "gemini-3-pro", seen[0])) == []


@pytest.mark.parametrize("stored", range(1, 4))
async def test_model_of_pydantic_ai_gets_a_result_of_each_call(store: Store, stored: int) -> None:
    call = ToolCallPart("get_weather", {"city": "Oslo"}, "call-1")
    messages: list[ModelMessage] = [talking.asked("Oslo?"), ModelResponse(parts=[call])]
    messages.append(ModelRequest(parts=[ToolReturnPart("get_weather", "-3", "call-1")]))
    conversations = LangoConversationStore(store)
    await conversations.save(Conversation(conversation_id="k", messages=messages[:stored]))
    loaded = await conversations.load("k")
    assert loaded is not None
    seen: list[Any] = []

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        seen.append(messages)
        return talking.said("Cold.")

    agent = Agent(FunctionModel(model))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        return f"-3 in {city}"

    await agent.run(conversation=loaded)
    for asking, following in zip(seen[0], seen[0][1:], strict=False):
        calls = [part.tool_call_id for part in asking.parts if isinstance(part, ToolCallPart)]
        results = [part.tool_call_id for part in following.parts if isinstance(part, ToolReturnPart)]
        assert calls == results
