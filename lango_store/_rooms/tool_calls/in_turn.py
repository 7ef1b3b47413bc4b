"""Tool calls in a turn."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from lango_store._operations.session.sessions import check_duration
from lango_store._rooms.tool_calls import effects
from lango_store._rooms.tool_calls.calls import Place
from lango_store._rooms.tool_calls.effects import Effect
from lango_store._rooms.turns_in_progress.leases import SHORTEST_LEASE
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn
from lango_store._values.model import UNSET, Message, ToolCall


class InTurn(RunningTurn):
    """Adds the members of the room to `RunningTurn`."""

    @contextmanager
    def call(
        self, message: Message | int, call: ToolCall | int, *, limit: timedelta | None = None, idempotent: bool = False
    ) -> Iterator[Effect]:
        """Open a block in which a tool call runs, at most once unless `idempotent` is True.

        Entering the block records that the call begins. In the block, set `output` or `failed` of the effect. Leaving
        the block, also with an exception, appends the output or the failure as a tool message of the turn, and records
        the end of the call in the same transaction. If neither is set, the call becomes unknown: see `CallUnknown`. If
        the tool has started a job somewhere else, call `effect.wait` instead, and end the turn.

        Args:
            message: The stored assistant message that asks for the call, or its `seq`.
            call: The call, an item of `message.tool_calls`, or its position there, from 0. If `message` is a `seq`,
                pass the position.
            limit: How long the call may run before it becomes unknown, 1 ms to 1 day. A later result is still stored,
                unless the call was resolved or begun again. Defaults to the duration of the turn's lease.
            idempotent: Run a call that is unknown again, with the same `Effect.key`. Pass True only if the tool honors
                the key or changes nothing. Defaults to False.

        Raises:
            CallUnknown: The call is unknown (its time limit passed without a result, or its result was deleted), and
                `idempotent` is False; nothing was written.
            CallInProgress: The call was begun before and has no result, and its time limit has not passed, so it may
                still be running; nothing was written.
            LeaseLost: On entering the block: the turn has lost the lease of the session; nothing was written.
            CallNotFound: On entering the block: the session has no such call, or the message does not ask for it, such
                as a stored result; nothing was written.
            Conflict: On leaving the block: the call was resolved or begun again, or its message was removed. The output
                was not stored.
            InvalidMessage: On leaving the block: the output cannot be stored losslessly. The call becomes unknown.

        Example:
            ```python
            asking = turn.append(Message.assistant(tool_calls=calls))
            for call in asking.tool_calls:
                with turn.call(asking, call) as effect:
                    if not effect.replayed:
                        effect.output = pay(call.arguments, idempotency_key=effect.key)
            ```
        """
        effect = self._begin_call(message, call, limit=limit, idempotent=idempotent)
        try:
            yield effect
        finally:
            self._end_call(effect)

    def _begin_call(
        self, message: Message | int, call: ToolCall | int, *, limit: timedelta | None = None, idempotent: bool = False
    ) -> Effect:
        """Record that a call begins, as entering the block of `call` does."""
        self._check_running()
        seq = message if isinstance(message, int) else message.seq
        place = Place(self.key, seq, call if isinstance(call, int) else _position(message, call))
        if limit is None:
            limit = timedelta(seconds=self.lease.seconds)
        else:
            check_duration("limit", limit, SHORTEST_LEASE)
        effect = effects.begin(self._context, place, limit, timedelta(0), idempotent=idempotent, lease=self.lease)
        effect._in_block = True
        if effect.result is not None:
            self._add_result(effect.result)
        return effect

    def _end_call(self, effect: Effect) -> None:
        """Store the output of a call, or mark the call as unknown, as leaving the block of `call` does."""
        if self._process != os.getpid():  # the call belongs to the process that this one was forked from
            return
        try:
            if not effects.may_lack_result(effect):
                return
            if effect.output is not UNSET or effect.failed is not None:
                output, failed = effect.output, effect.failed
                id, expected = next(self._ids), self._expected
                self._add_result(effects.finish(self._context, effect, output, failed, id=id, expected=expected))
            elif effect._wait is not None:
                effects.wait(self._context, effect, effect._wait)
        finally:
            effects.leave(self._context, effect)

    def _add_result(self, result: Message) -> None:
        self._earlier = [each for each in self._earlier if each.seq != result.seq]
        self._add([result])


def _position(message: Message | int, call: ToolCall) -> int:
    calls = [] if isinstance(message, int) else message.tool_calls
    equal = [position for position, each in enumerate(calls) if each is call]
    equal = equal or [position for position, each in enumerate(calls) if each == call]
    if len(equal) != 1:
        raise ValueError(f"{len(equal)} calls of the message equal this one: give the position of the call")
    return equal[0]
