"""An ADK agent with a weather tool and a scripted model, in a separate process.

With `stop`, it waits to be killed after the tool's result is stored and before the next model call. Each
line of its output is the input of a model call, as JSON.
"""

import asyncio
import json
import warnings
from collections.abc import AsyncGenerator

warnings.simplefilter("ignore")

from google.adk.agents import LlmAgent  # noqa: E402
from google.adk.apps import App, ResumabilityConfig  # noqa: E402
from google.adk.events import Event  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_request import LlmRequest  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.adk.runners import Runner  # noqa: E402
from google.adk.tools.tool_context import ToolContext  # noqa: E402
from google.genai import types  # noqa: E402

from lango_store.integrations.google_adk import LangoSessionService  # noqa: E402

APP, USER, SESSION = "weather", "ann", "trip"


class Script(BaseLlm):
    """A model that calls the tool after a user's question, and reports its result."""

    stops: bool = False

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        seen = [content.model_dump(mode="json", exclude_none=True) for content in llm_request.contents]
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        if last.function_response is not None and self.stops:
            print("stopped", flush=True)
            await asyncio.sleep(600)  # to be killed
        print(json.dumps(seen), flush=True)
        if last.function_response is None:
            part = types.Part(function_call=types.FunctionCall(name="forecast", args={"city": "Oslo"}))
        else:
            part = types.Part(text=f"It has {(last.function_response.response or {})['celsius']} degrees.")
        yield LlmResponse(
            content=types.Content(role="model", parts=[part]),
            model_version="script-1",
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=10, candidates_token_count=4, total_token_count=14
            ),
        )


def forecast(city: str, tool_context: ToolContext) -> dict[str, int]:
    """Return the temperature in a city."""
    tool_context.state["user:city"] = city
    tool_context.state["asked"] = tool_context.state.get("asked", 0) + 1
    tool_context.state["temp:secret"] = "nowhere"
    return {"celsius": -3}


def runner(service: LangoSessionService, *, stops: bool) -> Runner:
    agent = LlmAgent(name="agent", model=Script(model="script", stops=stops), tools=[forecast])
    app = App(name=APP, root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
    return Runner(app=app, session_service=service)


def asked(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


async def ask(runner: Runner, text: str) -> list[Event]:
    return [event async for event in runner.run_async(user_id=USER, session_id=SESSION, new_message=asked(text))]


async def go_on(runner: Runner) -> list[Event]:
    """Continue the turn of the killed process."""
    session = await runner.session_service.get_session(app_name=APP, user_id=USER, session_id=SESSION)
    assert session is not None
    left = session.events[-1].invocation_id
    return [event async for event in runner.run_async(user_id=USER, session_id=SESSION, invocation_id=left)]


async def main(url: str, what: str) -> None:
    async with LangoSessionService(url) as service:
        running = runner(service, stops=what == "stop")
        if what == "stop":
            await service.create_session(app_name=APP, user_id=USER, session_id=SESSION)
            await ask(running, "How warm is it?")
        else:
            await go_on(running)
            await ask(running, "And now?")
