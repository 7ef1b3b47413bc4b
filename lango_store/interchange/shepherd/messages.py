"""One message of Shepherd and one `Message`: `tool_name` is the name, `tool_calls_json` the tool calls."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.interchange.draft import Skipped
from lango_store.interchange.fidelity import difference, known_role, mapping, restored, storable_text
from lango_store.interchange.json_text import read_json
from lango_store.interchange.shepherd.names import NAME

_ROLES: Final = {MessageRole.DEVELOPER: "system", MessageRole.MODEL: "assistant"}


def message_from(message: dict[str, Any], saved_at: datetime | None, number: int, skipped: list[Skipped]) -> Message:
    """Read a message; its time is when the file was saved."""
    role = known_role(message.get("role"))
    if role is None:
        role = MessageRole.USER
        reason = (
            f"message {number}: the role {message.get('role')!r} is not one of ours: stored as user, the word in extra"
        )
        skipped.append(Skipped(number, reason))
    read = Message(
        role=role,
        content=message.get("content"),
        name=storable_text(message.get("tool_name")),
        tool_call_id=storable_text(message.get("tool_call_id")),
        tool_calls=_calls(message.get("tool_calls_json")),
        tokens=_tokens(message.get("tokens")),
        created_at=saved_at,
    )
    if raw := difference(message, _written(read)):
        read.extra = {NAME: raw}
    return read


def _calls(text: Any) -> list[ToolCall]:
    """Read tool calls in OpenAI's form; none if they are in another, whose text stays in extra."""
    try:
        calls = read_json(text) if isinstance(text, str) else None
    except ValueError:
        return []
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        return []
    return Message.from_openai({"role": "assistant", "tool_calls": calls}).tool_calls


def _is_call(call: Any) -> bool:
    function = mapping(mapping(call).get("function"))
    return isinstance(function.get("name"), str) and isinstance(mapping(call).get("id"), str)


def _tokens(count: Any) -> int | None:
    return count if type(count) is int and 0 <= count < 2**53 else None


def messages_to(message: Message) -> list[dict[str, Any]]:
    """Write a message; a tool's output that stands in a call becomes a message of its own."""
    raw = mapping(message.extra.get(NAME))
    outputs = [_output(call) for call in message.tool_calls if call.answered]
    if not outputs:
        return [restored(_written(message), raw)]
    lead = _written(message)
    is_said = message.role.canonical is MessageRole.TOOL and lead["content"] in (
        "",
        *(each["content"] for each in outputs),
    )
    if is_said and "tool_calls_json" not in lead:
        outputs[0]["tokens"] = lead["tokens"]
        return outputs
    return [lead, *outputs]


def _written(message: Message) -> dict[str, Any]:
    asked = [call for call in message.tool_calls if not call.answered]
    written = {
        "role": _ROLES.get(message.role, message.role.value),
        "content": _text(message.content),
        "tokens": message.tokens or 0,
        "tool_name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls_json": _calls_text(asked) if asked else None,
    }
    return {name: value for name, value in written.items() if value is not None}


def _calls_text(calls: list[ToolCall]) -> str:
    nested = Message(role=MessageRole.ASSISTANT, tool_calls=calls).to_openai()["tool_calls"]
    return json.dumps(nested, ensure_ascii=False, separators=(",", ":"))


def _output(call: ToolCall) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": _text(call.output),
        "tokens": 0,
        "tool_name": call.name,
        "tool_call_id": call.id,
    }


def _text(value: Any) -> str:
    """Return content as the text that Shepherd has: blocks of text joined, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(isinstance(mapping(block).get("text"), str) for block in value):
        return "\n\n".join(block["text"] for block in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
