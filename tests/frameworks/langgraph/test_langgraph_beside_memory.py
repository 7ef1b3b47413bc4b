"""Random runs of a graph leave the same states, histories and next tasks as with `InMemorySaver`."""

import os
import random
from contextlib import suppress
from typing import Any

import pytest
from frameworks.langgraph.graphs import asked, built, config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from lango_store import Store
from lango_store.integrations.langgraph import LangoSaver

RUNS = int(os.environ.get("LANGO_STORE_MACHINE_EXAMPLES", "10"))
PLANS = ("", "tool", "edit", "remove", "branch", "sub", "wait", "sub wait", "tool edit", "tool branch", "remove wait")


def snapshot(state: Any) -> Any:
    """Return a state without ids of checkpoints and tasks, which are random, and times."""
    tasks = [(task.name, task.error, [each.value for each in task.interrupts], task.result) for task in state.tasks]
    metadata = {name: value for name, value in state.metadata.items() if name in ("source", "step")}
    return state.values, state.next, tasks, metadata


def history(graph: Any, thread: str) -> list[Any]:
    return [snapshot(each) for each in graph.get_state_history(config(thread))]


def step(graph: Any, thread: str, choice: str, number: int, past: int) -> Any:
    """Run one step, and return what it returned or raised."""
    where = config(thread)
    if choice == "resume":
        return graph.invoke(Command(resume=f"yes {number}"), where)
    if choice == "update":
        return graph.update_state(where, {"steps": [f"update {number}"]}, as_node="think") and None
    if choice in ("travel", "fork"):
        states = list(graph.get_state_history(where))
        chosen = states[past % len(states)].config
        if choice == "fork":
            chosen = graph.update_state(chosen, {"messages": [asked(f"forked {number}", f"f{number}")]})
        return graph.invoke(None, chosen)
    if choice == "delete":
        return graph.checkpointer.delete_thread(thread)
    return graph.invoke({"messages": [asked(f"question {number}", f"h{number}")], "plan": choice}, where)


def outcome(*arguments: Any) -> Any:
    try:
        result = step(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)[:40]
    if isinstance(result, dict) and "__interrupt__" in result:
        result = result | {"__interrupt__": [each.value for each in result["__interrupt__"]]}
    return result


@pytest.mark.timeout(1200)
def test_random_runs_equal_those_with_memory(store: Store) -> None:
    for run in range(RUNS):
        rng = random.Random(run)
        ours, theirs = built(LangoSaver(store)), built(InMemorySaver())
        thread = f"run {run}"
        choices = ["new", "new", "new", "resume", "update", "travel", "fork", *(["delete"] if run % 5 == 0 else [])]
        for number in range(rng.randint(2, 7)):
            choice = rng.choice(choices)
            if choice == "new" or number == 0:
                choice = rng.choice(PLANS)
            arguments = (thread, choice, number, rng.randrange(100))
            mine, other = outcome(ours, *arguments), outcome(theirs, *arguments)
            assert mine == other, (run, number, choice)
            assert history(ours, thread) == history(theirs, thread), (run, number, choice)
        shown = ours.get_state(config(thread)).values.get("messages", [])
        if shown:
            texts = [message.content for message in store.conversation(thread).messages()]
            assert texts == [message.content for message in shown], run
        with suppress(KeyError):
            store.delete(thread)
