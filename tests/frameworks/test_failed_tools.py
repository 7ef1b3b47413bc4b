"""Failed tools of each framework are failures in prompts, on pages, and for the framework itself."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from frameworks.claude_agent_sdk import transcripts
from frameworks.google_adk import adk_events
from frameworks.langgraph.graphs import config, with_messages
from google.adk.events import Event
from google.genai import types
from langchain_core.messages import AIMessage, ToolMessage
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    ToolCallPart,
    ToolReturnPart,
)

from lango_store import Message, Store, ui
from lango_store.integrations.claude_agent_sdk import LangoSessionStore
from lango_store.integrations.google_adk import LangoSessionService
from lango_store.integrations.langchain import LangoChatMessageHistory
from lango_store.integrations.langgraph import LangoSaver
from lango_store.integrations.pydantic_ai import LangoConversationStore

pytestmark = pytest.mark.anyio

Write = Callable[[Store, bool], Awaitable[tuple[str, Any, Any]]]
"""Write a session with a tool that failed, or did not. Returns its key, and what was written and is read again."""


def langchain_messages(*, failed: bool) -> list[Any]:
    call: Any = {"name": "pay", "args": {"euros": 5}, "id": "c1", "type": "tool_call"}
    status: Any = "error" if failed else "success"
    return [AIMessage("", id="a", tool_calls=[call]), ToolMessage("refused", id="b", tool_call_id="c1", status=status)]


async def langgraph(store: Store, failed: bool) -> tuple[str, Any, Any]:
    messages, graph = langchain_messages(failed=failed), with_messages(LangoSaver(store))
    await graph.aupdate_state(config("t"), {"messages": messages}, as_node="answer")
    return "t", messages, (await graph.aget_state(config("t"))).values["messages"]


async def langgraph_with_an_artifact(store: Store, failed: bool) -> tuple[str, Any, Any]:
    messages, graph = langchain_messages(failed=failed), with_messages(LangoSaver(store))
    messages[1].artifact = b"not JSON"  # the message is stored as packed bytes
    await graph.aupdate_state(config("t"), {"messages": messages}, as_node="answer")
    return "t", messages, (await graph.aget_state(config("t"))).values["messages"]


async def langchain(store: Store, failed: bool) -> tuple[str, Any, Any]:
    history = LangoChatMessageHistory("t", store)
    history.add_messages(langchain_messages(failed=failed))
    return "t", langchain_messages(failed=failed), history.messages


async def pydantic_ai(store: Store, failed: bool, result: Any = None) -> tuple[str, Any, Any]:
    result = result or ToolReturnPart("pay", "refused", "c1", outcome="failed" if failed else "success")
    call = ToolCallPart("pay", {"euros": 5}, "c1")
    messages: list[ModelMessage] = [ModelResponse(parts=[call]), ModelRequest(parts=[result])]
    adapter = LangoConversationStore(store)
    await adapter.save(Conversation(conversation_id="t", messages=messages))
    loaded = await adapter.load("t")
    return "t", messages, loaded and loaded.messages


async def pydantic_ai_retry(store: Store, failed: bool) -> tuple[str, Any, Any]:
    outcome: Any = "retried" if failed else "denied"
    return await pydantic_ai(store, failed, ToolReturnPart("pay", "refused", "c1", outcome=outcome))


async def claude(store: Store, failed: bool, count: int = 1) -> tuple[str, Any, Any]:
    uses = [{"type": "tool_use", "id": f"c{number}", "name": "pay", "input": {}} for number in range(1, count + 1)]
    results: list[Any] = [{"type": "tool_result", "tool_use_id": each["id"], "content": "refused"} for each in uses]
    results[-1] |= {"is_error": failed}
    contents = {"assistant": uses, "user": results}
    entries: list[Any] = [{"type": role, "message": {"role": role, "content": each}} for role, each in contents.items()]
    adapter = LangoSessionStore(store)
    await adapter.append(transcripts.KEY, entries)
    loaded: Any = await adapter.load(transcripts.KEY)
    return ":".join(transcripts.KEY.values()), entries, loaded


async def claude_with_two_results(store: Store, failed: bool) -> tuple[str, Any, Any]:
    return await claude(store, failed, 2)


async def google_adk(store: Store, failed: bool) -> tuple[str, Any, Any]:
    response = {"error": "refused"} if failed else {"result": "refused"}
    service = LangoSessionService(store)
    session = await service.create_session(**adk_events.WHERE, session_id="t")
    answer = types.Part(function_response=types.FunctionResponse(id="c1", name="pay", response=response))
    call = types.Part(function_call=types.FunctionCall(id="c1", name="pay", args={"euros": 5}))
    for part in (call, answer):
        content = types.Content(role="user" if part is answer else "model", parts=[part])
        await service.append_event(session, Event(author="agent", content=content))
    loaded = await adk_events.stored(service, session)
    return "weather:ann:t", session.events, loaded.events


WRITERS: Final[list[Write]] = [
    langgraph,
    langgraph_with_an_artifact,
    langchain,
    pydantic_ai,
    pydantic_ai_retry,
    claude,
    claude_with_two_results,
    google_adk,
]


@pytest.mark.one_database
@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("write", WRITERS)
async def test_failed_tool_of_a_framework_is_a_failure_everywhere(store: Store, write: Write, failed: bool) -> None:
    key, written, read = await write(store, failed)
    assert read == written
    chat = store.conversation(key)
    result = chat.history(format="anthropic")[-1]["content"][-1]
    assert (result["type"], result.get("is_error", False)) == ("tool_result", failed)
    response = chat.history(format="gemini")[-1]["parts"][-1]["function_response"]["response"]
    assert response == {"error" if failed else "result": "refused"}
    parts = [part for each in ui.aisdk_messages(chat.get()) for part in each["parts"] if "toolCallId" in part]
    assert parts[-1]["state"] == ("output-error" if failed else "output-available")


@pytest.mark.one_database
@pytest.mark.filterwarnings("ignore:.RetryPromptPart. is deprecated")
async def test_retry_of_pydantic_ai_for_a_call_is_its_failed_result(store: Store) -> None:
    retry = RetryPromptPart("give an amount", tool_name="pay", tool_call_id="c1")
    key, _, loaded = await pydantic_ai(store, failed=True, result=retry)
    (result,) = store.conversation(key).history(format="anthropic")[-1]["content"]
    assert (result["tool_use_id"], result["is_error"], result["content"]) == ("c1", True, "give an amount")
    assert loaded[1].parts[0].content == "give an amount"


def test_earlier_spelling_of_a_failure_is_read() -> None:
    assert Message.tool("no", extra={"is_error": True}).failed
    assert not Message.tool("no", extra={"is_error": False}).failed
