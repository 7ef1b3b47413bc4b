"""The errors of the room."""

from datetime import MAXYEAR, datetime
from typing import Any

from lango_store._rooms.turns_in_progress.errors import InProgress
from lango_store.errors.core import LangoStoreError, NotFound, quoted


class CallInProgress(InProgress):
    """A tool call was begun and may still be running; nothing was written.

    The call has no result, and its time limit has not passed. Wait and call again, or pass `wait=` to
    `Conversation.calls.begin`. If no result is stored before `until`, the call becomes unknown.

    Attributes:
        key: The key of the session.
        seq: The `seq` of the message that asks for the call.
        position: The position of the call in the message.
        until: The time at which the call becomes unknown.
    """

    def __init__(self, key: str, seq: int, position: int, until: datetime) -> None:
        waits = until.year == MAXYEAR
        fact = "waits for its result from outside" if waits else f"was begun and may be running until {until}"
        self._fact = f"{_call(key, seq, position)} {fact}"
        advice = "store it with Store.calls.finish()" if waits else "try again later, or pass wait= to calls.begin()"
        super().__init__(f"{self._fact}: {advice}")
        self.key, self.seq, self.position = key, seq, position
        self.until = until


class CallUnknown(LangoStoreError):
    """A tool call was begun and has no result, so the tool may have run; nothing was written.

    The time limit of the call has passed, or its result was deleted. Find out whether the tool ran, for example by
    looking for `effect_key` in the service that it calls, and record the outcome with `Conversation.calls.resolve`. If
    the tool honors the key or changes nothing, you can instead begin the call again with `idempotent=True`.

    Attributes:
        key: The key of the session.
        seq: The `seq` of the message that asks for the call.
        position: The position of the call in the message.
        effect_key: The key that the tool received, `Effect.key`.
    """

    def __init__(self, key: str, seq: int, position: int, effect_key: str) -> None:
        self._fact = f"{_call(key, seq, position)} was begun and has no result"
        super().__init__(
            f"{self._fact}: find out whether the tool ran, and call calls.resolve(); or, only if the tool honors the "
            "effect key or changes nothing, pass idempotent=True"
        )
        self.key, self.seq, self.position = key, seq, position
        self.effect_key = effect_key


class CallNotFound(NotFound):
    """The session has no such tool call, the message does not ask for it, or it was never begun.

    Nothing was written. Pass the `seq` of the assistant message that asks for the call, and the position of the call in
    its `tool_calls`.
    """


class CallFinished(LangoStoreError):
    """The tool call already has a result or an output; nothing was written. Use it, and do not run the tool."""


def _call(key: str, seq: int, position: int) -> str:
    return f"call {position} of message {seq} of session {quoted(key)}"


class SuspensionNotFound(NotFound):
    """No suspension has this token or id; nothing was written.

    The text is not a token, the session was deleted or has expired, or the suspension was deleted together with the
    message whose calls wait for the answer. Or no tool call waits, or has waited, with this handle.
    """


class SuspensionExpired(SuspensionNotFound):
    """The suspension cannot be answered, or the call finished: its time has passed. Nothing was written.

    Attributes:
        key: The key of the session.
        due_at: The time from which the suspension cannot be answered.
    """

    def __init__(self, key: str, due_at: datetime, remedy: str = "suspend its calls again") -> None:
        self._fact = f"the suspension of session {quoted(key)} expired at {due_at}"
        super().__init__(f"{self._fact}: {remedy}")
        self.key = key
        self.due_at = due_at


class AlreadyAnswered(LangoStoreError):
    """The suspension was answered before; nothing was written.

    If the program that got the answer may have died, read the suspension with `Conversation.suspensions.list`, and
    continue with the stored answer. Begin the calls of the suspension with `Conversation.calls.begin`: for a finished
    call, it returns the stored result.

    Attributes:
        key: The key of the session.
        id: The id of the suspension.
        answer: The stored answer, any JSON.
        answered_at: The time of that answer.
        answered_by: Who has answered, or None.
    """

    def __init__(self, key: str, id: str, answer: Any, answered_at: datetime, answered_by: str | None = None) -> None:
        by = "" if answered_by is None else f" by {quoted(answered_by)}"
        self._fact = f"the suspension of session {quoted(key)} was answered at {answered_at}{by}"
        super().__init__(f"{self._fact}: the attribute `answer` is the stored answer")
        self.key = key
        self.id = id
        self.answer = answer
        self.answered_at = answered_at
        self.answered_by = answered_by
