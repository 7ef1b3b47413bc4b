"""What a session holds in plain lists, and what follows from that for who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lango_store import Compaction, Message, MessageRole, Turn

Usage = dict[str, Any]

RECORD = MessageRole.RECORD


@dataclass
class ModelLog:
    """The log, the turns, the counters that only grow, and the TTL; everything else follows from these."""

    key: str
    created_at: datetime
    ttl: timedelta | None
    expires_at: datetime | None = field(init=False)
    log: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    last_seq: int = 0
    last_turn_no: int = 0
    last_consolidated: int = 0
    cuts: int = 0
    forked_from: str | None = None

    def __post_init__(self) -> None:
        self.slide(self.created_at)

    # TTL

    def slide(self, now: datetime) -> None:
        self.expires_at = None if self.ttl is None else now + self.ttl

    def slide_on(self, now: datetime) -> None:
        """Move the expiry as an append does: never back."""
        before = self.expires_at
        self.slide(now)
        if before is None or (self.expires_at is not None and self.expires_at < before):
            self.expires_at = before

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    # What is read

    @property
    def summary_turn(self) -> Turn | None:
        done = [turn for turn in self.turns if turn.kind == "compaction"]
        return done[-1] if done else None

    @property
    def summary(self) -> list[Message]:
        return self.messages_of(self.summary_turn) if self.summary_turn else []

    @property
    def summarized_upto(self) -> int:
        return (self.summary_turn.replaced_upto or 0) if self.summary_turn else 0

    @property
    def window(self) -> list[Message]:
        later = [m for m in self.messages if m.seq > self.summarized_upto and m not in self.summary]
        return [m for m in self.summary if m.role is not RECORD] + later

    @property
    def messages(self) -> list[Message]:
        """The log without records, which nobody said and no model sees."""
        return [m for m in self.log if m.role is not RECORD]

    @property
    def usage(self) -> Usage:
        return summed([turn.usage for turn in self.turns])

    @property
    def compactions(self) -> list[Compaction]:
        found: list[Compaction] = []
        for turn in self.turns:
            if turn.kind == "compaction":
                found.append(
                    Compaction(
                        turn_no=turn.turn_no,
                        summary=self.messages_of(turn),
                        replaced_after=found[-1].replaced_upto if found else 0,
                        replaced_upto=turn.replaced_upto or 0,
                        replaced_messages=turn.metadata["original_message_count"],
                        discarded=turn.metadata.get("discarded", False),
                        created_at=turn.created_at,
                    )
                )
        return found

    @property
    def said(self) -> list[Message]:
        """What somebody said: the messages without summaries."""
        summaries = [turn.turn_no for turn in self.turns if turn.kind == "compaction"]
        return [m for m in self.messages if m.turn_no not in summaries]

    def messages_of(self, turn: Turn) -> list[Message]:
        return [m for m in self.log if m.turn_no == turn.turn_no]

    def with_id(self, id: str | None) -> Message | None:
        return next((m for m in self.log if id is not None and m.id == id), None)


def summed(usages: Sequence[Usage]) -> Usage:
    """Add up numbers, field by field."""
    total: Usage = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, dict):
                total[name] = summed([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total
