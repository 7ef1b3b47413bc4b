"""A line of a session's log as ADK's events are made of: a message's row decoded, without a `Message` in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from lango_store.interchange.fidelity import mapping
from lango_store.model import Message, MessageRole

NAME: Final = "google_adk"
"""Under which key `extra` holds what our fields do not say."""


class Line(NamedTuple):
    """A message decoded, and the usage of its turn if that is its alone; `timestamp` is an event's, to the float."""

    seq: int
    id: str | None
    role: MessageRole
    author: str | None
    name: str | None
    tool_call_id: str | None
    content: Any
    calls: Sequence[Mapping[str, Any]]
    extra: Mapping[str, Any]
    timestamp: float
    usage: Mapping[str, Any]

    @property
    def is_event(self) -> bool:
        """Whether it is an event: all is but a record that something else wrote."""
        return self.role is not MessageRole.RECORD or NAME in self.extra

    @property
    def event_id(self) -> str:
        """The id of the event."""
        return str(mapping(self.extra.get(NAME)).get("id") or self.id or f"seq:{self.seq}")


def line_of(message: Message, usage: Mapping[str, Any] | None) -> Line:
    """Return the line of a message that is about to be stored, or was read."""
    assert message.created_at is not None
    return Line(
        message.seq,
        message.id,
        message.role,
        message.author,
        message.name,
        message.tool_call_id,
        message.content,
        [call.model_dump() for call in message.tool_calls],
        message.extra,
        timestamp_of(message.extra, message.created_at),
        usage or {},
    )


def timestamp_of(extra: Mapping[str, Any], created_at: datetime) -> float:
    """Return the time of an event to the float; ValueError or TypeError if it is none."""
    return float(mapping(extra.get(NAME)).get("timestamp", created_at.timestamp()))
