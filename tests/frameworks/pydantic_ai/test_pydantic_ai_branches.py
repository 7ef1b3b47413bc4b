"""What the docstrings of `ConversationStore` say of branches and forks, sentence by sentence."""

from __future__ import annotations

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    conversation,
    exchange,
    faults,
    run,
    texts,
    texts_of,
)
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from lango_store import MessageRole, Store

# Branches


def test_what_a_branch_leaves_stays_readable_and_out_of_the_window(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        stored = await conversations.save(conversation("c", "1", "2", "3", "4"))
        loaded = await conversations.load("c")
        assert loaded is not None
        branched = await conversations.branch("c", at=2, expected_revision=loaded.revision)
        assert texts(branched.messages) == ["1", "2"]
        assert [message.content for message in lango.messages("c")] == ["1", "2"]
        assert (lango.info("c").message_count, lango.info("c").record_count) == (2, 2)
        branched.messages += exchange("drei")
        await conversations.save(branched)
        assert await texts_of(conversations, "c") == ["1", "2", "drei"]
        record = await conversations.read_record("c")
        assert record is not None
        assert record.branches == [stored[-1].id]
        assert await conversations.read_history(record.branches[0]) == stored
        assert await conversations.read_history(record.branches[0], limit=1) == stored[-1:]
        assert await conversations.read_entry(str(stored[2].id)) == stored[2]

        back = await conversations.branch("c", from_entry=stored[2].id, expected_revision=branched.revision)
        assert texts(back.messages) == ["1", "2", "3"]
        assert [message.content for message in lango.messages("c")] == ["1", "2", "3"]
        assert lango.messages("c")[2].role is MessageRole.USER
        assert await texts_of(conversations, "c", limit=2) == ["2", "3"]
        record = await conversations.read_record("c")
        assert record is not None
        assert len(record.branches) == 2
        assert faults(lango) == []

    run(test)


def test_a_branch_to_the_start_leaves_no_history(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2")
        stored = await conversations.save(talk)
        branched = await conversations.branch("c", at=0, expected_revision=talk.revision)
        assert branched.messages == []
        assert lango.messages("c") == []
        branched.messages += exchange("one")
        [first] = await conversations.save(branched)
        assert first.parent_id is None
        assert await texts_of(conversations, "c") == ["one"]
        forked = await conversations.fork("c", from_entry=stored[0].id)
        assert texts(forked.messages) == ["1"]

    run(test)


def test_a_branch_refuses_what_the_docstring_says(conversations: Conversations) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2")
        await conversations.save(talk)
        other = await conversations.save(conversation("d", "1"))
        for options, match in (
            ({}, "exactly one"),
            ({"at": 1, "from_entry": "x"}, "exactly one"),
            ({"at": 3}, "between 0 and 2"),
            ({"from_entry": other[0].id}, "not in the history"),
        ):
            with pytest.raises(UserError, match=match):
                await conversations.branch("c", expected_revision=talk.revision, **options)
        with pytest.raises(UserError, match="not in the store"):
            await conversations.branch("nobody", at=0, expected_revision=None)
        with pytest.raises(ConversationConflict):
            await conversations.branch("c", at=1, expected_revision="old")

    run(test)


def test_a_branch_drops_the_requests_that_it_leaves(conversations: Conversations) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2")
        talk.deferred_tool_requests = DeferredToolRequests(calls=[ToolCallPart("t", {}, "1")])
        talk.usage = RunUsage(requests=2)
        await conversations.save(talk)
        same = await conversations.branch("c", at=2, expected_revision=talk.revision)
        assert same.deferred_tool_requests == talk.deferred_tool_requests
        earlier = await conversations.branch("c", at=1, expected_revision=same.revision)
        assert earlier.deferred_tool_requests is None
        assert earlier.usage == RunUsage(requests=2)
        assert await conversations.load("c") == earlier

    run(test)


# Forks


def test_a_fork_survives_the_deletion_of_its_origin(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2", "3")
        talk.usage = RunUsage(requests=2, input_tokens=7)
        stored = await conversations.save(talk, scope="ann")
        whole = await conversations.fork("c", new_conversation_id="whole")
        part = await conversations.fork("c", at=1, new_conversation_id="part", scope="bob")
        empty = await conversations.fork("c", at=0, new_conversation_id="empty")
        assert (whole.usage, part.usage) == (talk.usage, RunUsage())
        record = await conversations.read_record("part")
        assert record is not None
        assert (record.forked_from, record.forked_at, record.scope) == ("c", stored[0].id, "bob")
        part.messages += exchange("zwei")
        await conversations.save(part)
        await conversations.delete("c")
        assert await conversations.load("c") is None
        assert await conversations.load("whole") == whole
        assert await conversations.load_entries("whole") == stored
        assert await texts_of(conversations, "part") == ["1", "zwei"]
        assert await conversations.load("empty") == empty
        assert lango.conversation("whole").total_usage()["requests"] == 2
        record = await conversations.read_record("part")
        assert record is not None
        assert record.forked_at == stored[0].id
        assert faults(lango) == []

    run(test)


def test_a_fork_from_a_branch_has_only_its_own_history(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2", "3")
        stored = await conversations.save(talk)
        branched = await conversations.branch("c", at=1, expected_revision=talk.revision)
        branched.messages += exchange("zwei")
        await conversations.save(branched)
        forked = await conversations.fork("c", from_entry=stored[2].id, new_conversation_id="f")
        assert texts(forked.messages) == ["1", "2", "3"]
        assert await conversations.load("f") == forked
        assert [message.role for message in lango.conversation("f").all_messages()] == ["user", "assistant", "user"]
        again = await conversations.fork("f", new_conversation_id="g")
        await conversations.delete("f")
        assert await conversations.load("g") == again

    run(test)


def test_forks_of_one_point_go_their_own_ways(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1", "2"))
        forks = [await conversations.fork("c") for _ in range(3)]
        for number, fork in enumerate(forks):
            fork.messages += exchange(f"fork {number}")
            await conversations.save(fork)
        for number, fork in enumerate(forks):
            assert await texts_of(conversations, fork.conversation_id) == ["1", "2", f"fork {number}"]
        assert await texts_of(conversations, "c") == ["1", "2"]

    run(test)


def test_a_fork_refuses_what_the_docstring_says(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1"))
        with pytest.raises(UserError, match="not in the store"):
            await conversations.fork("nobody")
        with pytest.raises(UserError, match="between 0 and 1"):
            await conversations.fork("c", at=2)
        with pytest.raises(UserError, match="exactly one"):
            await conversations.fork("c", at=1, from_entry="x")
        with pytest.raises(UserError, match="not in the history"):
            await conversations.fork("c", from_entry="x")

    run(test)
