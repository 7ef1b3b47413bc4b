"""A conversation is a session: it expires, has a key, and other writers write to it."""

from __future__ import annotations

import asyncio
import copy
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from frameworks.pydantic_ai.talking import (
    Conversations,
    asked,
    conversation,
    exchange,
    faults,
    run,
    said,
    texts,
    texts_of,
    weather_agent,
)
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.exceptions import UserError
from pydantic_ai.usage import RunUsage
from support.databases import MakeDatabase

from lango_store import AsyncStore, InvalidKey, LangoStoreError, Message, MessageRole, Store, ToolCall


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
        assert (record.forked_from, lango.info("chat/f").message_count) == ("telegram:1", 2)
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
        lango.conversation("c").redact_message(str(stored[0].id), reason="a password")
        lango.conversation("c").delete_message(str(stored[1].id))
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
        lango.conversation("c").redact_message(str(stored[2].id))
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


def test_a_title_set_while_a_save_reads_is_no_conflict(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    other = Store(url)
    titles: list[str] = []
    saving = False

    def set_title(statement: str, _: float) -> None:
        if saving and not titles and "lango_value" in statement:  # the session is read, and not locked yet
            titles.append("Greetings")
            other.update("c", title=titles[0])

    async def test() -> None:
        nonlocal saving
        with other, Store(url, on_statement=set_title) as store:
            conversations = Conversations(store)
            await conversations.save(conversation("a", "1", "2"))
            await conversations.save(conversation("c", "other"))
            source, record = await conversations.load_entries("a"), await conversations.read_record("c")
            assert source is not None
            assert record is not None
            saving = True  # of a history that is copied from another conversation
            moved = replace(record, head_id=source[1].id, revision="r2")
            await conversations.write_record(moved, expected_revision=record.revision)
            assert await texts_of(conversations, "c") == ["1", "2"]
            assert (titles, store.info("c").title) == (["Greetings"], "Greetings")
            await conversations.close()

    run(test)
