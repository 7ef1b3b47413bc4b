"""Messages of pydantic-ai for tests, and an agent that needs no network."""

import itertools
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

Conversations = LangoConversationStore

_numbers = itertools.count()


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def said(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], usage=RequestUsage(input_tokens=3, output_tokens=2), model_name="m")


def exchange(*texts: str) -> list[ModelMessage]:
    """Return alternating questions and answers."""
    return [said(text) if place % 2 else asked(text) for place, text in enumerate(texts)]


def conversation(id: str, *texts: str) -> Conversation:
    return Conversation(conversation_id=id, messages=exchange(*texts))


def texts(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if hasattr(part, "content")]


def weather_model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Call the weather tool, then report its result."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        answer: Any = last.content
        return said(f"It is {answer['celsius']} degrees.")
    call = ToolCallPart("get_weather", {"city": "Oslo"}, tool_call_id=f"call-{next(_numbers)}")
    return ModelResponse(parts=[call], usage=RequestUsage(input_tokens=5, output_tokens=1))


def weather_agent(**options: Any) -> Agent[None, str]:
    agent = Agent(FunctionModel(weather_model), system_prompt="Be brief.", **options)

    @agent.tool_plain
    def get_weather(city: str) -> dict[str, Any]:
        return {"city": city, "celsius": -3}

    return agent


async def load(conversations: Conversations, id: str, **options: Any) -> Conversation:
    loaded = await conversations.load(id, **options)
    assert loaded is not None
    return loaded


async def read_record(conversations: Conversations, id: str) -> ConversationRecord:
    record = await conversations.read_record(id)
    assert record is not None
    return record


async def texts_of(conversations: Conversations, id: str, **options: Any) -> list[Any]:
    return texts((await load(conversations, id, **options)).messages)


def faults(store: Store) -> list[Any]:
    return [finding for finding in store.maintenance.examine() if finding.name != "settings"]
