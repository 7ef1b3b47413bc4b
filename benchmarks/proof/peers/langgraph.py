"""langgraph: a graph with one node and `MessagesState`, whose threads `SqliteSaver` or `PostgresSaver` stores."""

import sqlite3
from typing import Any

import psycopg
import sqlalchemy as sa
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from psycopg.rows import dict_row

from benchmarks.proof.adapter import Adapter, Effects


class Threads(Adapter):
    """Threads of a graph. `update_state` appends, and `invoke` with None resumes an interrupted run."""

    can = frozenset({"batch", "ids", "turn"})
    _effects: Effects

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite"):
            connection = sqlite3.connect(str(sa.make_url(url).database), check_same_thread=False)
            saver: Any = SqliteSaver(connection)
        else:  # with the options that the documentation of `PostgresSaver` requires
            text = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
            saver = PostgresSaver(psycopg.connect(text, autocommit=True, prepare_threshold=0, row_factory=dict_row))
            saver.setup()

        def model(state: MessagesState) -> dict[str, Any]:
            return {"messages": [AIMessage(self._effects.model(str(state["messages"][-1].content)))]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_edge(START, "model")
        graph.add_edge("model", END)
        self._graph = graph.compile(checkpointer=saver)

    def append(self, key: str, texts: list[str]) -> None:
        messages = [HumanMessage(text, id=text) for text in texts]
        self._graph.update_state(_thread(key), {"messages": messages}, as_node="model")

    def read(self, key: str) -> list[str]:
        return [message.content for message in self._graph.get_state(_thread(key)).values.get("messages", [])]

    def turn(self, key: str, request: str, effects: Effects) -> None:
        self._effects = effects
        self._graph.invoke({"messages": [HumanMessage(request, id=request)]}, _thread(key), durability="sync")

    def finish(self, key: str, effects: Effects) -> bool:
        self._effects = effects
        if self._graph.get_state(_thread(key)).next:
            self._graph.invoke(None, _thread(key), durability="sync")
        return False


def _thread(key: str) -> Any:
    return {"configurable": {"thread_id": key}}
