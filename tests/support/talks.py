"""Conversations written as words, one for each message."""

from typing import Any

from support.factories import message

from lango_store._values.model import Message, MessageRole, ToolCall

EVERYTHING = 10**6
ROLES = {
    "u": MessageRole.USER,
    "a": MessageRole.ASSISTANT,
    "m": MessageRole.MODEL,
    "t": MessageRole.TOOL,
    "f": MessageRole.FUNCTION,
    "s": MessageRole.SYSTEM,
    "d": MessageRole.DEVELOPER,
}


def row(text: str) -> Message:
    """Make a message from its role, its tokens and the ids of its calls: `u10`, `a5:c1,c2`, `t7:c1`."""
    head, _, tail = text.partition(":")
    ids = tail.split(",") if tail else []
    fields: dict[str, Any] = {"role": ROLES[head[0]], "tokens": int(head[1:] or 1)}
    if head[0] in "am":
        fields["tool_calls"] = [ToolCall(id=call_id, name="n") for call_id in ids]
    elif len(ids) == 1:
        fields["tool_call_id"] = ids[0]
    else:
        fields["tool_calls"] = [ToolCall(id=call_id, name="n", output=text) for call_id in ids]
    return message(text, **fields)


def rows(text: str) -> list[Message]:
    return [row(word) for word in text.split()]


def written(messages: list[Message]) -> str:
    return " ".join(str(each.content) for each in messages)
