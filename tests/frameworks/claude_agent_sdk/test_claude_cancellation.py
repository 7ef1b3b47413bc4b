"""Cancelled calls under asyncio and trio: a write waits until it is known whether it was committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import sqlalchemy as sa
from frameworks.claude_agent_sdk.transcripts import KEY, written
from support.databases import MakeDatabase

from lango_store import LangoStoreError, Store, create_engine
from lango_store._connections import cancellation
from lango_store.integrations.claude_agent_sdk import LangoSessionStore, transcripts

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set when a call in a thread has begun to write."""
    event, begin_write = threading.Event(), cancellation.begin_write

    def telling() -> None:
        begin_write()
        event.set()

    monkeypatch.setattr(cancellation, "begin_write", telling)
    return event


@contextmanager
def writes_locked_out(url: str) -> Iterator[sa.Connection]:
    """Hold the lock that every write needs, until it is released."""
    engine = create_engine(url)
    with engine.connect() as connection:
        lock = "LOCK TABLE lango_session, lango_message, lango_turn IN EXCLUSIVE MODE"
        connection.exec_driver_sql("DELETE FROM lango_turn WHERE false" if engine.dialect.name == "sqlite" else lock)
        yield connection
    engine.dispose()


async def cancelled(call: Callable[[], Any], begun: threading.Event, then: Callable[[], object]) -> list[str]:
    """Cancel a call once it has begun, do something meanwhile, and return in which order the two ended."""
    ended: list[str] = []

    async def run(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await call()
            finally:
                ended.append("call")

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(run, scope)
        await anyio.to_thread.run_sync(begun.wait)
        scope.cancel()
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        ended.append("while")
        then()
    assert scope.cancelled_caught
    return ended


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelled_append_is_rolled_back_and_can_be_repeated(url: str, begun: threading.Event) -> None:
    async with LangoSessionStore(url) as sessions:
        await sessions.append(KEY, written("before"))
        begun.clear()
        with writes_locked_out(url) as holder:
            order = await cancelled(lambda: sessions.append(KEY, written()), begun, holder.rollback)
        assert order == ["while", "call"]
        assert len(await sessions.load(KEY) or []) == len(written())
        await sessions.append(KEY, written())
        assert len(await sessions.load(KEY) or []) == 2 * len(written())


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancelled_load_leaves_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, proceed = threading.Event(), threading.Event()
    load = transcripts.load

    def slow(*arguments: Any) -> Any:
        reached.set()
        assert proceed.wait(60)
        return load(*arguments)

    async with LangoSessionStore(url) as sessions:
        await sessions.append(KEY, written())
        monkeypatch.setattr(transcripts, "load", slow)
        assert await cancelled(lambda: sessions.load(KEY), reached, proceed.set) == ["call", "while"]


async def test_what_was_given_stays_open_and_what_was_made_is_closed(make_database: MakeDatabase) -> None:
    with Store(make_database()) as store:
        async with LangoSessionStore(store) as sessions:
            await sessions.append(KEY, written())
        assert store.count() == 1
    async with LangoSessionStore(make_database()) as sessions:
        await sessions.append(KEY, written())
    with pytest.raises(LangoStoreError, match="closed"):
        await sessions.load(KEY)
