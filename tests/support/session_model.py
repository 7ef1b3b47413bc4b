"""A model of a session in plain lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from lango_store import (
    Compaction,
    Conflict,
    InvalidCut,
    InvalidMessage,
    Message,
    MessageNotFound,
    MessageRole,
    Turn,
)

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
    changes: list[int] = field(default_factory=list)
    copied: frozenset[int] = frozenset()
    """The numbers of the turns that a fork copied, whose usage was spent in another session."""
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
        """The log without records, which models do not see."""
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
        """The messages without summaries."""
        summaries = [turn.turn_no for turn in self.turns if turn.kind == "compaction"]
        return [m for m in self.messages if m.turn_no not in summaries]

    def is_life_of(self, other: ModelLog) -> bool:
        """Return whether both are copies of one session, not of two successive sessions with the same key."""
        return (self.key, self.created_at) == (other.key, other.created_at)

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


class ModelSession(ModelLog):
    """Implements the promises of the methods on plain lists."""

    # What is written

    def append(
        self,
        now: datetime,
        new: Sequence[Message],
        after: int | None = None,
        *,
        stale: bool = False,
    ) -> list[Message]:
        fresh = self.unknown(new)
        if fresh or not new:
            self.expect(after, stale=stale)
        self.put(now, fresh)
        return self.as_stored(new, fresh)

    def drop_values(self, names: Sequence[str] | None) -> int:
        gone = [name for name in self.values if names is None or name in names]
        for name in gone:
            del self.values[name]
        return len(gone)

    def save_turn(
        self,
        now: datetime,
        new: Sequence[Message],
        usage: Usage,
        *,
        id: str | None = None,
        after: int | None = None,
        stale: bool = False,
    ) -> Turn:
        for turn in self.turns:
            if id is not None and turn.id == id:
                return self.replayed(turn)
        fresh = self.unknown(new)
        if id is None and new and not fresh:
            theirs = [
                turn for turn in self.turns for m in self.messages_of(turn) if m.id in [other.id for other in new]
            ]
            if theirs:
                return self.replayed(theirs[-1])
            id = "messages:" + sha256(json.dumps([m.id for m in new]).encode()).hexdigest()
            for turn in self.turns:
                if turn.id == id:
                    return turn.model_copy(update={"messages": self.as_stored(new, []), "replayed": True})
        self.expect(after, stale=stale)
        joining = self.last_without_turn(new) if fresh else []
        turn = self.put_turn(now, fresh, usage, id=id)
        for m in joining:
            turn.first_seq = min(turn.first_seq, m.seq)
            self.log[self.log.index(m)] = m.model_copy(update={"turn_no": turn.turn_no})
        return turn.model_copy(update={"messages": self.as_stored(new, fresh)})

    def pop(self, *, records: bool) -> Message | None:
        shown = self.log if records else self.window
        if not shown:
            return None
        last = shown[-1]
        self.take(last)
        for turn in list(self.turns):
            if turn.turn_no == last.turn_no and all(m.seq < last.seq for m in self.messages_of(turn)):
                if turn.kind == "compaction":
                    turn.last_seq = last.seq - 1
                else:
                    self.shorten(turn, last.seq - 1)
        return last

    def update_message(self, place: int | str, new: Message, *, stale: bool = False) -> Message:
        """Replace a message; the last consolidated message stays the same."""
        self.expect(None, stale=stale)
        old = self.at(place)
        other = self.with_id(new.id)
        if other is not None and other is not old:
            raise InvalidMessage("id", "is the id of another message")
        if new.role is RECORD is not old.role and self.is_in_summary(old):
            raise InvalidMessage("role", "a message of a summary cannot become a record")
        left = {"seq": old.seq, "turn_no": old.turn_no, "replayed": False}
        given = {"id": new.id or old.id, "created_at": new.created_at or old.created_at}
        if self.is_consolidated(old):
            self.last_consolidated += (old.role is RECORD) - (new.role is RECORD)
        return self.put_instead(old, new.model_copy(update=left | given))

    def redact_message(self, place: int | str, reason: str | None) -> Message:
        old = self.at(place)
        return self.put_instead(old, self.redacted(old, reason))

    def is_in_summary(self, message: Message) -> bool:
        return any(turn.turn_no == message.turn_no and turn.kind == "compaction" for turn in self.turns)

    def redacted(self, old: Message, reason: str | None) -> Message:
        tokens = None if old.tokens is None else 0
        extra = {} if reason is None else {"redacted": reason}
        left: dict[str, Any] = {
            "content": None if old.role is RECORD else "(redacted)",
            "tool_calls": [],
            "extra": extra,
            "tokens": tokens,
        }
        return old.model_copy(update=left)

    def delete_message(self, place: int | str, *, stale: bool = False) -> None:
        self.expect(None, stale=stale)
        self.take(self.at(place))

    def truncate(self, after: int) -> int:
        self.expect_something_at(after)
        gone = self.later(after)
        kept = [turn for turn in self.turns if self.stands_at(turn, after) or self.began_by(turn, after)]
        if gone or kept != self.turns:
            self.log = [m for m in self.log if m not in gone]
            self.turns = kept
            for turn in kept:
                if turn.kind == "turn":
                    turn.last_seq = min(turn.last_seq, after)
            self.cut()
        return len([m for m in gone if m.role is not RECORD])

    def clear(self, *, keep_system: bool) -> int:
        kept = [m for m in self.said if m.role is MessageRole.SYSTEM] if keep_system else []
        gone = len(self.messages) - len(kept)
        self.log = [m.model_copy(update={"turn_no": None}) for m in kept]
        self.turns = []
        self.last_consolidated = 0
        self.cut()
        return gone

    def replace(
        self, now: datetime, new: Sequence[Message], replace_after: int, after: int | None, *, stale: bool = False
    ) -> list[Message]:
        later = [m.id for m in self.later(replace_after)]
        wanted = [id for id in dict.fromkeys(m.id for m in new) if id in later]
        if new and all(self.with_id(m.id) for m in new) and later == wanted:
            return self.as_stored(new, [])
        self.expect(after, stale=stale)
        self.truncate(replace_after)
        return self.append(now, new)

    def compact(self, now: datetime, begun: ModelSession, summary: Sequence[Message], *, discard: bool) -> Compaction:
        """Replace the window of `begun`, an earlier copy of this session, with a summary."""
        if self.changes != begun.changes or self.created_at != begun.created_at:
            raise Conflict(self.key, expected=begun.last_seq, last_seq=self.last_seq)
        upto = begun.last_seq
        said = {"original_event_count": len(begun.turns), "original_message_count": len(begun.window)}
        usage: Usage = {}
        spent_elsewhere: Usage = {}
        if discard:
            said["discarded"] = True
            usage = summed([turn.usage for turn in begun.turns if turn.turn_no not in self.copied])
            spent_elsewhere = summed([turn.usage for turn in begun.turns if turn.turn_no in self.copied])
            old = len(begun.log)
            records = [m.model_copy(update={"turn_no": None}) for m in self.log[:old] if m.role is RECORD]
            self.log = records + self.log[old:]
            self.turns = self.turns[len(begun.turns) :]
            self.last_consolidated = max(self.last_consolidated - len(begun.messages), 0)
        self.cut()
        once = [m for place, m in enumerate(summary) if m.id is None or m.id not in [s.id for s in summary[:place]]]
        anew = [m.model_copy(update={"id": None}) if self.with_id(m.id) else m for m in once]
        if spent_elsewhere:
            self.copied |= {self.put_turn(now, [], spent_elsewhere).turn_no}
        turn = self.put_turn(now, anew, usage, kind="compaction", replaced_upto=upto, metadata=said)
        return next(each for each in self.compactions if each.turn_no == turn.turn_no)

    def fork(self, now: datetime, key: str, upto: int | None) -> ModelSession:
        upto = self.last_seq if upto is None else min(upto, self.last_seq)
        whole = upto == self.last_seq
        if not whole:
            self.expect_something_at(upto)
        gone = [] if whole else self.later(upto)
        turns = [
            t.model_copy()
            for t in self.turns
            if whole or self.stands_at(t, upto) or (self.began_by(t, upto) and t.last_seq <= upto)
        ]
        last_seq = max([upto, *(turn.last_seq for turn in turns)])
        explained = not whole and (last_seq > upto or max(self.changes, default=0) > upto)
        return ModelSession(
            key=key,
            created_at=now,
            ttl=self.ttl,
            log=[m.model_copy() for m in self.log if m not in gone],
            turns=turns,
            copied=frozenset(turn.turn_no for turn in turns),
            values=dict(self.values),
            last_seq=last_seq + explained,
            last_turn_no=self.last_turn_no,
            last_consolidated=self.last_consolidated,
            forked_from=self.key,
            changes=[seq for seq in self.changes if seq <= upto] + [last_seq + 1] * explained,
        ).mended()

    # Helpers

    def stands_at(self, turn: Turn, place: int) -> bool:
        """Return whether this position belongs to a summary that covers only earlier messages."""
        return turn.kind == "compaction" and 0 < place >= (turn.replaced_upto or 0)

    def began_by(self, turn: Turn, place: int) -> bool:
        """Return whether a turn that is not a compaction began at or before a place."""
        return turn.kind == "turn" and turn.first_seq <= place

    def later(self, place: int) -> list[Message]:
        """Return the messages after a position, without summaries of earlier messages."""
        before = [turn.turn_no for turn in self.turns if self.stands_at(turn, place)]
        return [m for m in self.log if m.seq > place and (m.turn_no is None or m.turn_no not in before)]

    def expect_something_at(self, place: int) -> None:
        """Refuse a cut into messages that a compaction discarded; a cut at the start of the session is allowed."""
        blank = [turn for turn in self.turns if turn.metadata.get("discarded") and not self.stands_at(turn, place)]
        if place and any((turn.replaced_upto or 0) > place for turn in blank):
            raise InvalidCut(self.key, place, max(turn.replaced_upto or 0 for turn in blank))

    def unknown(self, new: Sequence[Message]) -> list[Message]:
        """Return the messages that are not stored yet; of two with the same id, the first."""
        fresh: list[Message] = []
        for m in new:
            if m.id is None or not (self.with_id(m.id) or m.id in [other.id for other in fresh]):
                fresh.append(m)
        return fresh

    def last_without_turn(self, new: Sequence[Message]) -> list[Message]:
        """Return the stored messages directly before the new ones of a batch that end the log and have no turn."""
        ids = [m.id for m in new]
        stored = [self.with_id(id) for id in ids]
        first = stored[: stored.index(None)]
        found: list[Message] = []
        while first and (m := first.pop()) and m.turn_no is None and m.seq == self.last_seq - len(found):
            found.append(m)
        return found

    def as_stored(self, new: Sequence[Message], fresh: list[Message]) -> list[Message]:
        """Return all messages of a batch as they are stored; `fresh` were just written, at the end of the log."""
        written = iter(self.log[len(self.log) - len(fresh) :])
        found: list[Message] = []
        for m in new:
            if any(m is other for other in fresh):
                found.append(next(written))
            else:
                stored = self.with_id(m.id)
                assert stored is not None
                found.append(stored.model_copy(update={"replayed": True}))
        return found

    def replayed(self, turn: Turn) -> Turn:
        return turn.model_copy(update={"messages": self.messages_of(turn), "replayed": True})

    def expect(self, after: int | None, *, stale: bool = False) -> None:
        """Refuse a write if the session is not at the expected position or, if `stale`, revision."""
        if stale or (after is not None and after != self.last_seq):
            raise Conflict(self.key, expected=after or 0, last_seq=self.last_seq)

    def put(self, now: datetime, new: Sequence[Message], turn_no: int | None = None) -> None:
        for m in new:
            self.last_seq += 1
            kept = {"seq": self.last_seq, "turn_no": turn_no, "created_at": m.created_at or now, "replayed": False}
            self.log.append(m.model_copy(update=kept))
            self.slide_on(now)

    def put_turn(self, now: datetime, new: Sequence[Message], usage: Usage, **fields: Any) -> Turn:
        self.last_turn_no += 1
        first = self.last_seq + 1
        self.put(now, new, self.last_turn_no)
        self.slide_on(now)
        places = {"turn_no": self.last_turn_no, "first_seq": first, "last_seq": self.last_seq}
        turn = Turn(**places, usage=usage, created_at=now, **fields)
        self.turns.append(turn)
        return turn

    def find(self, place: int | str) -> Message | None:
        return next((m for m in self.log if place == (m.id if isinstance(place, str) else m.seq)), None)

    def at(self, place: int | str) -> Message:
        if (found := self.find(place)) is None:
            raise MessageNotFound(self.key, place)
        return found

    def take(self, gone: Message) -> None:
        """Remove one message. A summary is removed with its last message."""
        if self.is_consolidated(gone):
            self.last_consolidated -= gone.role is not RECORD
        self.log.remove(gone)
        for turn in list(self.turns):
            its = [m for m in self.messages_of(turn) if m.role is not RECORD]
            ends = turn.turn_no == gone.turn_no and turn.kind == "compaction" and not its
            if ends and not turn.metadata.get("discarded"):
                self.turns.remove(turn)
                self.log = [
                    m.model_copy(update={"turn_no": None}) if m.turn_no == turn.turn_no else m for m in self.log
                ]
        self.cut()

    def is_consolidated(self, m: Message) -> bool:
        """Return whether the message is one of the first `last_consolidated` ones."""
        return len([other for other in self.messages if other.seq < m.seq]) < self.last_consolidated

    def put_instead(self, old: Message, new: Message) -> Message:
        self.log[self.log.index(old)] = new
        self.cut()
        return new

    def shorten(self, turn: Turn, last_seq: int) -> None:
        """End a turn at this position, or remove it if it begins later."""
        if turn.first_seq > last_seq:
            self.turns.remove(turn)
        else:
            turn.last_seq = min(turn.last_seq, last_seq)

    def cut(self) -> None:
        """Count a removal, an edit or a compaction: each uses up one seq."""
        self.last_seq += 1
        self.changes.append(self.last_seq)
        self.last_consolidated = min(self.last_consolidated, len(self.messages))

    def mended(self) -> ModelSession:
        numbers = [turn.turn_no for turn in self.turns]
        self.log = [m if m.turn_no in numbers else m.model_copy(update={"turn_no": None}) for m in self.log]
        self.last_consolidated = min(self.last_consolidated, len(self.messages))
        return self
