"""The contract of `ConversationStore`: loads, saves and conflicts."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    asked,
    conversation,
    exchange,
    read_record,
    said,
    texts_of,
)
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from lango_store import InvalidMessage, Store

pytestmark = pytest.mark.anyio

# Load


async def test_loaded_conversation_equals_saved_one(conversations: Conversations) -> None:
    waiting = DeferredToolRequests(approvals=[ToolCallPart("pay", {"sum": 3}, "call-1")], metadata={"call-1": {"a": 1}})
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


async def test_read_entry_of_unknown_id_raises_lookup_error(conversations: Conversations) -> None:
    await conversations.save(conversation("c", "1"))
    for id in ("nobody", "c#1", "c#7", "", "\0", "x#\u0663"):
        with pytest.raises(LookupError):
            await conversations.read_entry(id)


# Save


async def test_save_with_a_stale_revision_is_a_conflict_and_writes_nothing(
    conversations: Conversations, store: Store
) -> None:
    await conversations.save(conversation("c", "1"))
    one, other = await conversations.load("c"), await conversations.load("c")
    assert one is not None
    assert other is not None
    one.messages.append(said("one"))
    other.messages.append(said("other"))
    await conversations.save(one)
    before = store.get("c"), store.conversation("c").values.get()
    with pytest.raises(ConversationConflict) as conflict:
        await conversations.save(other)
    assert conflict.value.conversation_id == "c"
    record = await read_record(conversations, "c")
    stale = replace(record, head_id="x", revision="new")
    entry = ConversationEntry(id="x", parent_id=record.head_id, message=said("other"))
    with pytest.raises(ConversationConflict):
        await conversations.write_record(stale, new_entries=[entry], expected_revision="old")
    assert (store.get("c"), store.conversation("c").values.get()) == before


async def test_taken_conversation_id_is_a_conflict_and_writes_nothing(
    conversations: Conversations, store: Store
) -> None:
    for id in ("c", "d"):
        await conversations.save(conversation(id, *["1"] * (id == "d")))
    for id in ("c", "d"):
        before = store.get(id), store.conversation(id).values.get()
        with pytest.raises(ConversationConflict):
            await conversations.save(conversation(id, "another"))
        with pytest.raises(ConversationConflict):
            await conversations.fork("d", new_conversation_id=id)
        assert (store.get(id), store.conversation(id).values.get()) == before


async def test_taken_entry_id_is_a_conflict_and_writes_nothing(conversations: Conversations, store: Store) -> None:
    stored = await conversations.save(conversation("c", "1", "2"))
    record = await read_record(conversations, "c")
    before = store.get("c"), store.conversation("c").values.get()
    again = ConversationEntry(id=str(stored[0].id), parent_id=record.head_id, message=asked("3"))
    with pytest.raises(ConversationConflict):
        await conversations.write_record(
            replace(record, head_id=again.id, revision="r"), new_entries=[again], expected_revision=record.revision
        )
    assert (store.get("c"), store.conversation("c").values.get()) == before


async def test_unknown_head_is_a_conflict_and_writes_nothing(conversations: Conversations, store: Store) -> None:
    await conversations.save(conversation("c", "1"))
    record = await read_record(conversations, "c")
    before = store.get("c"), store.conversation("c").values.get()
    entry = ConversationEntry(parent_id="nobody", message=asked("2"))
    for expected, entries, written in (
        (None, [], ConversationRecord(conversation_id="d", head_id="nobody")),
        (None, [entry], ConversationRecord(conversation_id="d", head_id=entry.id)),
        (record.revision, [], replace(record, head_id="nobody", revision="r")),
        (record.revision, [entry], replace(record, head_id=entry.id, revision="r")),
    ):
        with pytest.raises(ConversationConflict):
            await conversations.write_record(written, new_entries=entries, expected_revision=expected)
    assert (store.get("c"), store.conversation("c").values.get()) == before
    assert not store.exists("d")


async def test_one_of_eight_concurrent_saves_succeeds(url: str) -> None:
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


async def saved_at_once(conversations: Conversations, talks: list[Any]) -> int:
    results = await asyncio.gather(*map(conversations.save, talks), return_exceptions=True)
    won = [number for number, result in enumerate(results) if not isinstance(result, Exception)]
    assert [type(result) for result in results if isinstance(result, Exception)] == [ConversationConflict] * 7
    return won[0]


class Opaque:
    """A value that cannot be written as JSON."""


UNREADABLE: dict[str, Any] = {
    "list as arguments": ToolCallPart("w", [1], tool_call_id="x"),  # type: ignore[arg-type]
    "number as arguments": ToolCallPart("w", 1, tool_call_id="x"),  # type: ignore[arg-type]
    "object in arguments": ToolCallPart("w", {"a": Opaque()}, tool_call_id="x"),
    "number as name": ToolCallPart(1, {}, tool_call_id="x"),  # type: ignore[arg-type]
    "None as id": ToolCallPart("w", {}, tool_call_id=None),  # type: ignore[arg-type]
    "number as text": TextPart(1),  # type: ignore[arg-type]
    "not a part": Opaque(),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_message_that_could_not_be_loaded_is_refused_and_nothing_is_written(
    conversations: Conversations, store: Store, name: str
) -> None:
    await conversations.save(conversation("c", "1"))
    loaded = await conversations.load("c")
    assert loaded is not None
    before = store.get("c"), store.conversation("c").values.get()
    loaded.messages += [said("good"), ModelResponse(parts=[UNREADABLE[name]])]
    with pytest.raises(InvalidMessage):
        await conversations.save(loaded)
    assert (store.get("c"), store.conversation("c").values.get()) == before
    with pytest.raises(InvalidMessage):
        await conversations.save(Conversation(conversation_id="new", messages=loaded.messages))
    assert not store.exists("new")
