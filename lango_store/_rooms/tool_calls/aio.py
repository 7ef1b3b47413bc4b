"""The methods of the room as coroutines."""

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from lango_store._connections.cancellation import pauses
from lango_store._connections.threads import Threads
from lango_store._operations.session.sessions import check_duration
from lango_store._parts.twins import AsyncPart, awaited, group, steps
from lango_store._rooms.tool_calls import in_turn
from lango_store._rooms.tool_calls.effects import Effect
from lango_store._rooms.tool_calls.errors import CallInProgress
from lango_store._rooms.tool_calls.groups import Calls, StoreCalls, StoreSuspensions, Suspensions
from lango_store._values.model import Message, ToolCall


class AsyncCalls(AsyncPart[Calls]):
    """The methods of `Calls` as coroutines."""

    async def begin(
        self,
        seq: int,
        position: int,
        *,
        limit: timedelta = timedelta(minutes=2),
        wait: timedelta | None = None,
        idempotent: bool = False,
    ) -> Effect:
        """Record that a tool call begins, before the tool runs.

        See `Calls.begin`. The wait uses no thread and no connection.

        Args:
            seq: The `seq` of the message that asks for the call.
            position: The position of the call in the `tool_calls` of the message, from 0.
            limit: How long the call may run before it becomes unknown, 1 ms to 1 day. Defaults to 2 minutes.
            wait: If the call may still be running, how long to wait for its result or its time limit, up to 1 day.
                Defaults to not waiting.
            idempotent: Run a call that is unknown again, with the same `Effect.key`. Pass True only if the tool honors
                the key or changes nothing. Defaults to False.

        Raises:
            CallUnknown: The call is unknown, and `idempotent` is False; nothing was written.
            CallInProgress: The call may still be running; nothing was written.
            CallNotFound: The session has no such call; nothing was written.
        """
        with steps(self._twin, "calls.begin") as twin:
            begin = functools.partial(twin.begin, seq, position, limit=limit, idempotent=idempotent)
            waiting = pauses(check_duration("wait", wait or timedelta(0)).total_seconds())
            while True:
                try:
                    return await self._threads.run(begin)
                except CallInProgress:
                    if (pause := next(waiting, None)) is None:
                        raise
                await asyncio.sleep(pause)

    finish = awaited(Calls.finish)
    resolve = awaited(Calls.resolve)
    list = awaited(Calls.list)


class AsyncStoreCalls(AsyncPart[StoreCalls]):
    """The methods of `StoreCalls` as coroutines."""

    list_unknown = awaited(StoreCalls.list_unknown)
    waiting = awaited(StoreCalls.waiting)
    finish = awaited(StoreCalls.finish)


class AsyncSuspensions(AsyncPart[Suspensions]):
    """The methods of `Suspensions` as coroutines."""

    create = awaited(Suspensions.create)
    answer = awaited(Suspensions.answer)
    delete = awaited(Suspensions.delete)
    list = awaited(Suspensions.list)


class AsyncStoreSuspensions(AsyncPart[StoreSuspensions]):
    """The methods of `StoreSuspensions` as coroutines."""

    answer = awaited(StoreSuspensions.answer)
    list = awaited(StoreSuspensions.list)


class InStore:
    """Adds the members of the room to `AsyncStore`."""

    calls = group("calls", AsyncStoreCalls)
    suspensions = group("suspensions", AsyncStoreSuspensions)


class InConversation:
    """Adds the members of the room to `AsyncConversation`."""

    calls = group("calls", AsyncCalls)
    suspensions = group("suspensions", AsyncSuspensions)


class InTurn:
    """Adds the members of the room to `AsyncRunningTurn`."""

    _twin: in_turn.InTurn
    _threads: Threads

    @asynccontextmanager
    async def call(
        self, message: Message | int, call: ToolCall | int, *, limit: timedelta | None = None, idempotent: bool = False
    ) -> AsyncIterator[Effect]:
        """Open a block in which a tool call runs, as `RunningTurn.call` does.

        Args:
            message: The stored message that asks for the call, or its `seq`.
            call: The call, an item of `message.tool_calls`, or its position there, from 0. If `message` is a `seq`,
                pass the position.
            limit: How long the call may run before it becomes unknown, 1 ms to 1 day. Defaults to the duration of the
                turn's lease.
            idempotent: Run a call that is unknown again, with the same `Effect.key`. Pass True only if the tool honors
                the key or changes nothing. Defaults to False.

        Raises:
            CallUnknown: The call is unknown (its time limit passed without a result, or its result was deleted), and
                `idempotent` is False; nothing was written.
            CallInProgress: The call was begun before and has no result, and its time limit has not passed, so it may
                still be running; nothing was written.
            LeaseLost: On entering the block: the turn has lost the lease of the session; nothing was written.
            Conflict: On leaving the block: the call was resolved or begun again, or its message was removed. The output
                was not stored.
            InvalidMessage: On leaving the block: the output cannot be stored losslessly. The call becomes unknown.
        """
        begin = functools.partial(self._twin._begin_call, message, call, limit=limit, idempotent=idempotent)
        effect = await self._threads.run(begin)
        try:
            yield effect
        finally:
            await self._threads.run_to_end(functools.partial(self._twin._end_call, effect))
