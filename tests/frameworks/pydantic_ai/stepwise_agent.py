"""An agent that saves its conversation before each model call; as a program, it waits there to be killed.

`main`, with the words URL ID [PROMPT], prints the input of each model call as JSON.
"""

import asyncio
import copy
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationStore
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from lango_store.integrations.pydantic_ai import LangoConversationStore


@dataclass
class SavedBeforeEachQuestion(AbstractCapability[None]):
    """Saves the state of a run, so that another process can continue it."""

    store: ConversationStore
    conversation: Conversation
    waits: bool = False
    answers: int = field(default=0, init=False)

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        self.conversation.messages = list(ctx.messages)
        self.conversation.usage = copy.copy(ctx.usage)
        await self.store.save(self.conversation)
        if self.waits and isinstance(ctx.messages[-1].parts[-1], ToolReturnPart):
            print("the tool has answered", flush=True)
            sys.stdin.read()
        return request_context


def words(messages: list[ModelMessage]) -> list[Any]:
    """Return the parts of a model's input as words."""
    return [
        [part.part_kind, part.args if isinstance(part, ToolCallPart) else getattr(part, "content", None)]
        for message in messages
        for part in message.parts
    ]


def agent_of(saved: SavedBeforeEachQuestion, seen: list[Any]) -> Agent[None, str]:
    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        seen.append(words(messages))
        answered = isinstance(messages[-1].parts[-1], ToolReturnPart)
        part = TextPart("Cold.") if answered else ToolCallPart("get_weather", {"city": "Oslo"}, "call-1")
        return ModelResponse(parts=[part], usage=RequestUsage(input_tokens=10, output_tokens=2))

    agent = Agent(FunctionModel(model), system_prompt="Be brief.", capabilities=[saved])

    @agent.tool_plain
    def get_weather(city: str) -> str:
        saved.answers += 1
        return f"-3 in {city}"

    return agent


async def talk(url: str, id: str, prompt: str | None, *, waits: bool) -> dict[str, Any]:
    """Run the agent on a conversation, with a prompt or from its saved state, and save the result."""
    async with LangoConversationStore(url) as store:
        conversation = await store.load(id) or Conversation(conversation_id=id)
        saved = SavedBeforeEachQuestion(store, conversation, waits)
        seen: list[Any] = []
        result = await agent_of(saved, seen).run(prompt, conversation=conversation)
        conversation.messages, conversation.usage = result.all_messages(), result.usage
        await store.save(conversation)
        return {"seen": seen, "answers": saved.answers}


def main() -> None:
    url, id, *rest = sys.argv[1:]
    print(json.dumps(asyncio.run(talk(url, id, rest[0] if rest else None, waits=bool(rest)))))
