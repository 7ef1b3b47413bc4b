"""One event of Dive and one `Part`: a turn or a compaction.

A part's `extra["dive"]` holds what our fields cannot give back, see `fidelity`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lango_store.interchange.dive.header import beside
from lango_store.interchange.dive.messages import message_from, message_to
from lango_store.interchange.dive.names import NAME
from lango_store.interchange.draft import Part, Skipped
from lango_store.interchange.fidelity import difference, mapping, storable_id
from lango_store.interchange.moments import go_text, moment


@dataclass(frozen=True)
class Repeated:
    """The ids that several messages of a file have, and those that several events have."""

    messages: set[str] = field(default_factory=set)
    events: set[str] = field(default_factory=set)


def part_from(line: dict[str, Any], repeated: Repeated, number: int, skipped: list[Skipped]) -> Part:
    """Read the event on this line of a file; an id that others have too stays in `extra`."""
    event = line["data"]
    created_at = moment(event.get("timestamp"))
    id = storable_id(event.get("id"))
    part = Part(
        messages=[
            message_from(message, created_at, repeated.messages, number, skipped)
            for message in event.get("messages") or []
        ],
        kind="compaction" if event.get("type") == "compaction" else "turn",
        id=None if id in repeated.events else id,
        usage=event.get("usage") or None,
        metadata=event.get("metadata") or None,
        created_at=created_at,
    )
    original = {name: value for name, value in event.items() if name != "messages" or not value}
    written = {name: value for name, value in event_of(part).items() if name != "messages" or not value}
    raw = difference(original, written) | beside(line)
    part.extra = {NAME: raw} if raw else None
    return part


def event_of(part: Part) -> dict[str, Any]:
    """Return the event that we would write for a part by itself."""
    always = {
        "type": part.kind or "turn",
        "timestamp": go_text(part.created_at),
        "messages": [message_to(message) for message in part.messages] or None,
    }
    given = {"usage": part.usage, "metadata": part.metadata}
    return ({"id": part.id} if part.id else {}) | always | {name: value for name, value in given.items() if value}


def raw_of(part: Part) -> dict[str, Any]:
    """Return what a part that came from Dive holds besides our fields."""
    return mapping((part.extra or {}).get(NAME))
