"""The contract of `ConversationStore`: branches and forks."""

from decimal import Decimal

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    conversation,
    exchange,
    faults,
    load,
    read_record,
    texts,
    texts_of,
)
from pydantic_ai.usage import RunUsage

from lango_store import MessageRole, Store

pytestmark = [pytest.mark.anyio, pytest.mark.one_database]

# Branches


async def test_entries_of_abandoned_branch_are_readable_but_not_in_window(
    conversations: Conversations, store: Store
) -> None:
    stored = await conversations.save(conversation("c", "1", "2", "3", "4"))
    loaded = await load(conversations, "c")
    branched = await conversations.branch("c", at=2, expected_revision=loaded.revision)
    assert texts(branched.messages) == ["1", "2"]
    assert [message.content for message in store.conversation("c").messages()] == ["1", "2"]
    assert (store.conversation("c").info().message_count, store.conversation("c").info().record_count) == (2, 2)
    branched.messages += exchange("drei")
    await conversations.save(branched)
    assert await texts_of(conversations, "c") == ["1", "2", "drei"]
    record = await read_record(conversations, "c")
    assert record.branches == [stored[-1].id]
    assert await conversations.read_history(record.branches[0]) == stored
    assert await conversations.read_history(record.branches[0], limit=1) == stored[-1:]
    assert await conversations.read_entry(str(stored[2].id)) == stored[2]

    back = await conversations.branch("c", from_entry=stored[2].id, expected_revision=branched.revision)
    assert texts(back.messages) == ["1", "2", "3"]
    assert [message.content for message in store.conversation("c").messages()] == ["1", "2", "3"]
    assert store.conversation("c").messages()[2].role is MessageRole.USER
    assert await texts_of(conversations, "c", limit=2) == ["2", "3"]
    record = await read_record(conversations, "c")
    assert len(record.branches) == 2
    assert faults(store) == []


# Forks


async def test_fork_survives_deletion_of_origin(conversations: Conversations, store: Store) -> None:
    talk = conversation("c", "1", "2", "3")
    talk.usage = RunUsage(requests=2, input_tokens=7)
    stored = await conversations.save(talk, scope="ann")
    whole = await conversations.fork("c", new_conversation_id="whole")
    part = await conversations.fork("c", at=1, new_conversation_id="part", scope="bob")
    empty = await conversations.fork("c", at=0, new_conversation_id="empty")
    assert (whole.usage, part.usage) == (talk.usage, RunUsage())
    record = await read_record(conversations, "part")
    assert (record.forked_from, record.forked_at, record.scope) == ("c", stored[0].id, "bob")
    part.messages += exchange("zwei")
    await conversations.save(part)
    await conversations.delete("c")
    assert await conversations.load("c") is None
    assert await conversations.load("whole") == whole
    assert await conversations.load_entries("whole") == stored
    assert await texts_of(conversations, "part") == ["1", "zwei"]
    assert await conversations.load("empty") == empty
    record = await read_record(conversations, "part")
    assert record.forked_at == stored[0].id
    assert faults(store) == []


async def test_fork_counts_only_the_usage_that_it_adds(conversations: Conversations, store: Store) -> None:
    talk = conversation("c", "1", "2")
    talk.usage = RunUsage(requests=3, input_tokens=7, cost=Decimal("0.5"))
    await conversations.save(talk)
    fork = await conversations.fork("c", new_conversation_id="f")
    (row,) = store.usage()
    assert (row.input_tokens, row.cost_usd) == (7, 0.5)
    assert fork.usage == talk.usage
    fork.messages += exchange("3")
    fork.usage = RunUsage(requests=4, input_tokens=9, cost=Decimal("0.75"))
    await conversations.save(fork)
    (row,) = store.usage()
    assert (row.input_tokens, row.cost_usd) == (9, 0.75)
    assert store.conversation("f").total_usage()["requests"] == 1
    assert (await load(conversations, "f")).usage == fork.usage


async def test_fork_of_an_abandoned_branch_has_only_the_history_of_that_branch(
    conversations: Conversations, store: Store
) -> None:
    talk = conversation("c", "1", "2", "3")
    stored = await conversations.save(talk)
    branched = await conversations.branch("c", at=1, expected_revision=talk.revision)
    branched.messages += exchange("zwei")
    await conversations.save(branched)
    forked = await conversations.fork("c", from_entry=stored[2].id, new_conversation_id="f")
    assert texts(forked.messages) == ["1", "2", "3"]
    assert await conversations.load("f") == forked
    assert [message.role for message in store.conversation("f").all_messages()] == ["user", "assistant", "user"]
    again = await conversations.fork("f", new_conversation_id="g")
    await conversations.delete("f")
    assert await conversations.load("g") == again
