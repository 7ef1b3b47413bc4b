"""openai-agents: its two session classes, which append dicts in batches and read the last ones with `limit`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from benchmarks.peers.contender import Awaited, OverEngine, own_file


class _Sessions(Awaited):
    """The methods of both classes; a session object lives as long as its conversation."""

    _sessions: dict[str, Any]

    @abstractmethod
    def session(self, key: str) -> Any:
        """Make the session object."""

    def create(self, key: str) -> None:
        self._sessions[key] = self.session(key)

    def append(self, key: str, message: dict[str, Any]) -> None:
        self.append_many(key, [message])

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> None:
        self.wait(self._sessions[key].add_items(messages))

    def load(self, key: str) -> list[Any]:
        return list(self.wait(self._sessions[key].get_items()))

    def last(self, key: str, n: int) -> list[Any]:
        return list(self.wait(self._sessions[key].get_items(limit=n)))


class FileSessions(_Sessions):
    """`SQLiteSession`: `sqlite3` in a thread, WAL, and SQLite's own default of an fsync for each commit."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._file = own_file(url, "agents")
        self._sessions = {}

    def session(self, key: str) -> Any:
        from agents import SQLiteSession

        return SQLiteSession(key, self._file)


class EngineSessions(OverEngine, _Sessions):
    """`SQLAlchemySession` over the drivers that its documentation uses: aiosqlite, asyncpg."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "agents-engine")
        self._sessions = {}

    def session(self, key: str) -> Any:
        from agents.extensions.memory import SQLAlchemySession

        return SQLAlchemySession(key, engine=self.engine, create_tables=True)
