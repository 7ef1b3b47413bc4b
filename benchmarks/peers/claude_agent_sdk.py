"""Stores of the Claude Agent SDK: a common interface, and the SDK's example store with JSON rows."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from benchmarks.peers.contender import Awaited

Item = dict[str, Any]


class Entries(Awaited):
    """A session store; each entry that is appended singly gets a new uuid."""

    store: Any

    def create(self, key: str) -> None:
        pass

    def append(self, key: str, message: Item) -> None:
        self.append_many(key, [message | {"uuid": str(uuid4())}])

    def append_many(self, key: str, messages: list[Item]) -> None:
        self.wait(self.store.append(_names(key), messages))

    def load(self, key: str) -> list[Any]:
        return list(self.wait(self.store.load(_names(key))))

    def last(self, key: str, n: int) -> list[Any]:
        return self.load(key)[-n:]


class BareEntries(Entries):
    """Entries as rows of JSON over asyncpg, as the SDK's example has them: no session, no ids, no fields."""

    def __init__(self, url: str) -> None:
        super().__init__()
        plain = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._pool = self.wait(_pool(plain))
        self.wait(
            self._pool.execute(
                "CREATE TABLE bare_entry (project text, session text, subpath text, place bigserial, entry jsonb, "
                "moved bigint, PRIMARY KEY (project, session, subpath, place))"
            )
        )
        self.store = self

    def append_many(self, key: str, messages: list[Item]) -> None:
        self.wait(
            self._pool.execute(
                "INSERT INTO bare_entry (project, session, subpath, entry, moved) "
                "SELECT $1, $2, '', entry, (extract(epoch FROM clock_timestamp()) * 1000)::bigint "
                "FROM unnest($3::jsonb[]) WITH ORDINALITY AS given(entry, place) ORDER BY place",
                "bench",
                key,
                [json.dumps(message) for message in messages],
            )
        )

    def load(self, key: str) -> list[Any]:
        rows = "SELECT entry FROM bare_entry WHERE project = $1 AND session = $2 AND subpath = '' ORDER BY place"
        return [json.loads(row["entry"]) for row in self.wait(self._pool.fetch(rows, "bench", key))]

    def close(self) -> None:
        self.wait(self._pool.close())
        super().close()


async def _pool(url: str) -> Any:
    import asyncpg  # type: ignore[import-untyped] # it has no types

    return await asyncpg.create_pool(url, min_size=1, max_size=1)


def _names(key: str) -> Any:
    return {"project_key": "bench", "session_id": key}
