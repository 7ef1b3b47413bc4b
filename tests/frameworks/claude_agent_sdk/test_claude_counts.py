"""What the SDK's calls cost on the wire of PostgreSQL: statements, and waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import Counts, counted
from frameworks.claude_agent_sdk.transcripts import KEY, written

from lango_store import Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore

SUB: Any = {**KEY, "subpath": "subagents/agent-1"}
TITLED: Any = {"type": "custom-title", "customTitle": "Weather"}


MANY = r"""
INSERT INTO lango_session (key, created_at, updated_at)
SELECT '-srv-shop:s' || lpad(CAST(n AS text), 4, '0') || below, now(), now()
FROM generate_series(1, 1100) AS n, unnest(ARRAY['', '\:agent-1', '\:agent-2']) AS below
"""


def key(number: int) -> Any:
    return {**KEY, "session_id": f"s{number:04}"}


def mode() -> Any:
    return {"type": "mode", "mode": "normal"}


async def prepare(sessions: LangoSessionStore) -> None:
    """Take what a first use costs out of what is counted."""
    await sessions.append(KEY | {"project_key": "another"}, written())
    await sessions.append(KEY, written())
    await sessions.append(SUB, written())


CALLS: dict[str, tuple[Callable[[LangoSessionStore], Coroutine[Any, Any, Any]], Counts]] = {
    "append of a turn": (lambda sessions: sessions.append(KEY, [*written("another"), mode()]), Counts(1, 1)),
    "append of one": (lambda sessions: sessions.append(KEY, [mode()]), Counts(1, 1)),
    "append of a thousand": (lambda sessions: sessions.append(KEY, [mode() for _ in range(1_000)]), Counts(1, 1)),
    "first append": (lambda sessions: sessions.append(key(1), written()), Counts(1, 1)),
    "first append to a subpath": (
        lambda sessions: sessions.append(key(1) | {"subpath": "subagents/agent-1"}, written()),
        Counts(1, 1),
    ),
    "load": (lambda sessions: sessions.load(KEY), Counts(1, 1)),
    "load of nothing": (lambda sessions: sessions.load(key(1)), Counts(1, 1)),
    "list_sessions": (lambda sessions: sessions.list_sessions(KEY["project_key"]), Counts(1, 1)),
    "list_subkeys": (lambda sessions: sessions.list_subkeys(KEY), Counts(1, 1)),
}


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_is_one_statement_and_one_round_trip(one_connection: sa.Engine, tmp_path: Path, call: str) -> None:
    do, expected = CALLS[call]

    async def main() -> Counts:
        async with LangoSessionStore(Store(one_connection)) as sessions:
            await prepare(sessions)
            with counted(one_connection, tmp_path) as counts:
                await do(sessions)
            return counts

    assert asyncio.run(main()) == expected


def test_a_list_of_sessions_is_one_round_trip_for_each_thousand(one_connection: sa.Engine, tmp_path: Path) -> None:
    async def main() -> Counts:
        store = Store(one_connection)
        async with LangoSessionStore(store) as sessions:
            await prepare(sessions)
            with one_connection.begin() as connection:
                connection.execute(sa.text(MANY))
            with counted(one_connection, tmp_path) as counts:
                found = await sessions.list_sessions(KEY["project_key"])
            assert len(found) == 1_101
            return counts

    assert asyncio.run(main()) == Counts(2, 2)


def test_summaries_cost_an_append_nothing_and_are_one_round_trip_while_nothing_comes(
    one_connection: sa.Engine, tmp_path: Path
) -> None:
    async def main() -> list[Counts]:
        async with LangoSessionStore(Store(one_connection)) as sessions:
            await prepare(sessions)
            found = []
            for do in (
                lambda: sessions.list_session_summaries(KEY["project_key"]),
                lambda: sessions.append(KEY, [mode()]),
                lambda: sessions.list_session_summaries(KEY["project_key"]),
                lambda: sessions.list_session_summaries(KEY["project_key"]),
            ):
                with counted(one_connection, tmp_path) as counts:
                    await do()
                found.append(counts)
            return found

    first, append, again, then = asyncio.run(main())
    assert append == Counts(1, 1)
    assert then == Counts(1, 1)
    assert first == again == Counts(3, 3)  # the list, what came, and the summary
