"""A summary taken away again, by a pop, a cut or a clear: what it replaced is back, unless that was discarded."""

from __future__ import annotations

from support.factories import contents, message, messages, summary
from support.session_checks import assert_sound

from lango_store import Store


def test_taking_the_summary_away_brings_back_what_it_replaced(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.compact(lambda window: summary("one"))
    conversation.compact(lambda window: summary("two"))
    conversation.compact(lambda window: summary("three"))
    conversation.pop_message()
    assert contents(conversation.messages()) == ["two"]
    conversation.pop_message()
    assert contents(conversation.messages()) == ["one"]
    conversation.truncate(after=2)
    assert contents(conversation.messages()) == ["one"]
    conversation.truncate(after=1)
    assert contents(conversation.messages()) == ["message 0"]
    assert conversation.compactions() == []


def test_popping_a_summary_brings_back_nothing_that_was_discarded(store: Store) -> None:
    conversation = store.open("k", messages=messages(2))
    conversation.compact(lambda window: [*summary("one"), *summary("two")], discard=True)
    conversation.pop_message()
    assert contents(conversation.messages()) == ["one"]
    conversation.pop_message()
    assert (conversation.messages(), conversation.all_messages(), conversation.compactions()) == ([], [], [])


def test_popping_the_only_summary_of_a_session_brings_back_none_of_another(store: Store) -> None:
    for key, times in (("k", 1), ("other", 3)):
        conversation = store.open(key, messages=messages(2))
        for _ in range(times):
            conversation.compact(lambda _: [message("summary")])
    conversation = store.conversation("k")
    conversation.pop_message()
    assert (conversation.info().summary_turn, conversation.info().summarized_upto) == (None, 0)
    assert contents(conversation.messages()) == ["message 0", "message 1"]
    assert_sound(store)


def test_popping_takes_a_last_message_that_is_of_no_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("of a turn")])
    conversation.append_message(message("of none"))
    assert [each.content for each in (conversation.pop_message(), conversation.pop_message()) if each] == [
        "of none",
        "of a turn",
    ]


def test_clearing_takes_the_summary_too_and_keeps_what_the_system_said(store: Store) -> None:
    conversation = store.open("k", messages=[message("be kind", role="system"), message("hi")])
    conversation.compact(lambda window: [message("they greeted", role="system")])
    conversation.clear(keep_system=True)
    assert contents(conversation.messages()) == ["be kind"]
    assert (conversation.compactions(), conversation.event_count()) == ([], 0)
