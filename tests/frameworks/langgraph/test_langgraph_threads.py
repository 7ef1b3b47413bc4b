"""What a store does with sessions, it does with threads of LangGraph."""

from datetime import timedelta
from pathlib import Path

import pytest
from frameworks.langgraph.graphs import asked, built, config, weather_turn, with_messages
from langgraph.types import Command

from lango_store import Store
from lango_store.integrations.langgraph import LangoSaver
from lango_store.testing import Clock


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
        store.restore(tmp_path / "archive.db", "t")
        assert values(store) == before
        resumed = built(LangoSaver(store)).invoke(Command(resume="yes"), config())
        assert resumed["steps"][-1] == "answered yes"


def test_redacted_message_is_redacted_in_the_state(store: Store) -> None:
    fill(store)
    seq = store.conversation("t").messages()[0].seq
    store.conversation("t").edits.redact(seq)
    assert values(store)["messages"][0].content == "(redacted)"  # type: ignore[index]


def test_large_message_is_a_payload(store: Store) -> None:
    fill(store, text="x" * 10_000)
    assert values(store)["messages"][0].content == "x" * 10_000  # type: ignore[index]
    reference = store.conversation("t").messages(payloads="reference")[0].content
    assert reference != "x" * 10_000


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


def test_turn_of_one_node_sends_at_most_twelve_statements(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        from frameworks.langgraph.worker import builder

        graph = builder.compile(checkpointer=LangoSaver(store))
        for number in range(20):
            sent.clear()
            graph.invoke({"messages": [asked("q", f"q{number}")]}, config())
        assert len(sent) <= 12, sent
