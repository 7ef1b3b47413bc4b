"""The instructions and the tools of a session's requests.

They are stored once for each value, as a record before the first answer to a request with them. The fingerprint of a
request names the record, so the fingerprint of the last answer leads to the instructions and tools of the session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from lango_store._rooms.prompts.errors import InstructionsChanged
from lango_store._rooms.prompts.reading import Excerpt
from lango_store._values.model import Message, MessageRole
from lango_store.errors import quoted
from lango_store.window.thinking import instructions_id

SystemChanges = Literal["append", "replace", "error"]
_NOTE: Final = {"instructions": True}
"""The `extra` of a message with new instructions."""


@dataclass
class Sent:
    """The instructions and tools of a request.

    Attributes:
        system: The instructions before the first message.
        tools: The tools.
        is_same: If they are those of the last request.
        records: What is stored before the answer, unless it is stored already.
        notes: What is stored before the answer, and part of the prompt.
    """

    system: Any
    tools: list[Any] | None
    is_same: bool = True
    records: list[Message] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)


NOTHING: Final = Sent(None, None)


def settle(key: str, excerpt: Excerpt, system: Any, tools: Sequence[Any] | None, system_changes: SystemChanges) -> Sent:
    """Return the instructions and tools of the next request of a session."""
    if system_changes not in ("append", "replace", "error"):
        raise ValueError(f'system_changes={quoted(system_changes)}: give "append", "replace" or "error"')
    sent = Sent(system, None if tools is None else [*tools])
    stored = excerpt.instructions
    known = stored.content if stored is not None and isinstance(stored.content, dict) else None  # it may be redacted
    if known is not None:
        noted = [message.content for message in excerpt.messages if message.extra == _NOTE]
        is_same = system in (None, (noted or [known["system"]])[-1])
        if sent.tools in (None, known["tools"]):  # send equal JSON with the same bytes
            sent.tools = known["tools"]
        if system_changes == "error" and not (is_same and sent.tools == known["tools"]):
            raise InstructionsChanged(
                f"session {quoted(key)}: the instructions or the tools changed since the last request, so thinking is "
                'invalid: pass the former ones, or system_changes="append" or "replace"'
            )
        if system_changes == "append" and not is_same:
            sent.notes.append(Message.system(system, extra=_NOTE))
        if system_changes == "append" or is_same:
            sent.system = known["system"]
        sent.is_same = (sent.system, sent.tools) == (known["system"], known["tools"])
    id = instructions_id(sent.system, sent.tools)
    if id is not None and (stored is None or stored.id != id):
        content = {"system": sent.system, "tools": sent.tools}
        sent.records.append(Message(role=MessageRole.RECORD, id=id, content=content))
    return sent
