"""Turns in progress, drafts of answers, messages that wait for a turn, and workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar, Unpack

from lango_store._operations.log.appends import Batch
from lango_store._operations.session.lists import WorkFilters, work_filter
from lango_store._operations.session.sessions import Expected
from lango_store._parts.groups import SessionPart, StoreFacade, StorePart, session_group, store_group
from lango_store._rooms.turns_in_progress import claims, drafts, inbox, leases, replacing, stopping, working
from lango_store._rooms.turns_in_progress.running import TurnLimit
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn
from lango_store._rooms.turns_in_progress.values import Draft, OpenTurn, OwedTurn
from lango_store._values.model import Message, Turn
from lango_store._values.reports import Page

_Messages = list[Message]  # a class with a method `list` cannot name the type
C = TypeVar("C", bound="InConversation[Any]")
"""The class of conversations, with the members that other rooms add."""
T = TypeVar("T", bound=RunningTurn)
"""The class of turns in progress, with the members that other rooms add."""


class InTurns(SessionPart):
    """Adds the members of the room to `Turns`."""

    def in_progress(self) -> OpenTurn | None:
        """Return the session's turn that has begun and not ended, or None.

        `held` of the turn is False if its lease has ended, because its process died, was paused, or wrote nothing for
        too long.
        """
        return self._context.on_primary().read(leases.find, self.key)

    def release(self) -> OpenTurn | None:
        """Release the lease of the turn in progress, so that another turn can begin at once.

        If the process of the turn still runs, its next write raises `LeaseLost`. Only the result of a call that it has
        begun can still be stored.

        Returns:
            The turn as it was before the release, or None if there was none.
        """
        return self._context.transact(leases.release_any, self.key)

    def stop(self, *, by: str | None = None, reason: str | None = None, owed: bool = False) -> Turn | None:
        """End the turn in progress as interrupted, for example because the user pressed stop.

        The turn is saved: its messages, and the streamed text as an answer whose `extra` has `"interrupted": true`. No
        worker tries the turn again, even if it has failed, was given up, or its process died. Its metadata is
        `{"stopped": {"by": by, "reason": reason}}`. If its process still runs, `RunningTurn.stopped` is set, and its
        next write raises `LeaseLost`.

        Messages that wait in the inbox stay there, unless a worker was just about to take them for this turn. A tool
        call that has begun stays unknown until its result is stored or `calls.resolve` is called.

        Args:
            by: Who stops the turn, such as the id of a user.
            reason: Why.
            owed: If no turn has begun, but the session is owed one, stop this turn too: the messages of the inbox move
                to the log, and no worker answers them. Defaults to False.

        Returns:
            The stored turn with its messages; None if there is nothing to stop.

        Raises:
            InvalidValue: `by` or `reason` cannot be stored; nothing was written.
        """
        metadata, context = stopping.encode_metadata(by, reason), self._context
        arguments = self.key, metadata, context.counted, context.payload_threshold, context.new_id() if owed else None
        turn, token = context.transact_once(stopping.stop, *arguments, keeps_removed=context.recorder is not None)
        if not context.in_callers_transaction:  # otherwise the turn notices it after the commit
            leases.note_lost(token)
        return turn

    def retry(self) -> bool:
        """Make the turn that the session is owed due now, with all attempts, for example after it was given up.

        Returns:
            True if the session is owed a turn that is not running; see `Store.owed`.
        """
        return self._context.transact(claims.retry, self.key)


class StoreTurns(StorePart):
    """The turns of all sessions: `Store.turns`."""

    def list_in_progress(
        self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[WorkFilters]
    ) -> Page[OpenTurn]:
        """List the turns that have begun and not ended, of live sessions, in the order in which their leases end.

        `held` of a turn is False if its lease has ended, because its process died, was paused, or wrote nothing for too
        long. `Conversation.turns.release` releases a lease.

        Args:
            limit: The number of turns per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.
        """
        return self._context.on_primary().read(leases.page, work_filter(which), limit, cursor)


class Drafts(SessionPart):
    """The drafts of a session: `Conversation.drafts`.

    A draft is text that a turn has streamed with `RunningTurn.write` and not appended. Saving a turn deletes its
    drafts.

    Attributes:
        key: The session's key.
    """

    def keep(self, id: str) -> Message:
        """Append a draft to the log as an interrupted answer, and delete the draft.

        Args:
            id: The id of the draft.

        Returns:
            The stored message: an assistant message whose `extra` has `"interrupted": true`.

        Raises:
            TurnInProgress: The turn that writes the draft still has the lease; nothing was written.
            DraftNotFound: The session has no such draft; nothing was written.
        """
        return self._context.transact(drafts.keep, self.key, id, lambda answer: self._context.batch([answer]))

    def delete(self, id: str) -> bool:
        """Delete a draft.

        Args:
            id: The id of the draft.

        Returns:
            True if the draft existed, otherwise False.

        Raises:
            TurnInProgress: The turn that writes the draft still has the lease; nothing was deleted.
        """
        return self._context.transact(drafts.delete, self.key, id)

    def list(self) -> list[Draft]:
        """List the drafts, oldest first, including the draft of a turn in progress."""
        return self._context.on_primary().read_together(drafts.read, self.key)


class Inbox(SessionPart):
    """The inbox of a session: `Conversation.inbox`.

    A message in the inbox is not in the log and not in the window until a turn calls `RunningTurn.take_inbox`, which
    moves it to the log.

    Attributes:
        key: The session's key.
    """

    def put(self, message: Message, *, at: datetime | None = None, in_: timedelta | None = None) -> Message:
        """Store a message in the inbox, for example while a turn is running.

        Like an append, this sets `updated_at` and restarts the session's TTL, but `revision` does not change.

        Args:
            message: The message to store. A message whose `id` is in the inbox or in the log already is not stored
                again; the stored one is returned with `replayed=True`.
            at: The time from which a turn takes the message, in the years 1000 to 9000: the session is owed a turn
                from then on. Until then, no turn takes it. By default, the next turn takes it. No turn takes it if the
                session expires or is purged before: choose a TTL that is longer.
            in_: As `at`, but from now, such as `timedelta(hours=1)`; up to 100 years.

        Returns:
            The stored message. Its `seq` is 0 until it is in the log. A message without an id gets one from
            `RunningTurn.take_inbox`.

        Raises:
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
            ValueError: `at` has no time zone or is out of range, `in_` is negative, or both are given.
        """
        due = inbox.check_time(at, in_)
        new = Batch([self._context.counted(message)])
        run = self._context.transact if new.ids else self._context.transact_once
        (stored,) = run(inbox.enqueue, self.key, new, due=due)
        return stored

    def put_messages(
        self,
        messages: Sequence[Message],
        *,
        replace_after: int | None = None,
        keep: bool = False,
        expect: int | None = None,
    ) -> _Messages:
        """Store messages in the inbox, all or none, as `put` does.

        Args:
            messages: The messages to store.
            replace_after: In the same transaction, first stop the turns that have begun, as `Conversation.turns.stop`
                does, and delete the messages of the inbox that are due and those of the log with a `seq` above this
                value. Without `messages`, the session is then owed a turn, for another answer to the message with this
                `seq`. None (default) deletes nothing.
            keep: Set these messages aside instead, those of the inbox after those of the log, as an alternative: see
                `Conversation.alternatives`. If all new messages have ids that the log or an alternative has, nothing
                is done, and the stored messages are returned.
            expect: Store the messages only if the session's `revision` equals this value.

        Returns:
            The stored messages, in the order of `messages`.

        Raises:
            Conflict: `expect` does not match; nothing was written.
            InvalidMessage: A message cannot be stored losslessly; nothing was written.
            InvalidCut: A compaction discarded messages with a `seq` above `replace_after`; nothing was written.
        """
        context = self._context
        new, expected = Batch([context.counted(each) for each in messages]), Expected(revision=expect)
        if replace_after is None:
            if keep:
                raise TypeError("keep needs replace_after: it keeps the messages that the call replaces")
            run = context.transact if len(new.ids) == len(new.rows) else context.transact_once
            return run(inbox.enqueue, self.key, new, expected)
        arguments = expected, replace_after, stopping.encode_metadata(None, None)
        stored, tokens = context.transact_once(
            replacing.replace,
            self.key,
            new,
            *arguments,
            context.counted,
            context.payload_threshold,
            keeps_removed=context.recorder is not None,
            set_aside=context.set_aside if keep else None,
        )
        if not context.in_callers_transaction:  # otherwise the turns notice it after the commit
            for token in tokens:
                leases.note_lost(token)
        return stored

    def list(self) -> list[Message]:
        """List the messages in the order of their arrival. Their `seq` is 0.

        `due_at` of a message is the time for which `put` has scheduled it.
        """
        return self._context.on_primary().read_together(inbox.read, self.key)

    def delete(self, id: str) -> bool:
        """Delete a message that waits in the inbox.

        Args:
            id: The id of the message.

        Returns:
            True if the inbox had the message, otherwise False.

        Raises:
            InvalidState: The message is the result of a call that waits, which would then wait for ever.
        """
        return self._context.transact(inbox.delete, self.key, id)

    def update(self, message: Message) -> Message:
        """Replace a message that waits in the inbox, for example if the user has edited a question.

        Args:
            message: The new message, with the id of the message that it replaces. It keeps the place in the inbox and
                the time at which the message is due.

        Returns:
            The stored message.

        Raises:
            MessageNotFound: The inbox has no message with this id, for example because a turn has taken it; nothing was
                written.
            InvalidMessage: The message cannot be stored losslessly; nothing was written.
            InvalidState: The message is the result of a call that waits.
            ValueError: The message has no id.
        """
        if message.id is None:
            raise ValueError("the message has no id: give the id of the message to replace")
        return self._context.transact(inbox.update, self.key, Batch([self._context.counted(message)]))

    def redact(self, id: str, *, reason: str | None = None) -> Message:
        """Remove the content of a message that waits in the inbox, as `edits.redact` does in the log.

        Args:
            id: The id of the message, which stays in the inbox.
            reason: A reason to store in its `extra`. Default: None.

        Returns:
            The redacted message.

        Raises:
            MessageNotFound: The inbox has no message with this id.
        """
        return self._context.transact(inbox.redact, self.key, id, reason)


class InConversation(SessionPart, Generic[T]):
    """Adds the members of the room to `Conversation`."""

    _turn_type: type[T]

    drafts = session_group(Drafts)
    """The drafts of the session: text that turns have streamed and not appended."""
    inbox = session_group(Inbox)
    """The inbox of the session: messages that wait for a turn."""

    def turn(
        self,
        id: str | None = None,
        *,
        lease: timedelta = timedelta(minutes=2),
        wait: timedelta | None = None,
        flush: timedelta = timedelta(milliseconds=250),
        budget: TurnLimit | None = None,
        replace_after: int | None = None,
        keep: bool = False,
    ) -> T:
        """Return a context manager for a turn, which excludes other turns of the session.

        Entering the block takes the lease of the session, and leaving the block saves the turn. See `RunningTurn`. The
        lease excludes only other turns: other processes can still read the session, append messages and put messages
        into the inbox.

        Args:
            id: Your id of the turn, such as the id of the request; 1 to 512 bytes in UTF-8. If a turn with this id is
                already stored, `replayed` is True in the block. Defaults to a new UUIDv7.
            lease: How long the lease lasts after the last write of the turn, 1 ms to 1 day. After that, another turn
                may take over. Defaults to 2 minutes. A lease does not keep the session from expiring.
            wait: How long to wait for another turn of the session, or for its lease, to end; up to 1 day. Defaults to
                not waiting.
            flush: How long to collect pieces of a draft before they are stored, up to 1 day. Defaults to 250 ms.
            budget: A `Budget`. Entering the block reserves a part of it, in the transaction that takes the lease, and
                saving the turn counts its usage. None (default) limits nothing.
            replace_after: Entering the block also deletes the messages with a `seq` above this value, for example to
                regenerate an answer, unless an earlier attempt of the turn has appended messages after them.
            keep: Set these messages aside instead, as an alternative: see `alternatives` and `switch`.

        Raises:
            InvalidCut: On entering the block: a compaction discarded messages with a `seq` above `replace_after`.
            TurnInProgress: On entering the block: another turn has the lease.
            BudgetExhausted: On entering the block: the reservation does not fit into the budget; nothing was written.
            InvalidState: The conversation belongs to a transaction (`Store.using`, `transaction` or `transact`), which
                would hide the lease from other processes.

        Example:
            ```python
            with conversation.turn("request-17") as turn:
                if not turn.replayed:
                    turn.append(Message.user("Hello"))
                    for piece in model(conversation.history()):
                        turn.write(piece)
                    turn.append(Message.assistant(turn.draft_text))
            ```
        """
        return self._turn_type(self._context, self.key, id, lease, wait, flush, budget, replace_after, keep)


class InStore(StoreFacade, Generic[C, T]):
    """Adds the members of the room to `Store`."""

    conversation: Callable[[str], C]

    turns = store_group(StoreTurns)
    """The turns of all sessions: list those in progress."""

    def in_turn(self, turn: T) -> Self:
        """Return a store whose writes need the lease of a turn.

        Pass the store to other code that writes during the turn, such as an agent framework. Each write, also to other
        sessions, extends the lease. If the turn has lost the lease, writes raise `LeaseLost` and change nothing; only
        the result of a call that was begun before can still be stored. Messages that are appended this way to the
        session of the turn are part of the turn; those of `save_turn` keep their own turn, with its usage. Closing the
        returned store has no effect: close this one.

        Args:
            turn: A turn in progress, inside its block.
        """
        return self._bound(self._context.guarded(turn.key, turn.lease))

    def work(
        self,
        handle: Callable[[C, T], object],
        *,
        concurrency: int = 8,
        lease: timedelta = timedelta(seconds=30),
        poll: timedelta = timedelta(seconds=1),
        attempts: int = 5,
        backoff: timedelta = timedelta(seconds=5),
        once: bool = False,
        budget: TurnLimit | Callable[[C], TurnLimit | None] | None = None,
        **which: Unpack[WorkFilters],
    ) -> int:
        """Run the turns that sessions are owed, until the process gets SIGTERM.

        A session is owed a turn if messages wait in its inbox, if a suspension was answered, or if a turn was
        interrupted because its process died or its handler raised an exception. Any number of processes may call this
        method: each takes other sessions. A session runs one turn at a time.

        Before each call of `handle`, the turn takes the messages of the inbox. While `handle` runs, this method renews
        the lease of the turn. When `handle` returns, the turn is saved.

        If `handle` raises an exception, the turn is tried again with the same id after a pause. `turn.messages` then
        has the messages of the failed attempt. After too many attempts, the turn is given up: no worker runs it, until
        you call `Conversation.turns.retry`. If the turn was stopped with `Conversation.turns.stop`, it is not tried
        again, whether `handle` returns or raises an exception.

        If a process dies, each of its turns runs alone next time: a worker takes it when none of its other turns is
        running, and takes no other turn until it has ended.

        A session whose turn cannot be claimed, for example because a trigger refuses it, is tried again after a
        minute, with a warning in the log. The other sessions are not affected.

        At SIGTERM, which only the main thread notices, no more turns are taken, and this method returns when the
        running ones have ended. If it ends with an exception, such as KeyboardInterrupt, it first releases the leases
        of the running turns, so that other processes continue them at once.

        Args:
            handle: A function that runs one turn. It takes a `Conversation` whose writes all need the lease, as those
                of `in_turn`, and the `RunningTurn`. Up to `concurrency` threads call it at the same time.
            concurrency: The maximum number of turns at the same time, at least 1. Defaults to 8.
            lease: How long a turn keeps its session if this process dies or is paused, 100 ms to 1 day. Defaults to 30
                seconds.
            poll: How long an idle worker waits before it looks for owed turns again, up to 1 day. `inbox.put`,
                `suspensions.answer` and `turns.retry` of the same store end the wait. Defaults to 1 second.
            attempts: How often a turn is tried before it is given up, at least 1. An attempt whose process died counts
                only if no other turn was running in this call. Defaults to 5.
            backoff: The pause before the second attempt, up to 1 day. Each further pause is four times as long, at most
                1 day. Defaults to 5 seconds.
            once: Return as soon as no turn is due. Turns that wait for their next attempt are not due. False by
                default.
            budget: The `Budget` of each turn, or a function of the conversation that returns it, or None for a turn
                without one. A turn that does not fit into its budget waits until the budget opens again; this is not
                an attempt. Defaults to none.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.

        Returns:
            The number of turns that were saved.

        Raises:
            InvalidState: The store belongs to a transaction.
            TypeError: `handle` is a coroutine function.

        Example:
            ```python
            def answer(conversation: Conversation, turn: RunningTurn) -> None:
                for piece in model(conversation.history()):
                    turn.write(piece)
                turn.append(Message.assistant(turn.draft_text))


            store.work(answer)
            ```
        """
        if inspect.iscoroutinefunction(handle):
            raise TypeError("handle is a coroutine function: call AsyncStore.work, or give a plain function")
        options = {"concurrency": concurrency, "poll": poll, "attempts": attempts, "backoff": backoff, "once": once}
        worker = self._worker(lease, which, **options)
        return working.work(
            worker,
            lambda turn: handle(self.in_turn(turn).conversation(turn.key), turn),
            None
            if budget is None
            else lambda turn: budget(self.conversation(turn.key)) if callable(budget) else budget,
        )

    def owed(
        self, *, limit: int = 50, cursor: str | None = None, future: bool = False, **which: Unpack[WorkFilters]
    ) -> Page[OwedTurn]:
        """List the turns that live sessions are owed and that no process is running, the longest due first.

        Turns that were given up come last.

        Args:
            limit: The number of turns per page, 1 to 1,000. Defaults to 50.
            cursor: The `next` of the previous page. None (default) reads the first page.
            future: Also list the turns of sessions whose inbox has only messages for a later time. False by default.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.

        Raises:
            InvalidCursor: The cursor was not returned by this method.
        """
        return self._context.on_primary().read(claims.page, work_filter(which), limit, cursor, future=future)

    def _worker(self, lease: timedelta, which: WorkFilters, **options: Any) -> working.Worker:
        def open_turn(key: str, id: str | None) -> RunningTurn:
            conversation: InConversation[T] = self.conversation(key)
            return conversation.turn(id or self._context.new_id(), lease=lease)

        return working.Worker(self._context, open_turn, work_filter(which), lease=lease, **options)
