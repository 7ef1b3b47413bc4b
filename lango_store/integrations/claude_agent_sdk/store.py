"""`LangoSessionStore`, with the six methods that the SDK calls."""

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
V = TypeVar("V")

_REMEMBERED: Final = 1_000
"""The maximum number of sessions, and of first entries, that are remembered."""


class LangoSessionStore(Adapter):
    """A session store for the Claude Agent SDK.

    Pass it to the SDK as `ClaudeAgentOptions(session_store=LangoSessionStore(store))`.

    A transcript is stored as a session with the key `project_key:session_id`; the transcript of a subagent as its child
    session `project_key:session_id/subpath`. In these ids, `:`, `/` and `%` are percent-escaped. The store works with
    asyncio and with trio.

    Args:
        store: A `Store`, an `AsyncStore`, or the URL of a database; URLs for asyncpg and aiosqlite are accepted too.
        prefix: A prefix of all session keys.
        user_id: The user id of the sessions that this object creates.
        **options: Options of `Store`; only with a URL.

    Raises:
        TypeError: `options` are given together with a store.
        ValueError: The database of the URL is not supported, or an option is invalid.
    """

    def __init__(
        self, store: Store | AsyncStore | str | sa.URL, *, prefix: str = "", user_id: str | None = None, **options: Any
    ) -> None:
        super().__init__(store, **options)
        self._prefix = prefix
        self._fields: dict[str, Any] = {} if user_id is None else {"user_id": user_id}
        self._seen: dict[str, transcripts.Seen] = {}  # recently read and written sessions
        self._roots: dict[str, str] = {}  # the keys of recently read sessions, by the id of each first entry

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript, all or none.

        A missing session is created, and an expired session is replaced. A session that this object has read or
        written, and that was deleted since, is only created again by entries that begin a transcript.

        Args:
            key: The project, the session and, for a subagent, the subpath.
            entries: The entries. An entry whose `uuid` is already stored is not stored again.

        Raises:
            InvalidMessage: An entry cannot be stored. No entry was appended.
            SessionNotFound: The session, or that of a subagent's parent, was deleted during the run. No entry was
                appended.
        """
        if not entries:
            return
        name, parent = self._key(key), self._parent(key)
        is_known, begins = name in self._seen, transcripts.begins(entries)
        seen = self._seen.get(name, transcripts.Seen())
        sources = [self._roots[root] for root in transcripts.roots(entries) if self._roots.get(root, name) != name]
        if sources:
            seen = seen._replace(source=sources[0])
        seen = await self._run(
            lambda store: transcripts.append(
                store,
                name,
                entries,
                seen,
                self._fields,
                create=begins or not is_known,
                parent=parent,
                parent_exists=parent in self._seen and not is_known,
            )
        )
        _remember(self._seen, name, seen)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, each equal to the appended entry.

        Messages that other programs stored in the session are converted to entries.

        Args:
            key: The project, the session and, for a subagent, the subpath.

        Returns:
            The entries in order, None if no live session exists or it has no entries.

        Raises:
            DamagedMessage: An entry cannot be read.
        """
        name, session_id = self._key(key), key["session_id"]
        entries = await self._run(lambda store: transcripts.load(store, name, session_id))
        if entries:
            _remember(self._seen, name, self._seen.get(name, transcripts.Seen()))
            for root in transcripts.roots(entries):
                _remember(self._roots, root, name)
        return cast("list[SessionStoreEntry]", entries) or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """List the live sessions of a project, without the transcripts of subagents.

        Args:
            project_key: The project.

        Returns:
            The id of each session and the time of its last write, in milliseconds since 1970.
        """
        project = self._project(project_key)
        infos = await self._run(lambda store: list(transcripts.sessions(store, project)))
        return [{"session_id": transcripts.last_part(info), "mtime": transcripts.milliseconds(info)} for info in infos]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the live sessions of a project.

        Each append updates the stored summary of its session, so a list reads no entries that this class appended.

        Args:
            project_key: The project.

        Returns:
            The summary of each session, as the SDK's `fold_session_summary` creates it.
        """
        project = self._project(project_key)
        return await self._run(lambda store: transcripts.summaries(store, project))

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript, if it exists.

        The transcript of a session is deleted together with those of its subagents, in one transaction.

        Args:
            key: The project, the session and, to delete only one subagent's transcript, the subpath.
        """
        name, whole = self._key(key), key.get("subpath") is None
        await self._run(lambda store: store.delete(name, descendants=whole))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """List the subpaths of the live transcripts of a session's subagents.

        Args:
            key: The project and the session.
        """
        session = self._key({"project_key": key["project_key"], "session_id": key["session_id"]})
        return await self._run(lambda store: list(transcripts.subpaths(store, session)))

    async def close(self) -> None:
        """Close what the adapter opened: its threads and, for a URL, its store.

        With an `AsyncStore`, the method does nothing.
        """
        if _runs_asyncio():
            await super().close()
        else:  # trio
            await anyio.to_thread.run_sync(asyncio.run, super().close())

    def _key(self, key: SessionKey) -> str:
        subpath = key.get("subpath")
        session = joined_key(key["project_key"], key["session_id"], prefix=self._prefix)
        return session if subpath is None else joined_key(subpath, prefix=f"{session}/")

    def _parent(self, key: SessionKey) -> str | None:
        """Return the key of the session to which a subagent's transcript belongs."""
        if key.get("subpath") is None:
            return None
        return self._key({"project_key": key["project_key"], "session_id": key["session_id"]})

    def _project(self, project_key: str) -> str:
        return joined_key(project_key, prefix=self._prefix)

    async def _run(self, call: Callable[[Store], R]) -> R:
        if _runs_asyncio():
            return await self._awaited.run_sync(call)
        return await anyio.to_thread.run_sync(call, self.store)  # trio waits for a cancelled call


def _remember(values: dict[str, V], name: str, value: V) -> None:
    values.pop(name, None)
    values[name] = value
    if len(values) > _REMEMBERED:
        del values[next(iter(values))]


def _runs_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
