"""Tool calls that run once: `Conversation.calls` and `Store.calls`."""

from datetime import timedelta
from typing import Any

from lango_store._groups.base import SessionPart, StorePart
from lango_store._operations import calls
from lango_store._operations.appends import Batch
from lango_store._operations.calls import Place
from lango_store._services import effects
from lango_store._services.effects import Effect
from lango_store._values.model import UNSET, BegunCall, Message, ToolCall


class Calls(SessionPart):
    """The tool calls of a session that were begun: `Conversation.calls`.

    Attributes:
        key: The session's key.
    """

    __slots__ = ()

    def begin(
        self,
        seq: int,
        position: int,
        *,
        limit: timedelta = timedelta(minutes=2),
        wait: timedelta | None = None,
        idempotent: bool = False,
    ) -> Effect:
        """Record that a tool call begins, before the tool runs.

        If several processes begin a call at the same time, one succeeds. If the call already has a result, the returned
        effect has `replayed=True` and the stored message as its `result`: do not run the tool. `RunningTurn.call` does
        the same in a turn.

        Args:
            seq: The `seq` of the assistant message that asks for the call. A stored result, which may have
                `tool_calls` too, is refused.
            position: The position of the call in the `tool_calls` of the message, from 0. It identifies the call,
                because ids of calls are not unique in a session.
            limit: How long the call may run before it becomes unknown, 1 ms to 1 day. A later result is still stored,
                unless the call was resolved or begun again. Defaults to 2 minutes.
            wait: If the call may still be running, how long to wait for its result or its time limit, up to 1 day.
                Defaults to not waiting.
            idempotent: Run a call that is unknown again, with the same `Effect.key`. Pass True only if the tool honors
                the key or changes nothing. Defaults to False.

        Returns:
            The effect, for `finish`.

        Raises:
            CallUnknown: The call is unknown (its time limit passed without a result, or its result was deleted), and
                `idempotent` is False; nothing was written.
            CallInProgress: The call was begun before and has no result, and its time limit has not passed, so it may
                still be running; nothing was written.
            CallNotFound: The session has no such call, or the message does not ask for it; nothing was written.
            InvalidState: The conversation belongs to a transaction (`Store.using`, `transaction` or `transact`), so
                that the beginning could not be stored before the tool runs.

        Example:
            ```python
            effect = conversation.calls.begin(asking.seq, 0)
            if not effect.replayed:
                conversation.calls.finish(effect, pay(effect.call.arguments, idempotency_key=effect.key))
            ```
        """
        place = Place(self.key, seq, position)
        return effects.begin(self._context, place, limit, wait or timedelta(0), idempotent=idempotent)

    def finish(self, effect: Effect, output: Any = UNSET, *, failed: str | None = None) -> Message:
        """Append the result of a call, and record the end of the call, in one transaction.

        Args:
            effect: The result of `begin`.
            output: The output of the tool: text, which becomes the content of the message, or any other JSON. Pass
                either `output` or `failed`.
            failed: An error text, if the tool failed and had no effect. `extra` of the message then has `"failed":
                true`.

        Returns:
            The stored tool message; for an effect with `replayed=True`, its `result`.

        Raises:
            Conflict: The call was resolved or begun again, or its message was removed; nothing was written.
            InvalidMessage: The output cannot be stored losslessly; nothing was written.
            ValueError: The effect belongs to another session.
            TypeError: Both or neither of `output` and `failed` were passed.
        """
        if effect._place.key != self.key:
            raise ValueError("the effect belongs to another session: call finish() of its conversation")
        return effects.finish(self._context, effect, output, failed)

    def resolve(
        self, seq: int, position: int, *, output: Any = UNSET, failed: str | None = None, retry: bool = False
    ) -> Message | None:
        """Record the outcome of an unknown tool call.

        Pass exactly one of `output`, `failed` and `retry=True`.

        Args:
            seq: The `seq` of the message that asks for the call.
            position: The position of the call in the `tool_calls` of the message, from 0.
            output: The output, if the tool has run: text or any other JSON. It is appended as the result of the call.
            failed: An error text, if the tool failed. It is appended as the result of the call.
            retry: True if the tool has not run: the call may then be begun again, with the same `Effect.key`.

        Returns:
            The stored result; None with `retry`.

        Raises:
            CallInProgress: The time limit of the call has not passed, so it may still be running; nothing was written.
            CallNotFound: There is no such call, or it was never begun; nothing was written.
            CallFinished: The call has a result; nothing was written.
            InvalidMessage: The output cannot be stored losslessly; nothing was written.
        """
        if retry and (output is not UNSET or failed is not None):
            raise TypeError("retry=True means that the tool has not run: do not pass output or failed as well")

        def result(call: ToolCall) -> Batch:
            return self._context.batch([effects.result_message(call, output, failed)])

        return self._context.transact_once(calls.resolve, Place(self.key, seq, position), None if retry else result)

    def list(self) -> list[BegunCall]:
        """List the tool calls that were begun, in the order of their messages."""
        return self._context.on_primary().read_together(calls.read, self.key)


class StoreCalls(StorePart):
    """The tool calls of all sessions: `Store.calls`."""

    __slots__ = ()

    def unknown(self) -> list[BegunCall]:
        """List the unknown tool calls of all live sessions.

        A call is unknown if it was begun, and its time limit passed without a result. At most 1,000 are listed.
        `Conversation.calls.resolve` resolves a call. A call whose result was deleted is unknown too, but only
        `Conversation.calls.list` lists it.
        """
        return self._context.on_primary().read(calls.read_unknown)
