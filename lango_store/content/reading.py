"""Read contents and messages into parts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from lango_store.content.form import ARRANGED, READERS, Form, Note, in_words
from lango_store.content.parts import Block, Call, Native, Part, Result, Text, Thinking
from lango_store.content.text import as_text, text_in, text_of


class _ToolCall(Protocol):
    id: str
    name: str
    arguments: Any
    output: Any
    extra: dict[str, Any]

    @property
    def answered(self) -> bool: ...

    @property
    def failed(self) -> bool: ...


class Readable(Protocol):
    """A message: `lango_store.Message`."""

    role: Any
    content: Any
    sent: Any
    name: str | None
    tool_call_id: str | None
    extra: dict[str, Any]

    @property
    def tool_calls(self) -> Sequence[Any]:
        """Calls of tools, or their outputs."""

    @property
    def failed(self) -> bool:
        """If it is the result of a tool that failed."""


def read(content: Any, *, is_data: bool = False) -> list[Part]:
    """Return the parts of a content.

    Args:
        content: Any JSON: text, a list of blocks in any form, or something else.
        is_data: True for the output of a tool, in which objects with a `type` may be no blocks. They are blocks if the
            type of one of them is known.
    """
    if isinstance(content, str):
        return [Text(content)] if content else []
    if content is None or (content in ([], {}) and not is_data):
        return []
    if isinstance(content, list) and content and all(isinstance(block, dict | str) for block in content):
        found = [_part(block) for block in content]
        known = [part for part in found if part is not None]
        if any(isinstance(block, dict) for block in content) and (
            known or (not is_data and all(isinstance(block.get("type"), str) for block in content))
        ):
            pairs = zip(content, found, strict=True)
            parts = [_unknown(block) if part is None else part for block, part in pairs]
            return [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
    return [Native("", content, Text(json.dumps(content, ensure_ascii=False)))]


def _part(block: Block | str) -> Part | tuple[Part, ...] | None:
    if isinstance(block, str):
        return Text(block)
    if (text := text_in(block)) is not None:  # most blocks
        return Text(text, block)
    kind = block.get("type") or block.get("kind") or ""
    if not isinstance(kind, str):
        return None
    for name in (kind, f"{kind.partition('-')[0]}-*"):
        for reader in READERS.get(name, ()):
            if (part := reader(block)) is not None:
                return part
    return None


def _unknown(block: Block) -> Native:
    text = block.get("text")
    return Native("", block, Text(text) if isinstance(text, str) else None)


def parts(message: Readable, clean: Callable[[Any], Any] | None = None) -> list[Part]:
    """Return the parts of a message in the order in which they were made.

    A call that is in the content and in `tool_calls` is one part, at its place in the content. The result of a tool is
    a part of the kind `Result`, also if the message itself is this result.

    Args:
        message: A message that is not a record.
        clean: A function that returns a copy of a JSON value of the message. Default: None, the parts share lists and
            dicts with the message.
    """
    content = message.content if message.sent is None else message.sent
    calls: Sequence[_ToolCall] = message.tool_calls
    if clean is not None:
        content = clean(content)
        calls = [_cleaned(call, clean) for call in calls]
    return _parts(message, content, calls, clean)


def shown(message: Readable) -> list[Part]:
    """Return the parts of a message for people and for searches.

    These are the parts of its `content` even if models receive something else. A message that is the result of a tool
    has the parts of this result. What no model receives, such as a text beside results, is a part too.
    """
    content, calls = message.content, message.tool_calls
    found = _parts(message, content, calls)
    if message.role.canonical != "tool":
        return found
    asked: list[Part] = [
        _asked(call, at) for at, call in enumerate(calls) if call.arguments is not None or not call.answered
    ]
    whole = Result(None, None, content).content
    own = read(whole, is_data=True)
    has_results = any(isinstance(part, Result) for part in own)
    if not has_results and not any(call.answered for call in calls):
        return asked + own
    is_output = any(isinstance(part, Result) and part.content in (whole, text_of(whole)) for part in found)
    return asked + ([] if is_output else [part for part in own if part not in found]) + found


def _parts(
    message: Readable, content: Any, calls: Sequence[_ToolCall], clean: Callable[[Any], Any] | None = None
) -> list[Part]:
    if message.role.canonical == "tool":
        return list(_results(message, content, calls))
    found = read(content)
    if message.extra and (thinking := reasoning(message)):
        found.insert(0, thinking)
    for name in message.extra:
        if (arrange := ARRANGED.get(name)) is not None:
            rest = message.extra[name] if clean is None else clean(message.extra[name])
            asked = [_asked(call, position) for position, call in enumerate(calls)]
            arranged = arrange(rest, found, asked) if isinstance(rest, Mapping) else None
            if arranged is not None:
                return arranged + [output_of(call) for call in calls if call.answered]
    return _merged(found, calls)


def _cleaned(call: Any, clean: Callable[[Any], Any]) -> _ToolCall:
    copy: _ToolCall = call.model_copy(update={name: clean(getattr(call, name)) for name in call.model_fields_set})
    return copy


def _results(message: Readable, content: Any, calls: Sequence[_ToolCall]) -> Iterator[Part]:
    outputs = [call for call in calls if call.answered]
    covered = {call.id for call in outputs}
    repeated = calls[0].id if len(calls) == 1 else None
    if not outputs or (message.tool_call_id and message.tool_call_id not in covered):
        inner = read(content, is_data=True) if isinstance(content, list) else []
        if any(isinstance(part, Result) for part in inner):
            yield from inner
        else:
            yield Result(message.tool_call_id or repeated or None, message.name, content, message.failed)
    for call in outputs:
        yield output_of(call, failed=message.failed)


def output_of(call: Any, *, failed: bool = False) -> Result:
    """Return the output of a call as a result."""
    output = call.output
    if not (isinstance(output, list | dict) and output) or text_of(output) is not None:
        output = as_text(output)
    return Result(call.id or None, call.name or None, output, failed or call.failed)


def _asked(call: _ToolCall, position: int) -> Call:
    return Call(call.id, call.name, call.arguments, call.extra, position=position)


def _merged(found: list[Part], calls: Sequence[_ToolCall]) -> list[Part]:
    """Put calls, and the results of those that have an output, into the parts of the content."""
    remaining = dict(enumerate(calls))
    merged: list[Part] = []
    last = len(calls)
    for part in found:
        if type(part) is Call:
            position = _position(part, remaining)
            if position is None:
                part = replace(part, position=last)
                last += 1
            else:
                call = remaining.pop(position)
                part = Call(
                    call.id or part.id, call.name, call.arguments, part.extra | call.extra, part.block, position
                )
        merged.append(part)
    merged += [_asked(call, position) for position, call in remaining.items()]
    return merged + [output_of(call) for call in calls if call.answered]


def _position(part: Call, calls: Mapping[int, _ToolCall]) -> int | None:
    """Find a call of the content in `tool_calls`: by its id, or by its name if one of both has no id."""
    same = [at for at, call in calls.items() if call.id == part.id and part.id]
    named = [at for at, call in calls.items() if call.name == part.name and not (call.id and part.id)]
    return next((at for at in same if calls[at].name == part.name), next(iter(same or named), None))


def reasoning(message: Readable) -> Thinking | None:
    """Return the reasoning that DeepSeek and other compatible servers put beside the content, and demand back."""
    for fields in (message.extra, *(each for each in message.extra.values() if isinstance(each, Mapping))):
        for name in ("reasoning_content", "additional_kwargs"):
            value = fields.get(name)
            text = value.get("reasoning_content") if isinstance(value, Mapping) else value
            if isinstance(text, str) and text:
                return Thinking(text, None, "openai")
    return None


def written_result(form: Form, result: Result, note: Note, role: str = "tool") -> str | list[Block]:
    """Return the content of a result as text, or as blocks of a form. JSON that has no blocks becomes JSON text."""
    found = _read_result(result)
    return found if isinstance(found, str) else form.write(found, role, note) or ""


def plain_result(result: Result, note: Note) -> str:
    """Return the content of a result as text, in which the names of attachments stand for them."""
    found = _read_result(result)
    return found if isinstance(found, str) else plain(found, note)


def _read_result(result: Result) -> str | list[Part]:
    """Return text, JSON text of other data than blocks, or the parts of blocks."""
    if result.content is None or isinstance(result.content, str):
        return result.content or ""
    found = read(result.content, is_data=True)
    if len(found) == 1 and isinstance(data := found[0], Native) and not data.form and data.like:
        return as_text(result.content)
    return found


def written(form: Form, found: Sequence[Part], role: str, note: Note) -> str | list[Block]:
    """Return parts as a content: a plain text stays text, and other data than blocks becomes JSON text."""
    if len(found) == 1:
        part = found[0]
        if type(part) is Native and not part.form and (text := in_words(part, note)) is not None:
            return text.text
        if type(part) is Text and part.block is None:
            return part.text
    return form.write(found, role, note)


def plain(found: Sequence[Part], note: Note) -> str:
    """Return parts as text, a paragraph per part, in which the names of attachments stand for them."""
    texts = [part if type(part) is Text else in_words(part, note) for part in found]
    return "\n\n".join(text.text for text in texts if text is not None)
