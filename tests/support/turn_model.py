"""A model of turns in progress: the log, the lease, the drafts and the inbox of a session in plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from support.session_model import ModelSession, Usage

from lango_store import LeaseLost, Message, MessageRole, Turn, TurnInProgress

NOT_COMPARED = ("id", "created_at", "tokens", "seq", "turn_no", "replayed")
"""The fields in which a message may differ from the equal one of an earlier attempt."""


@dataclass(eq=False)
class ModelAttempt:
    """An attempt of a turn; `draft_id` is the id that the store chose for its draft."""

    turn_id: str
    draft_id: str
    lease: timedelta
    earlier: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def add(self, stored: Sequence[Message]) -> None:
        for message in stored:
            if message.turn_no is None and message.seq not in [each.seq for each in self.messages]:
                self.messages.append(message)
        self.messages.sort(key=lambda message: message.seq)

    def forget_draft(self) -> None:
        self.texts, self.pending = [], []


@dataclass
class ModelDraft:
    turn_id: str
    text: str
    created_at: datetime
    updated_at: datetime


class ModelSessionWithTurns(ModelSession):
    """Implements the promises of turns in progress."""

    def __init__(self, key: str, created_at: datetime) -> None:
        super().__init__(key, created_at, None)
        self.holder: ModelAttempt | None = None
        self.until = created_at
        self.drafts: dict[str, ModelDraft] = {}
        self.inbox: list[Message] = []
        self.turn_of_id: dict[str | None, str] = {}
        """The turn that gave a message its id, by id."""
        self.taken_by: dict[int, str] = {}
        """The turn that took a message from the inbox, by seq."""
        self.written_by: dict[int, str] = {}
        """The turn that appended a message, by seq."""
        self.failed_turn: str | None = None
        """The turn that is to be tried again, if no turn is open."""
        self.has_taken = False
        """True if the open or failed turn has taken messages from the inbox."""
        self.others_taken = False
        """True if another turn that is not saved has."""
        self.others_given_up = False
        """True if one of these was given up."""
        self.is_refused = False
        """True if messages that were for a later time wait since a worker has claimed and not begun a turn."""
        self.attempts = 0
        self.due_at: datetime | None = None
        """When a failed turn is due; None if it is due at once, or was given up."""
        self.waits_for_budget = False
        """True if `due_at` is the time at which the budget opens again."""
        self.given_up = False

    def is_held(self, now: datetime) -> bool:
        return self.holder is not None and self.until > now

    def own(self, now: datetime, attempt: ModelAttempt, *, extends: bool = True) -> None:
        if self.holder is not attempt:
            raise LeaseLost(self.key, self.last_seq)
        if extends:
            self.until = now + attempt.lease

    def stored_turn(self, id: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.id == id), None)

    # A turn

    def begin(self, now: datetime, attempt: ModelAttempt) -> Turn | None:
        stored = self.stored_turn(attempt.turn_id)
        if stored is not None:
            return self.replayed(stored)
        if self.holder is not None and self.is_held(now):
            raise TurnInProgress(self.key, self.holder.turn_id, self.until)
        if attempt.turn_id != self.open_turn:
            self.others_taken |= self.has_taken
            self.others_given_up = self.others_taken and (self.others_given_up or self.given_up)
            self.has_taken, self.attempts = False, 0
        self.holder, self.failed_turn = attempt, None
        self.due_at, self.given_up = None, False
        self.own(now, attempt)
        attempt.earlier = [m for m in self.log if self.is_of(attempt.turn_id, m) and m.turn_no is None]
        attempt.messages = list(attempt.earlier)
        return None

    @property
    def open_turn(self) -> str | None:
        """The turn that is open or, without one, that is to be tried again."""
        return self.holder.turn_id if self.holder is not None else self.failed_turn

    def is_of(self, turn_id: str, m: Message) -> bool:
        """Return whether an attempt of the turn gave the message its id, appended it, or took it from the inbox."""
        return turn_id in (self.turn_of_id.get(m.id), self.written_by.get(m.seq), self.taken_by.get(m.seq))

    def append_in_turn(
        self, now: datetime, attempt: ModelAttempt, new: Sequence[Message], ids: Sequence[str | None]
    ) -> list[Message]:
        """Append messages; `ids` has the ids that the turn generates for new messages, at the same positions."""
        self.own(now, attempt, extends=bool(new))
        identified: list[Message] = []
        for m, generated in zip(new, ids, strict=True):
            id = m.id or self.id_of_equal(attempt, m) or self.given(attempt, generated)
            identified.append(m.model_copy(update={"id": id}))
        if any(m.role.canonical is MessageRole.ASSISTANT for m in new):
            attempt.forget_draft()
            self.drafts.pop(attempt.draft_id, None)
        stored = self.append(now, identified)
        self.written_by |= {m.seq: attempt.turn_id for m in stored if not m.replayed}
        attempt.add(stored)
        return stored

    def id_of_equal(self, attempt: ModelAttempt, new: Message) -> str | None:
        def compared(m: Message) -> Message:
            return m.model_copy(update={name: Message.model_fields[name].default for name in NOT_COMPARED})

        for m in attempt.earlier:
            if compared(m) == compared(new):
                attempt.earlier.remove(m)
                return m.id
        return None

    def given(self, attempt: ModelAttempt, id: str | None) -> str | None:
        assert id is not None
        assert id not in self.turn_of_id
        self.turn_of_id[id] = attempt.turn_id
        return id

    def write(self, now: datetime, attempt: ModelAttempt, text: str, *, flushes: bool) -> None:
        attempt.texts.append(text)
        attempt.pending.append(text)
        if flushes and any(attempt.pending):
            self.own(now, attempt)
            self.store_pending(now, attempt)

    def store_pending(self, now: datetime, attempt: ModelAttempt) -> None:
        draft = self.drafts.setdefault(attempt.draft_id, ModelDraft(attempt.turn_id, "", now, now))
        draft.text += "".join(attempt.pending)
        draft.updated_at = now
        attempt.pending = []

    def take_inbox(self, now: datetime, attempt: ModelAttempt, ids: Sequence[str | None]) -> list[Message]:
        taken, due = self.takable(now), self.due(now)
        self.own(now, attempt, extends=bool(taken))
        new = [
            m.model_copy(update={"id": m.id or self.given(attempt, generated)})
            for m, generated in zip(taken, ids, strict=True)
        ]
        self.inbox, self.is_refused = [m for m in self.inbox if m not in due], False
        stored = self.append(now, new)
        self.has_taken |= any(m.turn_no is None for m in stored)
        self.taken_by |= {m.seq: attempt.turn_id for m in stored if m.turn_no is None}
        attempt.add(stored)
        return stored

    def save(self, now: datetime, attempt: ModelAttempt, usage: Usage) -> Turn:
        stored = self.stored_turn(attempt.turn_id)
        is_stopped = stored is not None and "stopped" in stored.metadata
        if (
            stored is None
            or is_stopped
            or any(not stored.first_seq <= m.seq <= stored.last_seq for m in attempt.messages)
        ):
            self.own(now, attempt)
        if self.holder is attempt:
            self.release(saved=stored is None)
        self.drafts = {id: draft for id, draft in self.drafts.items() if draft.turn_id != attempt.turn_id}
        if stored is not None:
            return self.replayed(stored)
        seqs = [each.seq for each in attempt.messages]
        turn = self.put_turn(now, [], usage, id=attempt.turn_id)
        for position, m in enumerate(self.log):
            if m.seq in seqs and m.turn_no is None:
                self.log[position] = m.model_copy(update={"turn_no": turn.turn_no})
        members = self.messages_of(turn)
        if members:
            turn.first_seq, turn.last_seq = members[0].seq, members[-1].seq
        return turn.model_copy(update={"messages": members})

    def abandon(self, now: datetime, attempt: ModelAttempt) -> None:
        if self.holder is attempt:
            self.release()
            if any(attempt.pending):
                self.store_pending(now, attempt)

    # Others

    def release_turn(self) -> None:
        if self.holder is not None:
            self.release()

    def stop(self, now: datetime, ids: Sequence[str | None], new_turn: str | None) -> Turn | None:
        """Save the open or failed turn, or with `new_turn` the owed one; its last draft becomes an answer.

        `ids` has the ids of the turn's messages.
        """
        has_begun, token = self.open_turn is not None, None if self.holder is None else self.holder.draft_id
        if not has_begun and (new_turn is None or not self.is_owed(now)):
            return None
        attempt = ModelAttempt(self.open_turn or str(new_turn), "", timedelta(0))
        new_ids = (id for id in ids if str(id).startswith("turn") and id not in self.turn_of_id)
        if not has_begun:
            self.begin(now, attempt)
            self.take_inbox(now, attempt, [m.id or next(new_ids) for m in self.takable(now)])
        self.holder, self.failed_turn, self.due_at = attempt, None, None
        if self.stored_turn(attempt.turn_id) is None:
            attempt.messages = [m for m in self.log if self.is_of(attempt.turn_id, m) and m.turn_no is None]
            own = [(id, draft) for id, draft in self.drafts.items() if draft.turn_id == attempt.turn_id]
            answers = [m for m in attempt.messages if m.role.canonical is MessageRole.ASSISTANT]
            last = own[-1] if own else None
            if last and (last[0] == token or all((m.created_at or now) <= last[1].updated_at for m in answers)):
                answer = Message.assistant(last[1].text, extra={"interrupted": True})
                self.append_in_turn(now, attempt, [answer], ids[-1:])
        turn = self.save(now, attempt, {})
        if not turn.replayed:
            self.turns[-1].metadata = {"stopped": {"by": "ann", "reason": None}}
        return turn if turn.replayed else turn.model_copy(update={"metadata": self.turns[-1].metadata})

    def release(self, *, saved: bool = False) -> None:
        """End the open turn; it is tried again only if it is not saved and has taken messages from the inbox."""
        turn = self.open_turn
        self.has_taken &= not saved
        if saved or not (any(m.due_at is None for m in self.inbox) or self.has_taken or self.others_taken):
            self.attempts = 0
        if not self.has_taken:
            turn = self.first_taker(turn if saved else None) if self.others_taken else None
            self.has_taken = self.others_taken = turn is not None
            self.given_up = self.others_given_up = self.others_given_up and turn is not None
        self.failed_turn, self.holder = turn, None

    def first_taker(self, excluded: str | None) -> str | None:
        """Return the turn that took the first of the messages that belong to no turn."""
        takers = [self.taken_by.get(m.seq) for m in self.log if m.turn_no is None]
        unsaved = [id for id in takers if id is not None and id != excluded and self.stored_turn(id) is None]
        return unsaved[0] if unsaved else None

    def lose_lease(self) -> None:
        """Leave the open turn to a later attempt, as a copy of the session does."""
        self.failed_turn, self.holder = self.open_turn, None

    # Workers

    def due(self, now: datetime) -> list[Message]:
        """Return the messages in the inbox without those for a later time."""
        return [m for m in self.inbox if m.due_at is None or m.due_at <= now]

    def takable(self, now: datetime) -> list[Message]:
        """Return the messages that a turn moves from the inbox to the log; it deletes the others that are due."""
        return self.due(now)

    def is_owed(self, now: datetime, *, future: bool = False) -> bool:
        """Return whether the session is owed a turn that is not running."""
        interrupted = self.failed_turn is not None or self.holder is not None
        waiting = self.inbox if future else self.due(now)
        return not self.is_held(now) and (interrupted or bool(waiting) or self.has_taken or self.is_refused)

    def drop_answered(self, now: datetime) -> bool:
        """Empty the inbox if saved turns have stored all its messages, and nothing else is owed.

        A turn that has taken messages is owed nothing if all its messages were removed.
        """
        due, taken, turn = self.due(now), self.takable(now), self.open_turn
        stored = [self.with_id(m.id) for m in taken if m.id is not None]
        is_answered = all(m is not None and m.turn_no is not None for m in stored) and len(stored) == len(taken)
        is_new = turn is None and not self.has_taken and (bool(due) or self.is_refused)
        has_lost = turn is not None and self.has_taken
        has_lost &= not any(self.is_of(str(turn), m) and m.turn_no is None for m in self.log)
        if is_answered and (is_new or has_lost):
            self.inbox, self.is_refused = [m for m in self.inbox if m not in due], False
            self.release(saved=True)
            self.due_at = None
            return True
        return False

    def fail(self, now: datetime, attempts: int, pause: timedelta) -> None:
        """End the open turn of a worker whose handler has failed."""
        assert self.holder is not None
        self.failed_turn, self.holder = self.holder.turn_id, None
        self.given_up = self.attempts >= attempts
        self.due_at, self.waits_for_budget = None if self.given_up else now + pause, False

    def wait(self, now: datetime, turn_id: str, pause: timedelta) -> None:
        """Claim the owed turn, which does not begin, and is tried again when its budget opens."""
        self.waits_for_budget = True
        if self.open_turn is None:
            self.is_refused |= all(m.due_at is not None for m in self.inbox)
            self.due_at = now + pause
            return
        attempts = self.attempts
        self.begin(now, ModelAttempt(turn_id, "", pause))
        self.lose_lease()
        self.attempts, self.due_at = attempts, now + pause

    def reset_budget(self, now: datetime) -> None:
        if self.due_at is not None and self.waits_for_budget:
            self.due_at = min(self.due_at, now)

    def check_ended(self, now: datetime, draft_id: str) -> None:
        if self.holder is not None and self.holder.draft_id == draft_id and self.is_held(now):
            raise TurnInProgress(self.key, self.holder.turn_id, self.until)

    def keep_draft(self, now: datetime, draft_id: str) -> Message:
        self.check_ended(now, draft_id)
        id = f"draft-{draft_id}"
        text = "" if self.with_id(id) else self.drafts.pop(draft_id).text
        (stored,) = self.append(now, [Message.assistant(text, id=id, extra={"interrupted": True})])
        return stored

    def drop_draft(self, now: datetime, draft_id: str) -> bool:
        self.check_ended(now, draft_id)
        return self.drafts.pop(draft_id, None) is not None

    def enqueue(self, now: datetime, new: Message, due_at: datetime | None = None) -> Message:
        known = [m for m in (*self.log, *self.inbox) if new.id is not None and m.id == new.id]
        if known:
            return known[0].model_copy(update={"replayed": True})
        self.inbox.append(new.model_copy(update={"created_at": now}))
        self.inbox[-1].__dict__["_due_at"] = due_at
        return self.inbox[-1]

    def cancel(self, id: str) -> bool:
        before = len(self.inbox)
        self.inbox = [m for m in self.inbox if m.id != id]
        is_found, is_untimed = len(self.inbox) < before, any(m.due_at is None for m in self.inbox)
        self.is_refused &= not is_found or is_untimed
        if is_found and not is_untimed and self.open_turn is None and not self.has_taken:
            self.attempts, self.due_at = 0, None
        return is_found
