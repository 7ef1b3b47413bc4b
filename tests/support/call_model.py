"""A model of tool calls that were begun, and of suspensions: dicts, added to the model of a session with turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from support.turn_model import ModelAttempt, ModelSessionWithTurns

from lango_store import (
    AlreadyAnswered,
    BegunCall,
    CallFinished,
    CallInProgress,
    CallNotFound,
    CallUnknown,
    Conflict,
    Message,
    MessageNotFound,
    MessageRole,
    Suspension,
    SuspensionExpired,
    SuspensionNotFound,
    ToolCall,
)

WAITS: Final = datetime.max.replace(tzinfo=UTC)
"""The time limit of a call that waits for a result from outside."""

Place = tuple[int, int]
"""The seq of the message that asks for a call, and the position of the call in it."""

Begun = tuple[ToolCall, str, Message | None]
"""A call, its key for the tool, and its result."""


@dataclass
class ModelCall:
    """A call that was begun; `token` belongs to the process that may finish it."""

    effect_key: str
    token: int | None
    begun_at: datetime
    until: datetime
    result_seq: int | None = None


def is_of_wait(message: Message) -> bool:
    """Return whether a message is the result or the failure of a call that waits."""
    return message.role == "tool" and str(message.id).startswith("lango-wait-")


def id_of_wait(message: Message) -> str:
    return str(message.id).removeprefix("lango-wait-")


class ModelSessionWithCalls(ModelSessionWithTurns):
    """Implements the promises of tool calls and suspensions."""

    def __init__(self, key: str, created_at: datetime) -> None:
        super().__init__(key, created_at)
        self.calls: dict[Place, ModelCall] = {}
        self.suspensions: dict[str, Suspension] = {}

    def cut(self) -> None:
        super().cut()
        seqs = {m.seq for m in self.log}
        self.calls = {place: call for place, call in self.calls.items() if place[0] in seqs}
        self.suspensions = {
            id: each for id, each in self.suspensions.items() if all(seq in seqs for seq, _ in each.calls)
        }

    # Calls

    def asked(self, place: Place) -> ToolCall:
        seq, position = place
        message = self.find(seq)
        if message is None or position >= len(message.tool_calls):
            raise CallNotFound
        call = message.tool_calls[position]
        if message.role.canonical is not MessageRole.ASSISTANT:
            raise CallNotFound
        if call.answered:
            raise CallFinished
        return call

    def call_or_empty(self, place: Place) -> ToolCall:
        """Return a call, or one without id and name if a redaction removed it from its message."""
        calls = self.at(place[0]).tool_calls
        return calls[place[1]] if place[1] < len(calls) else ToolCall(id="", name="")

    def result(self, call: ModelCall) -> Message | None:
        return None if call.result_seq is None else self.find(call.result_seq)

    def state(self, now: datetime, call: ModelCall) -> str:
        if self.result(call) is not None:
            return "finished"
        if call.result_seq is None:
            if call.token is None:
                return "retry"
            if call.until == WAITS:
                return "waiting"
            if call.until > now:
                return "running"
        return "unknown"

    def check_not_running(self, now: datetime, place: Place) -> None:
        call = self.calls[place]
        if self.state(now, call) == "running":
            raise CallInProgress(self.key, *place, call.until)

    def begin_call(
        self,
        now: datetime,
        place: Place,
        new: ModelCall,
        attempt: ModelAttempt | None,
        *,
        idempotent: bool,
    ) -> Begun:
        if attempt is not None:
            self.own(now, attempt, extends=False)
        asked = self.asked(place)
        call = self.calls.get(place)
        if call is not None:
            self.check_not_running(now, place)
            if self.state(now, call) == "unknown" and not idempotent:
                raise CallUnknown(self.key, *place, call.effect_key)
            new.effect_key = call.effect_key
        if attempt is not None:
            self.own(now, attempt)
        if call is not None and self.state(now, call) == "waiting":
            return asked, call.effect_key, None
        if call is not None and (result := self.result(call)) is not None:
            replayed = result.model_copy(update={"replayed": True})
            self.add_result(attempt, replayed)
            return asked, call.effect_key, replayed
        self.calls[place] = new
        return asked, new.effect_key, None

    def add_result(self, attempt: ModelAttempt | None, result: Message) -> None:
        if attempt is not None:
            attempt.earlier = [m for m in attempt.earlier if m.seq != result.seq]
            if result.turn_no is None:
                attempt.add([result])

    def finish_call(
        self, now: datetime, place: Place, token: int, result: Message, attempt: ModelAttempt | None, id: str | None
    ) -> Message:
        """Record a result; a result of a turn gets `id`, which the turn generated."""
        call = self.calls.get(place)
        if call is None or call.token != token:
            raise Conflict(self.key, expected=self.last_seq, last_seq=self.last_seq)
        stored = self.result(call)
        if stored is not None:
            return stored.model_copy(update={"replayed": True})
        if attempt is not None:
            result = result.model_copy(update={"id": self.given(attempt, id)})
            if self.holder is attempt:
                self.own(now, attempt)
        stored = self.record(now, call, result)
        self.add_result(attempt, stored)
        return stored

    def record(self, now: datetime, call: ModelCall, result: Message) -> Message:
        (stored,) = self.append(now, [result])
        call.result_seq = stored.seq
        return stored

    def leave_call(self, now: datetime, place: Place, token: int) -> None:
        call = self.calls.get(place)
        if call is not None and call.token == token and call.result_seq is None and call.until != WAITS:
            call.until = now

    def resolve_call(self, now: datetime, place: Place, result: Message | None) -> Message | None:
        call = self.calls.get(place)
        if call is None:
            self.asked(place)
            raise CallNotFound
        if self.result(call) is not None:
            raise CallFinished
        self.check_not_running(now, place)
        call.token = None
        if result is not None:
            return self.record(now, call, result)
        call.result_seq = None
        return None

    def begun_calls(self, now: datetime) -> list[BegunCall]:
        begun: list[BegunCall] = []
        for (seq, position), call in sorted(self.calls.items()):
            asking = self.at(seq)
            begun.append(
                BegunCall(
                    key=self.key,
                    seq=seq,
                    position=position,
                    name=asking.tool_calls[position].name if position < len(asking.tool_calls) else "",
                    effect_key=call.effect_key,
                    state=self.state(now, call),
                    begun_at=call.begun_at,
                    until=call.until,
                    result_seq=call.result_seq,
                )
            )
        return begun

    # Calls that wait for a result from outside

    def wait_call(self, now: datetime, place: Place, token: int, new: Suspension, failure: Message) -> None:
        call = self.calls.get(place)
        if call is None or call.token != token:
            raise Conflict(self.key, expected=self.last_seq, last_seq=self.last_seq)
        self.asked(place)
        call.until = WAITS
        self.suspensions[new.id] = new
        self.enqueue(now, failure, new.due_at)

    def finish_wait(self, now: datetime, id: str, result: Message) -> Message:
        wait = self.suspensions.get(id)
        if wait is None or wait.due_at is None:
            raise SuspensionNotFound
        if wait.answered_at is None and wait.due_at > now:
            self.suspensions[id] = wait.model_copy(update={"answered_at": now})
            self.inbox = [m for m in self.inbox if m.id != result.id]
            return self.enqueue(now, result)
        if wait.answered_at is None or wait.answered_at >= wait.due_at:
            raise SuspensionExpired(self.key, wait.due_at)
        for m in (*self.inbox, *self.log):
            if m.id == result.id:
                return m.model_copy(update={"replayed": True})
        raise MessageNotFound(self.key, str(result.id))

    def takable(self, now: datetime) -> list[Message]:
        return [m for m in self.due(now) if not is_of_wait(m) or id_of_wait(m) in self.suspensions]

    def take_inbox(self, now: datetime, attempt: ModelAttempt, ids: Sequence[str | None]) -> list[Message]:
        stored = super().take_inbox(now, attempt, ids)
        for m in stored:
            if is_of_wait(m):
                wait = self.suspensions[id_of_wait(m)]
                self.suspensions[wait.id] = wait.model_copy(update={"answered_at": wait.answered_at or wait.due_at})
                self.calls[wait.calls[0]].result_seq = m.seq
        return stored

    # Suspensions

    def suspend(
        self, now: datetime, calls: Sequence[Place], state: Any, ttl: timedelta | None, id: str, token: str | None
    ) -> Suspension:
        for place in calls:
            self.asked(place)
        due_at = None if ttl is None else now + ttl
        new = Suspension(key=self.key, id=id, calls=list(calls), state=state, created_at=now, due_at=due_at)
        self.suspensions[id] = new
        return new.model_copy(update={"token": token})

    def redact_message(self, place: int | str, reason: str | None) -> Message:
        seq = self.at(place).seq
        for id, each in self.suspensions.items():
            if any(seq == asking for asking, _ in each.calls):
                removed = dict.fromkeys(("state", "reason", "answer", "answered_why"))
                self.suspensions[id] = each.model_copy(update=removed)
        return super().redact_message(place, reason)

    def resume(self, now: datetime, id: str, answer: Any, by: str | None, why: str | None) -> Suspension:
        if id not in self.suspensions:
            raise SuspensionNotFound
        found = self.suspensions[id]
        if found.answered_at is not None:
            raise AlreadyAnswered(self.key, id, found.answer, found.answered_at, found.answered_by)
        if found.due_at is not None and found.due_at <= now:
            raise SuspensionExpired(self.key, found.due_at)
        decided = {"answer": answer, "answered_at": now, "answered_by": by, "answered_why": why}
        self.suspensions[id] = found.model_copy(update=decided)
        return self.suspensions[id]
