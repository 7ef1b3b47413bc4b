"""Messages that something else wrote to a session, as events of ADK's: what was said, called and answered."""

from __future__ import annotations

import json
from typing import Any

from lango_store import Message, MessageRole


def foreign_json(message: Message) -> dict[str, Any]:
    """Return what the JSON of an event says of a message, beside its id and time."""
    role = "model" if message.role.canonical is MessageRole.ASSISTANT else "user"
    parts = _parts(message)
    return {"author": message.author or role, "content": {"role": role, "parts": parts} if parts else None}


def _parts(message: Message) -> list[dict[str, Any]]:
    calls = [call.model_dump() for call in message.tool_calls]
    parts: list[dict[str, Any]] = [
        {"function_call": _with_id(call["id"], call["name"]) | {"args": _arguments(call.get("arguments"))}}
        for call in calls
        if "output" not in call
    ]
    answers = [(call["id"], call["name"], call["output"]) for call in calls if "output" in call]
    if message.role.canonical is MessageRole.TOOL and not answers:
        answers = [(message.tool_call_id or "", message.name or "", message.content)]
    elif message.role.canonical is not MessageRole.TOOL:
        parts = _blocks(message.content) + parts
    return parts + [
        {"function_response": _with_id(id, name) | {"response": out if isinstance(out, dict) else {"result": out}}}
        for id, name, out in answers
    ]


def _with_id(id: str, name: str) -> dict[str, Any]:
    return ({"id": id} if id else {}) | {"name": name}


def _arguments(given: Any) -> dict[str, Any]:
    """Return arguments as a dict; OpenAI's are the text of one."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {"arguments": given}
    return given if isinstance(given, dict) else {} if given is None else {"arguments": given}


def _blocks(content: Any) -> list[dict[str, Any]]:
    blocks = [] if content is None or content == "" else content if isinstance(content, list) else [content]
    return [{"text": _text(block)} for block in blocks]


def _text(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else block
    return text if isinstance(text, str) else json.dumps(block, ensure_ascii=False)
