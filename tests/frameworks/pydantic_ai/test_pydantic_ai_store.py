"""What the docstrings of `ConversationStore` say of loading and saving, sentence by sentence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    asked,
    conversation,
    exchange,
    run,
    said,
    texts,
    texts_of,
    weather_agent,
)
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from lango_store import Store

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
