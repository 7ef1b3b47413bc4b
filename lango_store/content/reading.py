"""Read contents and messages into parts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from lango_store.content.form import ARRANGED, ATTACHED, READERS, Form, Note, ignore, in_words
from lango_store.content.media import media
from lango_store.content.parts import Block, Call, Native, Part, Refusal, Result, Text, Thinking
from lango_store.content.text import as_text, sound, text_in, text_of


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
    if isinstance(content, list) and (parts := _blocks(content, is_data)) is not None:
        return parts
    return [Native("", content, Text(json.dumps(content, ensure_ascii=False)))]


def _blocks(content: list[Any], is_data: bool) -> list[Part] | None:
    """Return the parts of a list of blocks and texts; None if it is other data."""
    parts: list[Part] = []
    has_blocks = False
    is_known, is_typed = False, not is_data
    for block in content:
        if isinstance(block, str):
            part: Part | tuple[Part, ...] | None = Text(block)
        elif isinstance(block, dict):
            has_blocks, part = True, _part(block)
        else:
            return None
        if part is None:
            is_typed = is_typed and isinstance(block.get("type"), str)
            parts.append(_unknown(block, is_data))
            continue
        is_known = True
        if type(part) is tuple:
            parts += part
        else:
            parts.append(part)  # type: ignore[arg-type]
    return parts if has_blocks and (is_known or is_typed) else None


def _part(block: Block) -> Part | tuple[Part, ...] | None:
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


def _unknown(block: Block, is_data: bool) -> Native:
    text = block.get("text")
    if is_data and not isinstance(block.get("type"), str):  # data among the pictures of a tool's output
        text = json.dumps(block, ensure_ascii=False)
    return Native("", block, Text(text) if isinstance(text, str) else None)


def parts(message: Readable, note: Note | None = None) -> list[Part]:
    """Return the parts of a message in the order in which they were made.

    A call that is in the content and in `tool_calls` is one part, at its place in the content. The result of a tool is
    a part of the kind `Result`, also if the message itself is this result.

    Args:
        message: A message that is not a record.
        note: For a prompt: called with what is replaced, so that each text can be encoded. The parts then share no list
            and no dict with the message, and `sent` takes the place of the content. Default: None, the parts have the
            values of the message, unchanged.
    """
    content = message.content if note is None or message.sent is None else message.sent
    if message.role.canonical == "tool":
        return _results(message, content, note)
    if note is not None and not (type(content) is str and content.isascii()):
        content = sound(content, note)
    found: list[Part] = read(content) if type(content) is not str else [Text(content)] if content else []
    calls: Sequence[_ToolCall] = message.tool_calls
    if message.extra:
        if thinking := reasoning(message, note):
            found.insert(0, thinking)
        found += _outside(message, found, note)
        for name in message.extra:
            if (arrange := ARRANGED.get(name)) is not None:
                rest = message.extra[name] if note is None else sound(message.extra[name], note)
                asked = [_asked(call, position, note) for position, call in enumerate(calls)]
                arranged = arrange(rest, found, asked) if isinstance(rest, Mapping) else None
                if arranged is not None:
                    return arranged + [output_of(call, note) for call in calls if call.answered]
    return _merged(found, calls, note) if calls or type(content) is list else found


def shown(message: Readable) -> list[Part]:
    """Return the parts of a message for people and for searches.

    These are the parts of its `content` even if models receive something else. A message that is the result of a tool
    has the parts of this result.
    """
    content, calls = message.content, message.tool_calls
    found = parts(message)
    if message.role.canonical != "tool":
        return found
    asked: list[Part] = [
        _asked(call, at, None) for at, call in enumerate(calls) if call.arguments is not None or not call.answered
    ]
    whole = Result(None, None, content).content
    own = read(whole, is_data=True)
    answered = {part.id for part in own if isinstance(part, Result)}
    own = [part for part in own if not (isinstance(part, Call) and part.id in answered and part.arguments is None)]
    if not answered and not any(call.answered for call in calls):
        return asked + own
    is_output = any(isinstance(part, Result) and part.content in (whole, text_of(whole)) for part in found)
    return asked + ([] if is_output else [part for part in own if part not in found]) + found


def _results(message: Readable, content: Any, note: Note | None) -> list[Part]:
    calls: Sequence[_ToolCall] = message.tool_calls
    id, name, failed = message.tool_call_id, message.name, False
    if note is not None:
        id, name, content = sound([id, name, content], note)
    if message.extra or type(content) is dict:
        failed = message.failed
    outputs = [output_of(call, note, failed=failed) for call in calls if call.answered] if calls else []
    for adapter in ATTACHED if outputs else ():
        if isinstance(rest := message.extra.get(adapter), Mapping):
            outputs = ATTACHED[adapter](rest if note is None else sound(rest, note), outputs)
    if outputs and not (id and all(output.id != id for output in outputs)):
        return [*outputs]
    inner = read(content, is_data=True) if type(content) is list else []
    if answered := [part.id for part in inner if type(part) is Result]:
        # A part of the AI SDK is a call and its result; the call is that of an answer.
        beside = [part for part in inner if type(part) is not Call or part.id not in answered]
        return [*beside, *outputs]
    repeated = sound(calls[0].id, note or ignore) if len(calls) == 1 else None
    return [Result(id or repeated or None, name, content, failed), *outputs]


def output_of(call: Any, note: Note | None = None, *, failed: bool = False) -> Result:
    """Return the output of a call as a result."""
    id, name, output = call.id, call.name, call.output
    if note is not None:
        id, name, output = sound([id, name, output], note)
    if type(output) is not str and (not output or not isinstance(output, list | dict) or text_of(output) is not None):
        output = as_text(output)
    return Result(id or None, name or None, output, failed or call.failed)


def _asked(call: _ToolCall, position: int, note: Note | None) -> Call:
    if note is None:
        return Call(call.id, call.name, call.arguments, call.extra, None, position)
    id, name, arguments, extra = sound([call.id, call.name, call.arguments, call.extra], note)
    return Call(id, name, arguments, extra, None, position)


def _merged(found: list[Part], calls: Sequence[_ToolCall], note: Note | None) -> list[Part]:
    """Put calls, and the results of those that have an output, into the parts of the content."""
    asked = [_asked(call, position, note) for position, call in enumerate(calls)]
    outputs = [output_of(call, note) for call in calls if call.answered]
    if Call not in map(type, found):
        return [*found, *asked, *outputs]
    remaining = dict(enumerate(asked))
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
                extra = part.extra | call.extra
                part = Call(call.id or part.id, call.name, call.arguments, extra, part.block, position)
        merged.append(part)
    return [*merged, *remaining.values(), *outputs]


def _position(part: Call, calls: Mapping[int, Call]) -> int | None:
    """Find a call of the content in `tool_calls`: by its id, or by its name if one of both has no id."""
    same = [at for at, call in calls.items() if call.id == part.id and part.id]
    named = [at for at, call in calls.items() if call.name == part.name and not (call.id and part.id)]
    return next((at for at in same if calls[at].name == part.name), next(iter(same or named), None))


def reasoning(message: Readable, note: Note | None = None) -> Thinking | None:
    """Return the reasoning that compatible servers add to the content.

    Some demand back what they have written: DeepSeek `reasoning_content`, and OpenRouter `reasoning_details`, which the
    block of the part has.
    """
    for fields in _fields(message):
        own, details = fields.get("reasoning_content"), fields.get("reasoning_details")
        block = {"reasoning_details": details} if isinstance(details, list) and details else None
        texts = [own, fields.get("reasoning"), fields.get("thinking")]
        text = next((each for each in texts if isinstance(each, str) and each), "")
        if text or block:
            text, block = (text, block) if note is None else sound([text, block], note)
            return Thinking(text, None, "openai" if text == own or block else None, block)
    return None


def _fields(message: Readable) -> Iterator[Mapping[str, Any]]:
    """Yield the fields that a provider adds to the content; adapters store them one level deeper."""
    for fields in (message.extra, *(each for each in message.extra.values() if isinstance(each, Mapping))):
        if fields is message.extra or "reasoning_content" in fields:
            yield fields if fields is message.extra else {"reasoning_content": fields["reasoning_content"]}
        if isinstance(kwargs := fields.get("additional_kwargs"), Mapping):
            yield kwargs


def _outside(message: Readable, found: Sequence[Part], note: Note | None) -> list[Part]:
    """Return the parts that OpenAI and Ollama write outside the content."""
    role, extra = message.role.canonical, message.extra
    if role == "user" and isinstance(images := extra.get("images"), list):
        return [part for image in images if (part := media({}, "image/", data=image)).data]
    if role != "assistant" or found or message.tool_calls:
        return []
    if isinstance(call := extra.get("function_call"), Mapping):
        name, arguments = sound([call.get("name"), call.get("arguments")], note or ignore)
        return [Call("", str(name or ""), arguments, position=0)]
    refusals = [fields["refusal"] for fields in _fields(message) if isinstance(fields.get("refusal"), str)]
    if refusals:
        return [Refusal(sound(refusals[0], note or ignore))]
    audio = extra.get("audio")
    words = audio.get("transcript") if isinstance(audio, Mapping) else None
    return [Text(sound(words, note or ignore))] if isinstance(words, str) else []


def written_result(form: Form, result: Result, note: Note, role: str = "tool") -> str | list[Block]:
    """Return the content of a result as text, or as blocks of a form. JSON that has no blocks becomes JSON text."""
    if type(content := result.content) is str:
        return content
    found = _read_result(content)
    return found if isinstance(found, str) else form.write(found, role, note) or ""


def plain_result(result: Result, note: Note) -> str:
    """Return the content of a result as text, in which the names of attachments stand for them."""
    if type(content := result.content) is str:
        return content
    found = _read_result(content)
    return found if isinstance(found, str) else plain(found, note)


def _read_result(content: Any) -> str | list[Part]:
    """Return the parts of blocks, or JSON text of other data."""
    if content is None or isinstance(content, str):
        return content or ""
    found = _blocks(content, is_data=True) if isinstance(content, list) and content else None
    return json.dumps(content, ensure_ascii=False) if found is None else found


def written(form: Form, found: Sequence[Part], role: str, note: Note) -> str | list[Block]:
    """Return parts as a content: a plain text stays text, and other data than blocks becomes JSON text."""
    if len(found) == 1:
        part = found[0]
        if type(part) is Text and part.block is None:
            return part.text
        if type(part) is Native and not part.form and (text := in_words(part, note)) is not None:
            return text.text
    return form.write(found, role, note)


def plain(found: Sequence[Part], note: Note) -> str:
    """Return parts as text, a paragraph per part, in which the names of attachments stand for them."""
    texts = [part if type(part) is Text else in_words(part, note) for part in found]
    return "\n\n".join(text.text for text in texts if text is not None)
