"""The contract of `ConversationStore`: lists, deletion and usage."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    asked,
    conversation,
    load,
    said,
    weather_agent,
)
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.usage import RunUsage

from lango_store import Message, Store
from lango_store.integrations.pydantic_ai import LangoConversationStore

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

# Scope


async def test_conversation_record_is_loaded_equal_and_listed_by_updated_at(conversations: Conversations) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    day = datetime(2020, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)
    for days, id in ((2, "a"), (3, "b"), (1, "c")):
        record = ConversationRecord(
            conversation_id=id, head_id=None, scope="s", updated_at=day + timedelta(days=days), revision=f"r{id}"
        )
        await conversations.write_record(record, expected_revision=None)
        assert await conversations.read_record(id) == record
        (turn,) = conversations.store.conversation(id).turns.list()
        assert turn.created_at >= began  # which is when it was saved, whatever the record says
    records = await conversations.read_records(limit=2)
    assert [record.conversation_id for record in records] == ["b", "a"]
    moved = replace(records[1], updated_at=day + timedelta(days=9), revision="r2", scope=None)
    await conversations.write_record(moved, expected_revision="ra")
    assert await conversations.read_record("a") == moved
    assert [record.conversation_id for record in await conversations.read_records()] == ["a", "b", "c"]


# Delete


async def test_delete_removes_the_whole_conversation(conversations: Conversations, store: Store) -> None:
    talk = conversation("c", "secret", "2")
    stored = await conversations.save(talk)
    await conversations.branch("c", at=0, expected_revision=talk.revision)
    await conversations.delete("c")
    await conversations.delete("c")
    assert [record.conversation_id for record in await conversations.list_conversations()] == []
    with pytest.raises(LookupError):
        await conversations.read_entry(stored[0].id)
    stats = store.stats()
    assert (stats.sessions, stats.messages) == (0, 0)
    with store.engine.connect() as connection:
        for table in ("lango_session", "lango_message", "lango_turn", "lango_value"):
            assert connection.exec_driver_sql(f"select count(*) from {table}").scalar() == 0


# Usage


async def test_usage_of_a_conversation_equals_the_total_usage_of_the_session(
    conversations: Conversations, store: Store
) -> None:
    agent = weather_agent()
    talk = Conversation(conversation_id="c")
    for _ in range(3):
        talk = (await agent.run("Oslo?", conversation=talk)).conversation
        await conversations.save(talk)
    dumped = ConversationTypeAdapter.dump_python(talk, mode="json")["usage"]
    assert store.conversation("c").total_usage() == dumped
    assert dumped["requests"] == 6
    turns = store.conversation("c").turns.list()
    assert [turn.usage["requests"] for turn in turns] == [2, 2, 2]
    assert [turn.usage["input_tokens"] for turn in turns] == [8, 8, 8]
    await conversations.save(talk)
    assert len(store.conversation("c").turns.list()) == 3


async def test_usage_in_the_store_equals_the_usage_of_the_conversations(
    conversations: Conversations, store: Store
) -> None:
    whole = RunUsage()
    for id in ("a", "b"):
        talk = conversation(id, "1")
        for factor in (1, 3):
            talk.usage = talk.usage + RunUsage(
                requests=1,
                input_tokens=10 * factor,
                cache_read_tokens=4 * factor,
                output_tokens=2 * factor,
                details={"reasoning_tokens": factor},
                cost=Decimal("0.25"),
            )
            await conversations.save(talk)
        whole = whole + talk.usage
    (row,) = store.usage()
    assert (row.input_tokens, row.output_tokens) == (whole.input_tokens, whole.output_tokens) == (80, 16)
    assert (row.cached_tokens, row.reasoning_tokens) == (whole.cache_read_tokens, whole.details["reasoning_tokens"])
    assert row.usage["requests"] == whole.requests
    assert row.cost_usd == whole.cost == 1


async def test_usage_grouped_by_model_uses_the_last_model_of_each_save(
    conversations: Conversations, store: Store
) -> None:
    talk = Conversation(conversation_id="c")
    for models in (["large"], ["small", "large"], [None], []):
        for model in models:
            talk.messages += [asked("Hello"), replace(said("Hi"), model_name=model)]
        talk.usage = talk.usage + RunUsage(requests=1, input_tokens=10)
        await conversations.save(talk)
    assert (await load(conversations, "c")).messages == talk.messages
    rows = store.usage(["model"])
    assert [(row.model, row.input_tokens) for row in rows] == [(None, 20), ("large", 20)]


async def test_total_usage_equals_the_saved_usage_even_if_it_shrinks_or_has_text(
    conversations: Conversations, store: Store
) -> None:
    talk = conversation("c", "1")
    for usage in (
        RunUsage(requests=3, details={"a": 1, "b": 2}),
        RunUsage(requests=4, details={"a": 3}, cost=Decimal("0.1")),
        RunUsage(requests=1, output_tokens=2, cost=Decimal("0.3")),
    ):
        talk.usage = usage
        await conversations.save(talk)
        total = store.conversation("c").total_usage()
        loaded = await load(conversations, "c")
        assert loaded.usage == usage
        assert {name: total[name] for name in ("requests", "output_tokens")} == {
            "requests": usage.requests,
            "output_tokens": usage.output_tokens,
        }
        assert total["cost"] == (None if usage.cost is None else str(usage.cost))
        assert {name: count for name, count in total["details"].items() if count} == usage.details


async def test_usage_saved_by_another_program_is_counted(conversations: Conversations, store: Store) -> None:
    talk = conversation("c", "1")
    talk.usage = RunUsage(requests=1, input_tokens=5)
    await conversations.save(talk)
    store.conversation("c").save_turn([], {"requests": 1, "input_tokens": 2, "seconds": 3})
    loaded = await load(conversations, "c")
    assert loaded.usage == RunUsage(requests=2, input_tokens=7)


# Lists


async def test_list_of_records_sends_two_statements(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        conversations = LangoConversationStore(store)
        for number in range(20):
            record = ConversationRecord(
                conversation_id=f"{number}", head_id=None, updated_at=datetime.now(UTC), revision="r"
            )
            await conversations.write_record(record, expected_revision=None)
        store.create("without a record", messages=[Message.user("Hello")])
        sent.clear()
        assert len(await conversations.read_records()) == 20
        assert len(sent) == 2
