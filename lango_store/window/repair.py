"""Repair damaged logs, so that a provider accepts the prompt.

A repaired list has exactly one result for each call, directly after the message that asks for it, and no result without
a call. Messages are repaired in their order, and a repair depends only on the messages before it and on the results of
the calls, so that the prompt of the next call begins with the prompt of this one.
"""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, Literal

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store._values.value import Value
from lango_store.content import (
    FAILED,
    Call,
    Entry,
    Form,
    Native,
    Note,
    Part,
    Result,
    Text,
    Thinking,
    as_object,
    ignore,
    parts,
    read,
)
from lango_store.content.reading import output_of
from lango_store.content.text import sound
from lango_store.window.providers import Target
from lango_store.window.thinking import without_foreign

Recorded = Mapping[int, tuple[int, int]]
"""The calls of results: the `seq` of a result, with the `seq` of the message that asks for its call, and the position
of the call in that message. See `recorded_calls`."""

NOTHING_RECORDED: Final[Recorded] = {}
INSTRUCTIONS: Final = frozenset({MessageRole.SYSTEM, MessageRole.DEVELOPER})
UNFINISHED: Final = "The tool did not finish: its result is unknown."
_ANY: Final = re.compile(r".+", re.DOTALL)
_INTERRUPTED: Final = "(The answer was interrupted.)"
_BRIDGED: Final = "an answer was added, since the model refuses a user message after a result"
_CONTINUE: Final = "(Continue.)"
_EMPTY: Final = "(The message was empty.)"

RepairKind = Literal[
    "empty message", "unfinished call", "second result", "result without a call", "late result", "id", "name",
    "arguments", "content", "calls of another role", "interrupted answer", "first message", "last answer", "thinking",
]  # fmt: skip
"""The kind of a repair; `Repair` describes each of them."""


class Repair(Value):
    """A difference between the log and the prompt that makes a provider accept the prompt.

    What a log can have, who refuses it, and what the prompt has instead. "All" are OpenAI, Anthropic and Gemini:

    - A call without a result (all): a result that says that the tool did not finish.
    - A result without a call (all): nothing.
    - Several results of a call (all): the result that was stored first.
    - A message between a call and its result (all): the result directly after its call.
    - An empty message, or only white space (Anthropic, Gemini, some models of OpenAI): nothing; if no other message
      remains, a user message that says so.
    - A repeated, empty, long or unusual id of a call (OpenAI, Anthropic): an id such as `call_7_0` in the call and in
      the result.
    - A name of a tool with other characters than letters, digits, `_` and `-`, or none (OpenAI, Anthropic, some models
      of Gemini): `_` instead of each of them, or `unknown`.
    - Arguments that are not a JSON object (Anthropic, Gemini, other servers with OpenAI's API): an object that has them
      as the field `arguments`.
    - An assistant message as the first one (Anthropic, some models of Gemini): for both, a user message before it.
    - An answer at the end that ends with white space (Anthropic): for Anthropic, answers without it.
    - An answer at the end (Claude since 4.6, Mistral, some models of Gemini): for Anthropic, unless `model` is an older
      one, and for Claude and Mistral in OpenAI's format, a user message after it.
    - Thinking without a signature, or of another provider (all): nothing.
    - Thinking whose prefix has changed (Claude since 5.1): nothing.
    - Calls of another model without a thought signature (Gemini since 3): the placeholder of Gemini's documentation.
    - Calls of another model without reasoning (DeepSeek, Kimi): for these providers, an empty reasoning.
    - A user message after a result (Mistral): for Mistral, an answer between both.
    - More than four marks for the cache, also of instructions and tools (Anthropic): for Anthropic, the last four.
    - A content that is not text or blocks, or blocks of another provider (all): JSON text, or the form of the format.
    - Calls of a message that is not the assistant's (all): nothing.
    - An interrupted answer that no user message follows (none): a user message that says so.

    User messages and answers with a content are never left out.

    Attributes:
        seq: The `seq` of the message in the log; for a message that was added, that of the message before it, or 0.
        kind: "empty message" (left out), "unfinished call" (a result was added), "second result" and
            "result without a call" (left out), "late result" (moved to its call), "id", "name" and "arguments" (of a
            call, replaced by valid ones), "content" (replaced by text, or by another provider's form), "calls of
            another role" (left out, because only an assistant message can call tools), "interrupted answer",
            "first message" and "last answer" (a user message was added), "thinking" (left out, because another provider
            made it, or because it is bound to a prefix that has changed).
        text: The reason, and what the prompt has instead.
    """

    seq: int
    kind: RepairKind
    text: str


@dataclass(frozen=True)
class Rules:
    """The characters that a format admits in the id and the name of a call."""

    ids: re.Pattern[str] | None
    """None if calls have no ids."""
    names: re.Pattern[str]


@dataclass(eq=False)
class _Exchange:
    """An assistant message with calls, and the result of each call that has one."""

    entry: Entry
    calls: list[Call]
    results: list[Entry | None]


_Call = tuple[_Exchange, int]
"""A call: its exchange, and its position in the message."""


def recorded_calls(calls: Iterable[Any]) -> Recorded:
    """Return the calls of results, for `prompt` and `close_calls`.

    Args:
        calls: The calls that were begun, such as `conversation.calls.list()`.
    """
    return {call.result_seq: (call.seq, call.position) for call in calls if call.result_seq is not None}


def close_calls(messages: Sequence[Message], *, recorded: Recorded = NOTHING_RECORDED) -> list[Message]:
    """Return the messages with exactly one result for each tool call, directly after the message that asks for it.

    If a program ends between a tool call and its result, the call stays without a result, and chat APIs refuse the
    conversation. The added tool message says that the tool did not finish. It is not stored, and its text is always the
    same. A result that comes later in the list, for example because the call waited for an approval, is moved to its
    call. Further results of a call, and results whose call is missing, are left out.

    Args:
        messages: The messages in their order.
        recorded: The calls of results that are known, see `Recorded`. Other results are matched by their ids, names
            and order. Default: none.

    Returns:
        The messages without records. An output in `tool_calls` becomes a separate message.
    """
    repairer = Repairer(None, None, recorded)
    return list(map(as_message, repairer.paired(repairer.entries(messages))))


class Repairer:
    """Repairs a list of messages, and notes what it changed.

    Args:
        form: The form of the prompt; None for messages, which are not changed.
        rules: The ids and names that the format admits; None to leave ids, names and arguments as they are.
        recorded: The calls of results that are known, see `Recorded`.
        close: If calls without a result get one, and interrupted answers are followed by a user message.
        target: Who gets the prompt. Sealed parts that others made are left out. Default: nothing is left out.
    """

    def __init__(
        self,
        form: Form | None,
        rules: Rules | None,
        recorded: Recorded = NOTHING_RECORDED,
        *,
        close: bool = True,
        target: Target | None = None,
    ) -> None:
        self.repairs: list[Repair] = []
        self._form = form
        self._rules = rules
        self._recorded = recorded
        self._close = close
        self._target = target
        self._ids: set[str] = set()

    def note(self, message: Message, kind: RepairKind, text: str) -> None:
        """Add a repair of a message."""
        repair = Repair(seq=message.seq, kind=kind, text=text)
        if repair not in self.repairs[-1:]:
            self.repairs.append(repair)

    def explain(self, message: Message, why: str) -> None:
        """Note that thinking of a message is left out."""
        self.note(message, "thinking", why)

    def repaired(self, messages: Sequence[Message]) -> list[Entry]:
        """Return the entries that a provider accepts, without records."""
        entries = self.entries(messages)
        if self._target is not None:
            without_foreign(entries, self._target, self.explain)
        prompt = self.paired([entry for entry in entries if entry.role == "tool" or self._is_sendable(entry)])
        if self._close:
            prompt = self._with_notes(prompt)
        if all(entry.role in INSTRUCTIONS for entry in prompt):
            others = [message for message in messages if message.role not in INSTRUCTIONS | {MessageRole.RECORD}]
            if others:
                self.note(others[-1], "first message", "no other message can be sent, so a user message says so")
                prompt.append(Entry(None, "user", [Text(_EMPTY)], ignore))
        return prompt

    def paired(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries with each result after its call; calls without a result get one if `close` is set."""
        prompt: list[Entry] = []
        for each in self._exchanges(entries):
            if isinstance(each, _Exchange):
                prompt += self._flat(each)
            else:
                prompt.append(each)
        return prompt

    def _is_sendable(self, entry: Entry) -> bool:
        form, role = self._form, "system" if entry.role == "developer" else entry.role
        for part in entry.parts:
            if form is not None and form.sends(part, role):
                return True
        self.note(entry.message, "empty message", f"a {entry.role} message without text or calls is left out")
        return False

    def entries(self, messages: Iterable[Message]) -> list[Entry]:
        """Return an entry for each message that is not a record, and for each result of a tool.

        Records whose contents are blocks of the form are parts of the answer that follows them.
        """
        entries: list[Entry] = []
        before: list[Entry] = []  # of records
        for message in messages:
            role, note = message.role.canonical._value_, partial(self.note, message, "content")
            if role == "record":
                if blocks := self._recorded_parts(message, note):
                    before.append(Entry(message, "assistant", blocks, note))
                continue
            found = parts(message, note)
            if before:
                if role == "assistant":
                    found[:0] = [part for entry in before for part in entry.parts]
                else:
                    entries += before
                before = []
            kinds = [type(part) for part in found]
            is_simple = len(found) == 1 if role == "tool" else Result not in kinds
            if is_simple and (role == "assistant" or Call not in kinds):
                entries.append(Entry(message, role, found, note))
            else:
                entries += self._split(message, role, found, note)
        return entries + before

    def _split(self, message: Message, role: str, found: list[Part], note: Note) -> list[Entry]:
        """Return the entry of a message apart from those of the results that it has."""
        results = [part for part in found if type(part) is Result]
        rest = [part for part in found if type(part) is not Result]
        if role != "assistant" and any(type(part) is Call for part in rest):
            self.note(message, "calls of another role", f"calls of a {message.role.value} message are left out")
            rest = [part for part in rest if type(part) is not Call]
        is_own = rest or (role != "tool" and any(result.block is None for result in results)) or not results
        own = [Entry(message, "user" if role == "tool" else role, rest, note)] if is_own else []
        answers = [Entry(message, "tool", [result], note) for result in results]
        return own + answers if role == "assistant" else answers + own

    def _recorded_parts(self, record: Message, note: Note) -> list[Part]:
        """Return the parts of a record whose content is a block that only models of the form read."""
        if self._form is None or record.author != (self._form.records or None):
            return []
        found, own = read([sound(record.content, note)]), self._form.name
        return [
            part
            for part in found
            if (type(part) is Thinking and part.issuer == own) or (type(part) is Native and part.form == own)
        ]

    # Exactly one result for each call

    def _exchanges(self, entries: Sequence[Entry]) -> list[Entry | _Exchange]:
        exchanges: list[Entry | _Exchange] = []
        by_seq: dict[int, _Exchange] = {}
        known: set[tuple[int, int]] = set()
        if self._recorded:  # a recorded result may have been deleted, or became a record
            results = {entry.message.seq for entry in entries if entry.role == "tool"}
            known = {call for seq, call in self._recorded.items() if seq in results}
        open_calls: defaultdict[str, list[_Call]] = defaultdict(list)
        asker: _Exchange | None = None
        for entry in entries:
            seq = entry.message.seq
            if entry.role != "tool":
                asker = None
                if entry.role == "assistant" and (calls := entry.calls):
                    asker = by_seq[seq] = _Exchange(entry, calls, [None] * len(calls))
                    for index, call in enumerate(calls):
                        if (seq, call.position) not in known:
                            open_calls[call.id].append((asker, index))
                exchanges.append(asker or entry)
                continue
            if seq in self._recorded:
                asked, position = self._recorded[seq]
                exchange = by_seq.get(asked)
                found = [] if exchange is None else [call.position for call in exchange.calls]
                target = (exchange, found.index(position)) if exchange is not None and position in found else None
            elif (target := _call_of(entry.parts[0], asker, open_calls)) is not None:
                open_calls[target[0].calls[target[1]].id].remove(target)
            if target is None:
                self._leave_out(entry, asker)
                continue
            exchange, index = target
            if exchange.results[index] is not None:
                self._leave_out(entry, exchange)
                continue
            exchange.results[index] = entry
            if exchange is not asker:
                self.note(
                    entry.message,
                    "late result",
                    f"moved behind message {exchange.entry.message.seq}, which asks for it",
                )
        return exchanges

    def _leave_out(self, entry: Entry, asker: _Exchange | None) -> None:
        ids = [] if asker is None else [call.id for call in asker.calls]
        kind: RepairKind = "second result" if entry.parts[0].id in ids else "result without a call"
        self.note(entry.message, kind, f"result {entry.parts[0].id!r} is left out")

    # Ids, names and arguments

    def _flat(self, exchange: _Exchange) -> list[Entry]:
        entry, message = exchange.entry, exchange.entry.message
        calls = exchange.calls if self._rules is None else self._valid_calls(message, exchange.calls, self._rules)
        remaining = iter(calls)
        entry.parts = [next(remaining) if type(part) is Call else part for part in entry.parts]
        flat = [entry]
        for call, result in zip(calls, exchange.results, strict=True):
            if result is not None:
                if self._rules is not None:
                    part = result.parts[0]
                    name = part.name and call.name
                    if (part.id, part.name) != (call.id, name):
                        result.parts = [replace(part, id=call.id, name=name)]
                flat.append(result)
            elif self._close:
                self.note(message, "unfinished call", f"call {call.id!r} has no result: the prompt says so")
                unfinished = Result(call.id or None, call.name or None, UNFINISHED, True)
                flat.append(Entry(None, "tool", [unfinished], ignore))
        return flat

    def _valid_calls(self, message: Message, calls: Sequence[Call], rules: Rules) -> list[Call]:
        valid: list[Call] = []
        for position, call in enumerate(calls):
            changes: dict[str, Any] = {}
            if call.id in self._ids or not (rules.ids or _ANY).fullmatch(call.id):
                changes["id"] = self._new_id(message.seq, position, rules)
                if rules.ids is not None:
                    self.note(message, "id", f"id {call.id!r} of a call is {changes['id']!r}")
            if not rules.names.fullmatch(call.name):
                name = valid_name(call.name)
                changes["name"] = name if rules.names.fullmatch(name) else f"_{name}"[:64]
                self.note(message, "name", f"name {call.name!r} of a tool is {changes['name']!r}")
            if call.extra.get("type") != "custom" and not _is_object(call.arguments):
                changes["arguments"] = as_object(call.arguments)
                if call.arguments is not None:
                    self.note(message, "arguments", "arguments that are no JSON object are replaced by one")
            valid.append(replace(call, **changes) if changes else call)
            self._ids.add(valid[-1].id)
        return valid

    def _new_id(self, seq: int, position: int, rules: Rules) -> str:
        wanted = f"call_{seq}_{position}"
        if (rules.ids or _ANY).fullmatch(wanted):
            while wanted in self._ids:
                wanted += "_"
            return wanted
        numbers = itertools.count(seq * 100 + position)  # an id with a fixed length
        return next(id for number in numbers if (id := f"{number:09}"[-9:]) not in self._ids)

    def _with_notes(self, entries: Sequence[Entry]) -> list[Entry]:
        noted: list[Entry] = []
        continues = self._target is None or self._target.continues
        bridges = self._target is not None and self._target.is_mistral
        for position, entry in enumerate(entries, 1):
            noted.append(entry)
            if bridges and entry.role == "tool" and position < len(entries) and entries[position].role == "user":
                self.note(entry.message or entries[position].message, "interrupted answer", _BRIDGED)
                noted.append(Entry(None, "assistant", [Text(_INTERRUPTED)], entry.note))
            if entry.role != "assistant" or (continues and not entry.message.extra) or entry.calls:
                continue
            following = entries[position] if position < len(entries) else None
            is_interrupted = entry.message.extra.get("interrupted") is True
            if is_interrupted and (following is None or following.role != "user"):
                self.note(entry.message, "interrupted answer", "a user message says that the answer was interrupted")
                noted.append(Entry(None, "user", [Text(_INTERRUPTED)], entry.note))
            elif not continues and _is_last(entry, following, self._form):
                self.note(entry.message, "last answer", "a user message was added, since the model refuses an answer")
                noted.append(Entry(None, "user", [Text(_CONTINUE)], entry.note))
        return noted


def _is_last(answer: Entry, following: Entry | None, form: Form | None) -> bool:
    """Return True if an answer is, or was, the last message of a request, and no tool of the provider is running."""
    part = answer.parts[-1]
    runs = isinstance(part, Native) and isinstance(part.like, Call) and form is not None and part.form == form.name
    is_end = following is None or (following.role == "assistant" and following.message.request is not None)
    return is_end and not runs


def split_calls(message: Message) -> list[Message]:
    """Return a message as messages with their calls in `tool_calls`, and each result in `content` alone.

    The message itself is returned if its content has no calls or results.
    """
    content = message.content
    if not isinstance(content, list) or not any(isinstance(part, Call | Result) for part in read(content)):
        return [message]
    whole = message.model_copy(update={"sent": None})
    return list(map(as_message, Repairer(None, None).entries([whole])))


def as_message(entry: Entry) -> Message:
    """Return an entry as a message: a stored one if it is the same, otherwise a copy with its calls in `tool_calls`."""
    message, part = entry.message, entry.parts[0] if entry.parts else None
    if message is None:  # an entry that was added
        if isinstance(part, Result):
            return Message.tool(part.content, tool_call_id=part.id, name=part.name, failed=part.failed)
        return Message(role=MessageRole(entry.role), content=part.text if isinstance(part, Text) else None)
    if type(part) is Result:
        return message if part.block is None and not message.tool_calls else _result_message(message, part)
    content = message.content if message.sent is None else message.sent
    is_split = isinstance(content, list) and any(isinstance(each, Call | Result) for each in read(content))
    calls = message.tool_calls
    if not is_split and len(entry.calls) == len(calls) and not any(call.answered for call in calls):
        return message  # type: ignore[no-any-return]
    changes: dict[str, Any] = {"tool_calls": [_tool_call(message, call) for call in entry.calls]}
    if is_split:
        rest = [each for each in entry.parts if type(each) is not Call and each.block is not None]
        role = MessageRole.USER if message.role.canonical is MessageRole.TOOL else message.role
        changes |= {"content": [each.block for each in rest], "sent": None, "role": role}
    return message.model_copy(update=changes)  # type: ignore[no-any-return]


def _result_message(message: Message, result: Result) -> Message:
    is_result = message.role.canonical is MessageRole.TOOL
    failed = is_result and message.failed
    outputs = [call for call in message.tool_calls if call.answered and output_of(call, failed=failed) == result]
    fields: dict[str, Any] = {"role": MessageRole.TOOL, "tool_call_id": result.id, "name": result.name, "sent": None}
    if result.block is not None:
        fields |= {"content": result.content, "tool_calls": [], "extra": dict(FAILED) if result.failed else {}}
    elif outputs:
        fields |= {"content": None, "tool_calls": outputs[:1], "extra": message.extra if is_result else {}}
    else:
        fields = {"tool_calls": [], "tool_call_id": result.id}  # which may be that of the call
    return message.model_copy(update=fields)


def _tool_call(message: Message, call: Call) -> ToolCall:
    """Return the stored call without its output; a new one if it is only in the content."""
    stored = message.tool_calls[call.position] if 0 <= call.position < len(message.tool_calls) else None
    if stored is None or (stored.id, stored.name) != (call.id, call.name):
        return ToolCall(id=call.id, name=call.name, arguments=call.arguments, extra=call.extra)
    fields = {name: value for name, value in stored if name in stored.model_fields_set and name != "output"}
    return ToolCall(**fields) if stored.answered else stored


def valid_name(name: str) -> str:
    """Return a name of a tool or a participant with at most 64 letters, digits, `_` and `-`."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


def _is_object(arguments: Any) -> bool:
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _call_of(result: Result, asker: _Exchange | None, open_calls: Mapping[str, Sequence[_Call]]) -> _Call | None:
    """Find the open call of a result: by its id in the last message that has it, otherwise by name and order."""
    calls = open_calls.get(result.id, ()) if result.id else ()
    if len(calls) == 1:
        return calls[0]
    if not calls and asker is not None:
        ids = {""} if result.id else {call.id for call in asker.calls}
        calls = sorted((each for id in ids for each in open_calls.get(id, ()) if each[0] is asker), key=itemgetter(1))
    calls = [each for each in calls if each[0].calls[each[1]].name == result.name] or calls
    return next(each for each in calls if each[0] is calls[-1][0]) if calls else None
