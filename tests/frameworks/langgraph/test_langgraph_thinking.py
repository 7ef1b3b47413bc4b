"""The requests of graphs that continue a stored thread, judged by the rules of the provider."""

from typing import Any

import pytest
from frameworks.langgraph.graphs import config
from frameworks.scripted_providers import Scripted
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from lango_store import Store
from lango_store.integrations.langgraph import LangoSaver

pytestmark = pytest.mark.one_database


def written(message: BaseMessage) -> dict[str, Any]:
    """Return a message in the form of Anthropic, as LangChain's package for it does."""
    if isinstance(message, ToolMessage):
        block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        return {"role": "user", "content": [block]}
    return {"role": "assistant" if isinstance(message, AIMessage) else "user", "content": message.content}


def graph_of(store: Store, scripted: Scripted, *, fails: bool = False) -> Any:
    """Return an agent as a new process builds it."""

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        if fails:
            raise KeyboardInterrupt
        return f"-3 in {city}"

    def answer(state: MessagesState) -> Any:
        blocks: Any = scripted.ask([*map(written, state["messages"])], "Be brief.")
        uses = [block for block in blocks if block["type"] == "tool_use"]
        calls: Any = [{"name": use["name"], "args": use["input"], "id": use["id"]} for use in uses]
        about = {"model_name": scripted.model, "model_provider": scripted.provider}
        return {"messages": [AIMessage(blocks, tool_calls=calls, response_metadata=about)]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_node("tools", ToolNode([get_weather], handle_tool_errors=False))
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", tools_condition)
    builder.add_edge("tools", "answer")
    return builder.compile(checkpointer=LangoSaver(store))


def test_thinking_of_a_stored_thread_is_sent_back(store: Store) -> None:
    scripted = Scripted("anthropic")
    for question in ("Weather in Oslo?", "Thanks."):
        graph_of(store, scripted).invoke({"messages": [("user", question)]}, config())
    with pytest.raises(KeyboardInterrupt):
        graph_of(store, scripted, fails=True).invoke({"messages": [("user", "Weather in Rome?")]}, config())
    graph_of(store, scripted).invoke(None, config())
    assert len(scripted.requests) == 5
    assert scripted.faults() == []
    assert scripted.share() == (10, 10)
    answers = [each for each in store.conversation("t").messages() if each.role == "assistant"]
    assert {(each.model, each.provider) for each in answers} == {(scripted.model, scripted.provider)}
