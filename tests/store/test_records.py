"""Records: what nobody said and no model sees. They lie in the log, and in nothing that a model is shown."""

from typing import Any

import pytest
from support.factories import contents, message, messages, seqs
from support.recorded import LOG, SAID, noted, record
from support.session_checks import assert_sound

from lango_store import InvalidCut, Message, MessageRole, Store


@pytest.fixture
def opened(url: str) -> Any:
    with Store(url) as store:
        yield store


# Where they are, and where not


def test_a_record_is_in_the_log_and_in_no_window(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.all_messages()) == contents(conversation.iter_messages(page_size=2)) == LOG
    assert contents(conversation.all_messages(last=2)) == ["hi", "attachment"]
    found = conversation.find_message("r")
    assert found is not None
    assert (found.role, found.seq) == (MessageRole.RECORD, 5)

    assert contents(conversation.get().messages) == contents(conversation.messages()) == SAID
    assert contents(conversation.messages(last=1)) == ["hi"]
    assert contents(conversation.messages(last=9)) == SAID
    assert conversation.history(last=2) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
    ]
    last = conversation.last_message()
    assert last is not None
    assert last.content == "hi"
    assert conversation.last_message(MessageRole.RECORD) is None
    (turn,) = conversation.turns()
    assert contents(conversation.messages_of(turn)) == ["hello", "cost", "hi"]


def test_get_and_messages_return_records_between_messages_if_asked(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.get(records=True).messages) == contents(conversation.messages(records=True)) == LOG
    assert contents(store.messages("k", last=2, records=True)) == LOG[-2:]
    only_records = store.open("records", messages=[record(), record()])
    assert seqs(only_records.messages(records=True)) == seqs(store.get("records", records=True).messages) == [1, 2]


def test_records_after_a_summary_are_in_the_window_with_records(store: Store) -> None:
    conversation = noted(store)
    pending = conversation.begin_compaction(records=True)
    assert pending is not None
    assert contents(pending.window) == LOG
    conversation.append_message(record("later"))
    compaction = conversation.finish_compaction(pending, Message.system("summary"))
    assert compaction.replaced_messages == len(SAID)
    for window in (
        conversation.messages(records=True),
        conversation.messages(last=2, records=True),
        store.get("k", records=True).messages,
    ):
        assert contents(window) == ["summary", "later"]
    assert contents(conversation.messages(last=1, records=True)) == ["later"]


def test_a_session_of_nothing_but_records_is_compacted_with_records(store: Store) -> None:
    conversation = store.open("k", messages=[record(), record()])
    assert conversation.begin_compaction() is None
    pending = conversation.begin_compaction(records=True)
    assert pending is not None
    conversation.finish_compaction(pending, record("summary"))
    assert contents(conversation.messages(records=True)) == ["summary"]
    assert_sound(store)


def test_a_session_of_nothing_but_records_shows_nothing(store: Store) -> None:
    conversation = store.open("k", messages=[record(), record()])
    assert conversation.messages() == conversation.get().messages == conversation.messages(last=3) == []
    assert conversation.history() == []
    assert conversation.last_message() is None
    assert conversation.compact(lambda shown: pytest.fail("nothing to sum up")) is None
    assert seqs(conversation.all_messages()) == [1, 2]
    assert_sound(store)


def test_a_record_is_in_no_window_that_a_compaction_left_empty(store: Store) -> None:
    store.create("a longer one", messages=messages(9))
    conversation = store.open("k", messages=[message(), record()])
    conversation.compact(lambda _: [])
    conversation.append_message(record())
    assert conversation.messages() == conversation.get().messages == []
    assert conversation.history() == []


def test_what_create_gives_is_what_get_gives(store: Store) -> None:
    made = store.create("k", messages=[record(tokens=7), message(tokens=2), record()])
    assert made == store.get("k")
    assert (made.message_count, made.record_count, made.last_seq, made.token_count) == (1, 2, 3, 2)
    assert store.create("of records", messages=[record()]) == store.get("of records")


def test_records_are_counted_apart(store: Store) -> None:
    conversation = noted(store)
    conversation.append_messages([record(tokens=100), message(tokens=5)])
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_seq, info.token_count) == (3, 4, 7, 5)
    found = store.stats()
    assert (found.messages, found.tokens, found.records) == (3, 5, 4)
    assert_sound(store)


def test_the_tokens_of_a_record_are_not_counted_for_it(url: str) -> None:
    with Store(url, token_counter=lambda each: len(each.content)) as store:
        store.create("k", messages=[record({"no": "text"}), message("four")])
        assert store.info("k").token_count == 4
        assert store.conversation("k").all_messages()[0].tokens is None


def test_an_id_of_a_record_is_stored_once(store: Store) -> None:
    conversation = noted(store)
    again, new = conversation.append_messages([record("attachment", id="r"), record("another")])
    assert (again.seq, again.replayed, new.seq, new.replayed) == (5, True, 6, False)
    assert conversation.info().record_count == 4
    made = store.append_message("new", record(id="r"), create=True)
    assert (made.seq, store.info("new").record_count, store.info("new").message_count) == (1, 1, 0)
    assert_sound(store)


def test_a_summary_is_put_in_though_records_came_in_while_it_was_written(opened: Store) -> None:
    conversation = noted(opened)
    pending = conversation.begin_compaction()
    assert pending is not None
    conversation.append_messages([record(), message("meanwhile"), record()])
    done = conversation.finish_compaction(pending, message("summary"))
    assert done.replaced_messages == 2
    assert contents(conversation.messages()) == ["summary", "meanwhile"]


# Taken away


def test_a_pop_passes_records_by(store: Store) -> None:
    conversation = noted(store)
    popped = conversation.pop_message()
    assert popped is not None
    assert popped.content == "hi"
    assert contents(conversation.all_messages()) == ["mode", "hello", "cost", "attachment"]
    assert [(turn.first_seq, turn.last_seq) for turn in conversation.turns()] == [(2, 3)]
    popped = store.conversation("k").pop_message()
    assert popped is not None
    assert popped.content == "hello"
    (turn,) = conversation.turns()
    assert contents(conversation.messages_of(turn)) == ["cost"]
    assert (conversation.pop_message(), conversation.total_usage()) == (None, {"tokens": 3})
    assert_sound(store)


def test_a_pop_with_records_takes_the_last_of_the_log(store: Store) -> None:
    conversation = noted(store)
    popped = [conversation.pop_message(records=True) for _ in range(6)]
    assert contents(each for each in popped if each is not None) == LOG[::-1]
    assert popped[-1] is None
    assert conversation.turns() == []
    info = conversation.info()
    assert (info.message_count, info.record_count, info.last_seq) == (0, 0, 10)
    assert_sound(store)


def test_cuts_take_records_and_count_messages(store: Store) -> None:
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


def test_a_record_is_edited_as_a_message_is(store: Store) -> None:
    conversation = noted(store)
    window_before = conversation.messages()
    assert conversation.update_message("r", record("smaller", tokens=9)).content == "smaller"
    redacted = conversation.redact_message(3)
    assert (redacted.role, redacted.content, redacted.turn_no) == (MessageRole.RECORD, None, 1)
    conversation.delete_message("r")
    assert conversation.messages() == window_before
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count) == (2, 2, 0)
    assert_sound(store)


def test_a_message_that_becomes_a_record_leaves_the_window_and_its_count(store: Store) -> None:
    conversation = store.open("k", messages=[message(n, tokens=n) for n in (1, 2, 3)])
    conversation.update(last_consolidated=2)
    conversation.update_message(1, record(1, tokens=1))
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.last_consolidated) == (2, 1, 5, 1)
    assert contents(conversation.messages()) == [2, 3]
    assert len(conversation.history(from_consolidated=True)) == 1
    conversation.update_message(1, message("one", tokens=4))
    info = conversation.info()
    assert (info.message_count, info.record_count, info.token_count, info.last_consolidated) == (3, 0, 9, 2)
    conversation.update_message(3, record())
    assert (conversation.info().last_consolidated, conversation.history(from_consolidated=True)) == (2, [])
    assert_sound(store)


def test_a_record_behind_what_is_consolidated_becomes_a_message_that_is_not(store: Store) -> None:
    conversation = store.open("k", messages=[message(1), record(2), message(3)])
    conversation.update(last_consolidated=1)
    conversation.update_message(2, message("two"))
    assert conversation.info().last_consolidated == 1
    assert len(conversation.history(from_consolidated=True)) == 2
    conversation.delete_message(2)
    assert conversation.info().last_consolidated == 1


def test_records_behind_a_deleted_message_count_for_nothing_that_was_consolidated(store: Store) -> None:
    store.create("k", messages=[*messages(3), record(), record()])
    store.update("k", last_consolidated=1)
    store.conversation("k").delete_message(2)
    assert store.info("k").last_consolidated == 1
    store.conversation("k").delete_message(1)
    assert store.info("k").last_consolidated == 0


# Summaries and branches


def test_a_summary_replaces_messages_and_leaves_records_in_the_log(store: Store) -> None:
    conversation = noted(store)
    done = conversation.compact(lambda shown: [message(f"{contents(shown)}"), record("of the summary")])
    assert done is not None
    assert done.replaced_messages == 2
    assert contents(conversation.messages()) == [f"{SAID}"]
    assert contents(conversation.all_messages()) == [*LOG, f"{SAID}", "of the summary"]
    assert contents(conversation.messages(last=1)) == [f"{SAID}"]
    assert_sound(store)


def test_a_summary_that_discards_leaves_the_records_which_it_does_not_speak_of(store: Store) -> None:
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


def test_a_record_at_the_end_of_a_turn_that_is_discarded_is_of_no_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("said"), message("cost", role=MessageRole.RECORD)])
    conversation.compact(lambda shown: message("summary"), discard=True)
    assert [(each.content, each.turn_no) for each in conversation.all_messages()] == [("cost", None), ("summary", 2)]
    assert_sound(store)


def test_a_fork_takes_the_records_along(store: Store) -> None:
    conversation = noted(store)
    assert contents(conversation.fork("whole").all_messages()) == LOG
    part = conversation.fork("part", upto=3)
    assert contents(part.all_messages()) == LOG[:3]
    info = part.info()
    assert (info.message_count, info.record_count) == (1, 2)
    before = conversation.fork("before", upto=1)
    assert (contents(before.all_messages()), before.messages()) == (["mode"], [])
    assert_sound(store)


# What the doctor says


def test_a_wrong_count_of_records_is_found_and_mended(opened: Store) -> None:
    noted(opened)
    with opened.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET record_count = 1, message_count = 4")
    (finding,) = [each for each in opened.examine(repair=True) if each.name == "wrong counters"]
    assert "record_count is 1, its rows say 3" in finding.detail
    info = opened.info("k")
    assert (info.message_count, info.record_count) == (2, 3)
    assert_sound(opened)
