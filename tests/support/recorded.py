"""Records, and a session with some."""

from typing import Any

from support.factories import message

from lango_store import Conversation, Message, MessageRole, Store


def record(content: Any = "a record", **fields: Any) -> Message:
    return message(content, role=MessageRole.RECORD, **fields)


def noted(store: Store, key: str = "k", **fields: Any) -> Conversation:
    """A session of a question and its answer, with a record before, between and after them."""
    conversation = store.open(key, messages=[record("mode")], **fields)
    conversation.save_turn([message("hello"), record("cost"), message("hi", role="assistant")], {"tokens": 3})
    conversation.append_message(record("attachment", id="r"))
    return conversation


LOG = ["mode", "hello", "cost", "hi", "attachment"]
SAID = ["hello", "hi"]
"""`LOG` has the contents of the whole log of this session, `SAID` those of its messages without records."""
