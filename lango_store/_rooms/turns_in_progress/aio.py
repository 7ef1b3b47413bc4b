"""The methods of the room as coroutines."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar, Unpack

from lango_store._connections.threads import Threads
from lango_store._operations.session.lists import WorkFilters
from lango_store._parts.twins import AsyncPart, attribute, awaited, group
from lango_store._rooms.turns_in_progress import groups, working
from lango_store._rooms.turns_in_progress.groups import Drafts, Inbox, StoreTurns
from lango_store._rooms.turns_in_progress.running import TurnLimit
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn
from lango_store._values.model import Message, Turn


class AsyncDrafts(AsyncPart[Drafts]):
    """The methods of `Drafts` as coroutines."""

    keep = awaited(Drafts.keep)
    delete = awaited(Drafts.delete)
    list = awaited(Drafts.list)


class AsyncInbox(AsyncPart[Inbox]):
    """The methods of `Inbox` as coroutines."""

    put = awaited(Inbox.put)
    put_messages = awaited(Inbox.put_messages)
    list = awaited(Inbox.list)
    delete = awaited(Inbox.delete)
    redact = awaited(Inbox.redact)
    update = awaited(Inbox.update)


class AsyncStoreTurns(AsyncPart[StoreTurns]):
    """The methods of `StoreTurns` as coroutines."""

    list_in_progress = awaited(StoreTurns.list_in_progress)


class InTurns:
    """Adds the members of the room to `AsyncTurns`."""

    in_progress = awaited(groups.InTurns.in_progress)
    release = awaited(groups.InTurns.release)
    stop = awaited(groups.InTurns.stop)
    retry = awaited(groups.InTurns.retry)


class AsyncRunningTurn:
    """A turn in progress, without the methods that other rooms add."""

    _twin: RunningTurn

    id: str = attribute("id")
    replayed: bool = attribute("replayed")
    messages: list[Message] = attribute("messages")
    usage: dict[str, Any] | None = attribute("usage")
    metadata: dict[str, Any] | None = attribute("metadata")
    stored: Turn | None = attribute("stored")
    attempt: int = attribute("attempt")
    draft_text: str = attribute("draft_text")

    def __init__(self, threads: Threads, turn: RunningTurn) -> None:
        self._threads = threads
        self._twin = turn
        self.stopped = asyncio.Event()

    def _notice_loss(self) -> None:
        """Set `stopped` in the running event loop when the turn has lost its lease."""
        lost, loop = self._twin.lease.lost, asyncio.get_running_loop()
        lost.calls.insert(0, lambda _: working.call_soon(loop, self.stopped.set))
        if lost.is_set():
            self.stopped.set()

    append = awaited(RunningTurn.append)
    append_messages = awaited(RunningTurn.append_messages)
    take_inbox = awaited(RunningTurn.take_inbox)
    flush = awaited(RunningTurn.flush)
    interrupt = awaited(RunningTurn.interrupt)

    async def write(self, text: str) -> None:
        """Add a piece of a streamed answer to the draft, as `RunningTurn.write` does.

        Pieces are collected and stored together, at most once in the time `flush` of `AsyncConversation.turn`. Only
        storing uses a thread.

        Args:
            text: The piece.

        Raises:
            LeaseLost: The turn has lost the lease of the session.
        """
        if self._twin._collect(text):
            await self.flush()

    async def __aenter__(self) -> Self:
        tries = self._twin._tries()
        try:
            while (seconds := await self._threads.run(functools.partial(next, tries, None))) is not None:
                await asyncio.sleep(seconds)
        except asyncio.CancelledError:  # the last try may have taken the lease
            await self._threads.run_to_end(self._twin.abandon)
            raise
        self._notice_loss()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        await self._threads.run_to_end(functools.partial(self._twin.__exit__, kind, error, None))


C = TypeVar("C")
"""The class of conversations, with the members that other rooms add."""
T = TypeVar("T", bound=AsyncRunningTurn)
"""The class of turns in progress, with the members that other rooms add."""


class InConversation(Generic[T]):
    """Adds the members of the room to `AsyncConversation`."""

    _twin: Any
    _threads: Threads
    _turn_type: type[T]

    drafts = group("drafts", AsyncDrafts)
    inbox = group("inbox", AsyncInbox)

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
        """Return an asynchronous context manager for a turn, which excludes other turns.

        Entering the block takes the lease of the session, and leaving the block saves the turn. See `RunningTurn`.
        Waiting for another turn uses no thread and no connection. This method is not a coroutine.

        Args:
            id: Your id of the turn, such as the id of the request; 1 to 512 bytes in UTF-8. If a turn with this id is
                already stored, `replayed` is True in the block. Defaults to a new UUIDv7.
            lease: How long the lease lasts after the last write of the turn, 1 ms to 1 day. After that, another turn
                may take over. Defaults to 2 minutes.
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
            InvalidState: The conversation belongs to a transaction, which would hide the lease from other processes.

        Example:
            ```python
            async with conversation.turn("request-17") as turn:
                if not turn.replayed:
                    await turn.append(Message.user("Hello"))
                    async for piece in model(await conversation.history()):
                        await turn.write(piece)
                    await turn.append(Message.assistant(turn.draft_text))
            ```
        """
        options: dict[str, Any] = {"budget": budget, "replace_after": replace_after, "keep": keep}
        return self._turn_type(self._threads, self._twin.turn(id, lease=lease, wait=wait, flush=flush, **options))


class InStore(Generic[C, T]):
    """Adds the members of the room to `AsyncStore`."""

    _threads: Threads
    _with: Callable[[Any], Self]
    _turn_type: type[T]
    conversation: Callable[[str], C]

    @property
    def _twin(self) -> Any: ...

    turns = group("turns", AsyncStoreTurns)

    def in_turn(self, turn: T) -> Self:
        """Return a store whose writes need the lease of a turn.

        See `Store.in_turn`. This method is not a coroutine.

        Args:
            turn: A turn in progress, inside its block.
        """
        return self._with(self._twin.in_turn(turn._twin))

    async def work(
        self,
        handle: Callable[[C, T], Awaitable[object]],
        *,
        concurrency: int = 8,
        lease: timedelta = timedelta(seconds=30),
        poll: timedelta = timedelta(seconds=1),
        attempts: int = 5,
        backoff: timedelta = timedelta(seconds=5),
        once: bool = False,
        budget: TurnLimit | Callable[[C], TurnLimit | None | Awaitable[TurnLimit | None]] | None = None,
        **which: Unpack[WorkFilters],
    ) -> int:
        """Run the turns that sessions are owed, until the call is cancelled or the process gets SIGTERM.

        See `Store.work`. If the call is cancelled, it cancels the running handlers and releases the leases of their
        turns, so that other processes continue them at once. A handler whose turn was stopped or has lost its lease is
        cancelled too, and `stopped` of the turn is set before. A handler that something else cancels has failed.

        Args:
            handle: A coroutine function that runs one turn. It takes an `AsyncConversation` whose writes all need the
                lease, as those of `in_turn`, and the `AsyncRunningTurn`. It must not block the event loop for as long
                as the lease.
            concurrency: The maximum number of turns at the same time, at least 1. Defaults to 8.
            lease: How long a turn keeps its session if this process dies or is paused, 100 ms to 1 day. Defaults to 30
                seconds.
            poll: How long an idle worker waits before it looks for owed turns again, up to 1 day. Defaults to 1 second.
            attempts: How often a turn is tried before it is given up, at least 1. An attempt whose process died counts
                only if no other turn was running in this call. Defaults to 5.
            backoff: The pause before the second attempt, up to 1 day. Each further pause is four times as long, at most
                1 day. Defaults to 5 seconds.
            once: Return as soon as no turn is due. False by default.
            budget: The `Budget` of each turn, or a function or coroutine function of the conversation that returns it,
                as in `Store.work`. Defaults to none.
            **which: Only sessions that match all of these filters: `agent_id`, `user_id` and `key_prefix`.

        Returns:
            The number of turns that were saved.

        Raises:
            InvalidState: The store belongs to a transaction.

        Example:
            ```python
            async def answer(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
                async for piece in model(await conversation.history()):
                    await turn.write(piece)
                await turn.append(Message.assistant(turn.draft_text))


            await store.work(answer)
            ```
        """
        options = {"concurrency": concurrency, "poll": poll, "attempts": attempts, "backoff": backoff, "once": once}
        worker = self._twin._worker(lease, which, **options)

        def run(turn: RunningTurn) -> Awaitable[object]:
            own = self._turn_type(self._threads, turn)
            own._notice_loss()
            return handle(self.in_turn(own).conversation(turn.key), own)

        def limit_of(turn: RunningTurn) -> Any:
            return budget(self.conversation(turn.key)) if callable(budget) else budget

        return await working.work_async(self._threads, worker, run, None if budget is None else limit_of)

    owed = awaited(groups.InStore.owed)
