"""Messages with default values, and comparisons of their parts."""

from collections.abc import Iterable
from typing import Any

from lango_store import Message, MessageRole
from lango_store.testing.factories import MessageFactory, ToolCallFactory


def message(content: Any = "hello", **fields: Any) -> Message:
    """Make a message of a user, or of another role."""
    made: Message = MessageFactory(content=content, **fields)
    return made


def message_of(content: str, kind: str, id: str | None, tokens: int | None, call: str) -> Message:
    """Make a message of a kind; "call" has the tool call `call`, and results answer it in one of three shapes."""
    fields: dict[str, Any] = {"content": content, "id": id, "tokens": tokens}
    match kind:
        case "call":
            fields |= {"role": "assistant", "tool_calls": [ToolCallFactory(id=call, name="f")]}
        case "result":
            fields |= {"role": "tool", "tool_call_id": call, "name": "f"}
        case "outputs":
            fields |= {
                "role": "tool",
                "tool_calls": [ToolCallFactory(id=call, name="f", arguments=None, output=content)],
            }
        case "bare result":
            fields |= {"role": "function", "name": "f"}
        case _:
            fields["role"] = kind
    return Message(**fields)


def messages(number: int, **fields: Any) -> list[Message]:
    """Make many messages, ten times as fast as with `message`."""
    return [Message(**{"role": MessageRole.USER, "content": f"message {n}"} | fields) for n in range(number)]


def summary(text: str = "summary") -> list[Message]:
    return [message(text, role="assistant")]


def contents(found: Iterable[Message]) -> list[Any]:
    return [each.content for each in found]


def seqs(found: Iterable[Message]) -> list[int]:
    return [each.seq for each in found]
