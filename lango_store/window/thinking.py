"""Thinking and other sealed parts of messages: which of them a request may have.

Only the provider that made a sealed part can read it. Newer Claude models also bind thinking to its prefix: the
instructions, the tools and all messages before it. The fingerprint of a request is a digest of this prefix, and it is
stored with the answer. A later request has the thinking of the answer if its own prefix has the same digest.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from lango_store._values.model import Message
from lango_store.content import Call, Entry, Media, Native, Part, Text, Thinking
from lango_store.content.gemini import PLACEHOLDER, SIGNATURES, signature_of, unsigned
from lango_store.window.providers import Target

Block = dict[str, Any]
Explain = Callable[[Message, str], None]

ECHO: Final = " "
"""Reasoning for a call of which none is stored: the servers that need one refuse an empty text."""

_INSTRUCTIONS: Final = "lango:instructions:"
_ENCODER: Final = json.JSONEncoder(sort_keys=True, default=str)
_MARK: Final = "cache_control"
_KINDS: Final = ("thinking", "redacted_thinking")
_FOREIGN: Final = "{} of the provider {!r} is left out: {!r} cannot read it"
_CHANGED: Final = (
    "thinking is left out: since it was made, the instructions, the tools or messages before it have changed"
)
_UNKNOWN: Final = (
    "thinking is left out: it is not stored behind which prefix it was made, and the prefix may have changed"
)
_MISSING: Final = "thinking is left out, since the thinking before it is missing"


def sign(calls: Sequence[Block]) -> None:
    """Give calls of OpenAI's format the thought signatures that Gemini demands, in the field `extra_content`."""
    for number, call in enumerate(calls):
        signature = signature_of(call) or (None if number or "extra_content" in call else PLACEHOLDER)
        for name in SIGNATURES:
            call.pop(name, None)
        if signature is not None:
            call["extra_content"] = {"google": {"thought_signature": signature}}


def without_foreign(entries: Iterable[Entry], target: Target, explain: Explain) -> None:
    """Leave out sealed parts that another provider made."""
    kinds = {"gemini": (Thinking, Native, Call, Text, Media), "openai": (Thinking, Native, Call)}
    sealed = kinds.get(target.format, (Thinking, Native))
    for entry in entries:
        if entry.role == "assistant" and [
            part
            for part in entry.parts
            if type(part) in sealed
            and (type(part) is not Text or part.block)
            and (type(part) is not Call or part.extra)
        ]:
            entry.parts = [own for part in entry.parts for own in _own(part, entry.message, target, explain)]


def _own(part: Part, message: Message, target: Target, explain: Explain) -> Iterator[Part]:
    form = _form_of(part, target)
    if form is None or target.made(message, form):
        yield part
        return
    kind = "a signature" if isinstance(part, Call | Text | Media) else "thinking"
    if isinstance(part, Native) and form == "gemini":
        yield replace(part, block=unsigned(part.block))
    elif isinstance(part, Native):
        kind = "a block"
        if isinstance(part.like, Text):
            yield Text(part.like.text)
    elif isinstance(part, Call):
        yield replace(part, extra=unsigned(part.extra))
    elif isinstance(part, Text | Media):
        yield replace(part, block=unsigned(part.block or {}))
    explain(message, _FOREIGN.format(kind, message.provider or form, target.name))


def _form_of(part: Part, target: Target) -> str | None:
    """Return the form in which a part is sealed; None if it is not sealed, or no part of the target's format."""
    form: str | None = None
    if isinstance(part, Thinking):
        form = part.issuer
    elif isinstance(part, Native):
        form = part.form if part.form != "gemini" or signature_of(part.block) else None  # code is often not sealed
    elif target.format == "gemini" and isinstance(part, Call | Text | Media):
        fields = part.extra if isinstance(part, Call) else part.block
        form = "gemini" if fields and signature_of(fields) else None
    elif target.format == "openai" and isinstance(part, Call) and signature_of(part.extra):
        # Without `provider`, the server may be the one that has written `extra_content`.
        return None if target.provider is None and "extra_content" in part.extra else "gemini"
    return form if form == target.format else None


def leave_out_unbound(
    messages: Sequence[Block],
    entries: Sequence[Entry],
    target: Target,
    prefix: Any,
    is_intact: Callable[[Message], bool],
    explain: Explain,
) -> None:
    """Remove thinking from the messages of a prompt for Claude that is bound to another prefix.

    Args:
        messages: The messages, of which the assistant's are changed.
        entries: The entries that were rendered as these messages.
        target: Who gets the prompt.
        prefix: The instructions and the tools.
        is_intact: If nothing before a message has changed since it was stored. Called for messages of which no
            fingerprint is stored.
        explain: Called with each message whose thinking is removed, and the reason.
    """
    last = ""
    if not [part for entry in entries for part in entry.parts if type(part) is Thinking]:
        return
    for (content, digest), (answer, is_sure) in zip(_prefixes(messages, prefix), _answers(entries), strict=True):
        if not (thoughts := [block for block in content if block["type"] in _KINDS]):
            continue
        why = None
        if target.binds(answer):
            made, before, _ = _parts_of(answer.request)
            if not made:
                why = None if is_sure and is_intact(answer) else _UNKNOWN
            elif made != digest or not _is_as_made(content, answer):
                why = _CHANGED
            elif last and before != last:
                why = _MISSING
        if why is None:
            last = _id_of(thoughts[-1])
        else:
            content[:] = [block for block in content if block["type"] not in _KINDS]
            explain(answer, why)


def _answers(entries: Sequence[Entry]) -> Iterator[tuple[Message, bool]]:
    """Yield each answer, and False if other messages may have been before it when it was made."""
    before: Entry | None = None
    newest = 0
    for entry in entries:
        if entry.role == "assistant":
            is_added = before is not None and before.role == "user" and before.message is None
            is_sure = before is not None and before.role != "assistant" and not is_added
            yield entry.message, is_sure and newest <= entry.message.seq  # a result may have been stored later
        if entry.message is not None:
            newest = max(newest, entry.message.seq)
        before = entry


def fingerprint(messages: Sequence[Block], prefix: Any, instructions: str | None) -> str:
    """Return the fingerprint of a request: digests of its prefix, of its last thinking and of its instructions."""
    *_, (_, digest) = _prefixes([*messages, {"role": "assistant", "content": []}], prefix)
    thoughts = [block for message in messages for block in _thoughts(message)]
    name = (instructions or "").removeprefix(_INSTRUCTIONS)
    return f"{digest}.{_id_of(thoughts[-1]) if thoughts else ''}.{name}"


def instructions_id(system: Any, tools: Any) -> str | None:
    """Return the id of the record with the instructions and tools of a request; None without instructions and tools."""
    if system is None and tools is None:
        return None
    return _INSTRUCTIONS + _text(blake2b(_encoded([system, tools]), digest_size=16).digest())


def instructions_of(answer: Message) -> str | None:
    """Return the id of the record with the instructions and tools to which a message is the answer."""
    name = _parts_of(answer.request)[2]
    return _INSTRUCTIONS + name if name else None


def _parts_of(request: str | None) -> tuple[str, str, str]:
    digest, _, rest = (request or "").partition(".")
    thought, _, instructions = rest.partition(".")
    return digest, thought, instructions


def _prefixes(messages: Sequence[Block], prefix: Any) -> Iterator[tuple[list[Block], str]]:
    """Yield the blocks of each answer, with a digest of everything before it except thinking and cache marks."""
    system, tools = prefix
    known = [tool for tool in tools or () if not (isinstance(tool, dict) and tool.get("defer_loading"))]
    digest = blake2b(_encoded([_bare(system), _bare(known)]), digest_size=16)
    for message in messages:
        content: Any = message.get("content")
        if message.get("role") == "assistant":
            yield content if isinstance(content, list) else [], _text(digest.digest())
        if _is_blocks(content):
            content = [block for block in _bare(content) if block.get("type") not in _KINDS]
        digest.update(_encoded({**message, "content": content}))


def _is_as_made(content: Sequence[Block], answer: Message) -> bool:
    """Return False if what is between the thinking of an answer differs from what is stored."""
    first, *_, last = [position for position, block in enumerate(content) if block["type"] in _KINDS] * 2
    if first == last or not _is_blocks(answer.content):
        return True
    between, stored = _bare(content[first:last]), _bare(answer.content)
    if answer.tool_calls:  # an adapter stores the calls apart from the content
        ids = {call.id for call in answer.tool_calls}
        return all(block in stored or block.get("id") in ids for block in between)
    return any(stored[start : start + len(between)] == between for start in range(len(stored)))


def _thoughts(message: Block) -> list[Block]:
    content: Any = message.get("content")
    return [block for block in content if block.get("type") in _KINDS] if _is_blocks(content) else []


def _is_blocks(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(block, dict) for block in content)


def _bare(content: Any) -> Any:
    """Leave out cache marks: they say what to cache, and may move from request to request."""
    if not isinstance(content, list):
        return content
    return [
        {name: _bare(value) if name == "content" else value for name, value in block.items() if name != _MARK}
        if isinstance(block, dict) and (_MARK in block or "content" in block)
        else block
        for block in content
    ]


def _id_of(thought: Block) -> str:
    signature = thought.get("signature") or thought.get("data") or ""
    return _text(blake2b(signature.encode(), digest_size=6).digest())


def _encoded(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def _text(digest: bytes) -> str:
    return urlsafe_b64encode(digest).decode().rstrip("=")
