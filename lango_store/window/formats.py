"""Prompts in the formats of providers, from any log."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final

from lango_store._values.model import Message, MessageRole
from lango_store.content import FORMS, Entry, Text, ignore, plain
from lango_store.content.openai_responses import paired
from lango_store.content.reading import reasoning
from lango_store.content.text import sound
from lango_store.window import thinking
from lango_store.window.entries import as_prompt
from lango_store.window.providers import Format, Target
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

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_RULES: Final = {
    "openai": Rules(re.compile(r"[^\ud800-\udfff]{1,40}", re.DOTALL), _NAME),
    "openai-responses": Rules(re.compile(r"[^\ud800-\udfff]{1,64}", re.DOTALL), _NAME),
    "anthropic": Rules(re.compile(r"[a-zA-Z0-9_-]{1,64}"), _NAME),
    "gemini": Rules(None, re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")),
}
_MISTRAL: Final = Rules(re.compile("[a-zA-Z0-9]{9}"), _NAME)
_TEXT_ROLES: Final = (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SYSTEM, MessageRole.DEVELOPER)
_PARTICIPANT: Final = re.compile(r"[^\s<|\\/>\ud800-\udfff]{1,64}")
_TALKS: Final = frozenset({"interrupted", "images"})
"""Fields of `extra` that change the prompt of a text."""
_FIRST: Final = "(The conversation begins with the assistant.)"


class Prompt(list[dict[str, Any]]):
    """The messages to send to a provider, as dicts of its format.

    Attributes:
        system: The instructions at the start of the window, for formats that take them apart from the messages:
            Anthropic's `system` and Gemini's `system_instruction`. None if there are none, and in OpenAI's formats,
            where they are messages. It is text; for Anthropic, it is a list of blocks if `system=` was one.
        tools: The tools to send: those that were passed, or else those of the session. None without any.
        model: The model that was passed, or None.
        provider: The provider that was passed, or None.
        repairs: What differs from the log, so that the provider accepts the prompt.
        notes: Messages to store before the answer: a record with instructions and tools that the session has not
            stored yet, and new instructions that the prompt has at its end.
    """

    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    model: str | None = None
    provider: str | None = None
    repairs: Sequence[Repair] = ()
    notes: Sequence[Message] = ()
    _instructions: str | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The prompt itself, for clients that take messages, `system` and `tools`."""
        return self

    @property
    def fingerprint(self) -> str:
        """Digests of the present contents of the prompt, for `Message.request` of the answer: up to 54 characters."""
        return thinking.fingerprint(self, (self.system, self.tools), self._instructions)

    def answered(self, answer: Message) -> Message:
        """Return an answer with the fingerprint of this prompt, and with its model and provider if it has none."""
        made = {"request": self.fingerprint}
        made |= {name: getattr(self, name) for name in ("model", "provider") if getattr(answer, name) is None}
        return answer.model_copy(update={name: value for name, value in made.items() if value is not None})


def prompt(
    messages: Sequence[Message],
    format: Format = "openai",
    *,
    nested: bool = True,
    unanswered: str = "close",
    recorded: Recorded = NOTHING_RECORDED,
    model: str | None = None,
    provider: str | None = None,
    system: Any = None,
    tools: Sequence[Any] | None = None,
    is_intact: Callable[[Message], bool] = lambda _: True,
) -> Prompt:
    """Return the messages as a prompt that a provider accepts, whatever the log contains.

    See `Conversation.history`, which does the same with the messages of a session.

    Args:
        messages: The messages in their order. Records are left out, except those that `LangoSession` stores, in the
            format "openai-responses".
        format: "openai" (chat completions), "openai-responses", "anthropic" or "gemini".
        nested: False for flat tool calls, only with the format "openai".
        unanswered: "close", or "keep" to add nothing after open calls and interrupted answers.
        recorded: The calls of results that are known, see `Recorded`. Default: none.
        model: The model that gets the prompt. Default: unknown, which counts as the newest one.
        provider: The provider that gets the prompt. Default: the vendor of the format.
        system: Instructions before the first message: text, or Anthropic's blocks. Default: none.
        tools: The tools of the request. Default: none.
        is_intact: For messages without a `request`: returns False if messages before this one may be missing or may
            have changed since it was stored, so that its thinking can be invalid. Default: they have not.

    Raises:
        ValueError: `format` or `unanswered` is unknown, or `nested=False` is given with another format.
    """
    if format not in _RULES:
        raise ValueError(f"format={format!r}: give one of {', '.join(map(repr, _RULES))}")
    if unanswered not in ("close", "keep"):
        raise ValueError(f'unanswered={unanswered!r}: give "close" or "keep"')
    if not nested and format != "openai":
        raise ValueError(f"nested=False is a form of the format 'openai': leave it out with {format!r}")
    if system is not None:
        messages = [Message.system(system), *messages]
    is_unknown = model is None and provider is None
    continues = is_unknown or Target(format, model, provider).continues
    if format == "openai" and continues and (texts := _texts(messages)) is not None:
        is_plain = is_unknown and system is None and tools is None
        return Prompt(texts) if is_plain else _described(Prompt(texts), model, provider, system, tools)
    form, target = FORMS[format], Target(format, model, provider)
    rules = _MISTRAL if target.is_mistral else _RULES[format]
    repairer = Repairer(form, rules if nested else None, recorded, close=unanswered == "close", target=target)
    repaired = repairer.repaired(messages)
    result = _described(Prompt(), model, provider, system, tools)
    if format in ("anthropic", "gemini"):
        leading = list(takewhile(_instructs, repaired))
        result.system = "\n\n".join(plain(entry.parts, entry.note) for entry in leading) or None
        if format == "anthropic" and isinstance(system, list):
            result.system = [block for entry in leading for block in form.write(entry.parts, "system", entry.note)]
        repaired = [_as_user(entry) if entry.role in INSTRUCTIONS else entry for entry in repaired[len(leading) :]]
        if repaired and repaired[0].role != "user":
            first = repaired[0].message
            repairer.note(first, "first message", "a user message was added, since the format starts with one")
            repaired.insert(0, Entry(None, "user", [Text(_FIRST)], repaired[0].note))
    if not nested:
        flat = as_prompt([as_message(entry) for entry in repaired], nested=False)
        result += sound(flat, ignore) if repairer.repairs else flat
    elif form.render is not None:
        if format == "openai":
            for entry in repaired:
                if entry.message is not None and entry.message.name and entry.role != "tool":
                    _name(entry, repairer)
        if format == "anthropic":
            marks = json.dumps([result.system, result.tools], default=str).count('"cache_control": {')
            result += form.render(repaired, marks)
            prefix = (result.system, result.tools)
            thinking.leave_out_unbound(result, repaired, target, prefix, is_intact, repairer.explain)
        else:
            if format == "openai-responses":
                repaired = paired(repaired, close=unanswered == "close")
            result += form.render(repaired)
    if target.echoes or target.signs:
        for message in result:
            if (calls := message.get("tool_calls")) and target.echoes:
                message.setdefault("reasoning_content", thinking.ECHO)
            elif calls and nested:
                thinking.sign(calls)
    result.repairs = sorted(repairer.repairs, key=lambda repair: repair.seq)
    return result


def _described(
    prompt: Prompt, model: str | None, provider: str | None, system: Any, tools: Sequence[Any] | None
) -> Prompt:
    prompt.model, prompt.provider, prompt.tools = model, provider, None if tools is None else [*tools]
    prompt._instructions = thinking.instructions_id(system, prompt.tools)
    return prompt


def _texts(messages: Sequence[Message]) -> list[dict[str, Any]] | None:
    """Return OpenAI's prompt if all messages are texts, which most logs are, in a third of the time; otherwise None.

    Such a message is the same in the log and in the prompt, whatever is before and after it.
    """
    texts: list[dict[str, Any]] = []
    try:
        for message in messages:
            role, content = message.role, message.content if message.sent is None else message.sent
            if type(content) is not str or role not in _TEXT_ROLES or not content or content.isspace():
                return None
            if message.tool_calls or message.tool_call_id or message.name:
                return None
            if message.extra and (not _TALKS.isdisjoint(message.extra) or reasoning(message)):
                return None
            if not content.isascii():
                content.encode("utf-16")  # the fastest way to find halves of surrogate pairs
            texts.append({"role": role._value_, "content": content})
    except UnicodeEncodeError:
        return None
    return texts


def _instructs(entry: Entry) -> bool:
    return entry.role in INSTRUCTIONS


def _as_user(entry: Entry) -> Entry:
    """Return instructions after the start of a prompt as a user's text that a model recognizes as instructions."""
    text = plain(entry.parts, entry.note)
    return Entry(entry.message, "user", [Text(f"<system>\n{text}\n</system>")], entry.note)


def _name(entry: Entry, repairer: Repairer) -> None:
    """Give an entry the name of its participant, or a valid one."""
    name = entry.message.name
    entry.name = name if _PARTICIPANT.fullmatch(name) else valid_name(name)
    if entry.name != name:
        repairer.note(entry.message, "name", f"name {name!r} is {entry.name!r}")
