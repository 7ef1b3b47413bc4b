"""Messages as dicts, in the form of OpenAI's chat completions, exactly as they are stored."""

from collections.abc import Iterator, Sequence
from typing import Any

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store._values.value import copied
from lango_store.content import as_text, text_of


def as_prompt(messages: Sequence[Message], *, nested: bool = True) -> list[dict[str, Any]]:
    """Return the messages as dicts to send to a chat API.

    Each dict has `role` and `content`, and `tool_calls`, `tool_call_id` and `name` if they are not empty. If a
    message has `sent`, it becomes the `content`. Each output of a tool becomes a separate dict. Roles have their common
    names: `assistant` for `model`, `tool` for `function`.

    A chat API may still refuse the following, which `prompt` repairs, and this function does not: a content that is
    None, empty, or neither text nor blocks; blocks of another provider; a call without a result, or a result without a
    call; a name with a space; a lone surrogate.

    Args:
        messages: The messages in their order.
        nested: True (the default) for OpenAI's nested tool calls: contents are unchanged, outputs are text, and calls
            include the provider's `extra` fields. False for flat tool calls: `id`, `name`, and `arguments` in their
            stored form. Contents and outputs that consist only of text blocks then become text.

    Returns:
        New dicts, which share no list and no dict with the messages.
    """
    entries: list[dict[str, Any]] = []
    for message in messages:
        if message.tool_calls:
            entries += _entries(message, nested)
        elif message.role is not MessageRole.RECORD:
            entries.append(_entry(message, nested))
    return entries


def _entries(message: Message, nested: bool) -> Iterator[dict[str, Any]]:
    if message.role is MessageRole.RECORD:
        return
    is_result = message.role.canonical is MessageRole.TOOL
    outputs = [call for call in message.tool_calls if call.answered]
    covered = {call.id for call in outputs}
    if not is_result or not outputs or (message.tool_call_id and message.tool_call_id not in covered):
        calls = [call for call in message.tool_calls if not (is_result and call.answered)]
        yield _entry(message, nested, calls)
    for call in outputs:
        output = as_text(call.output) if nested else copied(_flat_content(call.output))
        entry = {"role": MessageRole.TOOL.value, "content": output, "tool_call_id": call.id, "name": call.name}
        yield {name: value for name, value in entry.items() if value or name == "content"}


def _entry(message: Message, nested: bool, calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    content = message.content if message.sent is None else message.sent
    if type(content) is not str:
        content = copied(content if nested else _flat_content(content))
    entry: dict[str, Any] = {"role": message.role.canonical.value, "content": content}
    if calls:
        entry["tool_calls"] = [copied(call.to_openai() if nested else _flat(call)) for call in calls]
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    if message.name:
        entry["name"] = message.name
    return entry


def _flat_content(content: Any) -> Any:
    text = text_of(content)
    return content if text is None else text


def _flat(call: ToolCall) -> dict[str, Any]:
    flat = {"id": call.id, "name": call.name}
    return flat | {"arguments": call.arguments} if "arguments" in call.model_fields_set else flat
