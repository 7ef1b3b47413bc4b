"""Tool calls that run once: record that a call begins before the tool runs, and store the result afterwards."""

import logging
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from lango_store._connections import cancellation
from lango_store._connections.context import Context
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._rooms.tool_calls import calls, suspensions
from lango_store._rooms.tool_calls.calls import Attempt, Place
from lango_store._rooms.tool_calls.errors import CallInProgress
from lango_store._rooms.tool_calls.suspensions import NewWait
from lango_store._rooms.turns_in_progress import inbox
from lango_store._rooms.turns_in_progress.leases import Lease, new_token
from lango_store._values.model import UNSET, Message, ToolCall, Unset
from lango_store.errors import InvalidState, LangoStoreError

logger = logging.getLogger(__name__)

R = TypeVar("R")

TIMED_OUT: Final = "TimeoutError: the call has waited too long for its result"
"""The result of a call that has waited until its time limit, for the model."""


class Effect:
    """A tool call that this process may run, or whose result is stored.

    Attributes:
        call: The call, with the name of the tool and its arguments.
        key: A random key that the call keeps when it runs again. Pass it to services that accept an idempotency key.
        replayed: True if the call already has a result, or waits for it from outside. Then do not run the tool.
        result: The stored message with the result. None until the call has a result.
        waiting: True if the call waits for its result from outside, since `wait`.
        output: In the block of `RunningTurn.call`: set it to the output of the tool, any JSON. Leaving the block stores
            it.
        failed: In the block of `RunningTurn.call`: set it to an error text instead, if the tool failed without effect.
    """

    def __init__(
        self, place: Place, token: int, call: ToolCall, key: str, result: Message | None, waiting: bool
    ) -> None:
        self._place: Final = place
        self._token: Final = token
        self.call: Final = call
        self.key: Final = key
        self.replayed: Final = result is not None or waiting
        self.result = result
        self.waiting = waiting
        self.output: Any = UNSET
        self.failed: str | None = None
        self._callers_transaction: sa.Transaction | None = None
        self._wait: NewWait | None = None
        self._in_block = False

    def wait(self, handle: Mapping[str, Any], *, until: datetime | timedelta) -> None:
        """Let the call wait for a result from outside, such as of a job that the tool has started.

        Leaving the block of `RunningTurn.call` stores that the call waits. Then end the turn: `Store.calls.finish`
        stores the result, and the session then owes a turn.

        Args:
            handle: What identifies the job, a JSON object, such as `{"mcp_task": "t-1"}`.
            until: How long to wait: a time, an aware datetime, or a duration from now. Without a result until then, the
                call has failed: the session owes a turn, which takes the failure for the model from the inbox. The wait
                does not keep the session from expiring.

        Raises:
            InvalidValue: The handle cannot be stored losslessly.
            InvalidState: The call is not in the block of `RunningTurn.call`, or needs no result.
            TypeError: The handle is not a JSON object or is empty, or `until` is neither a time nor a duration.
            ValueError: `until` is out of range.
        """
        if not self._in_block or self.result or self.waiting:
            raise InvalidState("only a call that runs in the block of turn.call() can wait")
        self._wait = NewWait(self._place, handle, until)


def begin(
    context: Context, place: Place, limit: timedelta, wait: timedelta, *, idempotent: bool, lease: Lease | None = None
) -> Effect:
    """Record that a call begins, or return its stored result.

    While an earlier attempt of the call is running, wait for up to `wait`.

    Raises:
        CallInProgress: The call was still running after `wait`.
        CallUnknown: The call is unknown and not `idempotent`.
        LangoStoreError: There is no such call, or the context uses a caller's transaction.
    """
    if context.in_callers_transaction:
        raise InvalidState(
            "a call needs its own transaction, because its beginning must be stored before the tool runs: "
            "begin the call on the store, not on store.using() or in store.transact()"
        )
    attempt, pauses = Attempt(new_token(), secrets.token_hex(16), limit), None
    while True:
        try:
            begun = context.write(calls.begin, place, attempt, lease, idempotent=idempotent)
            return Effect(place, attempt.token, *begun)
        except CallInProgress:
            pauses = pauses or cancellation.pauses(wait.total_seconds())
            if (pause := next(pauses, None)) is None:
                raise
        cancellation.pause(pause)


def finish(
    context: Context,
    effect: Effect,
    output: Any | Unset,
    failed: str | None,
    *,
    id: str | None = None,
    expected: Expected = ANYTHING,
) -> Message:
    """Store the result of a call, which ends the call; return the stored message."""
    if effect.replayed and effect.result is not None:
        return effect.result
    if effect.waiting:
        raise InvalidState("the call waits for its result from outside: store it with Store.calls.finish()")
    result = context.batch([result_message(effect.call, output, failed, id=id)])
    context, arguments = context.unguarded(), (effect._place, effect._token, result, expected)  # not to check it twice

    def store(connection: sa.Connection, now: datetime, place: Place) -> Message:
        effect._callers_transaction = connection.get_transaction()
        return calls.finish(connection, now, place, *arguments[1:])

    in_callers = context.in_callers_transaction
    effect.result = context.transact(store, effect._place) if in_callers else context.write(calls.finish, *arguments)
    return effect.result


def may_lack_result(effect: Effect) -> bool:
    """Return True if a call has no result, or its result was stored in a transaction of the caller, which has ended.

    While that transaction is open, it holds locks for which a write would wait.
    """
    transaction = effect._callers_transaction
    return not (effect.result or effect.waiting) or (transaction is not None and not transaction.is_active)


def wait(context: Context, effect: Effect, new: NewWait) -> None:
    """Store that a call waits for its result from outside."""
    failure = result_message(effect.call, UNSET, TIMED_OUT, id=f"{inbox.RESULT}{new.digest}")
    context.unguarded().transact(suspensions.wait, new, effect._token, context.batch([failure]))
    effect.waiting = True


def leave(context: Context, effect: Effect) -> None:
    """Mark a call without a result as unknown at the end of its block; if that fails, log a warning."""
    if may_lack_result(effect):
        try:
            if context.unguarded().transact(calls.leave, effect._place, effect._token):
                effect.result = None  # the caller's transaction was rolled back
        except LangoStoreError as error:  # the block's exception matters more, and the call has a time limit
            logger.warning("%s seems to be running until its time limit passes: %s", effect._place, error)


def result_message(call: ToolCall, output: Any | Unset, failed: str | None, *, id: str | None = None) -> Message:
    """Return the message for the result of a call: text as its content, other JSON as the `output` of a tool call."""
    if (output is UNSET) == (failed is None):
        raise TypeError("give the output of the tool, or the text of its failure")
    named: dict[str, Any] = {"tool_call_id": call.id or None, "name": call.name or None, "id": id}
    if failed is not None:
        if not isinstance(failed, str):
            raise TypeError(f"failed is {type(failed).__name__}: give the text for the model")
        return Message.tool(failed, failed=True, **named)
    if isinstance(output, str):
        return Message.tool(output, **named)
    return Message.tool(tool_calls=[ToolCall(id=call.id, name=call.name, output=output)], **named)
