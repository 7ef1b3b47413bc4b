"""Each adapter stores the model and the provider that its framework names."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lango_store import Store
from lango_store.integrations.claude_agent_sdk.entries import message_of as of_claude
from lango_store.interchange import langchain_messages, openai_items


def test_pydantic_ai() -> None:
    messages = pytest.importorskip("pydantic_ai.messages")
    from lango_store.integrations.pydantic_ai.items import messages_of

    answer = messages.ModelResponse(
        parts=[messages.TextPart("Hi")], model_name="gemini-3-pro", provider_name="google-vertex"
    )
    question = messages.ModelRequest(parts=[messages.UserPromptPart("Hello")])
    stored = messages_of([question, answer], ["1", "2"])
    assert [(each.model, each.provider) for each in stored] == [(None, None), ("gemini-3-pro", "google-vertex")]


def test_langgraph_and_langchain() -> None:
    core = pytest.importorskip("langchain_core.messages")
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from lango_store.integrations.langgraph.messages import message_of

    about = {"model_name": "claude-opus-5-5", "model_provider": "bedrock"}
    answer = core.AIMessage("Hi", response_metadata=about)
    for stored in (
        message_of(answer, "1", JsonPlusSerializer()),
        langchain_messages.message_of(core.message_to_dict(answer)),
    ):
        assert (stored.model, stored.provider) == ("claude-opus-5-5", "bedrock")
    assert message_of(core.HumanMessage("Hello"), "1", JsonPlusSerializer()).model is None


def test_google_adk(tmp_path: Path) -> None:
    events = pytest.importorskip("google.adk.events")
    from google.genai import types

    from lango_store.integrations.google_adk import LangoSessionService

    async def run() -> None:
        service = LangoSessionService(f"sqlite:///{tmp_path}/s.db", migrate=True)
        session = await service.create_session(app_name="a", user_id="u", session_id="s")
        content = types.Content(role="model", parts=[types.Part(text="Hi")])
        await service.append_event(session, events.Event(author="a", content=content, model_version="gemini-3-pro"))
        await service.close()

    asyncio.run(run())
    with Store(f"sqlite:///{tmp_path}/s.db") as store:
        (info,) = store.iter_sessions()
        assert [each.model for each in store.conversation(info.key).messages()] == ["gemini-3-pro"]


def test_openai_agents_and_claude() -> None:
    data: dict[str, Any] = {"provider_data": {"model": "litellm/deepseek-v4"}}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}], **data}
    call = {"type": "function_call", "call_id": "a", "name": "search", "arguments": "{}", **data}
    assert {openai_items.message_of_json(item).model for item in (text, call)} == {"litellm/deepseek-v4"}
    message = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "model": "claude-opus-5-5"}
    assert of_claude({"type": "assistant", "message": message}).model == "claude-opus-5-5"
