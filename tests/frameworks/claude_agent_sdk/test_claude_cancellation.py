"""A cancelled call under either event loop: a read leaves at once, a write waits until it is known if it landed."""

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
from conftest import MakeDatabase
from frameworks.claude_agent_sdk.transcripts import KEY, written

from lango_store import LangoStoreError, Store, cancellation, create_engine
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


async def test_a_cancelled_append_has_landed_when_it_raises(url: str, begun: threading.Event) -> None:
    async with LangoSessionStore(url) as sessions:
        await sessions.append(KEY, written("before"))
        begun.clear()
        with writes_locked_out(url) as holder:
            order = await cancelled(lambda: sessions.append(KEY, written()), begun, holder.rollback)
        assert order == ["while", "call"]
        assert len(await sessions.load(KEY) or []) == 2 * len(written())
        await sessions.append(KEY, written())  # what has a uuid is there already
        unnamed = [entry for entry in written() if "uuid" not in entry]
        assert len(await sessions.load(KEY) or []) == 2 * len(written()) + len(unnamed)


async def test_a_cancelled_append_that_fails_says_why(url: str, begun: threading.Event) -> None:
    causes: list[BaseException | None] = []

    async with LangoSessionStore(url) as sessions:
        await sessions.append(KEY, written("before"))
        begun.clear()

        async def append() -> None:
            try:
                await sessions.append(KEY, written())
            except anyio.get_cancelled_exc_class() as error:
                causes.append(error.__cause__)
                raise

        with writes_locked_out(url) as holder:

            def take_away() -> None:
                holder.exec_driver_sql("ALTER TABLE lango_message RENAME TO gone")
                holder.commit()

            await cancelled(append, begun, take_away)
    (cause,) = causes
    assert isinstance(cause, LangoStoreError)
    assert "lango_message" in str(cause)


async def test_a_cancelled_load_leaves_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    read = transcripts.Transcript.read

    def slow(*arguments: Any) -> Any:
        reached.set()
        assert go_on.wait(60)
        return read(*arguments)

    async with LangoSessionStore(url) as sessions:
        await sessions.append(KEY, written())
        monkeypatch.setattr(transcripts.Transcript, "read", slow)
        assert await cancelled(lambda: sessions.load(KEY), reached, go_on.set) == ["call", "while"]


async def test_what_was_given_stays_open_and_what_was_made_is_closed(make_database: MakeDatabase) -> None:
    with Store(make_database()) as store:
        async with LangoSessionStore(store) as sessions:
            await sessions.append(KEY, written())
        assert store.count() == 1
    async with LangoSessionStore(make_database()) as sessions:
        await sessions.append(KEY, written())
    with pytest.raises(LangoStoreError, match="closed"):
        await sessions.load(KEY)
