"""A process that runs steps on a thread which other processes also use, and prints each acknowledged step."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from frameworks.langgraph.graphs import asked, config
from langchain_core.messages import AIMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from lango_store import LangoStoreError, Store
from lango_store.integrations.langgraph import LangoSaver


def answer(state: MessagesState) -> MessagesState:
    time.sleep(0.01)  # the model
    return {"messages": [AIMessage("done", id=f"{state['messages'][-1].id}-answer")]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)


@contextmanager
def official_saver(url: str) -> Iterator[Any]:
    """Open LangGraph's own saver, in a file next to that of a SQLite store."""
    opened: Any
    if url.startswith("sqlite"):
        opened = SqliteSaver.from_conn_string(url.removeprefix("sqlite:///") + ".official")
    else:
        opened = PostgresSaver.from_conn_string(url.replace("+psycopg", ""))
    with opened as saver:
        yield saver


def run(saver: Any, step: str) -> None:
    builder.compile(checkpointer=saver).invoke({"messages": [asked(step, step)]}, config(), durability="sync")


def run_in_turn(store: Store, step: str) -> bool:
    """Run a step in a turn; return False if the lease was lost, or no turn could begin in time."""
    turn = store.conversation("t").turn(step, lease=timedelta(milliseconds=400), wait=timedelta(seconds=20))
    with suppress(LangoStoreError):
        with turn as begun:
            if not begun.replayed:
                run(LangoSaver(store).in_turn(begun), step)
        return True
    return False


def run_freely(saver: Any, step: str) -> bool:
    """Run a step; return False if the database was busy."""
    with suppress(Exception):
        run(saver, step)
        return True
    return False


def main(url: str, name: str, steps: int, mode: str) -> None:
    with Store(url) as store, official_saver(url) as official:
        saver = LangoSaver(store) if mode == "free" else official
        done = 0
        while done < steps:
            step = f"{name}-{os.getpid()}-{done}"
            if run_in_turn(store, step) if mode == "in turns" else run_freely(saver, step):
                print(step, flush=True)
                done += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
