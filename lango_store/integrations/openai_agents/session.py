"""A session for OpenAI Agents' runner, stored in a `Store`."""

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

from lango_store import AsyncStore, Conflict, LangoStoreError, Message, SessionNotFound, Store, create_engine
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.fields import level_key
from lango_store.integrations.openai_agents import rows
from lango_store.integrations.openai_agents.items import Item, messages_of
from lango_store.integrations.openai_agents.usage import RunUsage, as_usage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Wrapper: TypeAlias = RunContextWrapper[Any]


class LangoSession(Adapter):
    """A session of OpenAI Agents in a `Store`: `Runner.run(agent, "Hello", session=LangoSession("user-123", store))`.

    The first item creates the session; an expired session counts as absent, and the next item creates a new one. The
    usage of a run is stored with the items that it adds.

    Args:
        session_id: The key of the session, after `prefix`. `%` and `/` in it are percent-escaped in the key.
        store: A `Store`, an `AsyncStore` or a URL, also one of asyncpg or aiosqlite. For a URL, each session opens
            its own connections: share a store among many sessions.
        engine: An `AsyncEngine` in place of a store. Only its URL is used, with separate connections.
        session_settings: `session_settings.limit` is the number of items that `get_items` returns by default.
        create_tables: Bring the schema of a URL or an engine up to date.
        prefix: Put in front of `session_id`.
        engine_kwargs: Options of `lango_store.create_engine` for a URL.
        ensure_ascii: Accepted as by `SQLAlchemySession`, without effect: texts are stored unchanged.
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
        self._key = self._awaited.conversation(key).key  # which refuses what is not a key
        self._usage = RunUsage()
        self._usage_lock = threading.Lock()

    @classmethod
    def from_url(cls, session_id: str, *, url: str | sa.URL, **options: Any) -> Self:
        """Create a session in the database of a URL, with the options of the constructor."""
        return cls(session_id, url, **options)

    @property
    def engine(self) -> AsyncEngine:
        """The engine that was given; for a URL, a new engine for your queries, with separate connections.

        Raises:
            LangoStoreError: The session is in a store: `session.store.engine` is its engine.
        """
        if self._engine is None:
            if not self._closes:
                raise LangoStoreError("this session is in a store, which has no AsyncEngine: use session.store.engine")
            from sqlalchemy.ext.asyncio import create_async_engine

            url = self.store.engine.url
            drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg_async"}
            self._engine = create_async_engine(url.set(drivername=drivers[url.get_backend_name()]))
        return self._engine

    async def close(self) -> None:
        """Close what the session opened; a store that was given stays open."""
        await super().close()
        if self._closes and self._engine not in _sync_engines:
            self.store.engine.dispose()

    # Items

    async def get_items(self, limit: int | None = None, *, wrapper: Wrapper | None = None) -> list[TResponseInputItem]:
        """Return the items, or the last `limit` of them, in their order; `session_settings.limit` if None is given.

        0 is none, a negative number all. `DamagedMessage` for an item that cannot be read.
        """
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        return await self._awaited.run_sync(self._load, None if limit is None or limit < 0 else limit, wrapper)

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None) -> None:
        """Add items at the end, all or none; `InvalidMessage` names an item that is not JSON."""
        if items:
            await self._awaited.run_sync(self._add, messages_of(items), wrapper)

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Remove the last item and return it, None if there is none."""
        return await self._awaited.run_sync(rows.pop_item, self._key)

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Remove all items and their usage; the session keeps its title, its user and so on."""
        await self._awaited.run_sync(rows.clear, self._key)

    def _load(self, store: Store, limit: int | None, wrapper: Wrapper | None) -> list[Item]:
        if wrapper is not None:
            self._meet(store, wrapper)
        return [] if limit == 0 else rows.load_items(store, self._key, limit)

    def _add(self, store: Store, new: Sequence[Message], wrapper: Wrapper | None) -> None:
        conversation = store.conversation(self._key)
        if wrapper is None:
            conversation.append_messages(new, create=True)
            return
        self._meet(store, wrapper)
        with self._usage_lock:  # or two writers at once would both store what the run has spent
            added = self._usage.added(wrapper)
            if added:
                conversation.save_turn(new, as_usage(added), create=True)
            else:
                conversation.append_messages(new, create=True)
            self._usage.note(wrapper, added)

    def _meet(self, store: Store, wrapper: Wrapper) -> None:
        with self._usage_lock:
            self._usage.meet(wrapper, lambda: rows.load_turns(store, self._key))

    # OpenAIResponsesCompactionSession requires these methods of the session that it wraps

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> SimpleNamespace | None:
        """Return the last items, with a function that replaces them in one transaction."""
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
        """Return the items to compact, and whether these are all."""
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        seen = await self._awaited.run_sync(rows.read_window, self._key)
        _last_read.set((self, seen))
        items = [] if seen is None else rows.items_in(seen.rows)
        shown = items if limit is None or limit < 0 else items[max(len(items) - limit, 0) :]
        return shown, len(shown) == len(items)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace the items that this compaction has read, else all; `Conflict` if some were removed since."""
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
"""The items that the current compaction has read: a session may have several concurrent compactions."""


# Connections

_async_stores: Final[weakref.WeakValueDictionary[int, AsyncStore]] = weakref.WeakValueDictionary()
_sync_engines: Final[weakref.WeakKeyDictionary[Any, sa.Engine]] = weakref.WeakKeyDictionary()


def _async_store(store: Store) -> AsyncStore:
    """Return one `AsyncStore` for all sessions of a store, so that they share its threads."""
    return _async_stores.setdefault(id(store), AsyncStore(store))  # an entry lives as long as its store


def _engine_for(engine: AsyncEngine | None, url: str | sa.URL | None, options: dict[str, Any]) -> sa.Engine:
    """Return an engine for a URL, or the one for all sessions of an asynchronous engine: it may be in memory."""
    if engine is None:
        return create_engine(url, **options)  # type: ignore[arg-type]
    if engine not in _sync_engines:
        sync_engine = getattr(engine, "sync_engine", None)
        if sync_engine is None:
            raise TypeError(f"engine is {type(engine).__name__}, not an AsyncEngine: give a Store(engine) as store")
        _sync_engines[engine] = create_engine(sync_engine.url)
        weakref.finalize(engine, _sync_engines[engine].dispose)
    return _sync_engines[engine]
