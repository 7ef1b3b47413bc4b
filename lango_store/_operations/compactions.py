"""A summary instead of what it speaks of: begun with the window, finished when the summary is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from lango_store._dialect import AnyConnection, Moment
from lango_store._operations import messages, removals, sessions, turns
from lango_store._operations.batches import Batch
from lango_store._operations.binds import IN_SUMMARY, IS_COMPACTION, IS_RECORD, MESSAGE, SESSION, TURN
from lango_store._values.model import Compaction, Message, MessageRole, Turn
from lango_store._values.session import Session
from lango_store.errors import Conflict


@dataclass(frozen=True)
class PendingCompaction:
    """A window that a summary is being written of, and what of its session must still hold when that is done."""

    session: Session
    incarnation: int

    @property
    def window(self) -> list[Message]:
        """The messages to summarize."""
        return list(self.session.messages)

    @property
    def state(self) -> tuple[int, int]:
        """The session's state when its window was read: see `sessions.Locked`."""
        session = self.session
        return self.incarnation, session.last_seq - session.message_count - session.record_count


def begin(connection: AnyConnection, now: Moment, key: str, *, records: bool = False) -> PendingCompaction:
    """Read the window of a live session."""
    incarnation, session = messages.load_life(connection, now, key, records=records)
    return PendingCompaction(session, incarnation)


def finish(
    connection: sa.Connection, now: datetime, pending: PendingCompaction, summary: Batch, *, discard: bool
) -> Compaction:
    """Replace the window that a summary speaks of with the summary; `Conflict` if that window has changed.

    What was appended meanwhile stays in the window, after the summary.
    """
    key, upto = pending.session.key, pending.session.last_seq
    found = sessions.lock(connection, now, key)
    if found.state != pending.state:
        raise Conflict(
            key,
            expected=upto,
            last_seq=found.last_seq,
            message=f"session {key!r} was compacted, cut or cleared while its summary was being written: "
            "nothing was changed, compact again if it is still too long",
        )
    said: dict[str, Any] = {
        "original_event_count": pending.session.turn_count,
        "original_message_count": sum(message.role is not MessageRole.RECORD for message in pending.session.messages),
    }
    usage = None
    if discard:
        said["discarded"] = True
        old = turns.read(connection, key)[: pending.session.turn_count]  # a turn without messages has no seq to go by
        usage = turns.total(turn.usage for turn in old)
        _discard(connection, now, key, upto, old)
    turn = replace(
        turns.new_turn(None, usage, said), kind="compaction", replaced_upto=upto, skipped=0 if discard else 1
    )
    saved = turns.save(connection, now, key, _with_new_ids(connection, key, summary), turn=turn)
    sessions.change(connection, key, {"summary_turn": saved.turn_no, "summarized_upto": upto})
    return _compaction(saved, saved.messages, 0 if discard else pending.session.summarized_upto)


def _discard(connection: sa.Connection, now: datetime, key: str, upto: int, old: list[Turn]) -> None:
    # A summary speaks of what its writer saw, and nobody shows him records: they stay, of no turn.
    gone = removals.delete(connection, key, sa.and_(MESSAGE.c.seq <= upto, ~IS_RECORD))
    removals.leave_turns(connection, key, MESSAGE.c.seq <= upto)
    if old:
        removals.delete_turns(connection, key, TURN.c.turn_no <= old[-1].turn_no)
    left = SESSION.c.last_consolidated - gone.messages
    removals.count(
        connection,
        now,
        key,
        gone,
        turn_count=SESSION.c.turn_count - len(old),
        last_consolidated=sa.case((left > 0, left), else_=0),
    )


def _with_new_ids(connection: sa.Connection, key: str, summary: Batch) -> Batch:
    # A summary may repeat messages word for word; their ids stay with the originals, and two of one id are one.
    known = messages.with_ids(connection, key, summary.ids)
    anew: list[Message] = []
    seen: set[str] = set()
    for message in summary.messages:
        if message.id not in seen:
            anew.append(message.model_copy(update={"id": None}) if message.id in known else message)
        seen.update(() if message.id is None else (message.id,))
    return Batch(anew)


def listed(connection: sa.Connection, now: Moment, key: str) -> list[Compaction]:
    """Read the compactions of a live session, the first one first."""
    sessions.row_of(connection, now, key)
    summaries: dict[int | None, list[Message]] = {}
    for message in messages.where(connection, key, IN_SUMMARY):
        summaries.setdefault(message.turn_no, []).append(message)
    found: list[Compaction] = []
    for turn in turns.read(connection, key, IS_COMPACTION):
        after = found[-1].replaced_upto if found else 0
        found.append(_compaction(turn, summaries.get(turn.turn_no, []), after))
    return found


def _compaction(turn: Turn, summary: list[Message], replaced_after: int) -> Compaction:
    return Compaction(
        turn_no=turn.turn_no,
        summary=summary,
        replaced_after=replaced_after,
        replaced_upto=turn.replaced_upto or 0,
        replaced_messages=turn.metadata.get("original_message_count", 0),
        discarded=turn.metadata.get("discarded", False),
        created_at=turn.created_at,
    )
