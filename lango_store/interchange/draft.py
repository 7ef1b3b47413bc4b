"""A session that is imported or exported: every format is read into a `Draft` and written from one."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from lango_store._values.model import Message


@dataclass
class Part:
    """Messages that belong together: a turn, a compaction (its messages are the summary), or neither.

    On export, `first_seq` is its position in the log and `replaced_upto` what a compaction replaces. On import, a
    compaction replaces everything before it.
    """

    messages: list[Message]
    kind: Literal["turn", "compaction"] | None = None
    id: str | None = None
    usage: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None
    created_at: datetime | None = None
    first_seq: int = 0
    replaced_upto: int | None = None


@dataclass
class Draft:
    """A session and its messages.

    `fields` are what `Store.create` takes besides key, TTL and messages. `extra` holds under the name of a system what
    that system needs and we have no column for: a value of the session. `summarized_upto`, on the way out, is the last
    seq that a compaction has put out of the window; `records` is how many records of the session are in no part.
    """

    key: str
    parts: list[Part] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_consolidated: int = 0
    summarized_upto: int = 0
    forked_from: str | None = None
    records: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[Message]:
        """The messages of all parts."""
        return [message for part in self.parts for message in part.messages]


@dataclass(frozen=True)
class Skipped:
    """A line, counted from 1, that could not be read or stored unchanged, and why."""

    line: int
    reason: str
