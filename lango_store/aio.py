"""The store, awaited: each call of `Store` in a worker thread, so that there is one implementation and one engine.

A thread over the synchronous drivers serves more than the drivers' own asynchronous ones, and lets the event loop wait
less. Nothing here belongs to an event loop: one `AsyncStore` serves several.

There is no list of the calls that write: `Context` notes each connection for a write in `Cancellation`.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack

import sqlalchemy as sa

from lango_store._connections.context import Clock, DefaultTTL, TokenCounter
from lango_store._connections.threads import Threads
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import Durability
from lango_store._operations.lists import Filter, Filters
from lango_store._values.model import Compaction, Message, SessionInfo
from lango_store._values.summarizer import Summarizer, summarize_async
from lango_store.conversation import Conversation
from lango_store.store import Store, session_pages

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class _Twin(Protocol[S_co]):
    """Something asynchronous, and what it does its work with."""

    @property
    def _twin(self) -> S_co: ...

    @property
    def _threads(self) -> Threads: ...

    def _handle(self, conversation: Conversation) -> AsyncConversation: ...


def awaited(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[_Twin[S], P], Coroutine[Any, Any, R]]:
    """Make a method of `Store` or `Conversation` one of its twin: same name, same arguments, same types."""

    @functools.wraps(method)
    async def call(self: _Twin[S], /, *arguments: P.args, **options: P.kwargs) -> R:
        return await self._threads.run(functools.partial(method, self._twin, *arguments, **options))

    return call


def opening(
    method: Callable[Concatenate[S, P], Conversation],
) -> Callable[Concatenate[_Twin[S], P], Coroutine[Any, Any, AsyncConversation]]:
    """Make a method that returns a `Conversation` one that returns an `AsyncConversation`."""

    @functools.wraps(method)
    async def call(self: _Twin[S], /, *arguments: P.args, **options: P.kwargs) -> AsyncConversation:
        opened = functools.partial(method, self._twin, *arguments, **options)
        return self._handle(await self._threads.run(opened))

    return call


async def iterate(threads: Threads, pages: Iterator[list[R]]) -> AsyncIterator[R]:
    """Yield what pages hold, each page read in a thread."""
    while page := await threads.run(functools.partial(next, pages, None)):
        for each in page:
            yield each


class StoreOptions(TypedDict, total=False):
    """The options of `Store`."""

    migrate: bool
    default_ttl: DefaultTTL
    clock: Clock | None
    durability: Durability
    token_counter: TokenCounter | None
    on_statement: Observer | None
    retry: timedelta | None
    replica: str | sa.URL | None


class AsyncStore:
    """`Store` for async code: the same verbs, awaited.

    Takes a URL, an engine or a `Store`, and `Store`'s options. Calls run in threads of its own, at most as many as the
    engine's pool has connections.

    A cancelled read leaves at once. A cancelled write waits until it is known whether it landed, then raises
    `CancelledError`, with the write's own error as its cause if it failed; a call of several transactions, such as
    `expire`, begins no other. The wait ends when the statement does: SQLite waits 30 s for a lock, PostgreSQL as long
    as your `lock_timeout` and `statement_timeout` say. Messages with an `id` can safely be sent again.

    In your own async session use the synchronous store inside:
    `await session.run_sync(lambda s: store.store.using(s).append_message(key, message))`.
    """

    def __init__(self, database: str | sa.URL | sa.Engine | Store, **options: Unpack[StoreOptions]) -> None:
        is_borrowed = isinstance(database, Store)
        self.store = database if isinstance(database, Store) else Store(database, **options)
        self._threads = Threads(self.store.engine, at_end=None if is_borrowed else self.store.close)
        self._is_derived = False

    @property
    def _twin(self) -> Store:
        return self.store

    def _handle(self, conversation: Conversation) -> AsyncConversation:
        return AsyncConversation(self, conversation)

    @property
    def engine(self) -> sa.Engine:
        """The engine: yours if the store borrowed it."""
        return self.store.engine

    async def run_sync(self, call: Callable[Concatenate[Store, P], R], *arguments: P.args, **options: P.kwargs) -> R:
        """Call a function with the synchronous `Store` in a thread of this store's: several verbs, one wait.

        Cancelled, it ends as a single verb does.
        """
        return await self._threads.run(functools.partial(call, self.store, *arguments, **options))

    transact = awaited(Store.transact)
    ping = awaited(Store.ping)
    position = awaited(Store.position)

    def at(self, position: str | None) -> AsyncStore:
        """Return this store for reads that see all that was written up to a `position`, as `Store.at` does."""
        store = copy.copy(self)
        store.store = self.store.at(position)
        store._is_derived = True  # with the threads of this one
        return store

    create = awaited(Store.create)
    get = awaited(Store.get)
    get_or_create = awaited(Store.get_or_create)
    open = opening(Store.open)

    def conversation(self, key: str) -> AsyncConversation:
        """Return a handle of a session without asking the database: its verbs say if the session does not exist."""
        return self._handle(self.store.conversation(key))

    info = awaited(Store.info)
    exists = awaited(Store.exists)
    update = awaited(Store.update)
    touch = awaited(Store.touch)
    delete = awaited(Store.delete)

    append_message = awaited(Store.append_message)
    append_messages = awaited(Store.append_messages)
    messages = awaited(Store.messages)

    values = awaited(Store.values)
    set_values = awaited(Store.set_values)
    drop_values = awaited(Store.drop_values)
    shared_values = awaited(Store.shared_values)
    set_shared_values = awaited(Store.set_shared_values)
    drop_shared_values = awaited(Store.drop_shared_values)

    list_sessions = awaited(Store.list_sessions)
    count = awaited(Store.count)
    search = awaited(Store.search)
    stats = awaited(Store.stats)
    examine = awaited(Store.examine)

    expire = awaited(Store.expire)
    delete_where = awaited(Store.delete_where)
    restore = awaited(Store.restore)

    def iter_sessions(self, *, page_size: int = 500, **which: Unpack[Filters]) -> AsyncIterator[SessionInfo]:
        """Read sessions one by one in the order of their keys, each exactly once, whatever is updated meanwhile.

        Filters as in `list_sessions`. A page is in memory, and no connection is held in between. A session that is made
        or deleted meanwhile may be seen or not.
        """
        return iterate(self._threads, session_pages(self.store.context, Filter(**which), page_size))

    async def close(self) -> None:
        """Wait for the calls under way, then close the connections, unless they are borrowed.

        Cancelled, it leaves at once, and the store is closed all the same when the calls have ended.
        """
        if self._is_derived:
            return
        self._threads.close()
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._threads.wait))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncConversation:
    """`Conversation` for async code: the same verbs, awaited. `AsyncStore.open` gives it."""

    __slots__ = ("_store", "_threads", "_twin", "key")

    def __init__(self, store: AsyncStore, conversation: Conversation) -> None:
        self._store = store
        self._threads = store._threads
        self._twin = conversation
        self.key = conversation.key

    def __repr__(self) -> str:
        return f"AsyncConversation({self.key!r})"

    def _handle(self, conversation: Conversation) -> AsyncConversation:
        return AsyncConversation(self._store, conversation)

    get = awaited(Conversation.get)
    info = awaited(Conversation.info)
    update = awaited(Conversation.update)

    append_message = awaited(Conversation.append_message)
    append_messages = awaited(Conversation.append_messages)
    messages = awaited(Conversation.messages)
    all_messages = awaited(Conversation.all_messages)
    find_message = awaited(Conversation.find_message)
    last_message = awaited(Conversation.last_message)
    pop_message = awaited(Conversation.pop_message)
    update_message = awaited(Conversation.update_message)
    delete_message = awaited(Conversation.delete_message)
    redact_message = awaited(Conversation.redact_message)
    drop_sent = awaited(Conversation.drop_sent)
    search = awaited(Conversation.search)
    truncate = awaited(Conversation.truncate)
    clear = awaited(Conversation.clear)

    save_turn = awaited(Conversation.save_turn)
    turns = awaited(Conversation.turns)
    find_turn = awaited(Conversation.find_turn)
    messages_of = awaited(Conversation.messages_of)
    event_count = awaited(Conversation.event_count)
    total_usage = awaited(Conversation.total_usage)

    values = awaited(Conversation.values)
    set_values = awaited(Conversation.set_values)
    drop_values = awaited(Conversation.drop_values)

    child = opening(Conversation.child)
    children = awaited(Conversation.children)
    fork = opening(Conversation.fork)
    compactions = awaited(Conversation.compactions)
    history = awaited(Conversation.history)

    def iter_messages(
        self, *, after: int = 0, before: int | None = None, page_size: int = 500
    ) -> AsyncIterator[Message]:
        """Read the log message by message, however long, a page in memory and no connection held in between."""
        return iterate(self._threads, self._twin._message_pages(after, before, page_size))

    begin_compaction = awaited(Conversation.begin_compaction)
    finish_compaction = awaited(Conversation.finish_compaction)

    async def compact(self, summarizer: Summarizer, *, discard: bool = False) -> Compaction | None:
        """Replace the window with a summary, as `Conversation.compact` does.

        A coroutine function is awaited here; any other `summarizer` runs in a thread, as it may take long.
        """
        pending = await self.begin_compaction()
        if pending is None:
            return None
        summary = await summarize_async(summarizer, pending.window)
        return await self.finish_compaction(pending, summary, discard=discard)
