"""Open turns of several sessions, and damaged rows of the inbox."""

from datetime import timedelta

import pytest

from lango_store import DamagedMessage, Message, Store


def test_open_turns_lists_only_turns_of_live_sessions(store: Store) -> None:
    running = store.open("live").turn("a").begin()
    store.open("expired", ttl=timedelta(hours=1)).turn("b").begin()
    assert sorted(turn.key for turn in store.turns.list_in_progress().items) == ["expired", "live"]
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET expires_at = created_at WHERE key = 'expired'")
    assert [turn.key for turn in store.turns.list_in_progress().items] == ["live"]
    running.save()
    assert store.turns.list_in_progress().items == []


def test_error_for_a_damaged_inbox_message_gives_the_number_of_the_message(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(Message.user("fine"))
    conversation.inbox.put(Message.user("damaged"))
    with store.engine.begin() as connection:
        connection.exec_driver_sql("""UPDATE lango_inbox SET message = '{"role":"nobody"}' WHERE n = 2""")
    with pytest.raises(DamagedMessage, match="inbox message 2, role") as raised:
        conversation.inbox.list()
    assert raised.value.seq == 0
