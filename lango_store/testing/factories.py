"""Factories of factory-boy for the values that a store returns. They need no database: `pip install factory-boy`.

`MessageFactory(content="hi")` creates one message, and `MessageFactory.build_batch(3)` creates three.
"""

from __future__ import annotations

from typing import Any

import factory

from lango_store import Message, MessageRole, Session, ToolCall, Turn
from lango_store.testing import Clock

__all__ = ["AskingMessageFactory", "MessageFactory", "SessionFactory", "ToolCallFactory", "TurnFactory"]


class ToolCallFactory(factory.Factory):  # type: ignore[misc] # factory-boy has no types
    """Creates calls of the tool `search`, each with a unique id."""

    class Meta:
        model = ToolCall

    id = factory.Sequence(lambda n: f"call_{n}")
    name = "search"
    arguments = factory.Dict({})


class MessageFactory(factory.Factory):  # type: ignore[misc]
    """Creates user messages with the contents `message 0`, `message 1`, and so on."""

    class Meta:
        model = Message

    role = MessageRole.USER
    content = factory.Sequence(lambda n: f"message {n}")


class AskingMessageFactory(MessageFactory):
    """Creates assistant messages with one tool call."""

    role = MessageRole.ASSISTANT
    content = None
    tool_calls = factory.List([factory.SubFactory(ToolCallFactory)])


def _tokens(message: Message) -> int:
    return 0 if message.role is MessageRole.RECORD else message.tokens or 0


class _StoredFactory(factory.Factory):  # type: ignore[misc]
    """Creates values with messages, and numbers the messages as a store does."""

    class Meta:
        abstract = True

    messages: Any = ()
    created_at = Clock().time

    @classmethod
    def _adjust_kwargs(cls, **fields: Any) -> dict[str, Any]:
        first = fields.get("first_seq", 1)
        numbered = [each.model_copy(update={"seq": seq}) for seq, each in enumerate(fields["messages"], first)]
        return fields | {"messages": numbered}


class TurnFactory(_StoredFactory):
    """Creates turns as `Conversation.save_turn` returns them. `first_seq` numbers their messages."""

    class Meta:
        model = Turn

    turn_no = factory.Sequence(lambda n: n + 1)
    first_seq = 1
    last_seq = factory.LazyAttribute(lambda turn: turn.first_seq + len(turn.messages) - 1)


class SessionFactory(_StoredFactory):
    """Creates sessions as `Store.get` returns them, with the counters of their messages."""

    class Meta:
        model = Session

    key = factory.Sequence(lambda n: f"session {n}")
    updated_at = factory.SelfAttribute("created_at")
    last_seq = factory.LazyAttribute(lambda session: len(session.messages))
    message_count = factory.LazyAttribute(
        lambda session: sum(each.role is not MessageRole.RECORD for each in session.messages)
    )
    record_count = factory.LazyAttribute(lambda session: len(session.messages) - session.message_count)
    token_count = factory.LazyAttribute(lambda session: sum(_tokens(each) for each in session.messages))
