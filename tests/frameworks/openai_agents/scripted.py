"""An agent with a tool, and a model that follows a script, without network."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from agents import Agent, FunctionTool, Usage, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

Item = Any


def asks(*cities: str, cost: int = 10) -> ModelStep:
    """A model step that asks for the weather of cities."""
    calls = [
        ResponseFunctionToolCall(
            type="function_call",
            call_id=f"call_{city}",
            name="get_weather",
            arguments=json.dumps({"city": city}),
            id=f"fc_{city}",
            status="completed",
        )
        for city in cities
    ]
    return ModelStep(output=calls, usage=spent(cost))


def says(text: str, cost: int = 20, **fields: Any) -> ModelStep:
    """A model step with the final answer."""
    block = ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])
    message = ResponseOutputMessage(
        id=f"msg_{cost}", type="message", role="assistant", status="completed", content=[block], **fields
    )
    return ModelStep(output=[message], usage=spent(cost))


def spent(tokens: int) -> Usage:
    return Usage(
        requests=1,
        input_tokens=tokens,
        output_tokens=2,
        total_tokens=tokens + 2,
        input_tokens_details=InputTokensDetails.model_validate({"cached_tokens": 3, "cache_write_tokens": 0}),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
    )


def total(*costs: int) -> dict[str, Any]:
    """Return the total usage of requests with these costs."""
    return {
        "requests": len(costs),
        "input_tokens": sum(costs),
        "output_tokens": 2 * len(costs),
        "total_tokens": sum(costs) + 2 * len(costs),
        "input_tokens_details": {"cached_tokens": 3 * len(costs)},
        "output_tokens_details": {"reasoning_tokens": len(costs)},
    }


def weather_tool(**options: Any) -> FunctionTool:
    @function_tool(**options)
    def get_weather(city: str) -> str:
        return f"-3 in {city}"

    return get_weather


def agent(
    *steps: Any, tool: FunctionTool | None = None, seen: Callable[[list[Item]], None] | None = None
) -> Agent[Any]:
    """Return an agent whose model takes these steps; `seen` is called with the input of each."""

    def watched(step: ModelStep) -> ModelStep:
        def respond(call: ModelCall) -> ModelStep:
            if seen is not None:
                seen(call.input)
            return step

        return ModelStep.respond(respond)

    return Agent(name="weather", model=ScriptedModel(list(map(watched, steps))), tools=[tool or weather_tool()])


def words(items: Sequence[Item]) -> list[str]:
    """Return a word for each item."""
    return [_word(item) for item in items]


def _word(item: Item) -> str:
    if item.get("type") == "function_call":
        return f"{item['name']}?{item['call_id']}"
    if item.get("type") == "function_call_output":
        return f"{item['call_id']}={item['output']}"
    content = item["content"]
    return str(content if isinstance(content, str) else content[0]["text"])
