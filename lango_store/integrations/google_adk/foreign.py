"""Messages that another program wrote to a session, as events of ADK."""

from __future__ import annotations

import json
from typing import Any

from lango_store import Message, MessageRole, ToolCall


def foreign_json(message: Message) -> dict[str, Any]:
    """Return the JSON of an event for a message, without id and time."""
    role = "model" if message.role.canonical is MessageRole.ASSISTANT else "user"
    parts = _parts(message)
    return {"author": message.author or role, "content": {"role": role, "parts": parts} if parts else None}


def _parts(message: Message) -> list[dict[str, Any]]:
    calls, content = list(message.tool_calls), message.content
    if message.role.canonical is not MessageRole.TOOL:
        blocks = [] if content is None or content == "" else content if isinstance(content, list) else [content]
        return [{"text": _text(block)} for block in blocks] + [_part(call) for call in calls]
    if not any(call.answered for call in calls):
        calls.append(ToolCall(id=message.tool_call_id or "", name=message.name or "", output=content))
    return [_part(call) for call in calls]


def _part(call: ToolCall) -> dict[str, Any]:
    named = ({"id": call.id} if call.id else {}) | {"name": call.name}
    if call.answered:
        response = call.output if isinstance(call.output, dict) else {"result": call.output}
        return {"function_response": named | {"response": response}}
    return {"function_call": named | {"args": _arguments(call.arguments)}}


def _arguments(given: Any) -> dict[str, Any]:
    """Return arguments as a dict; OpenAI's are the text of one."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {"arguments": given}
    return given if isinstance(given, dict) else {} if given is None else {"arguments": given}


def _text(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else block
    return text if isinstance(text, str) else json.dumps(block, ensure_ascii=False)
