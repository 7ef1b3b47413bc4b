"""What the docstrings of `ConversationStore` say, sentence by sentence."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from frameworks.pydantic_ai.talking import asked, conversation, exchange, said, texts, weather_agent
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from lango_store import AsyncStore, InvalidKey, LangoStoreError, Message, MessageRole, Store, ToolCall
from lango_store.integrations.pydantic_ai import LangoConversationStore

Conversations = LangoConversationStore


def run(test: Callable[[], Awaitable[Any]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


async def texts_of(conversations: Conversations, id: str, **options: Any) -> list[Any]:
    loaded = await conversations.load(id, **options)
    assert loaded is not None
    return texts(loaded.messages)


def faults(store: Store) -> list[Any]:
    return [finding for finding in store.examine() if finding.name != "settings"]


# Load


def test_load_gives_none_for_what_the_store_does_not_have(conversations: Conversations) -> None:
    async def test() -> None:
        assert await conversations.load("c") is None
        assert await conversations.load_entries("c") is None
        assert await conversations.read_record("c") is None

    run(test)


def test_a_loaded_conversation_is_all_that_was_saved(conversations: Conversations) -> None:
    async def test() -> None:
        waiting = DeferredToolRequests(
            approvals=[ToolCallPart("pay", {"sum": 3}, "call-1")], metadata={"call-1": {"a": 1}}
        )
        saved = Conversation(
            conversation_id="c",
            messages=exchange("hi", "hello"),
            usage=RunUsage(requests=1, input_tokens=3, details={"thinking": 2}),
            deferred_tool_requests=waiting,
        )
        await conversations.save(saved)
        loaded = await conversations.load("c")
        assert loaded == saved
        assert loaded is not None
        assert loaded.deferred_tool_requests == waiting
        assert loaded.revision == saved.revision
        assert loaded.new_message_index == 2

    run(test)


def test_limit_loads_the_last_messages_and_saving_still_appends_to_all(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1", "2", "3", "4"))
        for limit, expected in (
            (0, []),
            (1, ["4"]),
            (3, ["2", "3", "4"]),
            (4, ["1", "2", "3", "4"]),
            (9, ["1", "2", "3", "4"]),
        ):
            assert await texts_of(conversations, "c", limit=limit) == expected
        window = await conversations.load("c", limit=1)
        assert window is not None
        window.messages.append(asked("5"))
        [entry] = await conversations.save(window)
        assert await texts_of(conversations, "c") == ["1", "2", "3", "4", "5"]
        assert (await conversations.read_entry(entry.id)).parent_id == entry.parent_id

    run(test)


def test_a_negative_limit_is_a_user_error(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1"))
        for call in (conversations.load, conversations.load_entries):
            with pytest.raises(UserError, match="negative"):
                await call("c", limit=-1)
        with pytest.raises(UserError, match="negative"):
            await conversations.list_conversations(limit=-1)

    run(test)


def test_entries_are_what_save_returned_each_with_the_one_before_it(conversations: Conversations) -> None:
    async def test() -> None:
        stored = await conversations.save(conversation("c", "1", "2", "3"))
        assert await conversations.load_entries("c") == stored
        assert [entry.parent_id for entry in stored] == [None, stored[0].id, stored[1].id]
        assert await conversations.load_entries("c", limit=2) == stored[1:]
        assert await conversations.read_history(str(stored[1].id)) == stored[:2]
        assert await conversations.read_history(str(stored[2].id), limit=2) == stored[1:]
        assert await conversations.read_history(None) == []
        for entry in stored:
            assert await conversations.read_entry(entry.id) == entry

    run(test)


def test_an_entry_that_nobody_has_is_a_lookup_error(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1"))
        for id in ("nobody", "c#1", "c#7", "", "\0", "x#\u0663"):
            with pytest.raises(LookupError):
                await conversations.read_entry(id)

    run(test)


# Save


def test_only_new_messages_are_stored(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2")
        assert len(await conversations.save(talk)) == 2
        assert await conversations.save(talk) == []
        talk.messages += exchange("3", "4")
        assert texts([entry.message for entry in await conversations.save(talk)]) == ["3", "4"]
        assert lango.info("c").message_count == 4

    run(test)


def test_a_history_that_a_run_trimmed_does_not_change_what_is_stored(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1", "2"))
        loaded = await conversations.load("c")
        agent = Agent(
            FunctionModel(lambda *_: said("4")), capabilities=[ProcessHistory(lambda messages: messages[-1:])]
        )
        result = await agent.run("3", conversation=loaded)
        await conversations.save(result)
        assert await texts_of(conversations, "c") == ["1", "2", "3", "4"]
        assert texts(result.all_messages()) == ["3", "4"]

    run(test)


def test_a_rewritten_history_branches_and_keeps_the_old_branch(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1", "2", "3", "4"))
        loaded = await conversations.load("c")
        assert loaded is not None
        edited = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(loaded))
        edited.messages[2:] = exchange("three")
        edited.new_message_index = None
        [entry] = await conversations.save(edited)
        assert await texts_of(conversations, "c") == ["1", "2", "three"]
        assert texts(loaded.messages[:3]) == ["1", "2", "3"]
        record = await conversations.read_record("c")
        assert record is not None
        assert texts([each.message for each in await conversations.read_history(record.branches[0])]) == [
            "1",
            "2",
            "3",
            "4",
        ]
        assert record.head_id == entry.id
        assert [message.content for message in lango.messages("c")] == ["1", "2", "three"]

    run(test)


def test_a_window_that_was_serialized_is_compared_with_as_many_stored_messages(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1", "2", "3", "4"))
        loaded = await conversations.load("c", limit=2)
        assert loaded is not None
        again = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(loaded))
        again.messages += exchange("5")
        await conversations.save(again)
        assert await texts_of(conversations, "c") == ["1", "2", "3", "4", "5"]
        other = ConversationTypeAdapter.validate_json(ConversationTypeAdapter.dump_json(again))
        other.messages[0] = asked("three")
        other.new_message_index = 3
        await conversations.save(other)
        assert await texts_of(conversations, "c") == ["1", "2", "three", "4", "5"]

    run(test)


def test_a_stale_revision_is_a_conflict_and_leaves_nothing_behind(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1"))
        one, other = await conversations.load("c"), await conversations.load("c")
        assert one is not None
        assert other is not None
        one.messages.append(said("one"))
        other.messages.append(said("other"))
        await conversations.save(one)
        before = lango.get("c"), lango.values("c")
        with pytest.raises(ConversationConflict) as conflict:
            await conversations.save(other)
        assert conflict.value.conversation_id == "c"
        record = await conversations.read_record("c")
        assert record is not None
        stale = replace(record, head_id="x", revision="new")
        entry = ConversationEntry(id="x", parent_id=record.head_id, message=said("other"))
        with pytest.raises(ConversationConflict):
            await conversations.write_record(stale, new_entries=[entry], expected_revision="old")
        assert (lango.get("c"), lango.values("c")) == before

    run(test)


def test_a_taken_id_is_a_conflict_and_leaves_nothing_behind(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        for id in ("c", "d"):
            await conversations.save(conversation(id, *["1"] * (id == "d")))
        for id in ("c", "d"):
            before = lango.get(id), lango.values(id)
            with pytest.raises(ConversationConflict):
                await conversations.save(conversation(id, "another"))
            with pytest.raises(ConversationConflict):
                await conversations.fork("d", new_conversation_id=id)
            assert (lango.get(id), lango.values(id)) == before

    run(test)


def test_an_entry_whose_id_is_taken_is_a_conflict_and_leaves_nothing_behind(
    conversations: Conversations, lango: Store
) -> None:
    async def test() -> None:
        stored = await conversations.save(conversation("c", "1", "2"))
        record = await conversations.read_record("c")
        assert record is not None
        before = lango.get("c"), lango.values("c")
        again = ConversationEntry(id=str(stored[0].id), parent_id=record.head_id, message=asked("3"))
        with pytest.raises(ConversationConflict):
            await conversations.write_record(
                replace(record, head_id=again.id, revision="r"), new_entries=[again], expected_revision=record.revision
            )
        assert (lango.get("c"), lango.values("c")) == before

    run(test)


def test_a_head_that_nobody_has_is_a_conflict_and_leaves_nothing_behind(
    conversations: Conversations, lango: Store
) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1"))
        record = await conversations.read_record("c")
        assert record is not None
        before = lango.get("c"), lango.values("c")
        entry = ConversationEntry(parent_id="nobody", message=asked("2"))
        for expected, entries, written in (
            (None, [], ConversationRecord(conversation_id="d", head_id="nobody")),
            (None, [entry], ConversationRecord(conversation_id="d", head_id=entry.id)),
            (record.revision, [], replace(record, head_id="nobody", revision="r")),
            (record.revision, [entry], replace(record, head_id=entry.id, revision="r")),
        ):
            with pytest.raises(ConversationConflict):
                await conversations.write_record(written, new_entries=entries, expected_revision=expected)
        assert (lango.get("c"), lango.values("c")) == before
        assert not lango.exists("d")

    run(test)


def test_a_conversation_that_was_deleted_since_is_a_conflict_even_if_it_was_made_anew(
    conversations: Conversations,
) -> None:
    async def test() -> None:
        talk = conversation("c", "1")
        await conversations.save(talk)
        await conversations.delete("c")
        talk.messages.append(said("2"))
        with pytest.raises(ConversationConflict):
            await conversations.save(talk)
        await conversations.save(conversation("c", "1"))
        with pytest.raises(ConversationConflict):
            await conversations.save(talk)
        assert await texts_of(conversations, "c") == ["1"]

    run(test)


def test_one_of_eight_concurrent_savers_wins(url: str) -> None:
    async def test() -> None:
        async with Conversations(url) as conversations:
            for round in range(3):
                first = [conversation(f"c{round}", f"{number}") for number in range(8)]
                won = await saved_at_once(conversations, first)
                assert await texts_of(conversations, f"c{round}") == [str(won)]
                loaded = [await conversations.load(f"c{round}") for _ in range(8)]
                for number, each in enumerate(loaded):
                    assert each is not None
                    each.messages.append(said(f"answer {number}"))
                then = await saved_at_once(conversations, loaded)
                assert await texts_of(conversations, f"c{round}") == [str(won), f"answer {then}"]

    run(test)


async def saved_at_once(conversations: Conversations, talks: list[Any]) -> int:
    results = await asyncio.gather(*map(conversations.save, talks), return_exceptions=True)
    won = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert [type(result) for result in results if isinstance(result, Exception)] == [ConversationConflict] * 7
    return won[0]


def test_a_saved_result_goes_on_with_the_new_revision(conversations: Conversations) -> None:
    async def test() -> None:
        agent = weather_agent()
        result = await agent.run("Oslo?", conversation=Conversation(conversation_id="c"))
        assert len(await conversations.save(result)) == 4
        assert await conversations.save(result) == []
        result = await agent.run("And now?", conversation=result.conversation)
        assert len(await conversations.save(result)) == 4
        assert await conversations.load("c") == result.conversation

    run(test)


# Scope


def test_another_scope_is_a_conversation_that_is_not_there(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1")
        await conversations.save(talk, scope="ann")
        assert lango.info("c").user_id == "ann"
        assert await conversations.load("c", scope="bob") is None
        assert await conversations.load_entries("c", scope="bob") is None
        with pytest.raises(ConversationConflict):
            await conversations.save(talk, scope="bob")
        for refused in (
            conversations.branch("c", at=0, expected_revision=talk.revision, scope="bob"),
            conversations.fork("c", source_scope="bob"),
        ):
            with pytest.raises(UserError, match="not in the store"):
                await refused
        await conversations.delete("c", scope="bob")
        assert await texts_of(conversations, "c", scope="ann") == ["1"]
        await conversations.save(talk)
        assert lango.info("c").user_id == "ann"
        await conversations.delete("c", scope="ann")
        assert await conversations.load("c") is None

    run(test)


def test_conversations_are_listed_the_last_saved_first_by_scope_and_no_more_than_the_limit(
    conversations: Conversations,
) -> None:
    async def test() -> None:
        talks = {id: conversation(id, "1") for id in "abc"}
        for id, scope in (("a", "ann"), ("b", "bob"), ("c", "ann")):
            await conversations.save(talks[id], scope=scope)
        await conversations.save(talks["a"])

        async def listed(**options: Any) -> list[str]:
            found = await conversations.list_conversations(**options)
            assert found == [await conversations.read_record(each.conversation_id) for each in found]
            return [each.conversation_id for each in found]

        assert await listed() == ["a", "c", "b"]
        assert await listed(limit=2) == ["a", "c"]
        assert await listed(limit=0) == []
        assert await listed(scope="ann") == ["a", "c"]
        assert await listed(scope="ann", limit=1) == ["a"]
        assert await listed(scope="") == []

    run(test)


def test_a_record_comes_back_equal_and_lists_go_by_its_updated_at(conversations: Conversations) -> None:
    async def test() -> None:
        day = datetime(2020, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)
        for days, id in ((2, "a"), (3, "b"), (1, "c")):
            record = ConversationRecord(
                conversation_id=id, head_id=None, scope="s", updated_at=day + timedelta(days=days), revision=f"r{id}"
            )
            await conversations.write_record(record, expected_revision=None)
            assert await conversations.read_record(id) == record
            assert conversations.store.info(id).created_at == record.updated_at
        records = await conversations.read_records(limit=2)
        assert [record.conversation_id for record in records] == ["b", "a"]
        moved = replace(records[1], updated_at=day + timedelta(days=9), revision="r2", scope=None)
        await conversations.write_record(moved, expected_revision="ra")
        assert await conversations.read_record("a") == moved
        assert [record.conversation_id for record in await conversations.read_records()] == ["a", "b", "c"]

    run(test)


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
        assert lango.info("part").created_at == record.updated_at
        assert lango.info("part").forked_from == "c"
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
        assert [message.role for message in lango.all_messages("f")] == ["user", "assistant", "user"]
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


# Delete


def test_a_deletion_erases_all_that_is_the_conversations_own(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "secret", "2")
        stored = await conversations.save(talk)
        await conversations.branch("c", at=0, expected_revision=talk.revision)
        await conversations.delete("c")
        await conversations.delete("c")
        assert [record.conversation_id for record in await conversations.list_conversations()] == []
        with pytest.raises(LookupError):
            await conversations.read_entry(stored[0].id)
        stats = lango.stats()
        assert (stats.sessions, stats.messages) == (0, 0)
        with lango.engine.connect() as connection:
            for table in ("lango_session", "lango_message", "lango_turn", "lango_value"):
                assert connection.exec_driver_sql(f"select count(*) from {table}").scalar() == 0

    run(test)


def test_a_record_is_deleted_at_its_revision_only(conversations: Conversations) -> None:
    async def test() -> None:
        talk = conversation("c", "1")
        await conversations.save(talk)
        for id, revision in (("c", "old"), ("nobody", "r")):
            with pytest.raises(ConversationConflict):
                await conversations.delete_record(id, expected_revision=revision)
        assert talk.revision is not None
        await conversations.delete_record("c", expected_revision=talk.revision)
        assert await conversations.load("c") is None

    run(test)


# Usage


def test_a_records_usage_is_the_sessions_total_usage(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        agent = weather_agent()
        talk = Conversation(conversation_id="c")
        for _ in range(3):
            talk = (await agent.run("Oslo?", conversation=talk)).conversation
            await conversations.save(talk)
        dumped = ConversationTypeAdapter.dump_python(talk, mode="json")["usage"]
        assert lango.conversation("c").total_usage() == dumped
        assert dumped["requests"] == 6
        turns = lango.conversation("c").turns()
        assert [turn.usage["requests"] for turn in turns] == [2, 2, 2]
        assert [turn.usage["input_tokens"] for turn in turns] == [8, 8, 8]
        await conversations.save(talk)
        assert len(lango.conversation("c").turns()) == 3

    run(test)


def test_usage_that_shrinks_or_is_no_number_is_the_total_all_the_same(
    conversations: Conversations, lango: Store
) -> None:
    async def test() -> None:
        talk = conversation("c", "1")
        for usage in (
            RunUsage(requests=3, details={"a": 1, "b": 2}),
            RunUsage(requests=4, details={"a": 3}, cost=Decimal("0.1")),
            RunUsage(requests=1, output_tokens=2, cost=Decimal("0.3")),
        ):
            talk.usage = usage
            await conversations.save(talk)
            total = lango.conversation("c").total_usage()
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.usage == usage
            assert {name: total[name] for name in ("requests", "output_tokens")} == {
                "requests": usage.requests,
                "output_tokens": usage.output_tokens,
            }
            assert total["cost"] == (None if usage.cost is None else str(usage.cost))
            assert {name: count for name, count in total["details"].items() if count} == usage.details

    run(test)


def test_what_another_writer_spent_counts_too(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1")
        talk.usage = RunUsage(requests=1, input_tokens=5)
        await conversations.save(talk)
        lango.conversation("c").save_turn([], {"requests": 1, "input_tokens": 2, "seconds": 3})
        loaded = await conversations.load("c")
        assert loaded is not None
        assert loaded.usage == RunUsage(requests=2, input_tokens=7)

    run(test)


# Life, keys, and other writers


def test_an_expired_conversation_is_not_there_and_the_next_save_begins_anew(url: str) -> None:
    async def test() -> None:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        with Store(url, default_ttl=timedelta(hours=1), clock=lambda: now) as store:
            conversations = Conversations(store)
            talk = conversation("c", "1")
            stored = await conversations.save(talk)
            now += timedelta(hours=2)
            assert await conversations.load("c") is None
            assert await conversations.list_conversations() == []
            with pytest.raises(LookupError):
                await conversations.read_entry(str(stored[0].id))
            with pytest.raises(LookupError):
                await conversations.read_history(stored[0].id)
            with pytest.raises(ConversationConflict):
                await conversations.save(talk)
            await conversations.delete("c")
            with pytest.raises(UserError):
                await conversations.fork("c")
            await conversations.save(conversation("c", "anew"))
            assert await texts_of(conversations, "c") == ["anew"]
            assert store.info("c").expires_at == now + timedelta(hours=1)

            [entry] = await conversations.load_entries("c") or []
            for id in ("a", "z"):
                await conversations.fork("c", new_conversation_id=id)
            store.touch("z", ttl=None)
            now += timedelta(hours=2)
            assert await conversations.read_entry(str(entry.id)) == entry
            assert [each.conversation_id for each in await conversations.list_conversations()] == ["z"]
            await conversations.close()

    run(test)


def test_an_id_is_the_key_after_a_prefix_if_there_is_one(lango: Store) -> None:
    async def test() -> None:
        conversations = Conversations(lango, prefix="chat/")
        plain = Conversations(lango)
        talk = conversation("telegram:1", "1", "2")
        stored = await conversations.save(talk, scope="ann")
        await plain.save(conversation("other", "x"), scope="ann")
        assert lango.info("chat/telegram:1").user_id == "ann"
        assert await plain.load("telegram:1") is None
        assert [each.conversation_id for each in await conversations.list_conversations(scope="ann")] == ["telegram:1"]
        assert len(await plain.list_conversations(scope="ann")) == 2
        forked = await conversations.fork("telegram:1", new_conversation_id="f")
        record = await conversations.read_record("f")
        assert record is not None
        assert (record.forked_from, lango.info("chat/f").forked_from) == ("telegram:1", "chat/telegram:1")
        assert await conversations.load("f") == forked
        assert await conversations.read_entry(str(stored[0].id)) == stored[0]
        with pytest.raises(InvalidKey, match="513 characters"):
            await conversations.save(conversation("x" * 508, "1"))
        for each in (conversations, plain):
            await each.close()

    run(test)


def test_what_it_made_it_closes_and_what_it_was_given_it_leaves_open(url: str) -> None:
    async def test() -> None:
        async with Conversations(url, default_ttl=timedelta(hours=1)) as made:
            await made.save(conversation("c", "1"))
            assert made.store.info("c").expires_at is not None
        with pytest.raises(LangoStoreError, match="closed"):
            await made.load("c")
        async with AsyncStore(url) as store:
            async with Conversations(store) as given:
                assert await texts_of(given, "c") == ["1"]
            assert await store.count() == 1

    run(test)


def test_one_store_serves_several_event_loops(conversations: Conversations) -> None:
    talk = conversation("c", "1")
    for number in range(3):
        talk.messages.append(said(f"{number}"))
        asyncio.run(conversations.save(talk))
    assert len(lines_of(conversations)) == 4


def lines_of(conversations: Conversations) -> list[Any]:
    return asyncio.run(texts_of(conversations, "c"))


def test_a_title_or_a_ttl_set_meanwhile_is_no_conflict_but_a_message_is(
    conversations: Conversations, lango: Store
) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1"))
        loaded = await conversations.load("c")
        assert loaded is not None
        lango.update("c", title="Greetings")
        lango.touch("c", ttl=timedelta(days=1))
        loaded.messages.append(said("2"))
        await conversations.save(loaded)
        lango.append_message("c", Message.user("from elsewhere"))
        loaded.messages.append(asked("3"))
        with pytest.raises(ConversationConflict):
            await conversations.save(loaded)
        again = await conversations.load("c")
        assert again is not None
        assert texts(again.messages) == ["1", "2", "from elsewhere"]
        again.messages.append(said("4"))
        await conversations.save(again)
        assert await texts_of(conversations, "c") == ["1", "2", "from elsewhere", "4"]
        assert lango.info("c").title == "Greetings"

    run(test)


def test_a_session_that_something_else_wrote_reads_as_a_conversation(
    conversations: Conversations, lango: Store
) -> None:
    async def test() -> None:
        lango.create("c", user_id="ann", messages=[Message.system("Be brief."), Message.user("Oslo?", id="m-2")])
        lango.append_messages(
            "c",
            [
                Message.assistant(tool_calls=[ToolCall(id="1", name="get_weather", arguments={"city": "Oslo"})]),
                Message.tool(tool_call_id="1", name="get_weather", content="-3"),
                Message.tool(tool_calls=[ToolCall(id="2", name="get_time", output={"hour": 3})]),
                Message.assistant([{"type": "text", "text": "Cold."}], tokens=4),
                Message(role=MessageRole.RECORD, content={"seen": True}),
            ],
        )
        loaded = await conversations.load("c", scope="ann")
        assert loaded is not None
        kinds = [[part.part_kind for part in message.parts] for message in loaded.messages]
        assert kinds == [["system-prompt"], ["user-prompt"], ["tool-call"], ["tool-return"], ["tool-return"], ["text"]]
        assert texts(loaded.messages) == ["Be brief.", "Oslo?", "-3", {"hour": 3}, "Cold."]
        entries = await conversations.load_entries("c")
        assert entries is not None
        assert entries[1].id == "m-2"
        for entry in entries:
            assert await conversations.read_entry(str(entry.id)) == entry
        loaded.messages += exchange("And now?", "Still.")
        await conversations.save(loaded)
        assert await conversations.load("c") == loaded
        forked = await conversations.fork("c", at=3)
        assert await conversations.load(forked.conversation_id) == forked
        branched = await conversations.branch("c", at=4, expected_revision=loaded.revision)
        assert await conversations.load("c") == branched

    run(test)


def test_a_summary_stands_in_the_place_of_what_it_speaks_of(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2", "3", "4")
        await conversations.save(talk)
        branched = await conversations.branch("c", at=3, expected_revision=talk.revision)
        assert branched.revision is not None
        lango.conversation("c").compact(lambda window: [Message.user(f"{len(window)} messages")])
        loaded = await conversations.load("c")
        assert loaded is not None
        assert texts(loaded.messages) == ["3 messages"]
        loaded.messages += [said("5"), asked("6")]
        await conversations.save(loaded)
        assert await texts_of(conversations, "c") == ["3 messages", "5", "6"]
        assert await texts_of(conversations, "c", limit=2) == ["5", "6"]
        back = await conversations.branch("c", at=2, expected_revision=loaded.revision)
        assert await conversations.load("c") == back
        record = await conversations.read_record("c")
        assert record is not None
        left = await conversations.read_history(record.branches[0])
        assert texts([entry.message for entry in left]) == ["1", "2", "3", "4"]
        assert await conversations.read_history(left[1].id) == left[:2]
        before = lango.get("c")
        with pytest.raises(LangoStoreError, match="left before a summary"):
            await conversations.branch("c", from_entry=record.branches[0], expected_revision=back.revision)
        summed_up = replace(record, head_id=left[1].id, revision="r")
        with pytest.raises(LangoStoreError, match="left before a summary"):
            await conversations.write_record(summed_up, expected_revision=record.revision)
        assert lango.get("c") == before
        forked = await conversations.fork("c", from_entry=record.branches[0])
        assert texts(forked.messages) == ["1", "2", "3", "4"]
        assert await conversations.load(forked.conversation_id) == forked
        assert faults(lango) == []

    run(test)


def test_what_is_redacted_or_deleted_by_hand_is_missing_and_nothing_else(
    conversations: Conversations, lango: Store
) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2", "3", "4")
        await conversations.save(talk)
        branched = await conversations.branch("c", at=2, expected_revision=talk.revision)
        branched.messages += exchange("secret", "ok", "fine")
        stored = await conversations.save(branched)
        lango.redact_message("c", str(stored[0].id), reason="a password")
        lango.delete_message("c", str(stored[1].id))
        loaded = await conversations.load("c")
        assert loaded is not None
        assert texts(loaded.messages) == ["1", "2", "fine"]
        assert loaded.messages[2].parts == []
        again = await conversations.branch("c", at=1, expected_revision=loaded.revision)
        record = await conversations.read_record("c")
        assert record is not None
        assert [entry.message for entry in await conversations.read_history(record.branches[-1])] == loaded.messages
        back = await conversations.branch("c", from_entry=record.branches[-1], expected_revision=again.revision)
        assert back.messages == loaded.messages
        assert faults(lango) == []

    run(test)


def test_a_tool_whose_answer_was_redacted_answers_nothing(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        result = await weather_agent().run("Oslo?", conversation=Conversation(conversation_id="c"))
        stored = await conversations.save(result)
        lango.redact_message("c", str(stored[2].id))
        loaded = await conversations.load("c")
        assert loaded is not None
        assert loaded.messages[2].parts == []
        assert loaded.messages[3] == result.all_messages()[3]

    run(test)


def test_a_fork_of_the_session_is_a_conversation_too(conversations: Conversations, lango: Store) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2", "3")
        talk.usage = RunUsage(requests=2)
        stored = await conversations.save(talk)
        branched = await conversations.branch("c", at=1, expected_revision=talk.revision)
        branched.messages += exchange("zwei")
        await conversations.save(branched)
        lango.conversation("c").fork("whole")
        lango.conversation("c").fork("part", upto=3)
        for id, expected in (("whole", ["1", "zwei"]), ("part", ["1"])):
            loaded = await conversations.load(id)
            assert loaded is not None
            assert texts(loaded.messages) == expected
            record = await conversations.read_record(id)
            assert record is not None
            assert (record.forked_from, record.forked_at) == ("c", None)
            assert record.branches == [stored[-1].id]
            loaded.messages += exchange("on")
            await conversations.save(loaded)
            assert await texts_of(conversations, id) == [*expected, "on"]
            assert await conversations.read_history(record.branches[0]) == stored
        assert await texts_of(conversations, "c") == ["1", "zwei"]
        await conversations.fork("c", new_conversation_id="theirs")
        lango.conversation("theirs").fork("ours")
        record = await conversations.read_record("ours")
        assert record is not None
        assert (record.forked_from, record.forked_at) == ("theirs", None)

    run(test)


def test_records_and_entries_may_be_copied_and_pickled(conversations: Conversations) -> None:
    async def test() -> None:
        await conversations.save(conversation("c", "1", "2"), scope="ann")
        record = await conversations.read_record("c")
        entries = await conversations.load_entries("c")
        for again in (copy.deepcopy((record, entries)), pickle.loads(pickle.dumps((record, entries)))):
            assert again == (record, entries)
            assert again[0] is not None
            assert await conversations.read_history(again[0].head_id) == entries

    run(test)


def test_in_a_callers_transaction_a_save_is_the_callers_to_commit(url: str) -> None:
    async def test() -> None:
        with Store(url) as store:
            for commits in (False, True):
                with store.engine.connect() as connection:
                    conversations = Conversations(store.using(connection))
                    await conversations.save(conversation("c", "1", "2"))
                    loaded = await conversations.load("c")
                    assert loaded is not None
                    loaded.messages += exchange("3")
                    await conversations.save(loaded)
                    with pytest.raises(ConversationConflict):
                        await conversations.save(conversation("c", "other"))
                    assert await texts_of(conversations, "c") == ["1", "2", "3"]
                    await conversations.close()
                    if commits:
                        connection.commit()
                assert store.exists("c") is commits

    run(test)


@pytest.mark.parametrize("before", [True, False], ids=["before it is written", "after it is written"])
def test_a_cancelled_save_is_written_whole_or_not_at_all(url: str, before: bool) -> None:
    async def test() -> None:
        async with Conversations(url) as conversations:
            for number in range(5):
                talk = conversation(f"c{number}", *map(str, range(50)))
                saving = asyncio.ensure_future(conversations.save(talk))
                while not before and not conversations.store.exists(talk.conversation_id):
                    await asyncio.sleep(0)
                for _ in range(number):
                    await asyncio.sleep(0)
                saving.cancel()
                await asyncio.wait([saving])
                loaded = await conversations.load(talk.conversation_id)
                assert loaded is None or len(loaded.messages) == 50
                if not before:
                    assert loaded is not None

    run(test)


def test_a_history_is_that_of_the_record_that_was_read_whatever_was_written_since(conversations: Conversations) -> None:
    async def test() -> None:
        talk = conversation("c", "1", "2", "3")
        stored = await conversations.save(talk)
        record = await conversations.read_record("c")
        assert record is not None
        loaded = await conversations.load("c")
        assert loaded is not None
        loaded.messages += exchange("4")
        await conversations.save(loaded)
        assert await conversations.read_history(record.head_id) == stored
        assert await conversations.read_history(record.head_id, limit=2) == stored[1:]
        await conversations.branch("c", at=1, expected_revision=loaded.revision)
        assert await conversations.read_history(record.head_id) == stored
        assert await conversations.read_history(record.head_id, limit=2) == stored[1:]
        await conversations.delete("c")
        await conversations.save(conversation("c", "a", "b", "c"))
        for limit in (None, 2):
            with pytest.raises(LookupError):
                await conversations.read_history(record.head_id, limit=limit)

    run(test)
