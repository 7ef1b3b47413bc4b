"""Lossless conversion between messages of LangChain, as `message_to_dict` writes them, and messages of the log."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from lango_store import Message, MessageRole, ToolCall
from lango_store.content import FAILED, LANGCHAIN, Call, Result, as_object, ignore, parts, written, written_result
from lango_store.rows import mapping, storable_text

NAME: Final = "langchain"
"""The name under which the rest of a message is stored in `extra`."""

_ROLES: Final = {
    "ai": MessageRole.ASSISTANT,
    "AIMessageChunk": MessageRole.ASSISTANT,
    "system": MessageRole.SYSTEM,
    "tool": MessageRole.TOOL,
    "function": MessageRole.TOOL,
}
_KINDS: Final = {
    MessageRole.ASSISTANT: "ai",
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.TOOL: "tool",
}
_CALL: Final = {"name", "args", "id", "type"}


def role_of(kind: str) -> MessageRole:
    """Return the role of a type of LangChain's messages."""
    return _ROLES.get(kind, MessageRole.USER)


def kind_of(role: MessageRole) -> str:
    """Return the type of LangChain's messages for a role."""
    return _KINDS.get(role.canonical, "human")


def message_of(stored: Mapping[str, Any]) -> Message:
    """Convert a message of LangChain; what has no field is stored in `extra`. Raises ValueError if it is not one."""
    kind, data = stored.get("type"), stored.get("data")
    if not isinstance(kind, str) or not isinstance(data, dict) or not isinstance(data.get("content"), str | list):
        raise ValueError("is not a message of LangChain")
    calls = data.get("tool_calls")
    has_calls = isinstance(calls, list) and bool(calls) and all(map(_is_call, calls))
    moved = {"content", "tool_calls"} if has_calls else {"content"}
    rest = {name: value for name, value in data.items() if name not in moved}
    about = mapping(data.get("response_metadata"))
    return Message(
        role=role_of(kind),
        content=data["content"],
        name=storable_text(data.get("name")),
        tool_call_id=storable_text(data.get("tool_call_id")),
        tool_calls=[
            ToolCall(id=call["id"], name=call["name"], arguments=call["args"])
            for call in (calls or () if has_calls else ())
        ],
        extra={NAME: {**stored, "data": rest}, **(FAILED if data.get("status") == "error" else {})},
        model=storable_text(about.get("model_name") or about.get("model")),
        provider=storable_text(about.get("model_provider")),
    )


def _is_call(call: Any) -> bool:
    is_complete = isinstance(call, dict) and call.keys() == _CALL and call["type"] == "tool_call"
    return is_complete and isinstance(call["id"], str) and isinstance(call["name"], str)


def stored_of(message: Message) -> list[dict[str, Any]]:
    """Return the message of LangChain that `message_of` converted, or those for a message of another writer."""
    rest = mapping(message.extra.get(NAME))
    if not rest:
        return list(foreign(message))
    data = mapping(rest.get("data")) | {"content": "" if message.content is None else message.content}
    if message.tool_calls and rest["type"] != "tool":
        data["tool_calls"] = [_call(call) for call in message.tool_calls]
    return [{**rest, "data": data}]


def foreign(message: Message) -> Iterator[dict[str, Any]]:
    """Yield messages of LangChain for a message of another writer: one for its own parts, and one for each result."""
    kind, found = kind_of(message.role), parts(message)
    results = [part for part in found if isinstance(part, Result)]
    own = [part for part in found if not isinstance(part, Call | Result)]
    calls = [replace(part, arguments=as_object(part.arguments)) for part in found if isinstance(part, Call)]
    if own or not results:
        kind = "human" if kind == "tool" else kind
        role = {"human": "user", "ai": "assistant"}.get(kind, kind)
        data = {"content": written(LANGCHAIN, own, role, ignore) or "", "name": message.name}
        yield {"type": kind, "data": data | ({"tool_calls": list(map(_call, calls))} if kind == "ai" else {})}
    for result in results:
        status = {"status": "error"} if result.failed else {}
        content = written_result(LANGCHAIN, result, ignore)
        data = {"content": content, "name": result.name, "tool_call_id": result.id or ""}
        yield {"type": "tool", "data": data | status}


def _call(call: Call | ToolCall) -> dict[str, Any]:
    return {"name": call.name, "args": call.arguments, "id": call.id, "type": "tool_call"}
