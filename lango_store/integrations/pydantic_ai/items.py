"""Lossless conversion between messages of pydantic-ai and messages of the store.

Texts, tool calls, tokens and times are stored in the fields of a message. `extra["pydantic_ai"]` holds the rest: the
`item` as the framework dumps it, and its `parts`, without nulls and without the values stored in fields.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from lango_store import DamagedMessage, InvalidMessage, Message, MessageRole, ToolCall
from lango_store.content import FAILED, PYDANTIC_AI, Result, ignore, parts
from lango_store.rows import mapping, storable_text

T = TypeVar("T")
Json = dict[str, Any]

NAME: Final = "pydantic_ai"
"""The name of the adapter's data in the `extra` of a message and in the values of a session."""

USAGE: Final = TypeAdapter(RunUsage)
DEFERRED: Final = TypeAdapter(DeferredToolRequests)

_TEXT_PARTS: Final = {
    MessageRole.ASSISTANT: "text",
    MessageRole.USER: "user-prompt",
    MessageRole.TOOL: "user-prompt",
    MessageRole.SYSTEM: "system-prompt",
    MessageRole.DEVELOPER: "system-prompt",
}
"""For each role, the kind of part whose content is stored as the content of the message."""

_CALLS: Final = ("tool-call", "builtin-tool-call")
_RESULTS: Final = ("tool-return", "retry-prompt")  # a retry without the name of a tool is not a result
_FAILED: Final = ("failed", "retried")


def messages_of(messages: Sequence[ModelMessage], ids: Sequence[str]) -> list[Message]:
    """Convert messages of the framework to messages of the store. Raises `InvalidMessage` if one could not be read."""
    return [_checked(message, id) for message, id in zip(messages, ids, strict=True)]


def _checked(message: ModelMessage, id: str) -> Message:
    try:
        (item,) = ModelMessagesTypeAdapter.dump_python([message], mode="json", warnings=False)
        stored = _message_of(item, id)
        ModelMessagesTypeAdapter.validate_python([_item_of(stored)])
    except ValidationError as error:
        raise InvalidMessage(NAME, f"the framework could not load it again: {_fault(error)}") from None
    except (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError) as error:
        raise InvalidMessage(NAME, f"it cannot be written as JSON: {type(error).__name__}") from error
    return stored


def _message_of(item: Json, id: str) -> Message:
    role = _role_of(item)
    text_part = _TEXT_PARTS[role]
    only = sum(part["part_kind"] == text_part for part in item["parts"]) == 1
    texts: list[Any] = []
    calls: list[ToolCall] = []
    rest: Json = {"parts": [_take(part, text_part, texts, calls, only=only) for part in item["parts"]]}
    tokens = None
    usage = {name: value for name, value in mapping(item.get("usage")).items() if value}
    if role is MessageRole.ASSISTANT:
        tokens = usage.pop("output_tokens", 0) if usage.get("output_tokens", 0) < 2**53 else 0
    if usage:
        rest["usage"] = usage
    others = {name: item[name] for name in item.keys() - {"kind", "parts", "usage", "timestamp"}}
    rest["item"] = {name: value for name, value in others.items() if value is not None}
    time = datetime.fromisoformat(item["timestamp"]) if item.get("timestamp") else None
    created_at = None if time is None or time.tzinfo is None else time
    if created_at is None or _time_text(created_at) != item["timestamp"]:
        rest["item"]["timestamp"] = item.get("timestamp")
    content = texts[0] if len(texts) == 1 else [_block(text) for text in texts] or None
    return Message(
        role=role,
        content=content,
        tool_calls=calls,
        tokens=tokens,
        id=id,
        extra={NAME: rest},
        created_at=created_at,
        model=storable_text(item.get("model_name")),
        provider=storable_text(item.get("provider_name")),
    )


def _take(part: Json, text_part: str, texts: list[Any], calls: list[ToolCall], *, only: bool) -> Json:
    """Add a part's text to `texts`, or its call to `calls`; return the rest of the part."""
    kind, content, call_id, name = (part.get(each) for each in ("part_kind", "content", "tool_call_id", "tool_name"))
    request = next((call for call in calls if call.id == call_id), None)
    failed = dict(FAILED) if kind == "retry-prompt" or part.get("outcome") in _FAILED else {}
    taken: tuple[str, ...] = ()
    if kind == text_part and (isinstance(content, str) or (only and _is_blocks(content))):
        texts.append(list(map(_block, content)) if isinstance(content, list) else content)
        taken = ("content",)
    elif kind in _CALLS:
        calls.append(ToolCall(id=call_id, name=name, arguments=part["args"]))
        taken = ("tool_name", "tool_call_id", "args")
    elif kind in _RESULTS and name:
        calls.append(ToolCall(id=call_id, name=name, output=content, extra=failed))
        taken = ("tool_name", "tool_call_id", "content")
    elif kind == "builtin-tool-return" and request is not None and request.name == name and not request.answered:
        request.output, request.extra = content, failed
        taken = ("tool_name", "content")
    rest = {each: part[each] for each in part if each not in taken}
    return {each: value for each, value in rest.items() if value is not None or each == "content"}


def _role_of(item: Json) -> MessageRole:
    if item["kind"] == "response":
        return MessageRole.ASSISTANT
    kinds = {part["part_kind"] for part in item["parts"]}
    if any(part["part_kind"] in _RESULTS and part["tool_name"] for part in item["parts"]):
        return MessageRole.TOOL
    return MessageRole.SYSTEM if "system-prompt" in kinds and "user-prompt" not in kinds else MessageRole.USER


def model_messages(key: str, messages: Sequence[Message]) -> list[ModelMessage]:
    """Convert stored messages to those of the framework. Raises `DamagedMessage` for one that it would reject."""
    items = []
    for message in messages:
        try:
            items.append(_item_of(message))
        except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
            raise DamagedMessage(key, message.seq, f"extra.{NAME}", repr(error)) from None
    try:
        return ModelMessagesTypeAdapter.validate_python(items)
    except ValidationError as error:
        index = error.errors(include_url=False, include_input=False)[0]["loc"][0]
        raise DamagedMessage(key, messages[int(index)].seq, f"extra.{NAME}", _fault(error)) from None


def loaded(key: str, name: str, adapter: TypeAdapter[T], value: Any) -> T:
    """Parse the JSON of a stored value. Raises `DamagedMessage` if it is not valid in the framework."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise DamagedMessage(key, 0, f"values.{NAME}.{name}", _fault(error)) from None


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def _item_of(message: Message) -> Json:
    rest = mapping(message.extra.get(NAME))
    is_response = message.role.canonical is MessageRole.ASSISTANT
    item: Json = {"kind": "response" if is_response else "request"}
    if message.created_at is not None:
        item["timestamp"] = _time_text(message.created_at)
    if is_response:
        item["usage"] = {"output_tokens": message.tokens or 0} | rest.get("usage", {})
    if "parts" not in rest:
        return item | {"parts": list(_foreign_parts(message))}
    text_part = _TEXT_PARTS[message.role]
    taken = [part for part in rest["parts"] if part["part_kind"] == text_part and "content" not in part]
    texts = iter([message.content] if len(taken) == 1 else map(_text, message.content or ()))
    calls = iter(message.tool_calls)
    return item | rest["item"] | {"parts": [_part_of(part, message, texts, calls) for part in rest["parts"]]}


def _part_of(part: Json, message: Message, texts: Iterator[Any], calls: Iterator[ToolCall]) -> Json:
    kind = part["part_kind"]
    if kind == _TEXT_PARTS[message.role] and "content" not in part:
        content = next(texts)
        return part | {"content": list(map(_text, content)) if isinstance(content, list) else content}
    if kind == "builtin-tool-return" and "content" not in part:
        call = next(call for call in message.tool_calls if call.id == part["tool_call_id"])
        return part | {"tool_name": call.name, "content": call.output}
    if kind in (*_CALLS, *_RESULTS) and "tool_call_id" not in part:
        call = next(calls)
        value = {"args": call.arguments} if kind in _CALLS else {"content": call.output}
        return part | {"tool_name": call.name, "tool_call_id": call.id} | value
    return part


def _foreign_parts(message: Message) -> Iterator[Json]:
    """Yield parts for the text, the attachments, the calls and the tool outputs of another writer's message."""
    role = message.role.canonical
    kind, is_output = _TEXT_PARTS[message.role], role is MessageRole.TOOL
    is_response = role is MessageRole.ASSISTANT
    time = {} if is_response or message.created_at is None else {"timestamp": _time_text(message.created_at)}
    content: list[Any] = []
    for part in parts(message):
        if isinstance(part, Result) and not is_output:
            continue
        written = PYDANTIC_AI.block(part, "system" if role is MessageRole.DEVELOPER else role.value, ignore)
        if written is not None and "part_kind" in written:
            yield written | (time if is_output else {})
        elif written is not None:
            content.append(written["content"] if written["kind"] == "text-content" else written)
            if is_response or role is MessageRole.SYSTEM:
                yield {"part_kind": kind, "content": content.pop(), **time}
    if content:
        yield {"part_kind": kind, "content": content[0] if [*map(type, content)] == [str] else content, **time}


def _is_blocks(content: Any) -> bool:
    """Return True if a prompt is a list of texts and other parts that the conversion restores exactly."""
    return isinstance(content, list) and all(isinstance(each, str) or _text(each) is each for each in content)


def _block(part: Any) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _text(block: Any) -> Any:
    """Return the text of a block that has nothing else; return any other block unchanged."""
    is_text = isinstance(block, dict) and block.keys() == {"type", "text"} and block["type"] == "text"
    return block["text"] if is_text and isinstance(block["text"], str) else block


def _time_text(time: datetime) -> str:
    """Return a time in the format of the framework."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
