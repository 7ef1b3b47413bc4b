"""Expiry, backups, erasure and other features of the store work on threads of LangGraph."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from frameworks.langgraph.graphs import Reversing, asked, built, config, weather_turn, with_delta_channel, with_messages
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from lango_store import Message, Store
from lango_store.integrations.langgraph import LangoSaver
from lango_store.integrations.langgraph.records import unpack
from lango_store.testing import Clock


@dataclass
class Place:
    """A class that is not on LangGraph's list."""

    name: str


def values(store: Store) -> object:
    return built(LangoSaver(store)).get_state(config()).values


def fill(store: Store, plan: str = "tool", text: str = "Hello") -> None:
    built(LangoSaver(store)).invoke({"messages": [asked(text, "h")], "plan": plan}, config())


def test_messages_of_a_thread_are_messages_with_usage(store: Store) -> None:
    fill(store)
    log = store.conversation("t").messages()
    assert [str(message.role) for message in log] == ["user", "assistant", "assistant", "tool"]
    assert (log[2].tool_calls[0].name, log[3].tool_call_id) == ("look", "call-0")
    assert store.conversation("t").total_usage() == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    assert store.usage(["model"])[0].model == "m"


def test_checkpoint_that_is_put_again_is_stored_once(store: Store) -> None:
    saver = LangoSaver(store)
    graph = with_messages(saver)
    graph.update_state(config(), {"messages": weather_turn()})
    last = saver.get_tuple(config())
    assert last is not None
    before = store.conversation("t").all_messages()
    for again in (saver, LangoSaver(store)):
        again.put(config(), last.checkpoint, last.metadata, last.checkpoint["channel_versions"])
    assert store.conversation("t").all_messages() == before
    assert saver.get_tuple(config()) == last


def test_thread_expires_and_is_restored_from_an_archive(url: str, clock: Clock, tmp_path: Path) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        fill(store, "wait")
        before = values(store)
        clock.move(hours=2)
        assert values(store) == {}
        store.expire(archive=tmp_path / "archive.db")
        store.restore("t", tmp_path / "archive.db")
        assert values(store) == before
        resumed = built(LangoSaver(store)).invoke(Command(resume="yes"), config())
        assert resumed["steps"][-1] == "answered yes"


def test_redacted_message_is_redacted_in_the_state(store: Store) -> None:
    fill(store)
    seq = store.conversation("t").messages()[0].seq
    store.conversation("t").edits.redact(seq)
    assert values(store)["messages"][0].content == "(redacted)"  # type: ignore[index]


def test_redacted_message_is_nowhere_after_a_prune(store: Store) -> None:
    fill(store, text="a secret")
    conversation = store.conversation("t")
    conversation.edits.redact(conversation.messages()[0].seq)

    def texts() -> str:
        contents = [each.content for each in conversation.all_messages() if each.author == "langgraph"]
        packed = [value for each in contents for value in each.get("values", {}).values()]
        packed += [value for each in contents for _, _, value in each.get("writes", ())]
        return str([unpack(JsonPlusSerializer(), value) for value in packed])

    assert "a secret" in texts()
    LangoSaver(store).prune(["t"])
    assert "a secret" not in texts() + str(conversation.all_messages())


def test_large_message_is_a_payload(store: Store) -> None:
    text = "x" * 100_000
    fill(store, text=text)
    assert values(store)["messages"][0].content == text  # type: ignore[index]
    assert store.conversation("t").messages(payloads="reference")[0].content != text


@pytest.mark.parametrize("name", ["x' OR '1'='1", "source') OR 1=1 --", "$.source", 'a"b'])
def test_filter_with_sql_matches_nothing(store: Store, name: str) -> None:
    fill(store)
    saver = LangoSaver(store)
    assert [*saver.list(config(), filter={name: "loop"})] == []
    assert [*saver.list(config(), filter={"source": name})] == []
    assert len([*saver.list(config(), filter={"source": "loop"})]) == 3


def test_value_of_an_unknown_class_is_not_created(store: Store) -> None:
    saver = LangoSaver(store)
    kind, data = saver.serde.dumps_typed(Path("a"))
    assert kind == "msgpack"
    with pytest.raises(NotImplementedError):
        saver.serde.loads_typed(("pickle", data))


def test_turn_of_one_node_sends_few_statements(url: str) -> None:
    sent: list[str] = []
    most = 13 if url.startswith("sqlite") else 8
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        from frameworks.langgraph.worker import builder

        graph = builder.compile(checkpointer=LangoSaver(store))
        for number in range(20):
            sent.clear()
            graph.invoke({"messages": [asked("q", f"q{number}")]}, config())
        assert len(sent) <= most, sent


@pytest.mark.anyio
async def test_list_reads_checkpoints_in_batches(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        from frameworks.langgraph.worker import builder

        saver = LangoSaver(store)
        graph = builder.compile(checkpointer=saver)

        async def count(where: Any, number: int, limit: int | None = None) -> int:
            sent.clear()
            listed = list(saver.list(where, limit=limit))
            statements = len(sent)
            assert listed == [saver.get_tuple(each.config) for each in listed]
            assert len(listed) == number
            sent.clear()
            assert [each async for each in saver.alist(where, limit=limit)] == listed
            assert len(sent) == statements
            return statements

        for number in range(20):
            graph.invoke({"messages": [asked("q", f"q{number}")]}, config())
        # Values and messages of 1, 4, 16, 64 … checkpoints are read at once.
        assert await count(config(), 60) == 6
        assert await count(config(), 1, limit=1) == 2
        assert await count(config(), 5, limit=5) == 3
        assert await count(config(checkpoint_ns=""), 1, limit=1) == 2  # records in pages of 4, 16, 64 …
        assert await count(config(checkpoint_ns=""), 60) == 9
        for number in range(3):
            graph.invoke({"messages": [asked("q", "q")]}, config(f"other {number}"))
        assert await count(None, 69) == 12


@pytest.mark.parametrize("length", [3, 40])
def test_delta_channel_has_the_state_and_history_of_memory(store: Store, length: int) -> None:
    ours, theirs = with_delta_channel(LangoSaver(store)), with_delta_channel(InMemorySaver())
    for number in range(length):
        for graph in (ours, theirs):
            graph.invoke({"items": [number]}, config())
    again = with_delta_channel(LangoSaver(store))  # as after a restart
    assert again.get_state(config()).values == theirs.get_state(config()).values
    states = [[each.values for each in graph.get_state_history(config())] for graph in (again, theirs)]
    assert states[0] == states[1]

    LangoSaver(store).prune(["t"])
    assert again.get_state(config()).values == theirs.get_state(config()).values
    assert again.invoke({"items": ["late"]}, config()) == theirs.invoke({"items": ["late"]}, config())


def test_prune_keeps_the_state_and_deletes_messages_that_no_checkpoint_has(store: Store) -> None:
    graph = with_messages(LangoSaver(store))
    graph.update_state(config(), {"messages": weather_turn()})
    graph.update_state(config(), {"messages": [weather_turn()[0].model_copy(update={"content": "In Rome?"})]})
    before = graph.get_state(config()).values
    LangoSaver(store).prune(["t"])
    assert with_messages(LangoSaver(store)).get_state(config()).values == before
    assert len([*graph.get_state_history(config())]) == 1
    assert "Oslo?" not in str(store.conversation("t").all_messages())


def test_thread_of_another_saver_continues_after_its_checkpoints_are_put(store: Store) -> None:
    source, target = InMemorySaver(), LangoSaver(store)
    with_messages(source).invoke({"messages": [asked("Hi", "h")]}, config())
    with_messages(source).invoke({"messages": [asked("Again", "i")]}, config())
    for each in reversed([*source.list(config())]):
        where = each.parent_config or config(checkpoint_ns="")
        target.put(where, each.checkpoint, each.metadata, each.checkpoint["channel_versions"])
        for task, channel, value in each.pending_writes or ():
            target.put_writes(each.config, [(channel, value)], task)

    graph = with_messages(target)
    assert [each.values for each in graph.get_state_history(config())] == [
        each.values for each in with_messages(source).get_state_history(config())
    ]
    graph.invoke({"messages": [asked("And now?", "j")]}, config())
    assert [message.content for message in store.conversation("t").messages()] == [
        *("Hi", "Hello", "Again", "Hello", "And now?", "Hello")
    ]


def test_object_of_an_unlisted_class_needs_a_serializer_that_allows_it(store: Store) -> None:
    value = {"place": Place("Oslo")}
    allowing = JsonPlusSerializer(allowed_msgpack_modules=[Place])
    for serde, kind in ((None, dict), (allowing, Place)):
        saver = LangoSaver(store, serde=serde)
        checkpoint = empty_checkpoint() | {"channel_values": value, "channel_versions": {"place": 1}}
        saver.put(config(), checkpoint, {}, {"place": 1})
        loaded = saver.get_tuple(config())
        assert loaded is not None
        assert type(loaded.checkpoint["channel_values"]["place"]) is kind


def test_messages_are_encrypted_by_an_encrypting_serializer(store: Store) -> None:
    saver = LangoSaver(store, serde=EncryptedSerializer(Reversing()))
    with_messages(saver).update_state(config(), {"messages": weather_turn()})
    loaded = with_messages(saver).get_state(config()).values["messages"]
    assert loaded == weather_turn()
    assert store.conversation("t").messages() == []
    assert "Oslo" not in str(store.conversation("t").all_messages())


def test_message_that_json_cannot_hold_is_loaded_equal(store: Store) -> None:
    graph = with_messages(LangoSaver(store))
    messages = [
        HumanMessage("a\0b", id="1", name="\0"),
        AIMessage("c", id="2", additional_kwargs={"when": datetime(2026, 1, 1, tzinfo=UTC), 5: "a"}),
        ChatMessage(content="d", id="3", role="critic"),
        HumanMessage([{"type": "text", "text": "e"}, "\ud800"], id="4"),
    ]
    graph.update_state(config(), {"messages": messages})
    assert with_messages(LangoSaver(store)).get_state(config()).values["messages"] == messages
    assert len(store.conversation("t").messages()) == 4


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 2**70, 0.1])
def test_metadata_that_json_cannot_hold_is_stored(store: Store, number: float) -> None:
    saver = LangoSaver(store)
    graph = with_delta_channel(saver)
    metadata = {"score": number, "run_id": "run-1"}
    graph.invoke({"items": ["a"]}, config() | {"metadata": metadata}, durability="sync")
    last, *earlier = saver.list(config(), filter={"run_id": "run-1"})
    assert repr(last.metadata["score"]) == repr(number)  # type: ignore[typeddict-item]
    assert len(earlier) == 2
    assert repr(saver.get_tuple(last.config)) == repr(last)
    with_delta_channel(LangoSaver(store)).invoke({"items": ["b"]}, config())
    LangoSaver(store).prune(["t"])
    assert with_delta_channel(saver).get_state(config()).values == {"items": ["a", "a!", "b", "b!"]}
    saver.delete_for_runs(["run-1"])
    assert [*saver.list(config(), filter={"run_id": "run-1"})] == []


def test_each_checkpoint_names_its_parent(store: Store) -> None:
    graph = with_messages(LangoSaver(store))
    graph.invoke({"messages": [asked("one", "h1")]}, config())
    linear = [*graph.get_state_history(config())]
    assert [each.parent_config for each in linear] == [*(each.config for each in linear[1:]), None]

    branch = graph.update_state(linear[1].config, {"messages": [asked("two", "h2")]})
    for reader in (graph, with_messages(LangoSaver(store))):
        assert reader.get_state(branch).parent_config == linear[1].config
        assert [each.config for each in reader.get_state_history(config())][1:] == [each.config for each in linear]


def test_last_interrupt_and_first_value_of_a_task_count(store: Store) -> None:
    saver = LangoSaver(store)
    where = saver.put(config(checkpoint_ns=""), empty_checkpoint(), {}, {})
    for number in range(3):
        saver.put_writes(where, [("__interrupt__", number)], "task")
        saver.put_writes(where, [("a", number), ("b", number)], "task")
        saver.put_writes(where, [("a", number)], "other", f"path {number}")
    loaded = LangoSaver(store).get_tuple(config())
    assert loaded is not None
    assert sorted(loaded.pending_writes or []) == [
        *(("other", "a", 0), ("task", "__interrupt__", 2), ("task", "a", 0), ("task", "b", 0))
    ]


@pytest.mark.parametrize("is_new_process", [True, False])
def test_messages_of_a_branch_are_hidden_and_shown_again(store: Store, is_new_process: bool) -> None:
    graph = with_messages(LangoSaver(store))
    early = graph.update_state(config(), {"messages": weather_turn()[:1]})
    late = graph.update_state(config(), {"messages": weather_turn()[1:]})
    before = store.conversation("t").messages()
    store.append_message("t", Message.user("of another program"))

    graph.update_state(early, {"messages": [asked("Another branch", "h2")]})
    texts = [message.content for message in store.conversation("t").messages()]
    assert texts == ["How warm is it in Oslo?", "of another program", "Another branch"]
    if is_new_process:
        graph = with_messages(LangoSaver(store))
    graph.update_state(late, {"messages": [asked("Thanks", "h3")]})
    after = store.conversation("t").messages()
    assert after[:4] == before
    assert [message.content for message in after[4:]] == ["of another program", "Thanks"]
    assert [each.id for each in graph.get_state(config()).values["messages"]] == ["q1", "a1", "r1", "a2", "h3"]
    assert store.conversation("t").total_usage() == {}
