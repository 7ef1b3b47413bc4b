"""Prompts in the formats of providers, from any log."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from lango_store._values.model import Message, MessageRole
from lango_store._values.tool_blocks import has_failed, signature_of
from lango_store._values.value import copied
from lango_store.window.blocks import (
    Format,
    Note,
    converted,
    is_blank,
    is_list_of_dicts,
    is_thought,
    plain,
)
from lango_store.window.entries import as_prompt
from lango_store.window.repair import (
    INSTRUCTIONS,
    NOTHING_RECORDED,
    Recorded,
    Repair,
    Repairer,
    Rules,
    as_object,
    sent,
    valid_name,
)

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RULES: Final = {
    "openai": Rules(re.compile(r".{1,40}", re.DOTALL), _NAME),
    "openai-responses": Rules(re.compile(r".{1,64}", re.DOTALL), _NAME),
    "anthropic": Rules(re.compile(r"[a-zA-Z0-9_-]{1,64}"), _NAME),
    "gemini": Rules(None, re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")),
}
_TEXT_ROLES: Final = (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SYSTEM, MessageRole.DEVELOPER)
_PARTICIPANT: Final = re.compile(r"[^\s<|\\/>]{1,64}")
_FIRST: Final = "(The conversation begins with the assistant.)"


class Prompt(list[dict[str, Any]]):
    """The messages to send to a provider, as dicts of its format.

    Attributes:
        system: The instructions at the start of the window as text, for formats that take them apart from the messages:
            Anthropic's `system` and Gemini's `system_instruction`. None if there are none, and in OpenAI's formats,
            where they are messages.
        repairs: What differs from the log, so that the provider accepts the prompt.
    """

    system: str | None = None
    repairs: Sequence[Repair] = ()


def prompt(
    messages: Sequence[Message],
    format: Format = "openai",
    *,
    nested: bool = True,
    unanswered: str = "close",
    recorded: Recorded = NOTHING_RECORDED,
) -> Prompt:
    """Return the messages as a prompt that a provider accepts, whatever the log contains.

    See `Conversation.history`, which does the same with the messages of a session.

    Args:
        messages: The messages in their order. Records are left out.
        format: "openai" (chat completions), "openai-responses", "anthropic" or "gemini".
        nested: False for flat tool calls, only with the format "openai".
        unanswered: "close", or "keep" to add nothing after open calls and interrupted answers.
        recorded: The calls of results that are known, see `Recorded`. Default: none.

    Raises:
        ValueError: `format` or `unanswered` is unknown, or `nested=False` is given with another format.
    """
    if format not in _RULES:
        raise ValueError(f"format={format!r}: give one of {', '.join(map(repr, _RULES))}")
    if unanswered not in ("close", "keep"):
        raise ValueError(f'unanswered={unanswered!r}: give "close" or "keep"')
    if not nested and format != "openai":
        raise ValueError(f"nested=False is a form of the format 'openai': leave it out with {format!r}")
    if format == "openai" and all(map(_is_text, messages)):  # most logs, in a third of the time
        return Prompt({"role": message.role._value_, "content": sent(message)} for message in messages)
    repairer = Repairer(_RULES[format] if nested else None, recorded, close=unanswered == "close")
    repaired = repairer.repaired(messages)
    result = Prompt()
    if format in ("anthropic", "gemini"):
        leading = list(takewhile(_instructs, repaired))
        result.system = "\n\n".join(plain(sent(message), repairer.noting(message)) for message in leading) or None
        repaired = [_as_user(each, repairer) if _instructs(each) else each for each in repaired[len(leading) :]]
        if repaired and repaired[0].role is not MessageRole.USER:
            repairer.note(repaired[0], "first message", "a user message was added, since the format starts with one")
            repaired.insert(0, Message.user(_FIRST))
    result += copied(_RENDERERS[format if nested else "flat"](repaired, repairer))
    result.repairs = sorted(repairer.repairs, key=lambda repair: repair.seq)
    return result


def _is_text(message: Message) -> bool:
    """Return True for a message that is the same in the log and in OpenAI's prompt, whatever is before and after it."""
    content = message.content if message.sent is None else message.sent
    return (
        message.role in _TEXT_ROLES
        and type(content) is str
        and not (message.tool_calls or message.name or message.tool_call_id or "interrupted" in message.extra)
        and not content.isspace()
        and content != ""
    )


def _instructs(message: Message) -> bool:
    return message.role in INSTRUCTIONS


def _as_user(message: Message, repairer: Repairer) -> Message:
    """Return instructions after the start of a prompt as a user's text that a model recognizes as instructions."""
    text = plain(sent(message), repairer.noting(message))
    changes = {"role": MessageRole.USER, "content": f"<system>\n{text}\n</system>", "sent": None}
    return message.model_copy(update=changes)


def _kind(role: MessageRole) -> str:
    return "system" if role is MessageRole.DEVELOPER else role.value


def _is_result(message: Message) -> bool:
    return message.role.canonical is MessageRole.TOOL


# OpenAI


def _openai(messages: Sequence[Message], repairer: Repairer) -> list[dict[str, Any]]:
    return [_openai_message(message, repairer) for message in messages]


def _openai_message(message: Message, repairer: Repairer) -> dict[str, Any]:
    content, role = sent(message), message.role.canonical
    if type(content) is not str:
        content = converted(content, "openai", _kind(role), repairer.noting(message))
        content = content or (None if message.tool_calls else "")
    entry = {"role": role._value_, "content": content}
    if message.tool_calls:
        entry["tool_calls"] = [call.to_openai() for call in message.tool_calls]
    if message.tool_call_id:
        entry["tool_call_id"] = message.tool_call_id
    if message.name:
        entry["name"] = message.name if _PARTICIPANT.fullmatch(message.name) else valid_name(message.name)
        if entry["name"] != message.name:
            repairer.note(message, "name", f"name {message.name!r} is {entry['name']!r}")
    return entry


def _flat(messages: Sequence[Message], _: Repairer) -> list[dict[str, Any]]:
    return as_prompt(messages, nested=False)


def _responses(messages: Sequence[Message], repairer: Repairer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    custom: set[str | None] = set()
    for message in messages:
        note, content, role = repairer.noting(message), sent(message), message.role.canonical
        if _is_result(message):
            kind = "custom_tool_call_output" if message.tool_call_id in custom else "function_call_output"
            output = converted(content, "openai-responses", "tool", note)
            items.append({"type": kind, "call_id": message.tool_call_id, "output": output})
        elif role is not MessageRole.ASSISTANT:
            items.append({"role": role.value, "content": converted(content, "openai-responses", _kind(role), note)})
        else:
            if is_list_of_dicts(content):
                items += [block for block in content if block.get("type") == "reasoning"]
                content = [block for block in content if block.get("type") != "reasoning"]
            if not is_blank(content):
                items.append({"role": "assistant", "content": plain(content, note)})
            for call in message.tool_calls:
                entry = call.to_openai()
                body = entry.get("function") or entry["custom"]
                prefix = "custom_tool" if entry["type"] == "custom" else "function"
                items.append({"type": f"{prefix}_call", "call_id": call.id, **body})
                custom |= {call.id} if prefix == "custom_tool" else set()
    return items


# Anthropic


def _anthropic(messages: Sequence[Message], repairer: Repairer) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for message in messages:
        note = repairer.noting(message)
        if _is_result(message):
            if entries[-1]["role"] == "assistant":  # all results of its calls are one message
                entries.append({"role": "user", "content": []})
            entries[-1]["content"].append(_tool_result(message, note))
        elif message.role.canonical is MessageRole.ASSISTANT:
            entries.append({"role": "assistant", "content": _anthropic_answer(message, note)})
        else:
            entries.append({"role": "user", "content": converted(sent(message), "anthropic", "user", note)})
    return entries


def _tool_result(message: Message, note: Note) -> dict[str, Any]:
    content = converted(sent(message), "anthropic", "tool", note)
    block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
    return block | {"is_error": True} if has_failed(message) else block


def _anthropic_answer(message: Message, note: Note) -> Any:
    content = converted(sent(message), "anthropic", "assistant", note)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    while blocks and is_thought(blocks[-1]) and not message.tool_calls:  # thinking may not be the last block
        blocks.pop()
    if blocks and blocks[-1]["type"] == "text":  # a final answer may not end with white space
        blocks[-1] = blocks[-1] | {"text": blocks[-1]["text"].rstrip()}
    if not message.tool_calls:
        return blocks[0]["text"] if isinstance(content, str) else blocks
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": as_object(call.arguments)}
        for call in message.tool_calls
    ]
    return [*(block for block in blocks if block.get("text") != ""), *calls]


# Gemini


def _gemini(messages: Sequence[Message], repairer: Repairer) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    names: dict[str | None, str] = {}
    for message in messages:
        is_result, note = _is_result(message), repairer.noting(message)
        is_model = message.role.canonical is MessageRole.ASSISTANT
        role = "model" if is_model else "user"
        parts = [_function_response(message, names, note)] if is_result else _gemini_parts(message, note)
        names |= {call.id: call.name for call in message.tool_calls}
        # All results of a message are one content, and a call has to follow a user's content.
        if contents and contents[-1]["role"] == role and (is_result or is_model):
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _gemini_parts(message: Message, note: Note) -> list[dict[str, Any]]:
    content = converted(sent(message), "gemini", _kind(message.role.canonical), note)
    parts = ([{"text": content}] if content.strip() else []) if isinstance(content, str) else list(content)
    for call in message.tool_calls:
        signature = signature_of(call.extra)
        signed = {} if signature is None else {"thought_signature": signature}
        parts.append({"function_call": {"name": call.name, "args": as_object(call.arguments)}, **signed})
    return parts


def _function_response(message: Message, names: Mapping[str | None, str], note: Note) -> dict[str, Any]:
    content = sent(message)
    if not isinstance(content, dict) or has_failed(message):
        content = {"error" if has_failed(message) else "result": plain(content, note)}
    return {"function_response": {"name": names[message.tool_call_id], "response": content}}


_RENDERERS: Final[dict[str, Callable[[Sequence[Message], Repairer], list[dict[str, Any]]]]] = {
    "openai": _openai,
    "flat": _flat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
