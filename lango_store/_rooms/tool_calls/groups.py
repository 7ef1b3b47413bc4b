"""Tool calls that run once, and suspensions, which are answered from outside the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack

from lango_store._operations.log.appends import Batch
from lango_store._operations.session.lists import WorkFilters, work_filter
from lango_store._operations.session.sessions import check_duration
from lango_store._parts.groups import SessionPart, StorePart, session_group, store_group
from lango_store._rooms.tool_calls import calls, effects, suspensions
from lango_store._rooms.tool_calls.calls import Place
from lango_store._rooms.tool_calls.effects import Effect
from lango_store._rooms.tool_calls.values import BegunCall, Suspension
from lango_store._rooms.turns_in_progress.leases import SHORTEST_LEASE
from lango_store._rows.encoding import encode_id
from lango_store._values.model import UNSET, Message, ToolCall
from lango_store._values.reports import Page


class Calls(SessionPart):
    """The tool calls of a session that were begun: `Conversation.calls`.

    Attributes:
        key: The session's key.
    """

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
        check_duration("limit", limit, SHORTEST_LEASE)
        wait = check_duration("wait", wait or timedelta(0))
        return effects.begin(self._context, place, limit, wait, idempotent=idempotent)

    def finish(self, effect: Effect, output: Any = UNSET, *, failed: str | None = None) -> Message:
        """Append the result of a call, and record the end of the call, in one transaction.

        If the caller's transaction is rolled back, the call becomes unknown.

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

    def list_unknown(
        self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[WorkFilters]
    ) -> Page[BegunCall]:
        """List the unknown tool calls of live sessions, in the order of their sessions and messages.

        A call is unknown if it was begun, and its time limit passed without a result.
        `Conversation.calls.resolve` resolves a call. A call whose result was deleted is unknown too, but only
        `Conversation.calls.list` lists it.

        Args:
            limit: The number of calls per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.
        """
        return self._context.on_primary().read(calls.page_of_unknown, work_filter(which), limit, cursor)

    def waiting(self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[WorkFilters]) -> Page[Suspension]:
        """List the tool calls of live sessions that wait for a result from outside (`Effect.wait`), oldest first.

        Each item has the `handle`, the place of the call as its only item of `calls`, and the end of the wait as
        `due_at`, which may have passed if no turn has taken the failure yet.

        Args:
            limit: The number of calls per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.

        Raises:
            InvalidCursor: The cursor was not returned by this method.
        """
        return self._context.on_primary().read(suspensions.page, work_filter(which), {"waits": None}, limit, cursor)

    def finish(
        self, waiting: Mapping[str, Any] | Suspension, output: Any = UNSET, *, failed: str | None = None
    ) -> Message:
        """Store the result of a tool call that waits for it from outside, once.

        The message is put into the inbox of the session, which then owes a turn: the turn appends it as the result of
        the call. If the result of the call is stored already, it is not stored again.

        Args:
            waiting: The handle that `Effect.wait` was called with, or an item of `waiting`.
            output: The output of the tool: text, which becomes the content of the message, or any other JSON. Pass
                either `output` or `failed`.
            failed: An error text for the model, if the job failed or is to be no longer waited for.

        Returns:
            The tool message; the stored one with `replayed=True` if the call had its result already.

        Raises:
            SuspensionExpired: The call has waited until its time limit, so that it has failed; nothing was written.
            SuspensionNotFound: No call of a live session waits, or has waited, with this handle; nothing was written.
            MessageNotFound: The result was stored, and its message was removed since; nothing was written.
            InvalidState: Several calls wait with this handle; nothing was written.
            InvalidMessage: The output cannot be stored losslessly; nothing was written.
            TypeError: Both or neither of `output` and `failed` were passed.

        Example:
            ```python
            store.calls.finish({"mcp_task": "t-1"}, "The report has 12 pages.")
            ```
        """
        if not isinstance(waiting, Suspension):
            digest = suspensions.digest_of_handle(waiting)
            waiting = self._context.on_primary().read(suspensions.find_waiting, work_filter({}), digest)

        def result(call: ToolCall, id: str) -> Batch:
            return self._context.batch([effects.result_message(call, output, failed, id=id)])

        return self._context.transact(suspensions.finish, waiting.key, waiting.id, result)


class Suspensions(SessionPart):
    """The suspensions of a session: `Conversation.suspensions`.

    Attributes:
        key: The session's key.
    """

    def create(
        self,
        calls: Sequence[tuple[int, int]] = (),
        *,
        state: Any = None,
        reason: str | None = None,
        ttl: timedelta | None = None,
    ) -> Suspension:
        """Store a request for an answer from outside the program, such as an approval.

        `Store.suspensions.answer` stores the answer, and returns the `state` to continue from. If a compaction or a
        limit leaves the message with the calls out of the prompt, also append a message that reports their results.

        Args:
            calls: The tool calls that wait for the answer, all of one message: pairs of the message's `seq` and the
                position of the call. Defaults to none.
            state: Any JSON that the program needs to continue, such as the run state of an agent framework.
            reason: The text of the question.
            ttl: How long the suspension can be answered, up to 100 years. Defaults to as long as the session is live.

        Returns:
            The suspension with its `token`. Anyone who has the token can answer. No other method returns the token.

        Raises:
            InvalidValue: `state` or `reason` cannot be stored losslessly; nothing was written.
            CallNotFound: The session has no such call, or the message does not ask for it; nothing was written.
            ValueError: `calls` are calls of several messages, or `ttl` is out of range.

        Example:
            ```python
            suspension = conversation.suspensions.create([(asking.seq, 0)], reason="Pay 40 euros?")
            send_to_approver(suspension.token)
            ```
        """
        new = suspensions.NewSuspension(self.key, calls, state, reason, ttl)
        return self._context.transact(suspensions.suspend, new)

    def answer(self, id: str, answer: Any, *, by: str | None = None, why: str | None = None) -> Suspension:
        """Answer a suspension by its id instead of its token; see `Store.suspensions.answer`.

        Args:
            id: The id of the suspension. The id is not secret: backups contain it, for example. So do not accept an id
                from outside as a permission to answer.
            answer: Any JSON.
            by: Who answers, such as the id of a user: `answered_by` of the suspension.
            why: Why: `answered_why`.

        Returns:
            The suspension with the answer, its calls and its state, to continue from.

        Raises:
            AlreadyAnswered: The suspension was answered before; `answer` of the exception is that answer.
            SuspensionExpired: The suspension's TTL has passed; nothing was written.
            SuspensionNotFound: The session has no such suspension; nothing was written.
            InvalidValue: The answer, `by` or `why` cannot be stored losslessly; nothing was written.
        """
        args = str(encode_id(id)), suspensions.Answer.encode(answer, by, why)
        return suspensions.find_and_answer(self._context, self.key, *args)

    def delete(self, id: str) -> bool:
        """Delete a suspension of the session, with its state, reason and answer. Its token then answers nothing.

        Args:
            id: The id of the suspension, answered or not.

        Returns:
            True if the session had this suspension.

        Raises:
            SessionNotFound: There is no such session; nothing was deleted.
        """
        return self._context.transact(suspensions.delete, self.key, str(encode_id(id)))

    def list(self) -> list[Suspension]:
        """List the suspensions of the session, answered or not, and its waiting tool calls, the oldest first."""
        return self._context.on_primary().read_together(suspensions.read, self.key)


class StoreSuspensions(StorePart):
    """The suspensions of all sessions: `Store.suspensions`."""

    def answer(self, token: str, answer: Any, *, by: str | None = None, why: str | None = None) -> Suspension:
        """Answer a suspension. Of several answers, exactly one is stored.

        Args:
            token: The token that `Conversation.suspensions.create` returned.
            answer: Any JSON.
            by: Who answers, such as the id of a user: `answered_by` of the suspension.
            why: Why: `answered_why`.

        Returns:
            The suspension with the answer, its calls and its state, to continue from.

        Raises:
            AlreadyAnswered: The suspension was answered before; `answer` of the exception is that answer.
            SuspensionExpired: The suspension's TTL has passed; nothing was written.
            SuspensionNotFound: No suspension of a live session has this token; nothing was written.
            InvalidValue: The answer, `by` or `why` cannot be stored losslessly; nothing was written.
        """
        args = (*suspensions.parse(token), suspensions.Answer.encode(answer, by, why))
        return suspensions.find_and_answer(self._context, *args)

    def list(
        self,
        *,
        due_before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **which: Unpack[WorkFilters],
    ) -> Page[Suspension]:
        """List the unanswered suspensions of live sessions, oldest first.

        Args:
            due_before: Only suspensions whose `due_at` is before this time, an aware datetime. None (default) also
                lists suspensions without a `due_at`. In both cases, the `due_at` may have passed already.
            limit: The number of suspensions per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.

        Raises:
            InvalidCursor: The cursor was not returned by this method.
        """
        times = {"asks": None} | ({} if due_before is None else {"due_before": due_before})
        return self._context.on_primary().read(suspensions.page, work_filter(which), times, limit, cursor)


class InConversation(SessionPart):
    """Adds the members of the room to `Conversation`."""

    calls = session_group(Calls)
    """The tool calls of the session: run each of them once."""
    suspensions = session_group(Suspensions)
    """The suspensions of the session: questions that wait for an answer from outside the program."""


class InStore:
    """Adds the members of the room to `Store`."""

    calls = store_group(StoreCalls)
    """The tool calls of all sessions: list the unknown ones and those that wait, and finish these."""
    suspensions = store_group(StoreSuspensions)
    """The suspensions of all sessions: list and answer them."""
