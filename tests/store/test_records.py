"""Records: entries of the log that are not messages and that no model sees."""

from typing import Any

import pytest
from support.factories import contents, message, messages, seqs
from support.recorded import LOG, SAID, noted, record
from support.session_checks import assert_sound
from support.turns import messages_of

from lango_store import InvalidCut, Message, MessageRole, Store


@pytest.fixture
def opened(url: str) -> Any:
    with Store(url) as store:
        yield store


# Reading: records are in the log but not in the window


def test_record_is_in_the_log_but_not_in_the_window(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.all_messages()) == contents(conversation.iter_messages(page_size=2)) == LOG
    assert contents(conversation.all_messages(last=2)) == ["hi", "attachment"]
    stored = conversation.find_message("r")
    assert stored is not None
    assert (stored.role, stored.seq) == (MessageRole.RECORD, 5)

    assert contents(conversation.get().messages) == contents(conversation.messages()) == SAID
    assert contents(conversation.messages(last=1)) == ["hi"]
    assert contents(conversation.messages(last=9)) == SAID
    assert conversation.history(last=2) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]
    (turn,) = conversation.turns.list()
    assert contents(messages_of(conversation, turn)) == ["hello", "cost", "hi"]


def test_reads_with_records_true_return_messages_and_records_in_order(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.get(records=True).messages) == contents(conversation.messages(records=True)) == LOG
    assert contents(store.conversation("k").messages(last=2, records=True)) == LOG[-2:]
    only_records = store.open("records", messages=[record(), record()])
    assert seqs(only_records.messages(records=True)) == seqs(store.get("records", records=True).messages) == [1, 2]


def test_reads_with_records_true_return_records_after_a_summary(store: Store) -> None:
    conversation = noted(store)
    pending = conversation.turns.begin_compaction(records=True)
    assert pending is not None
    assert contents(pending.window) == LOG
    conversation.append_message(record("later"))
    compaction = pending.finish(Message.system("summary"))
    assert compaction.replaced_messages == len(SAID)
    for window in (
        conversation.messages(records=True),
        conversation.messages(last=2, records=True),
        store.get("k", records=True).messages,
    ):
        assert contents(window) == ["summary", "later"]
    assert contents(conversation.messages(last=1, records=True)) == ["later"]


@pytest.mark.slow
def test_session_with_only_records_can_be_compacted_with_records_true(store: Store) -> None:
    conversation = store.open("k", messages=[record(), record()])
    assert conversation.turns.begin_compaction() is None
    pending = conversation.turns.begin_compaction(records=True)
    assert pending is not None
    pending.finish(record("summary"))
    assert contents(conversation.messages(records=True)) == ["summary"]
    assert_sound(store)


@pytest.mark.slow
def test_session_with_only_records_has_an_empty_window(store: Store) -> None:
    conversation = store.open("k", messages=[record(), record()])
    assert conversation.messages() == conversation.get().messages == conversation.messages(last=3) == []
    assert conversation.history() == []
    assert conversation.compact(lambda shown: pytest.fail("nothing to sum up")) is None
    assert seqs(conversation.all_messages()) == [1, 2]
    assert_sound(store)


def test_record_is_not_in_a_window_emptied_by_compaction(store: Store) -> None:
    store.create("a longer one", messages=messages(9))
    conversation = store.open("k", messages=[message(), record()])
    conversation.compact(lambda _: [])
    conversation.append_message(record())
    assert conversation.messages() == conversation.get().messages == []
    assert conversation.history() == []


def test_create_with_records_returns_the_session_that_get_returns(store: Store) -> None:
    created = store.create("k", messages=[record(tokens=7), message(tokens=2), record()])
    assert created == store.get("k")
    assert (created.message_count, created.record_count, created.last_seq, created.token_count) == (1, 2, 3, 2)
    assert store.create("of records", messages=[record()]) == store.get("of records")


@pytest.mark.slow
def test_records_and_messages_are_counted_separately(store: Store) -> None:
    conversation = noted(store)
    conversation.append_messages([record(tokens=100), message(tokens=5)])
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_seq, info.token_count) == (3, 4, 7, 5)
    stats = store.stats()
    assert (stats.messages, stats.tokens, stats.records) == (3, 5, 4)
    assert_sound(store)


def test_token_counter_does_not_count_records(url: str) -> None:
    with Store(url, token_counter=lambda each: len(each.content)) as store:
        store.create("k", messages=[record({"no": "text"}), message("four")])
        assert store.conversation("k").info().token_count == 4
        assert store.conversation("k").all_messages()[0].tokens is None


def test_append_of_a_record_whose_id_is_stored_is_replayed(store: Store) -> None:
    conversation = noted(store)
    again, new = conversation.append_messages([record("attachment", id="r"), record("another")])
    assert (again.seq, again.replayed, new.seq, new.replayed) == (5, True, 6, False)
    assert conversation.info().record_count == 4
    created = store.append_message("new", record(id="r"), create=True)
    assert (
        created.seq,
        store.conversation("new").info().record_count,
        store.conversation("new").info().message_count,
    ) == (1, 1, 0)
    assert_sound(store)


def test_finish_compaction_succeeds_if_records_were_appended_meanwhile(opened: Store) -> None:
    conversation = noted(opened)
    pending = conversation.turns.begin_compaction()
    assert pending is not None
    conversation.append_messages([record(), message("meanwhile"), record()])
    compaction = pending.finish(message("summary"))
    assert compaction.replaced_messages == 2
    assert contents(conversation.messages()) == ["summary", "meanwhile"]


# Pops, cuts and edits


def test_pop_message_skips_records(store: Store) -> None:
    conversation = noted(store)
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.content == "hi"
    assert contents(conversation.all_messages()) == ["mode", "hello", "cost", "attachment"]
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns.list()] == [(2, 3)]
    popped = store.conversation("k").pop_message()
    assert popped is not None
    assert popped.content == "hello"
    (turn,) = conversation.turns.list()
    assert contents(messages_of(conversation, turn)) == ["cost"]
    assert (conversation.pop_message(), conversation.total_usage()) == (None, {"tokens": 3})
    assert_sound(store)


def test_pop_message_removes_a_summary_that_is_the_whole_window(store: Store) -> None:
    store.create("other", messages=messages(9))
    conversation = store.open("k", messages=messages(2))
    conversation.compact(lambda _: [message("summary")])
    conversation.append_message(record())
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.content == "summary"
    assert_sound(store)


def test_pop_message_with_records_true_removes_the_last_entry_of_the_log(store: Store) -> None:
    conversation = noted(store)
    popped = [conversation.pop_message(records=True) for _ in range(6)]
    assert contents(each for each in popped if each is not None) == LOG[::-1]
    assert popped[-1] is None
    assert conversation.turns.list() == []
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_seq) == (0, 0, 10)
    assert_sound(store)


@pytest.mark.slow
def test_cut_removes_records_and_returns_the_number_of_removed_messages(store: Store) -> None:
    conversation = noted(store)
    assert conversation.truncate(after=4) == 0
    assert contents(conversation.all_messages()) == LOG[:4]
    assert conversation.truncate(after=1) == 2
    assert contents(conversation.all_messages()) == LOG[:1]
    conversation.append_messages([message("stays", role="system"), message("goes"), record()])
    assert conversation.clear(keep_system=True) == 1
    assert contents(conversation.all_messages()) == ["stays"]
    assert conversation.info().record_count == 0
    assert_sound(store)


@pytest.mark.slow
def test_record_is_updated_redacted_and_deleted_like_a_message(store: Store) -> None:
    conversation = noted(store)
    window_before = conversation.messages()
    assert conversation.edits.update("r", record("smaller", tokens=9)).content == "smaller"
    redacted = conversation.edits.redact(3)
    assert (redacted.role, redacted.content, redacted.turn_no) == (MessageRole.RECORD, None, 1)
    conversation.edits.delete("r")
    assert conversation.messages() == window_before
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count) == (2, 2, 0)
    assert_sound(store)


def test_message_updated_to_a_record_is_not_in_the_window_or_the_counters(store: Store) -> None:
    conversation = store.open("k", messages=[message(n, tokens=n) for n in (1, 2, 3)])
    conversation.update(last_consolidated=2)
    conversation.edits.update(1, record(1, tokens=1))
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.last_consolidated) == (2, 1, 5, 1)
    assert contents(conversation.messages()) == [2, 3]
    assert len(conversation.history(from_consolidated=True)) == 1
    conversation.edits.update(1, message("one", tokens=4))
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.last_consolidated) == (3, 0, 9, 2)
    conversation.edits.update(3, record())
    assert (conversation.info().last_consolidated, conversation.history(from_consolidated=True)) == (2, [])
    assert_sound(store)


def test_last_consolidated_is_unchanged_after_a_record_is_updated_to_a_message(store: Store) -> None:
    conversation = store.open("k", messages=[message(1), record(2), message(3)])
    conversation.update(last_consolidated=1)
    conversation.edits.update(2, message("two"))
    assert conversation.info().last_consolidated == 1
    assert len(conversation.history(from_consolidated=True)) == 2
    conversation.edits.delete(2)
    assert conversation.info().last_consolidated == 1


def test_delete_message_adjusts_last_consolidated_in_a_session_with_records(store: Store) -> None:
    store.create("k", messages=[*messages(3), record(), record()])
    store.conversation("k").update(last_consolidated=1)
    store.conversation("k").edits.delete(2)
    assert store.conversation("k").info().last_consolidated == 1
    store.conversation("k").edits.delete(1)
    assert store.conversation("k").info().last_consolidated == 0


# Compactions and forks


def test_compaction_replaces_messages_and_keeps_records_in_the_log(store: Store) -> None:
    conversation = noted(store)
    compaction = conversation.compact(lambda shown: [message(f"{contents(shown)}"), record("of the summary")])
    assert compaction is not None
    assert compaction.replaced_messages == 2
    assert contents(conversation.messages()) == [f"{SAID}"]
    assert contents(conversation.all_messages()) == [*LOG, f"{SAID}", "of the summary"]
    assert contents(conversation.messages(last=1)) == [f"{SAID}"]
    assert_sound(store)


def test_discarding_compaction_keeps_records(store: Store) -> None:
    conversation = noted(store)
    conversation.update(last_consolidated=2)
    conversation.compact(lambda shown: message("summary"), discard=True)
    assert [(each.content, each.turn_no) for each in conversation.all_messages()] == [
        ("mode", None),
        ("cost", None),
        ("attachment", None),
        ("summary", 2),
    ]
    assert contents(conversation.messages()) == ["summary"]
    assert conversation.total_usage() == {"tokens": 3}
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_consolidated) == (1, 3, 0)
    with pytest.raises(InvalidCut):
        conversation.truncate(after=1)
    assert_sound(store)


def test_discarding_compaction_sets_turn_no_of_records_to_none(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("said"), message("cost", role=MessageRole.RECORD)])
    conversation.compact(lambda shown: message("summary"), discard=True)
    assert [(each.content, each.turn_no) for each in conversation.all_messages()] == [("cost", None), ("summary", 2)]
    assert_sound(store)


def test_fork_copies_records(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.fork("whole").all_messages()) == LOG
    part = conversation.fork("part", upto=3)
    assert contents(part.all_messages()) == LOG[:3]
    info = part.info()
    assert (info.message_count, info.record_count) == (1, 2)
    before = conversation.fork("before", upto=1)
    assert (contents(before.all_messages()), before.messages()) == (["mode"], [])
    assert_sound(store)


# Examination


def test_examine_repairs_a_wrong_record_count(opened: Store) -> None:
    noted(opened)
    with opened.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET record_count = 1, message_count = 4")
    (finding,) = [each for each in opened.maintenance.examine(repair=True) if each.name == "wrong counters"]
    assert "record_count is 1, its rows say 3" in finding.detail
    info = opened.conversation("k").info()
    assert (info.message_count, info.record_count) == (2, 3)
    assert_sound(opened)
