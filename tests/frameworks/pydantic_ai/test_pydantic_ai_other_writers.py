"""Conversations as sessions: expiry, keys, and other writers."""

import copy
import pickle
from dataclasses import replace
from datetime import timedelta

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    asked,
    conversation,
    exchange,
    faults,
    load,
    read_record,
    said,
    texts,
    texts_of,
    weather_agent,
)
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.usage import RunUsage
from support.databases import MakeDatabase

from lango_store import InvalidKey, InvalidState, Message, MessageRole, Store, ToolCall
from lango_store.testing import Clock

pytestmark = pytest.mark.anyio


async def test_entries_of_an_expired_conversation_are_readable_only_in_forks(url: str, clock: Clock) -> None:
    with Store(url, default_ttl=timedelta(hours=1), clock=clock) as store:
        conversations = Conversations(store)
        talk = conversation("c", "1")
        [entry] = await conversations.save(talk)
        for id in ("a", "z"):
            await conversations.fork("c", new_conversation_id=id)
        store.touch("z", ttl=None)
        clock.move(hours=2)
        assert await conversations.read_entry(str(entry.id)) == entry
        assert [each.conversation_id for each in await conversations.list_conversations()] == ["z"]
        with pytest.raises(ConversationConflict):
            await conversations.save(talk)
        await conversations.delete("c")
        await conversations.delete("z")
        for read in (conversations.read_entry(str(entry.id)), conversations.read_history(entry.id)):
            with pytest.raises(LookupError):
                await read


async def test_conversation_key_is_prefix_and_id(store: Store) -> None:
    conversations = Conversations(store, prefix="chat/")
    plain = Conversations(store)
    talk = conversation("telegram:1", "1", "2")
    stored = await conversations.save(talk, scope="ann")
    await plain.save(conversation("chat/other%", "x"), scope="ann")
    assert store.exists("chat%2Fother%25")
    assert store.conversation("chat/telegram:1").info().user_id == "ann"
    assert await plain.load("telegram:1") is None
    assert [each.conversation_id for each in await conversations.list_conversations(scope="ann")] == ["telegram:1"]
    assert [each.conversation_id for each in await plain.list_conversations(scope="ann")] == ["chat/other%"]
    forked = await conversations.fork("telegram:1", new_conversation_id="f")
    record = await read_record(conversations, "f")
    assert (record.forked_from, store.conversation("chat/f").info().message_count) == ("telegram:1", 2)
    assert await conversations.load("f") == forked
    assert await conversations.read_entry(str(stored[0].id)) == stored[0]
    with pytest.raises(InvalidKey, match="513 characters"):
        await conversations.save(conversation("x" * 508, "1"))
    for each in (conversations, plain):
        await each.close()


async def test_save_conflicts_with_a_concurrent_message_but_not_with_title_or_ttl(
    conversations: Conversations, store: Store
) -> None:
    await conversations.save(conversation("c", "1"))
    loaded = await load(conversations, "c")
    store.conversation("c").update(title="Greetings")
    store.touch("c", ttl=timedelta(days=1))
    loaded.messages.append(said("2"))
    await conversations.save(loaded)
    store.append_message("c", Message.user("from elsewhere"))
    loaded.messages.append(asked("3"))
    with pytest.raises(ConversationConflict):
        await conversations.save(loaded)
    again = await load(conversations, "c")
    assert texts(again.messages) == ["1", "2", "from elsewhere"]
    again.messages.append(said("4"))
    await conversations.save(again)
    assert await texts_of(conversations, "c") == ["1", "2", "from elsewhere", "4"]
    assert store.conversation("c").info().title == "Greetings"


async def test_session_of_another_program_is_loaded_as_a_conversation(
    conversations: Conversations, store: Store
) -> None:
    store.create("c", user_id="ann", messages=[Message.system("Be brief."), Message.user("Oslo?", id="m-2")])
    store.conversation("c").append_messages(
        [
            Message.assistant(tool_calls=[ToolCall(id="1", name="get_weather", arguments={"city": "Oslo"})]),
            Message.tool(tool_call_id="1", name="get_weather", content="-3"),
            Message.tool(tool_calls=[ToolCall(id="2", name="get_time", output={"hour": 3})]),
            Message.assistant([{"type": "text", "text": "Cold."}], tokens=4),
            Message(role=MessageRole.RECORD, content={"seen": True}),
        ],
    )
    loaded = await load(conversations, "c", scope="ann")
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


async def test_summary_replaces_the_messages_it_covers(conversations: Conversations, store: Store) -> None:
    talk = conversation("c", "1", "2", "3", "4")
    await conversations.save(talk)
    branched = await conversations.branch("c", at=3, expected_revision=talk.revision)
    assert branched.revision is not None
    store.conversation("c").compact(lambda window: [Message.user(f"{len(window)} messages")])
    loaded = await load(conversations, "c")
    assert texts(loaded.messages) == ["3 messages"]
    loaded.messages += [said("5"), asked("6")]
    await conversations.save(loaded)
    assert await texts_of(conversations, "c") == ["3 messages", "5", "6"]
    assert await texts_of(conversations, "c", limit=2) == ["5", "6"]
    back = await conversations.branch("c", at=2, expected_revision=loaded.revision)
    assert await conversations.load("c") == back
    record = await read_record(conversations, "c")
    left = await conversations.read_history(record.branches[0])
    assert texts([entry.message for entry in left]) == ["1", "2", "3", "4"]
    assert await conversations.read_history(left[1].id) == left[:2]
    before = store.get("c")
    with pytest.raises(InvalidState, match="abandoned before a summary"):
        await conversations.branch("c", from_entry=record.branches[0], expected_revision=back.revision)
    summed_up = replace(record, head_id=left[1].id, revision="r")
    with pytest.raises(InvalidState, match="abandoned before a summary"):
        await conversations.write_record(summed_up, expected_revision=record.revision)
    assert store.get("c") == before
    forked = await conversations.fork("c", from_entry=record.branches[0])
    assert texts(forked.messages) == ["1", "2", "3", "4"]
    assert await conversations.load(forked.conversation_id) == forked
    assert faults(store) == []


async def test_conversation_is_loaded_without_redacted_texts_and_deleted_messages(
    conversations: Conversations, store: Store
) -> None:
    talk = conversation("c", "1", "2", "3", "4")
    await conversations.save(talk)
    branched = await conversations.branch("c", at=2, expected_revision=talk.revision)
    branched.messages += exchange("secret", "ok", "fine")
    stored = await conversations.save(branched)
    store.conversation("c").edits.redact(str(stored[0].id), reason="a password")
    store.conversation("c").edits.delete(str(stored[1].id))
    loaded = await load(conversations, "c")
    assert texts(loaded.messages) == ["1", "2", "(redacted)", "fine"]
    again = await conversations.branch("c", at=1, expected_revision=loaded.revision)
    record = await read_record(conversations, "c")
    assert [entry.message for entry in await conversations.read_history(record.branches[-1])] == loaded.messages
    back = await conversations.branch("c", from_entry=record.branches[-1], expected_revision=again.revision)
    assert back.messages == loaded.messages
    assert faults(store) == []


async def test_redacted_tool_result_has_placeholder_content(conversations: Conversations, store: Store) -> None:
    result = await weather_agent().run("Oslo?", conversation=Conversation(conversation_id="c"))
    stored = await conversations.save(result)
    store.conversation("c").edits.redact(str(stored[2].id))
    loaded = await load(conversations, "c")
    assert texts(loaded.messages[2:3]) == ["(redacted)"]
    assert loaded.messages[3] == result.all_messages()[3]


async def test_fork_made_by_store_is_a_conversation(conversations: Conversations, store: Store) -> None:
    talk = conversation("c", "1", "2", "3")
    talk.usage = RunUsage(requests=2)
    stored = await conversations.save(talk)
    branched = await conversations.branch("c", at=1, expected_revision=talk.revision)
    branched.messages += exchange("zwei")
    await conversations.save(branched)
    store.conversation("c").fork("whole")
    store.conversation("c").fork("part", upto=3)
    for id, expected in (("whole", ["1", "zwei"]), ("part", ["1"])):
        loaded = await load(conversations, id)
        assert texts(loaded.messages) == expected
        record = await read_record(conversations, id)
        assert (record.forked_from, record.forked_at) == ("c", None)
        assert record.branches == [stored[-1].id]
        loaded.messages += exchange("on")
        await conversations.save(loaded)
        assert await texts_of(conversations, id) == [*expected, "on"]
        assert await conversations.read_history(record.branches[0]) == stored
    assert await texts_of(conversations, "c") == ["1", "zwei"]
    await conversations.fork("c", new_conversation_id="theirs")
    store.conversation("theirs").fork("ours")
    record = await read_record(conversations, "ours")
    assert (record.forked_from, record.forked_at) == ("theirs", None)


async def test_conversation_records_and_entries_can_be_copied_and_pickled(conversations: Conversations) -> None:
    await conversations.save(conversation("c", "1", "2"), scope="ann")
    record = await conversations.read_record("c")
    entries = await conversations.load_entries("c")
    for again in (copy.deepcopy((record, entries)), pickle.loads(pickle.dumps((record, entries)))):
        assert again == (record, entries)
        assert again[0] is not None
        assert await conversations.read_history(again[0].head_id) == entries


async def test_save_in_callers_transaction_is_committed_by_caller(store: Store) -> None:
    for commits in (False, True):
        with store.engine.connect() as connection:
            conversations = Conversations(store.using(connection))
            await conversations.save(conversation("c", "1", "2"))
            loaded = await load(conversations, "c")
            loaded.messages += exchange("3")
            await conversations.save(loaded)
            with pytest.raises(ConversationConflict):
                await conversations.save(conversation("c", "other"))
            assert await texts_of(conversations, "c") == ["1", "2", "3"]
            await conversations.close()
            if commits:
                connection.commit()
        assert store.exists("c") is commits


async def test_history_read_by_entry_id_is_unchanged_by_later_writes_of_the_conversation(
    conversations: Conversations,
) -> None:
    talk = conversation("c", "1", "2", "3")
    stored = await conversations.save(talk)
    record = await read_record(conversations, "c")
    loaded = await load(conversations, "c")
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


async def test_title_set_during_a_save_is_kept(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    other = Store(url)
    titles: list[str] = []

    def set_title(statement: str, _: float) -> None:
        if titles == ["Greetings"] and "lango_value" in statement:  # the session is read, and not locked yet
            titles.append("set")
            other.conversation("c").update(title="Greetings")

    with other, Store(url, on_statement=set_title) as store:
        conversations = Conversations(store)
        await conversations.save(conversation("a", "1", "2"))
        await conversations.save(conversation("c", "other"))
        source, record = await conversations.load_entries("a"), await read_record(conversations, "c")
        assert source is not None
        titles.append("Greetings")  # from here on: a history is copied from another conversation
        moved = replace(record, head_id=source[1].id, revision="r2")
        await conversations.write_record(moved, expected_revision=record.revision)
        assert await texts_of(conversations, "c") == ["1", "2"]
        assert (titles, store.conversation("c").info().title) == (["Greetings", "set"], "Greetings")
