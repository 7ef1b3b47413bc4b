"""Graphs without a model, for tests of the checkpointer."""

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt


def _extended(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class Reversing:
    """A cipher for tests."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversing", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversing"
        return ciphertext[::-1]


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    steps: Annotated[list[str], operator.add]
    plan: str
    data: dict[str, Any]


def config(thread: str = "t", **fields: Any) -> Any:
    return {"configurable": {"thread_id": thread, **fields}}


def asked(text: str, id: str) -> HumanMessage:
    return HumanMessage(text, id=id)


def _think(state: State) -> dict[str, Any]:
    number = len(state.get("steps", []))
    plan = state.get("plan", "")
    answer: list[Any] = [
        AIMessage(
            f"thought {number}",
            id=f"ai-{number}-{len(state['messages'])}",
            usage_metadata={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
            response_metadata={"model_name": "m"},
        )
    ]
    if "tool" in plan:
        call = {"name": "look", "args": {"n": number}, "id": f"call-{number}", "type": "tool_call"}
        answer += [
            AIMessage("", id=f"asks-{number}", tool_calls=[call]),
            ToolMessage("found it " * 3, id=f"tool-{number}", tool_call_id=f"call-{number}", name="look"),
        ]
    if "edit" in plan:
        answer.append(state["messages"][-1].model_copy(update={"content": f"edited {number}"}))
    if "remove" in plan:
        answer.append(RemoveMessage(id=state["messages"][0].id))
    return {"messages": answer, "steps": [f"think {number}"], "data": {"n": number, "set": [1, None, 2.5]}}


def _fan(state: State) -> Any:
    if "branch" in state.get("plan", ""):
        return [Send("work", {"plan": f"w{number}"}) for number in range(3)]
    return "sub" if "sub" in state.get("plan", "") else "ask"


def _work(state: State) -> dict[str, Any]:
    return {"steps": [state["plan"]]}


def _ask(state: State) -> dict[str, Any]:
    if "wait" in state.get("plan", ""):
        return {"steps": [f"answered {interrupt({'question': state['plan']})}"]}
    return {"steps": ["asked nothing"]}


def with_messages(checkpointer: Any) -> Any:
    """Return a graph whose state has only messages."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("Hello")]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=checkpointer)


class DeltaState(TypedDict, total=False):
    items: Annotated[list[Any], DeltaChannel(_extended)]


def with_delta_channel(checkpointer: Any) -> Any:
    """Return a graph whose state stores what each step wrote."""
    builder = StateGraph(DeltaState)
    builder.add_node("double", lambda state: {"items": [f"{state['items'][-1]}!"]})
    builder.add_edge(START, "double")
    builder.add_edge("double", END)
    return builder.compile(checkpointer=checkpointer)


def weather_turn() -> list[Any]:
    """Return the messages of a turn with a tool call."""
    call = {"name": "get_weather", "args": {"city": "Oslo"}, "id": "call-1", "type": "tool_call"}
    return [
        HumanMessage("How warm is it in Oslo?", id="q1"),
        AIMessage("", id="a1", tool_calls=[call]),
        ToolMessage("-3 degrees", id="r1", tool_call_id="call-1", name="get_weather"),
        AIMessage("It has -3 degrees.", id="a2"),
    ]


def built(checkpointer: Any) -> Any:
    """Return a graph whose way depends on words in `plan`: tool, edit, remove, branch, sub, wait."""
    inner = StateGraph(State)
    inner.add_node(
        "first", lambda state: {"steps": ["sub 1"], "messages": [AIMessage("inner", id=f"in-{len(state['steps'])}")]}
    )
    inner.add_node("then", _ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "then")
    outer = StateGraph(State)
    outer.add_node("think", _think)
    outer.add_node("work", _work)
    outer.add_node("ask", _ask)
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "think")
    outer.add_conditional_edges("think", _fan, ["work", "sub", "ask"])
    for name in ("work", "sub", "ask"):
        outer.add_edge(name, END)
    return outer.compile(checkpointer=checkpointer)


def with_tool(checkpointer: Any, tool: Callable[[], object]) -> Any:
    """Return a graph that calls a function between its first and its last answer."""
    builder = StateGraph(State)

    def call(state: State) -> State:
        tool()
        return {"steps": ["tool"]}

    def finish(state: State) -> State:
        return {"messages": [AIMessage("Done", id=f"done-{len(state['messages'])}")]}

    builder.add_node("think", _think)
    builder.add_node("tool", call)
    builder.add_node("finish", finish)
    builder.add_edge(START, "think")
    builder.add_edge("think", "tool")
    builder.add_edge("tool", "finish")
    builder.add_edge("finish", END)
    return builder.compile(checkpointer=checkpointer)
