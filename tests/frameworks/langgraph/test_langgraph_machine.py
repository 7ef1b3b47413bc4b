"""Threads that are deleted, expire, and are cleared, cut, redacted and edited between and during runs of a graph.

The runs have the states that they have with `InMemorySaver`, where the thread is never changed by hand.
"""

import os
import random
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from frameworks.langgraph.graphs import State, asked, config, with_messages, with_tool
from langgraph.checkpoint.memory import InMemorySaver

from lango_store import DamagedMessage, LangoStoreError, Message, Store
from lango_store.integrations.langgraph import LangoSaver
from lango_store.testing import Clock

RUNS = int(os.environ.get("LANGO_STORE_MACHINE_EXAMPLES", "6"))
REMOVALS = ("delete", "clear", "truncate", "expire", "begin again")
EDITS = ("redact", "replace", "delete message", "redact record", "delete record", "prune", "append", "read")


def change(store: Store, clock: Clock, rng: random.Random, kind: str, saver: LangoSaver) -> None:
    """Change the thread `t` from outside of the run."""
    conversation = store.conversation("t")
    with suppress(LangoStoreError, IndexError):  # the thread may be gone, or have no such row
        rows = conversation.all_messages()
        messages = [each for each in rows if each.author != "langgraph"]
        records = [each for each in rows if each.author == "langgraph"]
        if kind in ("delete", "begin again"):
            store.delete("t")
        if kind == "begin again":
            graph = with_messages(LangoSaver(store))
            for number in range(rng.randrange(8)):
                graph.invoke({"messages": [asked("again", f"again-{number}")]}, config())
        elif kind == "clear":
            conversation.clear()
        elif kind == "truncate":
            conversation.truncate(after=rng.randrange(rows[-1].seq))
        elif kind == "expire":
            clock.move(hours=2)
        elif kind == "redact":
            conversation.edits.redact(rng.choice(messages).seq)
        elif kind == "replace":
            conversation.edits.update(rng.choice(messages).seq, Message.user("replaced"))
        elif kind == "delete message":
            conversation.edits.delete(rng.choice(messages).seq)
        elif kind == "redact record":
            conversation.edits.redact(rng.choice(records).seq)
        elif kind == "delete record":
            conversation.edits.delete(rng.choice(records).seq)
        elif kind == "prune":
            LangoSaver(store).prune(["t"])
        elif kind == "append":
            conversation.append_message(Message.user("from elsewhere"))
        else:
            with_messages(saver).get_state(config())


def stored_values(saver: LangoSaver) -> dict[str, Any]:
    """Return the values with which the next run begins: without pending writes, which `get_state` would apply."""
    loaded = saver.get_tuple(config())
    values = loaded.checkpoint["channel_values"] if loaded else {}
    return {name: value for name, value in values.items() if name in State.__annotations__}


def texts(values: Any) -> list[Any]:
    return [(each.type, each.content) for each in values.get("messages", [])]


def is_changed_copy(found: list[Any], original: list[Any]) -> bool:
    """Return True if messages are the original ones, except that some were redacted, replaced or deleted."""
    remaining = iter(original)
    changed = (("human", "replaced"), "(redacted)")
    return all(
        any(each == other or each == changed[0] or each == (other[0], changed[1]) for other in remaining)
        for each in found
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_changes_of_a_thread_leave_a_right_state_or_an_error(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        for number in range(RUNS):
            _run(store, clock, random.Random(number))
            store.delete("t")


def _run(store: Store, clock: Clock, rng: random.Random) -> None:
    pending: list[str] = []
    seen: set[str] = set()
    saver = LangoSaver(store)

    def tool() -> None:
        while pending:
            change(store, clock, rng, pending.pop(), saver)

    graph, model = with_tool(saver, tool), with_tool(InMemorySaver(), lambda: None)
    for number in range(rng.randint(2, 6)):
        if rng.random() < 0.3:
            saver = LangoSaver(store)  # as after a restart
            graph = with_tool(saver, tool)
        pending += rng.choices((*REMOVALS, *EDITS), k=rng.randrange(4))
        changes = tuple(pending)
        seen.update(changes)
        if rng.random() < 0.3:
            tool()
        try:
            before = stored_values(saver)
            where = config(f"model {number}")
            question = {"messages": [asked(f"question {number}", f"q{number}")], "plan": rng.choice(["", "tool"])}
            if before:
                model.update_state(where, before, as_node="finish")
            expected = model.invoke(question, where)
            result = graph.invoke(question, config(), durability=rng.choice(["sync", "async", "exit"]))
        except DamagedMessage:
            assert {"redact record", "delete record"} & seen, changes
            store.delete("t")
            continue
        finally:
            pending.clear()
        assert texts(result) == texts(expected), changes  # the run itself is not disturbed
        for reader in (graph, with_tool(LangoSaver(store), lambda: None)):
            try:
                values = reader.get_state(config()).values
                states = [*reader.get_state_history(config())]
            except DamagedMessage:
                assert {"redact record", "delete record"} & seen, changes
                continue
            assert is_changed_copy(texts(values), texts(expected)), changes
            if not {*EDITS} & {*changes}:
                assert values == expected, changes
            assert not states or states[0].values == values
