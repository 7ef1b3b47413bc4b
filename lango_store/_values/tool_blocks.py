"""Calls of tools and their results as content blocks of Anthropic, Gemini and OpenAI."""

from collections.abc import Sequence
from typing import Any, Final

from lango_store._values.model import Message, ToolCall

SIGNATURES: Final = ("thought_signature", "thoughtSignature")


def has_failed(message: Message) -> bool:
    """Return True for the result of a tool that failed."""
    return message.extra.get("failed") is True or message.extra.get("is_error") is True


def calls_in(content: list[Any], calls: Sequence[ToolCall]) -> tuple[list[Any], list[ToolCall]]:
    """Take the calls out of a content of Anthropic or Gemini; those that `calls` has too are not returned."""
    rest, taken = [], []
    for block in content:
        asked = block.get("function_call") or block.get("functionCall")
        if block.get("type") == "tool_use":
            call = ToolCall(
                id=_name(block.get("id")) or "", name=_name(block.get("name")) or "", arguments=block.get("input")
            )
        elif isinstance(asked, dict):
            signature = signature_of(block)
            extra = {} if signature is None else {"thought_signature": signature}
            id, name = _name(asked.get("id")), _name(asked.get("name"))
            call = ToolCall(id=id or "", name=name or "", arguments=asked.get("args"), extra=extra)
        else:
            rest.append(block)
            continue
        if not any(each.id == call.id and (call.id or each.name == call.name) for each in calls):
            taken.append(call)
    return rest, taken


def results_in(content: list[Any]) -> tuple[list[Any], list[Message]]:
    """Take the results of tools out of a content of Anthropic or Gemini."""
    rest, results = [], []
    for block in content:
        response = block.get("function_response") or block.get("functionResponse")
        if block.get("type") == "tool_result":
            extra = {"failed": True} if block.get("is_error") else {}
            id = block.get("tool_use_id")
            results.append(
                Message.tool(block.get("content"), tool_call_id=id if isinstance(id, str) else None, extra=extra)
            )
        elif isinstance(response, dict):
            id, name = _name(response.get("id")), _name(response.get("name"))
            results.append(Message.tool(response.get("response"), tool_call_id=id, name=name))
        else:
            rest.append(block)
    return rest, results


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def signature_of(fields: dict[str, Any]) -> str | None:
    """Return Gemini's thought signature of a part or of the `extra` of a call."""
    for name in SIGNATURES:
        if isinstance(fields.get(name), str):
            return str(fields[name])
    inner = fields.get("google") if "google" in fields else fields.get("extra_content")
    return signature_of(inner) if isinstance(inner, dict) else None
