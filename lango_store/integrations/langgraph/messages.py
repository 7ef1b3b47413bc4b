"""Lossless conversion between messages of LangChain and messages of the log."""

import json
import marshal
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from lango_store import DamagedMessage, Message, MessageRole, ToolCall
from lango_store.content import FAILED, as_object
from lango_store.integrations.counts import as_usage, counts_of
from lango_store.integrations.langgraph.records import NAME, pack, unpack
from lango_store.interchange.langchain_messages import foreign, kind_of, role_of
from lango_store.rows import mapping, storable_text

_CLASSES: Final[dict[str, type[BaseMessage]]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}
_REDACTED: Final = "(redacted)"
_SHOWN: Final = ("type", "content", "name", "tool_call_id", "tool_calls")


def message_of(original: BaseMessage, id: str, serde: Any) -> Message:
    """Convert a message of LangChain. What the log has no field for is stored in `extra`."""
    calls = [
        ToolCall(id=call["id"] or "", name=call["name"], arguments=call["args"])
        for call in getattr(original, "tool_calls", ())
    ]
    failed = FAILED if getattr(original, "status", None) == "error" else {}
    rest = {name: value for name, value in vars(original).items() if name not in _SHOWN and value not in (None, {}, [])}
    about = mapping(getattr(original, "response_metadata", None))
    message = Message(
        id=id,
        role=role_of(original.type),
        content=original.content,
        name=storable_text(original.name),
        tool_call_id=storable_text(getattr(original, "tool_call_id", None)),
        tool_calls=calls,
        extra={NAME: {"type": original.type, **rest}, **failed},
        model=storable_text(about.get("model_name") or about.get("model")),
        provider=storable_text(about.get("model_provider")),
    )
    is_shown = type(original) is _CLASSES.get(original.type) and is_json(rest) and is_json(original.content)
    if is_shown and _original_of(message, serde) == original:
        return message
    changes = {
        "content": _text_of(original),
        "tool_calls": [call for call in calls if is_json(call.arguments)],
        "extra": {NAME: {"type": original.type, "packed": pack(serde, original)}, **failed},
    }
    return message.model_copy(update=changes)


def _text_of(original: BaseMessage) -> str:
    """Return the content of the message in the log, if that has the original as packed bytes."""
    return str(original.text if is_json(original.content) else original.content)


def _original_of(message: Message, serde: Any) -> BaseMessage:
    """Return the message of LangChain that `message_of` converted, with the changes of later edits.

    A message without `extra` was redacted or replaced. It gets the id of the log's message: without an id, the graph
    would add a random one, and store the message again.
    """
    if message.role is MessageRole.RECORD:
        message = shown(message)
    if NAME not in message.extra:
        stored = next(foreign(message))
        return _CLASSES[stored["type"]](id=message.id, **stored["data"])
    rest: dict[str, Any] = dict(message.extra[NAME])
    content = "" if message.content is None else message.content
    if "packed" in rest:
        packed: BaseMessage = unpack(serde, rest["packed"])
        return packed if content == _text_of(packed) else packed.model_copy(update={"content": content})
    kind = rest["type"]
    if kind in _CLASSES and role_of(kind) != message.role:
        kind = kind_of(message.role)
    fields = rest | {"type": kind, "content": content, "name": message.name}
    if kind == "ai":
        fields["tool_calls"] = [
            {"name": call.name, "args": as_object(call.arguments), "id": call.id, "type": "tool_call"}
            for call in message.tool_calls
        ]
    if kind == "tool":
        fields["tool_call_id"] = message.tool_call_id or ""
    return _CLASSES[kind](**fields)


def hidden(message: Message) -> Message:
    """Return a message as a record. Its author is its role, because a redaction removes `extra`."""
    changes = {
        "role": MessageRole.RECORD,
        "author": message.role.value,
        "content": "" if message.content is None else message.content,
    }
    return message.model_copy(update=changes)


def shown(message: Message) -> Message:
    """Return the message that became this record."""
    kind = mapping(message.extra.get(NAME)).get("type")
    # An earlier release stored no author.
    redacted = MessageRole.TOOL if message.tool_call_id else MessageRole.USER
    role = role_of(kind) if kind else next((role for role in MessageRole if role == message.author), redacted)
    content = _REDACTED if message.content is None else message.content
    return message.model_copy(update={"role": role, "author": None, "content": content})


def originals_of(key: str, messages: Sequence[Message], serde: Any) -> list[BaseMessage]:
    """Return the messages of LangChain. Raises `DamagedMessage` for one that is not of LangChain."""
    originals = []
    for message in messages:
        try:
            originals.append(_original_of(message, serde))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise DamagedMessage(key, message.seq, f"extra.{NAME}", repr(error)) from None
    return originals


def hash_of(message: BaseMessage, serde: Any) -> int:
    """Return a hash of a message, to recognize it in a later list in this process."""
    try:
        data = marshal.dumps((message.type, sorted(vars(message).items())), 2)  # later formats depend on identity
    except ValueError:
        data = serde.dumps_typed(message)[1]
    return hash(data)


def usage_of(messages: Sequence[BaseMessage]) -> tuple[dict[str, Any], list[Any]]:
    """Add up the usage of messages, and return it with the names of their models."""
    spent = [each for each in messages if isinstance(each, AIMessage) and each.usage_metadata]
    total: Counter[str] = sum((counts_of(mapping(each.usage_metadata)) for each in spent), Counter())
    models = [each.response_metadata.get("model_name") or each.response_metadata.get("model") for each in spent]
    return as_usage(total), models


def is_json(value: Any) -> bool:
    """Return True if JSON holds a value without loss."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
