"""Repair damaged logs, so that a provider accepts the prompt.

A repaired list has exactly one result for each call, directly after the message that asks for it, and no result without
a call. Messages are repaired in their order, and a repair depends only on the messages before it and on the results of
the calls, so that the prompt of the next call begins with the prompt of this one.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Literal

from lango_store._values.model import BegunCall, Message, MessageRole, ToolCall, as_text
from lango_store._values.tool_blocks import calls_in, results_in
from lango_store._values.value import Value
from lango_store.window.blocks import Note, is_blank, is_list_of_dicts, media_of

Recorded = Mapping[int, tuple[int, int]]
"""The calls of results: the `seq` of a result, with the `seq` of the message that asks for its call, and the position
of the call in that message. See `recorded_calls`."""

NOTHING_RECORDED: Final[Recorded] = {}
INSTRUCTIONS: Final = frozenset({MessageRole.SYSTEM, MessageRole.DEVELOPER})
UNFINISHED: Final = "The tool did not finish: its result is unknown."
_ANY: Final = re.compile(r".+", re.DOTALL)
_INTERRUPTED: Final = "(The answer was interrupted.)"
_EMPTY: Final = "(The message was empty.)"

RepairKind = Literal[
    "empty message", "unfinished call", "second result", "result without a call", "late result", "id", "name",
    "arguments", "content", "calls of another role", "interrupted answer", "first message",
]  # fmt: skip
"""What was repaired in a prompt; `Repair` describes each kind."""


class Repair(Value):
    """A difference between the log and the prompt that makes a provider accept the prompt.

    Attributes:
        seq: The `seq` of the message in the log; for a message that was added, that of the message before it, or 0.
        kind: "empty message" (left out), "unfinished call" (a result was added), "second result" and
            "result without a call" (left out), "late result" (moved to its call), "id", "name" and "arguments" (of a
            call, replaced by valid ones), "content" (replaced by text, or by another provider's form), "calls of
            another role" (left out, because only an assistant message can call tools), "interrupted answer" and
            "first message" (a user message was added).
        text: The reason, and what the prompt has instead.
    """

    seq: int
    kind: RepairKind
    text: str


@dataclass(frozen=True)
class Rules:
    """What a format admits as the id and the name of a call."""

    ids: re.Pattern[str] | None
    """None if calls have no ids."""
    names: re.Pattern[str]


@dataclass(eq=False)
class _Exchange:
    """An assistant message with calls, and the result of each call that has one."""

    message: Message
    results: list[Message | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.results = [None] * len(self.message.tool_calls)


_Call = tuple[_Exchange, int]
"""A call: its exchange, and its position in the message."""


def recorded_calls(calls: Iterable[BegunCall]) -> Recorded:
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
        The messages without records. An output in `tool_calls` becomes a message of its own.
    """
    repairer = Repairer(None, recorded)
    return repairer.paired(repairer.simple(messages))


class Repairer:
    """Repairs a list of messages, and notes what it changed.

    Args:
        rules: The ids and names that the format admits; None to leave ids, names and arguments as they are.
        recorded: The calls of results that are known, see `Recorded`.
        close: If calls without a result get one, and interrupted answers are followed by a user message.
    """

    def __init__(self, rules: Rules | None, recorded: Recorded = NOTHING_RECORDED, *, close: bool = True) -> None:
        self.repairs: list[Repair] = []
        self._rules = rules
        self._recorded = recorded
        self._close = close
        self._ids: set[str] = set()

    def note(self, message: Message, kind: RepairKind, text: str) -> None:
        """Add a repair of a message."""
        self.repairs.append(Repair(seq=message.seq, kind=kind, text=text))

    def noting(self, message: Message) -> Note:
        """Return a function that adds a repair of a message's content."""
        return lambda text: self.note(message, "content", text)

    def repaired(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that a provider accepts, without records."""
        paired = self.paired(filter(self._is_sendable, self.simple(messages)))
        prompt = list(self._with_notes(paired)) if self._close else paired
        if all(message.role in INSTRUCTIONS for message in prompt):
            others = [message for message in messages if message.role not in INSTRUCTIONS | {MessageRole.RECORD}]
            if others:
                self.note(others[-1], "first message", "no other message can be sent, so a user message says so")
                prompt.append(Message.user(_EMPTY))
        return prompt

    def paired(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages with each result after its call; calls without a result get one if `close` is set."""
        prompt: list[Message] = []
        for entry in self._exchanges(messages):
            prompt += self._flat(entry) if isinstance(entry, _Exchange) else [entry]
        return prompt

    # Messages without the forms that only one provider knows

    def _is_sendable(self, message: Message) -> bool:
        if message.role.canonical is MessageRole.TOOL or message.tool_calls or not is_blank(sent(message)):
            return True
        self.note(message, "empty message", f"a {message.role.value} message without text or calls is left out")
        return False

    def simple(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the messages without records, each either with calls or with one result at most."""
        for message in messages:
            if message.role is MessageRole.RECORD:
                continue
            if message.tool_calls or isinstance(sent(message), list):
                yield from self._split(message)
            else:
                yield message

    def _split(self, message: Message) -> Iterator[Message]:
        """Split a message into one whose calls have no outputs, and one message for each output."""
        content = sent(message)
        is_assistant = message.role.canonical is MessageRole.ASSISTANT
        is_result = message.role.canonical is MessageRole.TOOL
        if is_list_of_dicts(content):
            rest, calls = calls_in(content, message.tool_calls)
            rest, results = results_in(rest)
            if len(rest) < len(content):
                changes = {"content": rest, "sent": None, "tool_calls": [*message.tool_calls, *calls]}
                message = message.model_copy(update=changes)
                for result in results:
                    yield result.model_copy(update={"seq": message.seq, "created_at": message.created_at})
                if is_blank(rest) and not message.tool_calls:
                    return
        outputs = [call for call in message.tool_calls if call.answered]
        if message.tool_calls and not is_assistant:
            asked = len(message.tool_calls) - len(outputs)
            if asked:
                self.note(message, "calls of another role", f"calls of a {message.role.value} message are left out")
            own = message.model_copy(update={"tool_calls": []})
            covered = {call.id for call in outputs}
            if not is_result or not outputs or (message.tool_call_id and message.tool_call_id not in covered):
                yield own
        elif outputs:
            yield message.model_copy(update={"tool_calls": [_asked(call) for call in message.tool_calls]})
        else:
            yield message
        for call in outputs:
            fields = {"content": None, "sent": None, "tool_calls": [call], "extra": message.extra if is_result else {}}
            named = {"role": MessageRole.TOOL, "tool_call_id": call.id or None, "name": call.name or None}
            yield message.model_copy(update=fields | named)

    # Exactly one result for each call

    def _exchanges(self, messages: Iterable[Message]) -> list[Message | _Exchange]:
        entries: list[Message | _Exchange] = []
        by_seq: dict[int, _Exchange] = {}
        known = set(self._recorded.values())
        open_calls: defaultdict[str, list[_Call]] = defaultdict(list)
        asker: _Exchange | None = None
        for message in messages:
            if message.role.canonical is not MessageRole.TOOL:
                asker = None
                if message.tool_calls:
                    asker = by_seq[message.seq] = _Exchange(message)
                    for index, call in enumerate(message.tool_calls):
                        if (message.seq, index) not in known:
                            open_calls[call.id].append((asker, index))
                entries.append(asker or message)
                continue
            if message.seq in self._recorded:
                seq, index = self._recorded[message.seq]
                target = (by_seq[seq], index) if seq in by_seq and index < len(by_seq[seq].results) else None
            elif (target := _call_of(message, asker, open_calls)) is not None:
                open_calls[target[0].message.tool_calls[target[1]].id].remove(target)
            if target is None:
                self._leave_out(message, asker)
                continue
            exchange, index = target
            if exchange.results[index] is not None:
                self._leave_out(message, exchange)
                continue
            exchange.results[index] = message
            if exchange is not asker:
                self.note(message, "late result", f"moved behind message {exchange.message.seq}, which asks for it")
        return entries

    def _leave_out(self, message: Message, asker: _Exchange | None) -> None:
        ids = [] if asker is None else [call.id for call in asker.message.tool_calls]
        kind: RepairKind = "second result" if message.tool_call_id in ids else "result without a call"
        self.note(message, kind, f"result {message.tool_call_id!r} is left out")

    # Ids, names and arguments

    def _flat(self, exchange: _Exchange) -> Iterator[Message]:
        message = exchange.message
        calls = message.tool_calls if self._rules is None else self._valid_calls(message, self._rules)
        if any(new is not old for new, old in zip(calls, message.tool_calls, strict=True)):
            message = message.model_copy(update={"tool_calls": calls})
        yield message
        for call, result in zip(calls, exchange.results, strict=True):
            if result is not None:
                if self._rules is not None:
                    result = _under(call, result)
                yield result
            elif self._close:
                self.note(message, "unfinished call", f"call {call.id!r} has no result: the prompt says so")
                added = Message.tool(UNFINISHED, tool_call_id=call.id or None, name=call.name or None)
                yield added.model_copy(update={"extra": {"failed": True}})

    def _valid_calls(self, message: Message, rules: Rules) -> list[ToolCall]:
        calls: list[ToolCall] = []
        for position, call in enumerate(message.tool_calls):
            changes: dict[str, Any] = {}
            if call.id in self._ids or not (rules.ids or _ANY).fullmatch(call.id):
                changes["id"] = self._new_id(f"call_{message.seq}_{position}")
                if rules.ids is not None:
                    self.note(message, "id", f"id {call.id!r} of a call is {changes['id']!r}")
            if not rules.names.fullmatch(call.name):
                changes["name"] = valid_name(call.name)
                self.note(message, "name", f"name {call.name!r} of a tool is {changes['name']!r}")
            if call.extra.get("type") != "custom" and not _is_object(call.arguments):
                changes["arguments"] = as_object(call.arguments)
                if call.arguments is not None:
                    self.note(message, "arguments", "arguments that are no JSON object are replaced by one")
            calls.append(call.model_copy(update=changes) if changes else call)
            self._ids.add(calls[-1].id)
        return calls

    def _new_id(self, wanted: str) -> str:
        while wanted in self._ids:
            wanted += "_"
        return wanted

    def _with_notes(self, messages: Sequence[Message]) -> Iterator[Message]:
        for position, message in enumerate(messages):
            yield message
            following = messages[position + 1] if position + 1 < len(messages) else None
            is_interrupted = message.extra.get("interrupted") is True and not message.tool_calls
            is_followed = following is not None and following.role is MessageRole.USER
            if is_interrupted and message.role.canonical is MessageRole.ASSISTANT and not is_followed:
                self.note(message, "interrupted answer", "a user message says that the answer was interrupted")
                yield Message.user(_INTERRUPTED)


def valid_name(name: str) -> str:
    """Return a name of a tool or a participant with at most 64 letters, digits, `_` and `-`."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


def as_object(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object; arguments that are none become its field `arguments`."""
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except ValueError:
            value = arguments
        arguments = value if isinstance(value, dict) else arguments
    return arguments if isinstance(arguments, dict) else {} if arguments is None else {"arguments": arguments}


def _is_object(arguments: Any) -> bool:
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _call_of(result: Message, asker: _Exchange | None, open_calls: Mapping[str, Sequence[_Call]]) -> _Call | None:
    """Find the open call of a result: by its id in the last message that has it, otherwise by name and order."""
    calls = open_calls.get(result.tool_call_id, ()) if result.tool_call_id else ()
    if not calls and asker is not None:
        ids = {""} if result.tool_call_id else {call.id for call in asker.message.tool_calls}
        calls = sorted((each for id in ids for each in open_calls.get(id, ()) if each[0] is asker), key=itemgetter(1))
    calls = [each for each in calls if each[0].message.tool_calls[each[1]].name == result.name] or calls
    return next(each for each in calls if each[0] is calls[-1][0]) if calls else None


def _under(call: ToolCall, result: Message) -> Message:
    """Return a result with the id and the name of its call, and its output as the content."""
    name = result.name and call.name
    if not result.tool_calls and (result.tool_call_id, result.name) == (call.id, name):
        return result
    changes = {"content": sent(result), "sent": None, "tool_calls": [], "tool_call_id": call.id, "name": name}
    return result.model_copy(update=changes)


def _asked(call: ToolCall) -> ToolCall:
    fields = {name: value for name, value in call if name in call.model_fields_set and name != "output"}
    return ToolCall(**fields)


def sent(message: Message) -> Any:
    """Return the content that the model receives; for the output of a tool, as text if a format has no other form."""
    if message.tool_calls and message.role.canonical is MessageRole.TOOL:
        output = message.tool_calls[0].output
        has_media = is_list_of_dicts(output) and any(map(media_of, output))
        return output if has_media or isinstance(output, dict) else as_text(output)
    return message.content if message.sent is None else message.sent
