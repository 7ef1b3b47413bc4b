"""Databases that do not write the row of a tool call, for example because of a row-level security policy."""

import pytest
from support.factories import contents
from support.triggers import eat

from lango_store import Conversation, Message, NotPermitted, Store, ToolCall
from lango_store.testing import Clock


def conversation_with_call(store: Store) -> Conversation:
    """Create a session with one message, which asks for one call."""
    conversation = store.open("k")
    conversation.append_message(Message.assistant("", tool_calls=[ToolCall(id="call_0", name="pay", arguments={})]))
    return conversation


def test_begin_call_raises_not_permitted_if_the_database_suppresses_the_new_row(store: Store) -> None:
    conversation = conversation_with_call(store)
    eat(store.engine, "INSERT", "lango_call")
    with pytest.raises(NotPermitted):
        conversation.calls.begin(1, 0)
    assert conversation.calls.list() == []


def test_result_of_a_call_is_not_stored_if_the_database_suppresses_the_update(store: Store, clock: Clock) -> None:
    conversation = conversation_with_call(store)
    effect = conversation.calls.begin(1, 0)
    eat(store.engine, "UPDATE", "lango_call")
    with pytest.raises(NotPermitted):
        conversation.calls.finish(effect, "paid")
    clock.move(hours=1)
    with pytest.raises(NotPermitted):
        conversation.calls.resolve(1, 0, output="paid")
    with pytest.raises(NotPermitted):
        conversation.calls.resolve(1, 0, retry=True)
    with pytest.raises(NotPermitted):
        conversation.calls.begin(1, 0, idempotent=True)
    assert contents(conversation.all_messages()) == [""]
    assert [call.state for call in conversation.calls.list()] == ["unknown"]
