"""Stores for asyncio: each call of `Store` or `Conversation` runs in a worker thread.

So the store is implemented once, and needs one engine. Threads with the synchronous drivers are faster than the
asynchronous drivers, and block the event loop for a shorter time. Several event loops may use one store.

`Context` reports to `Cancellation` when a call begins to write, so this module needs no list of the methods that write.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Concatenate, Self, TypedDict, Unpack

import sqlalchemy as sa

from lango_store._connections.context import DefaultTTL, TimeSource, TokenCounter
from lango_store._connections.threads import Threads
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import Durability
from lango_store._operations.session.lists import Filter, Filters
from lango_store._parts.turns import PendingCompaction
from lango_store._parts.twins import AsyncPart, P, R, S, Twin, attribute, awaited, group, steps
from lango_store._parts.values import Values
from lango_store._rooms.composition import AsyncRoomsOfConversation, AsyncRoomsOfMaintenance, AsyncRoomsOfStore
from lango_store._rooms.tool_calls import aio as tool_calls
from lango_store._rooms.turns_in_progress import aio as turns_in_progress
from lango_store._values.model import Compaction, Message, SessionInfo, Unset
from lango_store._values.session import Session
from lango_store._values.summarizer import Summarizer, summarize_async
from lango_store.conversation import Conversation, RunningTurn, Turns
from lango_store.store import Maintenance, Store, session_pages


def opening(
    method: Callable[Concatenate[S, P], Conversation],
) -> Callable[Concatenate[Twin[S], P], Coroutine[Any, Any, AsyncConversation]]:
    """Turn a method that returns a `Conversation` into a coroutine function that returns an `AsyncConversation`."""

    @functools.wraps(method)
    async def call(self: Twin[S], /, *arguments: P.args, **options: P.kwargs) -> AsyncConversation:
        opened = functools.partial(getattr(self._twin, method.__name__), *arguments, **options)
        return AsyncConversation(self._threads, await self._threads.run(opened))

    return call


async def iterate(threads: Threads, pages: Iterator[list[R]]) -> AsyncGenerator[R, None]:
    """Yield the items of pages. Each page is read in a thread."""
    while page := await threads.run(functools.partial(next, pages, None)):
        for each in page:
            yield each


class AsyncPendingCompaction(AsyncPart[PendingCompaction]):
    """A window that waits for its summary: the result of `AsyncConversation.turns.begin_compaction`.

    Attributes:
        key: The session's key.
        session: The session with the window, as they were read.
        window: The messages to summarize.
    """

    session: Session = attribute("session")
    window: list[Message] = attribute("window")
    finish = awaited(PendingCompaction.finish)


class AsyncTurns(turns_in_progress.InTurns, AsyncPart[Turns]):
    """The methods of `Turns` as coroutines."""

    find = awaited(Turns.find)
    list_compactions = awaited(Turns.list_compactions)

    async def begin_compaction(self, *, records: bool = False) -> AsyncPendingCompaction | None:
        """Read the window for a compaction in two steps, as `Conversation.turns.begin_compaction` does.

        Args:
            records: Also read the records between the messages.
        """
        pending = await self._threads.run(functools.partial(self._twin.begin_compaction, records=records))
        return None if pending is None else AsyncPendingCompaction(self._threads, pending)

    list = awaited(Turns.list)


class AsyncMaintenance(AsyncRoomsOfMaintenance, AsyncPart[Maintenance]):
    """The methods of `Maintenance` as coroutines."""


class AsyncValues(AsyncPart[Values]):
    """The methods of `Values` as coroutines."""

    get = awaited(Values.get)
    set = awaited(Values.set)
    delete = awaited(Values.delete)


class AsyncRunningTurn(tool_calls.InTurn, turns_in_progress.AsyncRunningTurn):
    """A turn in progress: an asynchronous context manager from `AsyncConversation.turn`.

    See `RunningTurn` for the effects of entering and leaving the block.

    Attributes:
        id: The id of the turn.
        replayed: True if the turn was saved before. Then nothing more can be appended.
        messages: The messages of the turn in the log so far.
        usage: The usage to save with the turn, a dict of JSON. Set it before the end of the block.
        metadata: Your own data to save with the turn, a dict of JSON.
        stored: The saved turn: after the block or, if `replayed` is True, from its beginning. None until then.
        attempt: In a handler of `AsyncStore.work`, the number of this attempt, from 1. Otherwise 1.
        draft_text: The text that was written since the last answer was appended.
        stopped: An `asyncio.Event` that is set when the turn is known to have lost its lease, as in `RunningTurn`.
    """

    _twin: RunningTurn


class StoreOptions(TypedDict, total=False):
    """The keyword arguments of `Store` and `AsyncStore`; `Store` describes them."""

    migrate: bool
    default_ttl: DefaultTTL
    clock: TimeSource | None
    durability: Durability
    token_counter: TokenCounter | None
    on_statement: Observer | None
    retry: timedelta | None
    payload_threshold: int | None | Unset
    keep_removed: timedelta | None
    replica: str | sa.URL | None


class AsyncStore(turns_in_progress.InStore["AsyncConversation", AsyncRunningTurn], AsyncRoomsOfStore):
    """A store for asyncio: the methods of `Store` as coroutines.

    They have the same names, arguments, results and exceptions.

    `using`, `transaction` and `snapshot` are missing: call them in a function that you pass to `run_sync`.
    `conversation`, `at`, `for_user`, `in_turn`, `shared_values` and `iter_sessions` are not coroutines.

    Each call runs in a worker thread. A store has at most as many threads as the engine's pool has connections, and at
    most 32. Several event loops may use one store.

    A cancelled read raises `CancelledError` at once. A cancelled write first waits until its outcome is known; if the
    write failed, its exception is the cause of the `CancelledError`. A cancelled call that runs several transactions,
    such as `expire`, does not start another one. The cancelled write ends when its SQL statement ends: SQLite waits up
    to 30 seconds for a lock, PostgreSQL as long as your `lock_timeout` and `statement_timeout` allow. After a
    cancellation, a message with an `id` can be appended again safely.

    To write in the transaction of your own `AsyncSession`, use the synchronous store: `await session.run_sync(lambda s:
    store.store.using(s).append_message(key, message))`.

    Args:
        database: A database URL, a SQLAlchemy `Engine` (not an `AsyncEngine`), or a `Store`. `close()` does not close
            an engine or a store that you passed.
        **options: The keyword arguments of `Store`: `migrate`, `default_ttl`, `clock`, `durability`, `token_counter`,
            `on_statement`, `retry`, `payload_threshold`, `keep_removed` and `replica`. They are ignored if `database`
            is a `Store`.

    Attributes:
        store: The synchronous store. Its methods block the event loop; use `run_sync` to call them.

    Example:
        ```python
        import asyncio

        from lango_store import AsyncStore, Message


        async def main() -> None:
            async with AsyncStore("sqlite:///agent.db", migrate=True) as store:
                conversation = await store.open("telegram:42")
                await conversation.append_message(Message.user("Hello"))


        asyncio.run(main())
        ```
    """

    _turn_type = AsyncRunningTurn

    def __init__(self, database: str | sa.URL | sa.Engine | Store, **options: Unpack[StoreOptions]) -> None:
        is_borrowed = isinstance(database, Store)
        self.store = database if isinstance(database, Store) else Store(database, **options)
        self._threads = Threads(self.store.engine, at_end=None if is_borrowed else self.store.close)
        self._is_derived = False

    @property
    def _twin(self) -> Store:
        return self.store

    @property
    def engine(self) -> sa.Engine:
        """The SQLAlchemy engine, for example for your own queries.

        If you passed an engine to the store, it is that engine.
        """
        return self.store.engine

    async def run_sync(self, call: Callable[Concatenate[Store, P], R], *arguments: P.args, **options: P.kwargs) -> R:
        """Call a function with the synchronous `Store` in a worker thread.

        Use it to make several calls in one thread. Cancellation has the same effects as for a single call: see
        `AsyncStore`.

        Args:
            call: A function whose first argument is the `Store`; not a coroutine function.
            *arguments: Further positional arguments of the function.
            **options: Keyword arguments of the function.

        Returns:
            The result of the function.

        Example:
            ```python
            def ask(store: Store, key: str) -> list[Message]:
                store.append_message(key, Message.user("Hello"))
                return store.conversation(key).messages()


            messages = await store.run_sync(ask, "telegram:42")
            ```
        """
        return await self._threads.run(functools.partial(call, self.store, *arguments, **options))

    transact = awaited(Store.transact)
    ping = awaited(Store.ping)
    position = awaited(Store.position)

    def at(self, position: str | None) -> Self:
        """Return a store that sees all writes up to a position, even if it reads from a replica.

        This method is not a coroutine. Closing the returned store has no effect: close this one.

        Args:
            position: The result of `position()` in the process that wrote. None requires nothing.

        Raises:
            ValueError: The text is not a position.
        """
        return self._with(self.store.at(position))

    def _with(self, store: Store) -> Self:
        derived = copy.copy(self)
        derived.store = store
        derived._is_derived = True  # it uses the threads of this store
        return derived

    create = awaited(Store.create)
    get = awaited(Store.get)
    open = opening(Store.open)

    def conversation(self, key: str) -> AsyncConversation:
        """Return an `AsyncConversation` for a session without accessing the database.

        If the session does not exist, the methods of the conversation raise `SessionNotFound`. This method is not a
        coroutine.

        Args:
            key: The session's key.

        Raises:
            InvalidKey: The key is not text of 1 to 512 characters.
        """
        return AsyncConversation(self._threads, self.store.conversation(key))

    exists = awaited(Store.exists)
    touch = awaited(Store.touch)
    delete = awaited(Store.delete)

    append_message = awaited(Store.append_message)

    maintenance = group("maintenance", AsyncMaintenance)

    def shared_values(self, scope: str) -> AsyncValues:
        """Return the shared values of a scope, as `Store.shared_values` does. This method is not a coroutine.

        Args:
            scope: Any text of 1 to 512 characters.
        """
        return AsyncValues(self._threads, self.store.shared_values(scope))

    list_sessions = awaited(Store.list_sessions)
    count = awaited(Store.count)
    messages_of = awaited(Store.messages_of)
    values_of = awaited(Store.values_of)
    shared_values_of = awaited(Store.shared_values_of)

    def iter_sessions(self, *, page_size: int = 500, **which: Unpack[Filters]) -> AsyncIterator[SessionInfo]:
        """Iterate over live sessions in the order of their keys, each exactly once.

        Sessions that are created or deleted during the iteration may or may not be included. One page is in memory at a
        time, and no connection is held between pages.

        Args:
            page_size: The number of sessions to read per statement, 1 to 1,000. Defaults to 500.
            **which: Filters as in `Store.list_sessions`.
        """
        context = self.store._context
        infos = iterate(self._threads, session_pages(context, Filter(**which), page_size))
        return context.telemetry.each_async("iter_sessions", None, infos)

    async def close(self) -> None:
        """Wait for running calls, then close the connections.

        An engine or a store that you passed stays open.

        If this call is cancelled, it raises `CancelledError` at once, and the store is closed as soon as the running
        calls have ended.
        """
        if self._is_derived:
            return
        self._threads.close()
        if (watcher := self.store._context.watcher) is not None:
            watcher.interrupt()
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._threads.wait))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConversation(
    turns_in_progress.InConversation[AsyncRunningTurn],
    AsyncRoomsOfConversation,
    AsyncPart[Conversation],
):
    """A handle for one session: the methods of `Conversation` as coroutines.

    They have the same names, arguments, results and exceptions.

    `turn`, `tail` and `iter_messages` are not coroutines. `AsyncStore.open` and `AsyncStore.conversation` return
    conversations. See `AsyncStore` for cancellation.

    Attributes:
        key: The session's key.
    """

    _twin: Conversation
    _turn_type = AsyncRunningTurn

    turns = group("turns", AsyncTurns)
    values = group("values", AsyncValues)

    get = awaited(Conversation.get)
    info = awaited(Conversation.info)
    update = awaited(Conversation.update)

    append_message = awaited(Conversation.append_message)
    append_messages = awaited(Conversation.append_messages)
    messages = awaited(Conversation.messages)
    all_messages = awaited(Conversation.all_messages)
    payload = awaited(Conversation.payload)
    find_message = awaited(Conversation.find_message)
    truncate = awaited(Conversation.truncate)
    clear = awaited(Conversation.clear)

    save_turn = awaited(Conversation.save_turn)
    total_usage = awaited(Conversation.total_usage)

    child = opening(Conversation.child)
    children = awaited(Conversation.children)
    fork = opening(Conversation.fork)
    history = awaited(Conversation.history)

    def iter_messages(
        self, *, after: int = 0, before: int | None = None, page_size: int = 500
    ) -> AsyncIterator[Message]:
        """Iterate over the log with `async for`, entry by entry.

        One page is in memory at a time, and no connection is held between pages.

        Args:
            after: Read only entries with a `seq` above this value. Defaults to 0, the start of the session.
            before: Read only entries with a `seq` below this value. By default up to the end.
            page_size: The number of entries to read per statement, at least 1. Defaults to 500.
        """
        messages = iterate(self._threads, self._twin._message_pages(after, before, page_size))
        return self._twin._context.telemetry.each_async("iter_messages", self.key, messages)

    async def compact(self, summarizer: Summarizer, *, discard: bool = False) -> Compaction | None:
        """Replace the messages of the window with a summary, as `Conversation.compact` does.

        Args:
            summarizer: A function or a coroutine function that takes the messages of the window and returns the
                summary: a `Message`, or a list of messages. A coroutine function is awaited; any other function runs in
                a thread.
            discard: Delete the replaced messages from the log, but keep records and the usage of turns. By default the
                replaced messages stay in the log.

        Returns:
            The compaction, or None if the window is empty.

        Raises:
            Conflict: The session was compacted, or messages were edited or removed, while `summarizer` ran; nothing was
                changed.
            InvalidMessage: A message of the summary cannot be stored losslessly; nothing was changed.
        """
        with steps(self._twin, "compact") as twin:
            pending = await self._threads.run(twin.turns.begin_compaction)
            if pending is None:
                return None
            summary = await summarize_async(summarizer, pending.window)
            return await self._threads.run(functools.partial(pending.finish, summary, discard=discard))
