"""Prompts in the formats of providers, from any log."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, Literal

from lango_store._values.model import Message, MessageRole
from lango_store.content import FORMS, Entry, Text, plain
from lango_store.content.reading import reasoning
from lango_store.window.entries import as_prompt
from lango_store.window.repair import (
    INSTRUCTIONS,
    NOTHING_RECORDED,
    Recorded,
    Repair,
    Repairer,
    Rules,
    as_message,
    valid_name,
)

Format = Literal["openai", "openai-responses", "anthropic", "gemini"]
"""A format of prompts: that of OpenAI's chat completions (and of compatible servers), of OpenAI's responses, of
Anthropic's messages or of Gemini's contents."""

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RULES: Final = {
    "openai": Rules(re.compile(r"[^\ud800-\udfff]{1,40}", re.DOTALL), _NAME),
    "openai-responses": Rules(re.compile(r"[^\ud800-\udfff]{1,64}", re.DOTALL), _NAME),
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
        return Prompt({"role": message.role._value_, "content": _sent(message)} for message in messages)
    form = FORMS[format]
    repairer = Repairer(form, _RULES[format] if nested else None, recorded, close=unanswered == "close")
    repaired = repairer.repaired(messages)
    result = Prompt()
    if format in ("anthropic", "gemini"):
        leading = list(takewhile(_instructs, repaired))
        result.system = "\n\n".join(plain(entry.parts, entry.note) for entry in leading) or None
        repaired = [_as_user(entry) if _instructs(entry) else entry for entry in repaired[len(leading) :]]
        if repaired and repaired[0].role != "user":
            first = repaired[0].message
            repairer.note(first, "first message", "a user message was added, since the format starts with one")
            repaired.insert(0, Entry(None, "user", [Text(_FIRST)], repaired[0].note))
    if not nested:
        result += as_prompt(list(map(as_message, repaired)), nested=False)
    elif form.render is not None:
        if format == "openai":
            for entry in repaired:
                _name(entry, repairer)
        result += form.render(repaired)
    result.repairs = sorted(repairer.repairs, key=lambda repair: repair.seq)
    return result


def _is_text(message: Message) -> bool:
    """Return True for a message that is the same in the log and in OpenAI's prompt, whatever is before and after it."""
    content = _sent(message)
    return (
        message.role in _TEXT_ROLES
        and type(content) is str
        and not (message.tool_calls or message.name or message.tool_call_id)
        and not (message.extra and ("interrupted" in message.extra or reasoning(message)))
        and not content.isspace()
        and content != ""
        and (content.isascii() or _is_encodable(content))
    )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sent(message: Message) -> Any:
    return message.content if message.sent is None else message.sent


def _instructs(entry: Entry) -> bool:
    return entry.role in INSTRUCTIONS


def _as_user(entry: Entry) -> Entry:
    """Return instructions after the start of a prompt as a user's text that a model recognizes as instructions."""
    text = plain(entry.parts, entry.note)
    return Entry(entry.message, "user", [Text(f"<system>\n{text}\n</system>")], entry.note)


def _name(entry: Entry, repairer: Repairer) -> None:
    """Give an entry the name of its participant, or a valid one."""
    name = None if entry.role == "tool" or entry.message is None else entry.message.name
    if name:
        entry.name = name if _PARTICIPANT.fullmatch(name) else valid_name(name)
        if entry.name != name:
            repairer.note(entry.message, "name", f"name {name!r} is {entry.name!r}")
