"""`LangoSession`, a session for the runner of OpenAI Agents."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import sqlalchemy as sa
from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.run_context import RunContextWrapper

from lango_store import (
    AsyncStore,
    Conflict,
    InvalidState,
    Message,
    SessionExpired,
    SessionNotFound,
    Store,
    create_engine,
)
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.counts import as_usage
from lango_store.integrations.fields import level_key, turn_metadata
from lango_store.integrations.openai_agents import rows
from lango_store.integrations.openai_agents.usage import RunUsage
from lango_store.interchange.openai_items import Item, messages_of, models_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Wrapper: TypeAlias = RunContextWrapper[Any]


class LangoSession(Adapter):
    """A session of OpenAI Agents, stored in a `Store`.

    The session is created when its first item is added. An expired session counts as missing; the next item creates a
    new session with the same key. The usage of a run is stored with the items of the run.

    Args:
        session_id: The id of the session. Its key in the store is `prefix` followed by the id, in which `%` and `/` are
            percent-escaped.
        store: A `Store`, an `AsyncStore`, or the URL of a database; URLs for asyncpg and aiosqlite are accepted too.
            With a URL, every `LangoSession` opens its own connections, so share one store among many sessions.
        engine: An `AsyncEngine`, instead of a store. Only its URL is used, with separate connections.
        session_settings: Settings of the framework. `session_settings.limit` is the number of items that `get_items`
            returns by default.
        create_tables: Create or upgrade the schema of the database; only with a URL or an engine.
        prefix: A prefix of the session key.
        engine_kwargs: Options of `lango_store.create_engine`; only with a URL.
        ensure_ascii: Has no effect; accepted for compatibility with `SQLAlchemySession`. Texts are stored unchanged.

    Raises:
        TypeError: Both or neither of `store` and `engine` are given, or an option requires a URL.
        InvalidKey: The session key is not text of 1 to 512 characters, or contains a NUL or a lone surrogate.

    Example:
        ```python
        session = LangoSession("user-123", store)
        result = await Runner.run(agent, "Hello", session=session)
        ```
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore | str | sa.URL | None = None,
        *,
        engine: AsyncEngine | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        create_tables: bool = False,
        prefix: str = "",
        engine_kwargs: dict[str, Any] | None = None,
        ensure_ascii: bool = True,
    ) -> None:
        if (store is None) is (engine is None):
            raise TypeError("give LangoSession a store or an engine: LangoSession(session_id, store)")
        if isinstance(store, Store | AsyncStore) and (create_tables or engine_kwargs):
            raise TypeError("create_tables and engine_kwargs are for a URL: give the store Store(url, migrate=True)")
        if engine is not None and engine_kwargs:
            raise TypeError("engine_kwargs are for a URL: pass them to create_async_engine")
        self.session_id = session_id
        self.session_settings = SessionSettings().resolve(session_settings)
        self._engine = engine
        opens = not isinstance(store, Store | AsyncStore)
        if isinstance(store, Store):
            store = _async_store(store)
        elif not isinstance(store, AsyncStore):
            store = AsyncStore(Store(_engine_for(engine, store, engine_kwargs or {}), migrate=create_tables))
        super().__init__(store)
        self._closes = opens
        key = level_key(session_id, prefix) if isinstance(session_id, str) else session_id
        self._key = self._awaited.conversation(key).key  # raises InvalidKey
        self._exists = False
        self._usage = RunUsage()
        self._usage_lock = threading.Lock()

    @classmethod
    def from_url(cls, session_id: str, *, url: str | sa.URL, **options: Any) -> Self:
        """Return a session that is stored in the database at a URL.

        Args:
            session_id: The id of the session.
            url: The URL of the database.
            **options: Other arguments of the constructor.

        Returns:
            The session. Call `close()` to close its connections.
        """
        return cls(session_id, url, **options)

    @property
    def engine(self) -> AsyncEngine:
        """The `AsyncEngine` passed to the constructor; with a URL, a new engine for your own queries.

        Raises:
            InvalidState: The session was created with a store. Use `session.store.engine`.
        """
        if self._engine is None:
            if not self._closes:
                raise InvalidState("this session uses a store, which has no AsyncEngine: use session.store.engine")
            from sqlalchemy.ext.asyncio import create_async_engine

            url = self.store.engine.url
            drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg_async"}
            self._engine = create_async_engine(url.set(drivername=drivers[url.get_backend_name()]))
        return self._engine

    async def close(self) -> None:
        """Close the connections that the session opened.

        A store or an `AsyncEngine` passed to the constructor stays open, and so do the connections that the sessions
        of this engine share.
        """
        await super().close()
        if self._closes and self._engine not in _sync_engines:
            self.store.engine.dispose()

    # Items

    async def get_items(self, limit: int | None = None, *, wrapper: Wrapper | None = None) -> list[TResponseInputItem]:
        """Return the items of the session in order.

        Args:
            limit: Return only this many of the last items. None means `session_settings.limit`, by default all. A
                negative number means all items.
            wrapper: The context of the current run, passed by the runner.

        Returns:
            The items. The list is empty if the session does not exist.

        Raises:
            DamagedMessage: An item cannot be read.
        """
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        return await self._awaited.run_sync(self._load, None if limit is None or limit < 0 else limit, wrapper)

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None) -> None:
        """Add items at the end of the session, all or none.

        The session is created if it does not exist, except by a run that began when it existed.

        Args:
            items: The items.
            wrapper: The context of the current run, passed by the runner. Its new usage is stored with the items. After
                a run that failed, pass `error.run_data.context_wrapper` and no items to store the rest of its usage.

        Raises:
            InvalidMessage: An item cannot be stored. No item was added.
            SessionNotFound: The session was deleted during the run. No item was added.
        """
        if items or wrapper is not None:
            await self._awaited.run_sync(self._add, messages_of(items), wrapper)

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Remove and return the last item.

        Args:
            wrapper: Not used; passed by the runner.

        Returns:
            The item, None if the session has no items.

        Raises:
            DamagedMessage: The last item cannot be read. Nothing was removed.
        """
        return await self._awaited.run_sync(rows.pop_item, self._key)

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Remove all items and their usage.

        The session itself is kept, with its title, user and metadata.

        Args:
            wrapper: Not used; passed by the runner.
        """
        await self._awaited.run_sync(rows.clear, self._key)

    def _load(self, store: Store, limit: int | None, wrapper: Wrapper | None) -> list[Item]:
        if wrapper is not None:
            self._register(store, wrapper)
        items = [] if limit == 0 else rows.load_items(store, self._key, limit)
        if wrapper is not None:  # the beginning of a run
            self._exists = bool(items) or store.exists(self._key)
        return items

    def _add(self, store: Store, new: Sequence[Message], wrapper: Wrapper | None) -> None:
        conversation = store.conversation(self._key)
        if wrapper is None:
            conversation.append_messages(new, create=True)
            return
        self._register(store, wrapper)
        with self._usage_lock:  # otherwise two concurrent writers would store the same usage twice
            added = self._usage.added(wrapper)

            def write(*, create: bool) -> None:
                if added:
                    metadata = turn_metadata(models_of(new))
                    conversation.save_turn(new, as_usage(added), metadata=metadata, create=create)
                elif new:
                    conversation.append_messages(new, create=create)

            try:
                write(create=not self._exists)  # a session that was deleted during the run stays deleted
            except SessionExpired:
                write(create=True)
            self._exists = True
            self._usage.mark_stored(wrapper, added)

    def _register(self, store: Store, wrapper: Wrapper) -> None:
        with self._usage_lock:
            self._usage.register(wrapper, lambda: rows.load_turns(store, self._key))

    # OpenAIResponsesCompactionSession requires these methods of the session that it wraps

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> SimpleNamespace | None:
        """Return the last `limit` messages as items, and a function that replaces them; None for an empty window."""
        seen = await self._awaited.run_sync(rows.read_window, self._key)
        if seen is None:
            return None
        end = seen._replace(rows=seen.rows[-limit:])
        complete = len(end.rows) == len(seen.rows)

        async def replace(start: int, output: list[TResponseInputItem]) -> bool:
            try:
                if complete and start == 0:
                    await self._awaited.run_sync(rows.replace_window, seen, output)
                else:
                    await self._awaited.run_sync(rows.replace_end, end, start, output)
            except (Conflict, SessionNotFound):
                return False
            return True

        return SimpleNamespace(items=rows.items_in(end.rows), complete=complete, replace_suffix=replace)

    async def _read_compaction_items(self, limit: int | None) -> tuple[list[TResponseInputItem], bool]:
        """Return the items to compact, and True if these are all items of the session."""
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        seen = await self._awaited.run_sync(rows.read_window, self._key)
        _last_read.set((self, seen))
        items = [] if seen is None else rows.items_in(seen.rows)
        shown = items if limit is None or limit < 0 else items[max(len(items) - limit, 0) :]
        return shown, len(shown) == len(items)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace the window that this compaction has read or, if it has read none, the current window.

        Raises `Conflict` if the session was compacted, or its items were changed or removed, since that read.
        """
        reader, seen = _last_read.get()
        _last_read.set((None, None))
        if reader is not self:
            seen = await self._awaited.run_sync(rows.read_window, self._key)
        if seen is None:
            await self.add_items(items)
        else:
            await self._awaited.run_sync(rows.replace_window, seen, items)
        return True


_last_read: Final[ContextVar[tuple[LangoSession | None, rows.Window | None]]] = ContextVar(
    "_last_read", default=(None, None)
)
"""The session and the window that the current compaction has read; a session can have concurrent compactions."""


# Connections

_async_stores: Final[weakref.WeakValueDictionary[int, AsyncStore]] = weakref.WeakValueDictionary()
_sync_engines: Final[weakref.WeakKeyDictionary[Any, sa.Engine]] = weakref.WeakKeyDictionary()


def _async_store(store: Store) -> AsyncStore:
    """Return one `AsyncStore` for all sessions of a store, so that the sessions share its threads."""
    return _async_stores.setdefault(id(store), AsyncStore(store))  # the entry exists as long as the store


def _engine_for(engine: AsyncEngine | None, url: str | sa.URL | None, options: dict[str, Any]) -> sa.Engine:
    """Return a new engine for a URL, or the one that all sessions with the same `AsyncEngine` share.

    With separate engines, each session would have its own database if the database is in memory.
    """
    if engine is None:
        return create_engine(url, **options)  # type: ignore[arg-type]
    if engine not in _sync_engines:
        sync_engine = getattr(engine, "sync_engine", None)
        if sync_engine is None:
            raise TypeError(f"engine is {type(engine).__name__}, not an AsyncEngine: give a Store(engine) as store")
        _sync_engines[engine] = create_engine(sync_engine.url)
        weakref.finalize(engine, _sync_engines[engine].dispose)
    return _sync_engines[engine]
