"""Revision 0109 converts the messages that wait in the inbox, and its downgrade converts them back."""

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from support.factories import message
from support.session_checks import assert_sound

from lango_store import Message, Store, ToolCall, schema

pytestmark = pytest.mark.slow

BEFORE = "0107"
MESSAGES = [
    message('quotes " and \\ and \n\x01\x1f\x7f é 😀 \u2028', id="a", author='ann "x" \\', name="", tool_call_id="c\t"),
    Message.user(["a\0b", "\ud83d", 1.5, None], sent={"y": [None]}, tokens=0, extra={"": {}}),
    Message.assistant(None, tool_calls=[ToolCall(id="c", name="f", arguments={"x": "\0"})], id="b"),
    Message.user("lone \ud800", tokens=2**53 - 1, created_at=datetime(2020, 1, 1, tzinfo=UTC)),
    Message.user(""),
]


def test_upgrade_and_downgrade_keep_waiting_messages(url: str) -> None:
    with Store(url) as store:
        conversation = store.open("k")
        for each in MESSAGES:
            conversation.inbox.put(each)
        before = [each.model_dump() for each in conversation.inbox.list()]
    for _ in range(2):
        schema.downgrade(url, BEFORE)
        schema.upgrade(url)
        with Store(url) as store:
            assert [each.model_dump() for each in store.conversation("k").inbox.list()] == before
            assert_sound(store)
            with store.engine.connect() as connection:
                assert not sa.inspect(connection).get_check_constraints("lango_inbox")
