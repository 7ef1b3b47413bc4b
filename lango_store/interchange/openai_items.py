"""Lossless conversion between items of OpenAI's Responses API and messages.

An item with a role and content, a tool call or a tool output is stored in the fields of a message, and its rest in
`extra`. An item of any other kind, such as a model's reasoning, becomes the content of a record.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lango_store import DamagedMessage, Message, MessageRole, ToolCall
from lango_store.content import RESPONSES
from lango_store.errors import InvalidMessage
from lango_store.rows import mapping, storable_text
from lango_store.window.repair import Repairer

NAME: Final = RESPONSES.records
"""The name under which the rest of an item is stored in `extra`, and the author of records."""

Item = Any

_SPEAKERS: Final = {
    role.value: role for role in (MessageRole.SYSTEM, MessageRole.DEVELOPER, MessageRole.USER, MessageRole.ASSISTANT)
}
_ARGUMENTS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_CUSTOM: Final = {"type": "custom"}
_TEXT_BLOCKS: Final = {"input_text", "output_text", "text"}


# Items as messages


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Convert items to messages, consecutive calls to one. Raises `InvalidMessage` if an item is not JSON."""
    return messages_of_json([_as_json(item, f"items[{number}]") for number, item in enumerate(items)])


def messages_of_json(items: Iterable[Item]) -> list[Message]:
    """Convert items that were parsed from JSON, as `messages_of` does."""
    messages: list[Message] = []
    calls: list[Item] = []
    names: dict[str, str] = {}
    for item in items:
        if _is_call(item):
            calls.append(item)
            names[item["call_id"]] = item["name"]
            continue
        if calls:
            messages.append(_message_of_calls(calls))
            calls = []
        messages.append(_message_of(item, names))
    return [*messages, _message_of_calls(calls)] if calls else messages


def message_of_json(item: Item, **fields: Any) -> Message:
    """Convert one item that was parsed from JSON. An output does not have the name of its call."""
    return _message_of_calls([item], **fields) if _is_call(item) else _message_of(item, {}, **fields)


def models_of(messages: Sequence[Message]) -> Iterator[Any]:
    """Yield the model that each item names, or None. Items of Chat Completions, LiteLLM and any-llm name it."""
    for message in messages:
        for rest in message.extra.get(NAME) or ():
            yield mapping(rest.get("provider_data")).get("model")


def _model_of(rest: Item) -> str | None:
    return storable_text(mapping(rest.get("provider_data")).get("model"))


def _as_json(item: Item, field: str) -> Item:
    """Return an item as it would be after a trip through JSON: tuples become lists, and keys become texts."""
    try:
        return json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(field, f"is not JSON ({error})") from error


def _is_call(item: Item) -> bool:
    argument = _ARGUMENTS.get(_text(item, "type"))
    return argument is not None and all(isinstance(item.get(name), str) for name in ("call_id", "name", argument))


def _message_of_calls(items: Sequence[Item], **fields: Any) -> Message:
    calls = [
        ToolCall(
            id=item["call_id"],
            name=item["name"],
            arguments=item[_ARGUMENTS[item["type"]]],
            extra=_CUSTOM if item["type"] == "custom_tool_call" else {},
        )
        for item in items
    ]
    rests = [_without(item, "call_id", "name", _ARGUMENTS[item["type"]]) for item in items]
    return Message.assistant(tool_calls=calls, extra={NAME: rests}, model=_model_of(rests[0]), **fields)


def _message_of(item: Item, names: Mapping[str, str], **fields: Any) -> Message:
    kind, role = _text(item, "type"), _SPEAKERS.get(_text(item, "role"))
    if kind in _OUTPUTS and isinstance(item.get("call_id"), str) and "output" in item:
        return _message_of_output(item, names.get(item["call_id"], ""), **fields)
    if role is not None and "content" in item and item.get("type", "message") == "message":
        return _message_of_text(item, role, **fields)
    extra = {NAME: None} if item is None else {}  # distinguishes the item None from a redacted record
    return Message(role=MessageRole.RECORD, author=NAME, name=storable_text(kind), content=item, extra=extra, **fields)


def _message_of_output(item: Mapping[str, Any], name: str, **fields: Any) -> Message:
    extra = _CUSTOM if item["type"] == "custom_tool_call_output" else {}
    call = ToolCall(id=item["call_id"], name=name, output=item["output"], extra=extra)
    rest = _without(item, "call_id", "output")
    return Message.tool(tool_call_id=storable_text(call.id), tool_calls=[call], extra={NAME: [rest]}, **fields)


def _message_of_text(item: Mapping[str, Any], role: MessageRole, **fields: Any) -> Message:
    content, rest = item["content"], _without(item, "role", "content")
    if isinstance(content, list) and len(content) == 1 and _text(content[0], "type") in _TEXT_BLOCKS:
        (block,) = content
        if isinstance(block.get("text"), str):
            rest["content"] = _without(block, "text")
            return Message(role=role, content=block["text"], extra={NAME: [rest]}, model=_model_of(rest), **fields)
    extra = {NAME: [rest]} if rest or not isinstance(content, str) else {}
    return Message(role=role, content=content, extra=extra, model=_model_of(rest), **fields)


def _text(value: Any, name: str) -> str:
    text = value.get(name) if isinstance(value, dict) else None
    return text if isinstance(text, str) else ""


def _without(item: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


# Messages as items


def items_of(message: Message) -> list[Item]:
    """Return the items of a message, at least one.

    A message of another writer becomes items for its text, its tool calls and its tool outputs.
    """
    if message.role is MessageRole.RECORD:
        is_redacted = message.content is None and NAME not in message.extra
        return [{"role": "assistant", "content": ""} if is_redacted else message.content]
    if NAME not in message.extra:
        return _items_of_other_writer(message)
    rests = message.extra[NAME]
    if message.tool_calls:
        return [_item_of_call(call, rest) for call, rest in zip(message.tool_calls, rests, strict=True)]
    (rest,) = rests
    content = [{**rest["content"], "text": message.content}] if "content" in rest else message.content
    return [{**rest, "role": message.role.value, "content": content}]


def stored_items(key: str, message: Message) -> list[Item]:
    """Return the items of a message of a session. Raises `DamagedMessage` if `extra` does not fit the message."""
    try:
        return items_of(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedMessage(key, message.seq, "extra", f"{NAME} does not fit the message") from error


def _item_of_call(call: ToolCall, rest: Mapping[str, Any]) -> Item:
    if rest["type"] in _OUTPUTS:
        return {**rest, "call_id": call.id, "output": call.output}
    return {**rest, "call_id": call.id, "name": call.name, _ARGUMENTS[rest["type"]]: call.arguments}


def _items_of_other_writer(message: Message) -> list[Item]:
    if isinstance(message.content, str) and not message.tool_calls and message.role.value in _SPEAKERS:
        return [{"role": message.role.value, "content": message.content}]
    custom = {call.id for call in message.tool_calls if call.extra.get("type") == "custom"}
    items = RESPONSES.render(list(Repairer(RESPONSES, None).entries([message])))  # type: ignore[misc]
    for item in items:
        if item.get("type") == "function_call_output":
            item["call_id"] = item["call_id"] or next((call.id for call in message.tool_calls), "")
            item["type"] = "custom_tool_call_output" if item["call_id"] in custom else item["type"]
    return items or [{"role": message.role.canonical.value, "content": ""}]
