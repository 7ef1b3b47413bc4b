"""Threads that are deleted, expire, or lose messages while a graph runs: the state of the run stays whole."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from frameworks.langgraph.graphs import asked, config, with_delta_channel, with_messages, with_tool
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

from lango_store import Conflict, DamagedMessage, SessionNotFound, Store
from lango_store.integrations.langgraph import LangoSaver
from lango_store.testing import Clock


def delete(store: Store) -> None:
    store.delete("t")


def clear(store: Store) -> None:
    store.conversation("t").clear()


def truncate(store: Store) -> None:
    store.conversation("t").truncate(after=2)


def begin_again(store: Store) -> None:
    """Delete the thread, and run it again from another process until it is longer than before."""
    store.delete("t")
    graph = with_messages(LangoSaver(store))
    for number in range(6):
        graph.invoke({"messages": [asked(f"again {number}", f"again-{number}")]}, config())


def expected_values() -> Any:
    graph = with_tool(InMemorySaver(), lambda: None)
    run(graph, 1)
    run(graph, 2)
    return graph.get_state(config()).values


def run(graph: Any, number: int, **options: Any) -> Any:
    question = {"messages": [asked(f"question {number}", f"q{number}")], "plan": "tool"}
    return graph.invoke(question, config(), **options)


def assert_readable(graph: Any) -> None:
    """Read each checkpoint; a checkpoint that is listed has its values."""
    for state in graph.get_state_history(config()):
        assert graph.get_state(state.config).values == state.values


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("remove", [delete, clear, truncate, begin_again])
def test_state_of_a_run_is_whole_if_its_thread_is_removed(
    store: Store, remove: Callable[[Store], None], durability: str
) -> None:
    removals: list[Callable[[Store], None]] = []
    saver = LangoSaver(store)
    graph = with_tool(saver, lambda: removals and removals.pop()(store))
    run(graph, 1, durability=durability)
    removals.append(remove)
    assert run(graph, 2, durability=durability) == expected_values()
    for reader in (saver, LangoSaver(store)):
        again = with_tool(reader, lambda: None)
        assert again.get_state(config()).values == expected_values()
        assert_readable(again)
    assert run(again, 3)["messages"][:-5] == expected_values()["messages"]


@pytest.mark.parametrize("remove", [delete, clear, truncate, begin_again])
def test_session_shows_the_messages_of_a_run_whose_thread_was_removed(
    store: Store, remove: Callable[[Store], None]
) -> None:
    removals: list[Callable[[Store], None]] = []
    graph = with_tool(LangoSaver(store), lambda: removals and removals.pop()(store))
    run(graph, 1, durability="sync")
    removals.append(remove)
    run(graph, 2, durability="sync")
    texts = [message.content for message in store.conversation("t").messages()]
    assert texts == [message.content for message in graph.get_state(config()).values["messages"]]


def test_state_of_a_run_is_whole_if_its_thread_expires(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(minutes=1)) as store:
        minutes = [0, 2]
        graph = with_tool(LangoSaver(store), lambda: clock.move(minutes=minutes.pop(0)))
        run(graph, 1)
        assert run(graph, 2) == expected_values()
        again = with_tool(LangoSaver(store), lambda: None)
        assert again.get_state(config()).values == expected_values()
        assert_readable(again)


def test_usage_of_a_run_is_counted_once_if_its_thread_is_cut(store: Store) -> None:
    graph = with_tool(LangoSaver(store), lambda: store.conversation("t").truncate(after=1))
    run(graph, 1, durability="sync")
    assert store.conversation("t").total_usage().get("input_tokens", 0) <= 5


def test_put_after_a_deletion_stores_the_whole_checkpoint(store: Store) -> None:
    source = InMemorySaver()
    run(with_tool(source, lambda: None), 1)
    saver = LangoSaver(store)
    *earlier, last = reversed([*source.list(config())])
    for each in earlier:
        saver.put(each.parent_config or config(checkpoint_ns=""), each.checkpoint, each.metadata, {})
    assert last.parent_config is not None
    versions = last.checkpoint["channel_versions"]
    new = {
        name: versions[name]
        for name in versions
        if earlier[-1].checkpoint["channel_versions"].get(name) != versions[name]
    }
    store.delete("t")
    saver.put(last.parent_config, last.checkpoint, last.metadata, new)
    loaded = LangoSaver(store).get_tuple(config())
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == last.checkpoint["channel_values"]
    assert [message.content for message in store.conversation("t").messages()] == [
        message.content for message in last.checkpoint["channel_values"]["messages"]
    ]


def test_fenced_run_of_a_deleted_thread_raises_conflict(store: Store) -> None:
    graph = with_tool(LangoSaver(store, fence=True), lambda: store.delete("t"))
    with pytest.raises(Conflict, match="load the thread again"):
        run(graph, 1, durability="sync")
    assert with_tool(LangoSaver(store), lambda: None).get_state(config()).values == {}


def test_run_in_a_turn_of_a_deleted_thread_raises_a_documented_error(store: Store) -> None:
    with pytest.raises((Conflict, SessionNotFound)), store.open("t").turn("request") as turn:
        run(with_tool(LangoSaver(store).in_turn(turn), lambda: store.delete("t")), 1, durability="sync")
    assert not store.exists("t")


def test_prune_during_a_run_keeps_its_state(store: Store) -> None:
    graph = with_tool(LangoSaver(store), lambda: LangoSaver(store).prune(["t"]))
    run(graph, 1, durability="sync")
    run(graph, 2, durability="sync")
    again = with_tool(LangoSaver(store), lambda: None)
    assert again.get_state(config()).values == expected_values()
    assert_readable(again)


def test_value_that_was_deleted_from_the_log_raises_damaged_message(store: Store) -> None:
    saver = LangoSaver(store)
    first = empty_checkpoint() | {"id": "1", "channel_values": {"plan": "a"}, "channel_versions": {"plan": 1}}
    where = saver.put(config(checkpoint_ns=""), first, {}, {"plan": 1})
    second = first | {"id": "2", "channel_values": {"plan": "a", "x": 1}, "channel_versions": {"plan": 1, "x": 1}}
    saver.put(where, second, {}, {"x": 1})
    conversation = store.conversation("t")
    conversation.edits.delete(conversation.all_messages()[0].seq)
    with pytest.raises(DamagedMessage, match="'plan', was deleted or redacted"):
        LangoSaver(store).get_tuple(config())

    third = second | {"id": "3"}
    LangoSaver(store).put(config(checkpoint_id="2", checkpoint_ns=""), third, {}, {})
    loaded = LangoSaver(store).get_tuple(config())
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == {"plan": "a", "x": 1}


def test_value_that_was_deleted_from_the_log_during_a_run_is_stored_again(store: Store) -> None:
    saver = LangoSaver(store)
    first = empty_checkpoint() | {"id": "1", "channel_values": {"plan": "a"}, "channel_versions": {"plan": 1}}
    where = saver.put(config(checkpoint_ns=""), first, {}, {"plan": 1})
    second = first | {"id": "2", "channel_values": {"plan": "a", "x": 1}, "channel_versions": {"plan": 1, "x": 1}}
    where = saver.put(where, second, {}, {"x": 1})
    conversation = store.conversation("t")
    conversation.edits.delete(conversation.all_messages()[0].seq)
    saver.put(where, second | {"id": "3"}, {}, {})
    loaded = LangoSaver(store).get_tuple(config())
    assert loaded is not None
    assert loaded.checkpoint["channel_values"] == {"plan": "a", "x": 1}


def test_delta_channel_with_deleted_writes_raises_damaged_message(store: Store) -> None:
    saver = LangoSaver(store)
    with_delta_channel(saver).invoke({"items": [1]}, config())
    last = saver.get_tuple(config())
    assert last is not None
    store.delete("t")
    successor = empty_checkpoint() | {"channel_versions": last.checkpoint["channel_versions"]}
    saver.put(last.config, successor, last.metadata, {})  # as a run does whose thread was deleted
    with pytest.raises(DamagedMessage, match="'items', was deleted"):
        with_delta_channel(saver).get_state(config())
