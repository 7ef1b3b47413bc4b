"""One message of Dive and one `Message`: a role, and a list of blocks that stays as it is.

Messages that were made elsewhere become blocks on the way out: text, tool_use and tool_result.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.interchange.dive.names import NAME
from lango_store.interchange.draft import Skipped
from lango_store.interchange.fidelity import difference, known_role, mapping, restored, storable_id
from lango_store.interchange.json_text import read_json

_ROLES: Final = {
    MessageRole.DEVELOPER: "system",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "user",  # where Dive has the results of tools
    MessageRole.FUNCTION: "user",
}


def message_from(
    message: dict[str, Any], created_at: datetime | None, repeated: set[str], line: int, skipped: list[Skipped]
) -> Message:
    """Read a message; an id that others have too, or that no index can hold, stays in `extra`."""
    id = storable_id(message.get("id"))
    role = known_role(message.get("role"))
    if role is None:
        role = MessageRole.USER
        skipped.append(
            Skipped(line, f"the role {message.get('role')!r} is not one of ours: stored as user, the word in extra")
        )
    read = Message(role=role, content=message.get("content"), id=None if id in repeated else id, created_at=created_at)
    if raw := difference(message, _written(read)):
        read.extra = {NAME: raw}
    return read


def message_to(message: Message) -> dict[str, Any]:
    """Write a message."""
    return restored(_written(message), mapping(message.extra.get(NAME)))


def _written(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"id": message.id} if message.id is not None else {}
    return written | {"role": _ROLES.get(message.role, message.role.value), "content": _blocks(message)}


def _blocks(message: Message) -> list[Any] | None:
    calls = [_call_block(call) for call in message.tool_calls]
    answer = message.tool_call_id
    if answer is not None and not any(call.answered and call.id == answer for call in message.tool_calls):
        return [_result_block(answer, message.content), *calls]
    outputs = [_text(call.output) for call in message.tool_calls if call.answered]
    is_said = message.role.canonical is MessageRole.TOOL and message.content in outputs  # lango has it twice
    if message.content is None or is_said:
        return calls or None
    return [*_content_blocks(message.content), *calls] if calls else _content_blocks(message.content)


def _content_blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": _text(content)}]


def _call_block(call: ToolCall) -> dict[str, Any]:
    if call.answered:
        return _result_block(call.id, call.output)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}


def _result_block(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": _text(output)}


def _input(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            return read_json(arguments or "{}")
        except ValueError:
            return arguments
    return {} if arguments is None else arguments


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
