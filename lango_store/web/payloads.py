"""Messages that are read without their large strings."""

from typing import Any

from lango_store import Message, Payload, ToolCall


def without_payloads(message: Message) -> tuple[Message, int]:
    """Return a message with "…" in the place of each payload, and their number of bytes.

    Args:
        message: A message that was read with `payloads="reference"`, whose payloads no parser of contents knows.
    """
    sizes: list[int] = []
    fields = {name: _emptied(getattr(message, name), sizes) for name in ("content", "tool_calls", "extra")}
    return message.model_copy(update=fields) if sizes else message, sum(sizes)


def _emptied(value: Any, sizes: list[int]) -> Any:
    match value:
        case Payload():
            sizes.append(value.size)
            return "…"  # a message with an empty text has no item for it
        case list():
            return [_emptied(each, sizes) for each in value]
        case dict():
            return {name: _emptied(each, sizes) for name, each in value.items()}
        case ToolCall():
            fields = {name: _emptied(getattr(value, name), sizes) for name in value.model_fields_set}
            return value.model_copy(update=fields)
    return value
