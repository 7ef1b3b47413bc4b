"""Items of OpenAI's Responses API and our messages: every item comes back equal, every message reads as items.

An item becomes a message where it says something that ours have a field for: who says what, a call, its answer. Calls
side by side are one message. What else the item holds lies in the message's `extra`. Any other item (a model's
reasoning, a call of a tool that OpenAI runs) is kept whole in a record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lango_store.blocks import text_of
from lango_store.encoding import encode_json
from lango_store.errors import InvalidMessage
from lango_store.interchange.fidelity import same, storable_text
from lango_store.model import Message, MessageRole, ToolCall, as_text

NAME: Final = "openai_agents"
"""Whose items these are: the name in a message's `extra`, and the author of a record."""

Item = Any
_Call = dict[str, Any]
_Fields = Mapping[str, Any]

_SAID_BY: Final = {role.value: role for role in (MessageRole.SYSTEM, MessageRole.DEVELOPER, MessageRole.USER)} | {
    MessageRole.ASSISTANT.value: MessageRole.ASSISTANT
}
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_ANSWERS: Final = ("function_call_output", "custom_tool_call_output")
_CUSTOM: Final = {"extra": {"type": "custom"}}
_TEXT_BLOCKS: Final = {"input_text", "output_text", "text"}
_NOTHING: Final[_Fields] = {}

_RECORD: Final = MessageRole.RECORD.value
_OF_TOOLS: Final = (MessageRole.TOOL.value, MessageRole.FUNCTION.value)
_WORDS: Final = {name: name for name in _SAID_BY} | {MessageRole.MODEL.value: MessageRole.ASSISTANT.value}
"""The word of the Responses API for the role of who says something."""


# Items that become messages


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Return the messages that items are stored as; `InvalidMessage` names the place of what is not JSON."""
    plain = [_plain(item, place) for place, item in enumerate(items)]
    names = {item["call_id"]: item["name"] for item in plain if _is_call(item)}
    messages: list[Message] = []
    calls: list[tuple[_Call, _Fields]] = []
    for item in plain:
        if _is_call(item):
            call, others = _call_of(item)
            if same(_call_item(call, others), item):
                calls.append((call, others))
                continue
        if calls:
            messages.append(_asking(calls))
            calls = []
        messages.append(_message_of(item, names))
    return [*messages, _asking(calls)] if calls else messages


def _plain(item: Item, place: int) -> Item:
    """Return an item as its JSON reads: tuples are lists, keys are texts."""
    try:
        return json.loads(json.dumps(item, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        field = f"items[{place}]"
        encode_json(_with_lists(item), field)  # which names the place inside of the item
        raise InvalidMessage(field, f"is not JSON ({error})") from error


def _with_lists(value: Any, levels: int = 200) -> Any:
    if isinstance(value, Mapping) and levels:
        return {name: _with_lists(each, levels - 1) for name, each in value.items()}
    return [_with_lists(each, levels - 1) for each in value] if isinstance(value, list | tuple) and levels else value


def _is_call(item: Item) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(argument := _CALLS.get(_text_in(item, "type")), str)
        and all(isinstance(item.get(name), str) for name in ("call_id", "name", argument))
    )


def _text_in(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _call_of(item: Mapping[str, Any]) -> tuple[_Call, _Fields]:
    """Return a call as we store it, and the fields of its item that we have none for."""
    argument = _CALLS[item["type"]]
    call = {"id": item["call_id"], "name": item["name"], "arguments": item[argument]}
    others = _without(item, "type", "call_id", "name", argument)
    return (call if item["type"] == "function_call" else call | _CUSTOM), others


def _without(item: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}


def _asking(calls: Sequence[tuple[_Call, _Fields]]) -> Message:
    others = [others for _, others in calls]
    return Message(
        role=MessageRole.ASSISTANT,
        tool_calls=[ToolCall(**call) for call, _ in calls],
        extra={NAME: {"calls": others}} if any(others) else {},
    )


def _message_of(item: Item, names: Mapping[str, str]) -> Message:
    """Return the message of an item that is not a call: a record where a message would give back something else."""
    message = _typed(item, names) if isinstance(item, dict) else None
    if message is not None and same(items_of(message), [item]):
        return message
    kind = storable_text(item.get("type")) if isinstance(item, dict) else None
    return Message(
        role=MessageRole.RECORD, author=NAME, name=kind, content=item, extra={NAME: {}} if item is None else {}
    )


def _typed(item: Mapping[str, Any], names: Mapping[str, str]) -> Message | None:
    kind = _text_in(item, "type")
    if kind in _ANSWERS and isinstance(item.get("call_id"), str) and "output" in item:
        return _answering(item, kind, names)
    role = _SAID_BY.get(_text_in(item, "role"))
    return _saying(item, role) if role is not None and kind in ("", "message") and "content" in item else None


def _answering(item: Mapping[str, Any], kind: str, names: Mapping[str, str]) -> Message:
    call_id = item["call_id"]
    call: _Call = {"id": call_id, "name": names.get(call_id, ""), "output": item["output"]}
    own = _fields(_without(item, "type", "call_id", "output"))
    return Message(
        role=MessageRole.TOOL,
        tool_call_id=storable_text(call_id),
        tool_calls=[ToolCall(**(call if kind == _ANSWERS[0] else call | _CUSTOM))],
        extra={} if not own and _output(item["output"]) is item["output"] else {NAME: own},
    )


def _saying(item: Mapping[str, Any], role: MessageRole) -> Message:
    content, own = item["content"], _fields(_without(item, "role", "content"))
    if (block := _only_text(content)) is not None:
        own, content = own | {"block": _without(block, "text")}, block["text"]
    elif _readable(content, role.value) is content and not own:
        return Message(role=role, content=content)
    return Message(role=role, content=content, extra={NAME: own} if own or not isinstance(content, str) else {})


def _fields(others: dict[str, Any]) -> dict[str, Any]:
    return {"fields": others} if others else {}


def _only_text(content: Any) -> dict[str, Any] | None:
    """Return the one block of text that a content is, None if it is anything else."""
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block: dict[str, Any] = content[0]
        if _text_in(block, "type") in _TEXT_BLOCKS and isinstance(block.get("text"), str):
            return block
    return None


# Messages read as items


def items_of(message: Message) -> list[Item]:
    """Return the items that a message stands for, one at least."""
    calls = [call.model_dump() for call in message.tool_calls]
    return items_from(message.role.value, message.content, calls, message.tool_call_id, message.extra)


def items_from(role: str, content: Any, calls: Sequence[_Call], call_id: str | None, extra: _Fields) -> list[Item]:
    """Return the items of a message given by its fields, calls and extra as they are stored.

    A message that something else wrote is what was said, what was called, and what the tools answered.
    """
    own: _Fields | None = extra.get(NAME)
    if role == _RECORD:
        return [dict(_REDACTED) if content is None and own is None else content]
    if role in _OF_TOOLS:
        return _answers(content, calls, call_id, own)
    if not calls:
        return [_said(role, content, own)]
    items = [] if content is None or content == "" or content == [] else [_said(role, content, own)]
    others = (own or _NOTHING).get("calls") or [_NOTHING] * len(calls)
    for call, fields in zip(calls, others, strict=True):
        items.append(_call_item(call, fields))
        if "output" in call:
            items.append(_answer_item(call, None))
    return items


def _said(role: str, content: Any, own: _Fields | None) -> Item:
    if own is None:
        role = _WORDS[role]
        return {"role": role, "content": content if type(content) is str else _readable(content, role)}
    if (block := own.get("block")) is not None:
        content = [{**block, "text": content}]
    return {"role": role, "content": content, **own.get("fields", _NOTHING)}


_REDACTED: Final = {"role": MessageRole.ASSISTANT.value, "content": ""}
"""What is left of an item that was kept whole, when it is redacted: who has its place, and not a word."""


def _answers(content: Any, calls: Sequence[_Call], call_id: str | None, own: _Fields | None) -> list[Item]:
    # What a tool's message says of calls that it gives no output of is which one its content answers.
    answered = [_answer_item(call, own) for call in calls if "output" in call]
    if answered and (not call_id or any(item["call_id"] == call_id for item in answered)):
        return answered
    about = {"id": call_id or (calls[0]["id"] if calls else ""), "output": "" if content is None else content}
    return [_answer_item(about, None), *answered]


def _call_item(call: _Call, fields: _Fields) -> Item:
    kind = "custom_tool_call" if _is_custom(call) else "function_call"
    given = call.get("arguments")
    if not isinstance(given, str):
        given = json.dumps({} if given is None else given)
    return {"type": kind, "call_id": call["id"], "name": call["name"], _CALLS[kind]: given, **fields}


def _answer_item(call: _Call, own: _Fields | None) -> Item:
    kind = _ANSWERS[_is_custom(call)]
    output = call["output"]
    if own is None:
        return {"type": kind, "call_id": call["id"], "output": _output(output)}
    return {"type": kind, "call_id": call["id"], "output": output, **own.get("fields", _NOTHING)}


def _is_custom(call: _Call) -> bool:
    return "extra" in call and call["extra"].get("type") == "custom"


# What others wrote, in the words of the Responses API


def _readable(content: Any, role: str) -> Any:
    """Return a content as the Responses API takes it, the very one if it takes it as it is."""
    if isinstance(content, str) or _all_of_responses(content):
        return content
    if content is None:
        return ""
    text = text_of(content)
    if text is not None or role == MessageRole.ASSISTANT.value or not _all_blocks(content):
        return as_text(content) if text is None else text
    return [_block(block) for block in content]


def _output(output: Any) -> Any:
    return output if isinstance(output, str) or _all_of_responses(output) else as_text(output)


def _all_blocks(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and all(isinstance(block, dict) for block in content)


def _all_of_responses(content: Any) -> bool:
    return _all_blocks(content) and all(_text_in(block, "type") in _RESPONSES for block in content)


_RESPONSES: Final = {"input_text", "input_image", "input_file", "input_audio", "output_text", "refusal"}


def _block(block: Mapping[str, Any]) -> Item:
    if _text_in(block, "type") in _RESPONSES:
        return block
    image = block.get("image_url")
    if isinstance(image, dict) and isinstance(image.get("url"), str):
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")}
    return {"type": "input_text", "text": as_text([block])}


def without_last(message: Message) -> Message | None:
    """Return the message without the last of its items, None if that is all it says."""
    calls = list(message.tool_calls)
    if not calls or len(items_of(message)) == 1:
        return None
    if message.role.canonical is MessageRole.TOOL:
        place = max(place for place, call in enumerate(calls) if call.answered)
        gone = calls.pop(place)
        return message.model_copy(
            update={
                "tool_calls": calls,
                "tool_call_id": message.tool_call_id if message.tool_call_id != gone.id else None,
            }
        )
    last = calls.pop()
    if last.answered:
        return message.model_copy(update={"tool_calls": [*calls, ToolCall(**last.model_dump(exclude={"output"}))]})
    own = message.extra.get(NAME, {})
    extra = message.extra | {NAME: own | {"calls": own["calls"][:-1]}} if "calls" in own else message.extra
    return message.model_copy(update={"tool_calls": calls, "extra": extra})
