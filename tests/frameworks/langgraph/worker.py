"""A process that runs steps on a thread which other processes also use, and prints each acknowledged step."""

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta

from frameworks.langgraph.graphs import asked, config
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from lango_store import DatabaseBusy, LangoStoreError, LeaseLost, Store
from lango_store.integrations.langgraph import LangoSaver


def answer(state: MessagesState) -> MessagesState:
    time.sleep(0.01)  # the model
    return {"messages": [AIMessage("done", id=f"{state['messages'][-1].id}-answer")]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)


def run(saver: LangoSaver, step: str) -> None:
    builder.compile(checkpointer=saver).invoke({"messages": [asked(step, step)]}, config(), durability="sync")


def run_in_turn(store: Store, saver: LangoSaver, step: str) -> None:
    conversation = store.conversation("t")
    while True:
        with suppress(LangoStoreError):  # the lease was lost, or no turn could begin in time
            with conversation.turn(step, lease=timedelta(milliseconds=400), wait=timedelta(seconds=20)) as turn:
                if not turn.replayed:
                    run(saver.in_turn(turn), step)
            return


def main(url: str, name: str, steps: int, fenced: bool) -> None:
    done = 0
    with Store(url) as store:
        saver = LangoSaver(store)
        while done < steps:
            step = f"{name}-{os.getpid()}-{done}"
            if fenced:
                run_in_turn(store, saver, step)
            else:
                with suppress(DatabaseBusy, LeaseLost):
                    run(saver, step)
            print(step, flush=True)
            done += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "fenced")
