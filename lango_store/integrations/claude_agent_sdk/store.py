"""The store itself: the six methods that the SDK asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio.to_thread
import sqlalchemy as sa

from lango_store import AsyncStore, Store
from lango_store.integrations.adapter import Adapter
from lango_store.integrations.claude_agent_sdk import transcripts
from lango_store.integrations.fields import joined_key

if TYPE_CHECKING:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

R = TypeVar("R")

_REMEMBERED: Final = 1_000


class LangoSessionStore(Adapter):
    """Sessions of the Claude Agent SDK: `ClaudeAgentOptions(session_store=LangoSessionStore(store))`.

    Takes a `Store`, an `AsyncStore` or a URL, as `Adapter` does. A transcript is the session with the key
    `project_key:session_id`, that of a subagent `project_key:session_id:subpath`, after the `prefix` if there is one.
    Sessions that it makes are those of `user_id`. It works under asyncio and under trio.
    """

    def __init__(
        self,
        store: Store | AsyncStore | str | sa.URL,
        *,
        prefix: str = "",
        user_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(store, **options)
        self._prefix = prefix
        self._fields: dict[str, Any] = {} if user_id is None else {"user_id": user_id}
        self._seen: dict[str, str | None] = {}  # sessions that were written to, and the last response in each

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries, all or none; one whose `uuid` is stored already is not stored again."""
        if not entries:
            return
        name = self._key(key)
        last = self._seen.get(name)
        last = await self._run(lambda store: transcripts.append(store, name, entries, last, self._fields))
        self._seen.pop(name, None)
        self._seen[name] = last
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, each equal to what was appended; None if there are none."""
        name, session_id = self._key(key), key["session_id"]
        found = await self._run(lambda store: transcripts.load(store, name, session_id))
        return cast("list[SessionStoreEntry]", found) or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """List the live sessions of a project, without their subpaths."""
        project = self._project(project_key)
        found = await self._run(lambda store: list(transcripts.below(store, project)))
        return [{"session_id": transcripts.last_part(info), "mtime": transcripts.milliseconds(info)} for info in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the live sessions of a project; what came since they were asked for is folded now."""
        project = self._project(project_key)
        return await self._run(lambda store: list(transcripts.summaries(store, project, project_key)))

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript; that of a session with all its subpaths, in one transaction."""
        name, whole = self._key(key), key.get("subpath") is None
        await self._run(lambda store: store.transact(lambda tx: _delete(tx, name, whole=whole)))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """List the live subpaths of a session, its subagents' transcripts."""
        session = self._key({"project_key": key["project_key"], "session_id": key["session_id"]})
        found = await self._run(lambda store: list(transcripts.below(store, session)))
        return [transcripts.last_part(info) for info in found]

    async def close(self) -> None:
        """Close what this adapter made: its threads, and its store if it was given a URL."""
        if _runs_asyncio():
            await super().close()
        else:  # trio
            await anyio.to_thread.run_sync(asyncio.run, super().close())

    def _key(self, key: SessionKey) -> str:
        subpath = key.get("subpath")
        parts = [] if subpath is None else [subpath]
        return joined_key(key["project_key"], key["session_id"], *parts, prefix=self._prefix)

    def _project(self, project_key: str) -> str:
        return joined_key(project_key, prefix=self._prefix)

    async def _run(self, call: Callable[[Store], R]) -> R:
        if _runs_asyncio():
            return await self._awaited.run_sync(call)
        return await anyio.to_thread.run_sync(call, self.store)  # trio: a cancelled call is waited for


def _runs_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _delete(tx: Store, key: str, *, whole: bool) -> None:
    tx.delete(key)
    if whole:
        for info in list(tx.iter_sessions(key_prefix=f"{key}:", expired=None)):
            tx.delete(info.key)
