"""A session for OpenAI Agents' runner, kept in a `Store`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import sqlalchemy as sa
from agents.items import TResponseInputItem
from agents.memory import SessionSettings
from agents.run_context import RunContextWrapper

from lango_store import writing
from lango_store.aio import AsyncStore
from lango_store.encoding import MAX_KEY_LENGTH, checked_key
from lango_store.errors import Conflict, InvalidKey, LangoStoreError, SessionNotFound
from lango_store.integrations.openai_agents import rows
from lango_store.integrations.openai_agents.items import messages_of
from lango_store.integrations.openai_agents.sharing import Lease, awaited, lease, lease_for
from lango_store.integrations.openai_agents.usage import Counted, Usage, stored_before, usage_of
from lango_store.model import Message
from lango_store.store import Store

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

Wrapper: TypeAlias = RunContextWrapper[Any]

_read: Final[ContextVar[tuple[LangoSession, rows.Snapshot | None] | None]] = ContextVar("_read", default=None)
"""What the compaction that is under way here has read: others may be, of the same session."""


class LangoSession:
    """A session of OpenAI Agents in a `Store`: `Runner.run(agent, "Hello", session=LangoSession("user-123", store))`.

    `session_id` is the session's key, after `prefix` if there is one. `store` is a `Store`, an `AsyncStore` or a URL,
    also one of asyncpg or aiosqlite; sessions of one URL share its connections. In the place of a store, `engine` is
    an `AsyncEngine` as `SQLAlchemySession` takes it: its URL is used, with connections of our own. `create_tables`
    brings the schema of a URL or an engine up to date; `engine_kwargs` are options of `lango_store.create_engine`.
    `session_settings.limit` is how many items `get_items` gives. `ensure_ascii` is taken as `SQLAlchemySession` takes
    it, and changes nothing: texts are stored as they are.

    The first item makes the session; one that has expired counts as absent, and the next item begins it anew. What a
    run costs becomes the usage of the turns that it writes.
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
        **names: Any,
    ) -> None:
        _refuse(names)
        if (store is None) is (engine is None):
            raise TypeError("give LangoSession a store or an engine: LangoSession(session_id, store)")
        if isinstance(store, Store | AsyncStore) and (create_tables or engine_kwargs):
            raise TypeError("create_tables and engine_kwargs are for a URL: give the store Store(url, migrate=True)")
        self.session_id = session_id
        self.session_settings = (
            SessionSettings().resolve(session_settings)
            if isinstance(session_settings, dict)
            else session_settings or SessionSettings()
        )
        self._key = _key(prefix, session_id)
        self._engine = engine
        self._closed = False
        self._lease: Lease | None = None
        if isinstance(store, AsyncStore):
            self._store = store
        elif isinstance(store, Store):
            self._store = awaited(store)
        else:
            self._lease = (
                lease_for(engine, migrate=create_tables)
                if store is None
                else lease(store, engine_kwargs or {}, migrate=create_tables)
            )
            self._store = self._lease.store
        self._counted = Counted()
        self._counting = threading.Lock()

    @classmethod
    def from_url(
        cls,
        session_id: str,
        *,
        url: str | sa.URL,
        engine_kwargs: dict[str, Any] | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        create_tables: bool = False,
        **options: Any,
    ) -> Self:
        """Create a session in the database of a URL, in the words of `SQLAlchemySession.from_url`."""
        return cls(
            session_id,
            url,
            engine_kwargs=engine_kwargs,
            session_settings=session_settings,
            create_tables=create_tables,
            **options,
        )

    @property
    def store(self) -> Store:
        """The store that the session is in."""
        return self._store.store

    @property
    def engine(self) -> AsyncEngine:
        """The engine that was given; where none was, one for queries of your own, which opens connections of its own.

        `LangoStoreError` for a session in a store: `session.store.engine` is its engine.
        """
        if self._engine is None:
            if self._lease is None:
                raise LangoStoreError("this session is in a store, whose engine is no AsyncEngine: take store.engine")
            from sqlalchemy.ext.asyncio import create_async_engine

            self._engine = create_async_engine(_asynchronous(self.store.engine.url))
        return self._engine

    # Items

    async def get_items(self, limit: int | None = None, *, wrapper: Wrapper | None = None) -> list[TResponseInputItem]:
        """Return the items, or the last `limit` of them, the oldest first; `session_settings.limit` if None is given.

        0 is none, a negative number all. An item that cannot be read is `DamagedMessage`.
        """
        if wrapper is not None:
            self._counted.meet(wrapper, reads=True)
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit == 0:
            return []
        most = None if limit is None or limit < 0 else limit
        return await self._in_thread(_items, self._key, most)

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None) -> None:
        """Add items at the end, all or none; `InvalidMessage` names the place of what is not JSON."""
        self._refuse_closed()
        if not items:
            return
        new = messages_of(items)
        await self._store.run_sync(self._add, new, wrapper)

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Remove the last item and return it, None if there is none."""
        return await self._in_thread(_popped, self._key)

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Remove all items, and with them turns and what they cost; the session keeps its title, its user and so on."""
        await self._in_thread(_cleared, self._key)

    async def close(self) -> None:
        """Close the connections if no other session of the URL is open; a store that was given stays open."""
        if self._lease is not None:
            self._closed = True
            await self._lease.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"LangoSession({self.session_id!r})"

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self._refuse_closed()
        return await self._store.run_sync(call, *arguments)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise LangoStoreError(f"session {self.session_id!r} is closed: make a new one")

    def _add(self, store: Store, new: Sequence[Message], wrapper: Wrapper | None) -> None:
        conversation = store.conversation(self._key)
        if wrapper is None:
            conversation.append_messages(new, create=True)
            return
        with self._counting:  # what a run cost is counted once, however many write at a time
            usage = usage_of(wrapper.usage)
            self._counted.meet(wrapper, reads=False)
            if self._counted.is_resumed(wrapper) and (stored := _stored_usage(store, self._key, wrapper.usage)):
                self._counted.note(wrapper, stored)
            grown = self._counted.grown(wrapper, usage)
            if grown:
                conversation.save_turn(new, grown, create=True)
            else:
                conversation.append_messages(new, create=True)
            self._counted.note(wrapper, usage)

    # What OpenAIResponsesCompactionSession looks for in a session that it wraps

    async def _get_compaction_snapshot(self, limit: int, **_: Any) -> _CompactionSnapshot | None:
        """Return the last items and how to replace them in one transaction."""
        seen = await self._in_thread(_snapshot, self._key, limit)
        return None if seen is None else _CompactionSnapshot(seen.items, seen.complete, self._replacing(seen))

    async def _read_compaction_items(self, limit: int | None) -> tuple[list[TResponseInputItem], bool]:
        """Return the items that a compaction is to speak of, and whether these are all."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        seen = await self._in_thread(_snapshot, self._key, None)
        _read.set((self, seen))
        if seen is None:
            return [], True
        shown = seen.items if limit is None or limit < 0 else rows.latest(seen.rows, limit)
        return shown, len(shown) == len(seen.items)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace what a compaction read, or if it read elsewhere what is there now; False if there is nothing.

        `Conflict` if what it read is not there any more.
        """
        reader, seen = _read.get() or (None, None)
        _read.set(None)
        if reader is self and seen is None:  # it read nothing, and what came in stays
            await self.add_items(items)
            return True
        return bool(
            await self._in_thread(_replaced_all, self._key, seen if reader is self else None, messages_of(items))
        )

    def _replacing(self, seen: rows.Snapshot) -> Callable[[int, list[TResponseInputItem]], Awaitable[bool]]:
        async def replace(start: int, output: list[TResponseInputItem]) -> bool:
            try:
                return bool(await self._in_thread(_replaced, seen, start, messages_of(output)))
            except (Conflict, SessionNotFound):
                return False

        return replace


@dataclass(frozen=True)
class _CompactionSnapshot:
    """What the framework's class of this name has; its own is private."""

    items: list[TResponseInputItem]
    complete: bool
    replace_suffix: Callable[[int, list[TResponseInputItem]], Awaitable[bool]]


# Steps in a thread of the store


def _items(store: Store, key: str, last: int | None) -> list[TResponseInputItem]:
    access = store.access
    with access.single_read() as connection:
        return rows.latest(rows.read(connection, access.moment(connection), key, last), last)


def _popped(store: Store, key: str) -> TResponseInputItem | None:
    access = store.access
    with access.transaction() as connection:
        return rows.pop(connection, access.moment(connection), key)


def _cleared(store: Store, key: str) -> None:
    try:
        store.clear(key)
    except SessionNotFound:
        return


def _snapshot(store: Store, key: str, limit: int | None) -> rows.Snapshot | None:
    access = store.access
    with access.snapshot() as connection:
        return rows.snapshot(connection, access.moment(connection), key, limit)


def _replaced(store: Store, seen: rows.Snapshot, start: int, output: Sequence[Message]) -> bool:
    access = store.access
    new = writing.encoded(access, output)
    with access.transaction() as connection:
        now = access.now(connection)
        if start or not seen.complete:
            return rows.replace_end(connection, now, seen, start, new)
        rows.replace_all(connection, now, seen, new)
        return True


def _replaced_all(store: Store, key: str, seen: rows.Snapshot | None, output: Sequence[Message]) -> bool:
    access = store.access
    new = writing.encoded(access, output)
    with access.transaction() as connection:
        now = access.now(connection)
        if seen is None:
            seen = rows.snapshot_locked(connection, now, key)
        if seen is not None:
            rows.replace_all(connection, now, seen, new)
        return seen is not None


def _stored_usage(store: Store, key: str, usage: Any) -> Usage:
    try:
        return stored_before(usage, [turn.usage for turn in store.conversation(key).turns()])
    except SessionNotFound:
        return {}


# What a caller gives


def _key(prefix: str, session_id: str) -> str:
    if not isinstance(session_id, str):
        return checked_key(session_id)  # which says what it is
    longest, part = max((len(part), name) for name, part in (("prefix", prefix), ("session_id", session_id)))
    if len(prefix) + len(session_id) > MAX_KEY_LENGTH:
        raise InvalidKey(
            f"session key: has {len(prefix) + len(session_id)} characters, {part} alone {longest} of them; "
            f"a key has at most {MAX_KEY_LENGTH}: shorten {part}"
        )
    return checked_key(prefix + session_id)


def _refuse(names: dict[str, Any]) -> None:
    for name in names:
        if name not in ("sessions_table", "messages_table"):
            raise TypeError(f"LangoSession takes no {name}")
        raise TypeError(
            f"{name}: the tables of lango_store have names of their own; leave it out, and for tables apart name a "
            "schema in the URL (?options=-csearch_path%3Dtenant_a), or another file"
        )


def _asynchronous(url: sa.URL) -> sa.URL:
    return url.set(drivername={"sqlite": "sqlite+aiosqlite"}.get(url.get_backend_name(), "postgresql+psycopg_async"))
