"""The requests that the framework sends for a stored conversation, judged by the rules of the providers."""

from collections.abc import Iterator
from typing import Any, Final

import httpx
import openai
import pytest
from frameworks.scripted_providers import PROVIDERS, Scripted, Server
from google import genai
from google.genai.types import HttpOptions
from pydantic_ai import Agent, models
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from lango_store import Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

KEY: Final = "key"


@pytest.fixture(autouse=True)
def _requests_to_the_local_server() -> Iterator[None]:
    with models.override_allow_model_requests(True):
        yield


def model_of(server: Server) -> Model:
    name = server.scripted.model
    if server.scripted.format == "anthropic":
        return claude(server.scripted)
    if server.scripted.format == "gemini":
        options = HttpOptions(base_url=server.url, httpx_async_client=httpx.AsyncClient())
        return GoogleModel(name, provider=GoogleProvider(client=genai.Client(api_key=KEY, http_options=options)))
    gpt = openai.AsyncOpenAI(api_key=KEY, base_url=server.url)
    return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=gpt))


def claude(scripted: Scripted) -> Model:
    """Return a model that writes requests as the framework's one does, which needs another release of `anthropic`."""

    def written(part: Any) -> dict[str, Any]:
        if isinstance(part, ThinkingPart):
            return {"type": "thinking", "thinking": part.content, "signature": part.signature}
        if isinstance(part, ToolCallPart):
            return {"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": part.args_as_dict()}
        if isinstance(part, ToolReturnPart):
            return {"type": "tool_result", "tool_use_id": part.tool_call_id, "content": part.model_response_str()}
        return {"type": "text", "text": part.content}

    def read(block: dict[str, Any]) -> Any:
        if block["type"] == "thinking":
            return ThinkingPart(block["thinking"], signature=block["signature"], provider_name="anthropic")
        if block["type"] == "tool_use":
            return ToolCallPart(block["name"], block["input"], block["id"])
        return TextPart(block["text"])

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = [
            {"role": "user" if isinstance(each, ModelRequest) else "assistant", "content": [*map(written, each.parts)]}
            for each in messages
        ]
        parts = [read(block) for block in scripted.ask(asked, info.instructions)]
        return ModelResponse(parts=parts, provider_name="anthropic")

    return FunctionModel(answer, model_name=scripted.model)


async def ask(store: Store, model: Model, question: str) -> None:
    """Load the conversation as a new process does, run the agent and save the conversation."""
    conversations = LangoConversationStore(store)
    conversation = await conversations.load("k") or Conversation(conversation_id="k")
    agent = Agent(model, instructions="Be brief.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        return f"-3 in {city}"

    result = await agent.run(question, conversation=conversation)
    await conversations.save(result)
    await conversations.close()


@pytest.mark.parametrize("format", PROVIDERS)
async def test_thinking_of_a_stored_conversation_is_sent_back(store: Store, format: str) -> None:
    scripted = Scripted(format)
    with Server(scripted) as server:
        for question in ("Weather in Oslo?", "Thanks.", "Weather in Rome?"):
            await ask(store, model_of(server), question)
    assert len(scripted.requests) == 5
    assert scripted.faults() == []
    kept, could = scripted.share()
    assert kept == could >= 10
    answers = [each for each in store.conversation("k").messages() if each.role == "assistant"]
    assert {each.model for each in answers} == {scripted.model}
    assert all(each.provider for each in answers)
