"""A message of pydantic-ai as a `Message`: texts, tool calls, tokens and time in our fields, the rest in `extra`.

`extra["pydantic_ai"]` holds the `item` as the framework dumps it and its `parts`, without nulls and without what our
fields hold.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from lango_store import DamagedMessage, Message, MessageRole, ToolCall
from lango_store.integrations.fields import mapping
from lango_store.window import as_prompt

T = TypeVar("T")
Json = dict[str, Any]

NAME: Final = "pydantic_ai"
"""The adapter's name in a message's `extra` and among a session's values."""

USAGE: Final = TypeAdapter(RunUsage)
DEFERRED: Final = TypeAdapter(DeferredToolRequests)

_SPEECH: Final = {
    MessageRole.ASSISTANT: "text",
    MessageRole.USER: "user-prompt",
    MessageRole.TOOL: "user-prompt",
    MessageRole.SYSTEM: "system-prompt",
    MessageRole.DEVELOPER: "system-prompt",
}
"""The parts whose content is the message's, by its role."""

_CALLS: Final = ("tool-call", "builtin-tool-call")


def messages_of(messages: Sequence[ModelMessage], ids: Sequence[str]) -> list[Message]:
    """Return the messages that store those of the framework."""
    items = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return [_message_of(item, id) for item, id in zip(items, ids, strict=True)]


def _message_of(item: Json, id: str) -> Message:
    role = _role_of(item)
    only = sum(part["part_kind"] == _SPEECH[role] for part in item["parts"]) == 1
    said: list[Any] = []
    calls: list[ToolCall] = []
    own: Json = {"parts": [_take(part, _SPEECH[role], said, calls, only=only) for part in item["parts"]]}
    tokens = None
    usage = {name: value for name, value in mapping(item.get("usage")).items() if value}
    if role is MessageRole.ASSISTANT:
        tokens = usage.pop("output_tokens", 0) if usage.get("output_tokens", 0) < 2**53 else 0
    if usage:
        own["usage"] = usage
    left = {name: item[name] for name in item.keys() - {"kind", "parts", "usage", "timestamp"}}
    own["item"] = {name: value for name, value in left.items() if value is not None}
    time = datetime.fromisoformat(item["timestamp"]) if item.get("timestamp") else None
    created_at = None if time is None or time.tzinfo is None else time
    if created_at is None or _time_text(created_at) != item["timestamp"]:
        own["item"]["timestamp"] = item.get("timestamp")
    content = said[0] if len(said) == 1 else [_block(text) for text in said] or None
    about: Json = {"tokens": tokens, "id": id, "extra": {NAME: own}, "created_at": created_at}
    return Message(role=role, content=content, tool_calls=calls, **about)


def _take(part: Json, speech: str, said: list[Any], calls: list[ToolCall], *, only: bool) -> Json:
    """Take what our fields hold of a part, and return the rest."""
    kind, content, call_id, name = (part.get(each) for each in ("part_kind", "content", "tool_call_id", "tool_name"))
    asked = next((call for call in calls if call.id == call_id), None)
    taken: tuple[str, ...] = ()
    if kind == speech and (isinstance(content, str) or (only and _is_blocks(content))):
        said.append(list(map(_block, content)) if isinstance(content, list) else content)
        taken = ("content",)
    elif kind in _CALLS:
        calls.append(ToolCall(id=call_id, name=name, arguments=part["args"]))
        taken = ("tool_name", "tool_call_id", "args")
    elif kind == "tool-return":
        calls.append(ToolCall(id=call_id, name=name, output=content))
        taken = ("tool_name", "tool_call_id", "content")
    elif kind == "builtin-tool-return" and asked is not None and asked.name == name and not asked.answered:
        asked.output = content
        taken = ("tool_name", "content")
    rest = {each: part[each] for each in part if each not in taken}
    return {each: value for each, value in rest.items() if value is not None or each == "content"}


def _role_of(item: Json) -> MessageRole:
    if item["kind"] == "response":
        return MessageRole.ASSISTANT
    kinds = {part["part_kind"] for part in item["parts"]}
    if "tool-return" in kinds:
        return MessageRole.TOOL
    return MessageRole.SYSTEM if "system-prompt" in kinds and "user-prompt" not in kinds else MessageRole.USER


def model_messages(key: str, messages: Sequence[Message]) -> list[ModelMessage]:
    """Return stored messages as the framework's; `DamagedMessage` names the first that the framework does not read."""
    items = []
    for message in messages:
        try:
            items.append(_item_of(message))
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
            raise DamagedMessage(key, message.seq, f"extra.{NAME}", repr(error)) from None
    try:
        return ModelMessagesTypeAdapter.validate_python(items)
    except ValidationError as error:
        place = error.errors(include_url=False, include_input=False)[0]["loc"][0]
        raise DamagedMessage(key, messages[int(place)].seq, f"extra.{NAME}", _fault(error)) from None


def loaded(key: str, name: str, adapter: TypeAdapter[T], value: Any) -> T:
    """Return a value of its JSON; `DamagedMessage` if the framework does not read it."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise DamagedMessage(key, 0, f"values.{NAME}.{name}", _fault(error)) from None


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def _item_of(message: Message) -> Json:
    own = mapping(message.extra.get(NAME))
    is_response = message.role.canonical is MessageRole.ASSISTANT
    item: Json = {"kind": "response" if is_response else "request"}
    if message.created_at is not None:
        item["timestamp"] = _time_text(message.created_at)
    if is_response:
        item["usage"] = {"output_tokens": message.tokens or 0} | own.get("usage", {})
    if "parts" not in own:
        return item | {"parts": list(_foreign_parts(message))}
    taken = [part for part in own["parts"] if part["part_kind"] == _SPEECH[message.role] and "content" not in part]
    said = iter([message.content] if len(taken) == 1 else map(_text, message.content or ()))
    calls = iter(message.tool_calls)
    return item | own["item"] | {"parts": [_part_of(part, message, said, calls) for part in own["parts"]]}


def _part_of(part: Json, message: Message, said: Iterator[Any], calls: Iterator[ToolCall]) -> Json:
    kind = part["part_kind"]
    if kind == _SPEECH[message.role] and "content" not in part:
        content = next(said)
        return part | {"content": list(map(_text, content)) if isinstance(content, list) else content}
    if kind == "builtin-tool-return" and "content" not in part:
        call = next(call for call in message.tool_calls if call.id == part["tool_call_id"])
        return part | {"tool_name": call.name, "content": call.output}
    if (kind in _CALLS or kind == "tool-return") and "tool_call_id" not in part:
        call = next(calls)
        what = {"args": call.arguments} if kind in _CALLS else {"content": call.output}
        return part | {"tool_name": call.name, "tool_call_id": call.id} | what
    return part


def _foreign_parts(message: Message) -> Iterator[Json]:
    """Yield what a message of another writer says: its text, calls, and a tool's answers."""
    is_answer = message.role.canonical is MessageRole.TOOL
    is_response = message.role.canonical is MessageRole.ASSISTANT
    time = {} if is_response or message.created_at is None else {"timestamp": _time_text(message.created_at)}
    for entry in as_prompt([message], nested=False):
        content, call_id = entry["content"], entry.get("tool_call_id")
        if entry["role"] == MessageRole.TOOL:
            if is_answer and (call_id or content is not None):
                names = {"tool_name": entry.get("name", ""), "tool_call_id": call_id or ""}
                yield {"part_kind": "tool-return", "content": content, **names, **time}
            continue
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            yield {"part_kind": _SPEECH[MessageRole(entry["role"])], "content": text, **time}
        for call in entry.get("tool_calls", ()):
            names = {"tool_name": call["name"], "tool_call_id": call["id"]}
            yield {"part_kind": "tool-call", "args": call["arguments"], **names}


def _is_blocks(content: Any) -> bool:
    """Return whether a prompt is a list of texts and other parts that survive the round trip."""
    return isinstance(content, list) and all(isinstance(each, str) or _text(each) is each for each in content)


def _block(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _text(block: Any) -> Any:
    """Return the text of a block that holds nothing else; return other blocks unchanged."""
    is_text = isinstance(block, dict) and block.keys() == {"type", "text"} and block["type"] == "text"
    return block["text"] if is_text and isinstance(block["text"], str) else block


def _time_text(time: datetime) -> str:
    """Write a time as the framework does."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
