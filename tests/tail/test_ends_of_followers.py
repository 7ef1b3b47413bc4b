"""The end of readers that wait: with the session, the store, or their task."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta

import pytest
import sqlalchemy as sa
from support.factories import message, messages
from support.following import Follower, channel_of, follower, until_waiting
from support.polling import until

from lango_store import Appended, AsyncStore, DamagedMessage, Ended, LangoStoreError, Store, StoreClosed
from lango_store.testing import Clock


def watchers() -> int:
    return sum(thread.name == "lango_store_watcher" for thread in threading.enumerate())


@pytest.fixture
def other(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as yielded:
        yield yielded


def test_watcher_thread_runs_only_while_readers_wait(store: Store) -> None:
    before = watchers()
    store.create("k", messages=messages(1))
    assert list(store.conversation("k").tail(follow=False)) != []
    events = store.conversation("k").tail()
    next(events)
    assert watchers() == before + 1  # it has read all, and waits next
    events.close()
    until(lambda: watchers() == before)
    with follower(store) as reader:
        store.append_message("k", message("again"))
        reader.wait_for_messages(2)
        assert watchers() == before + 1
    until(lambda: watchers() == before)


def test_deletion_of_the_session_ends_followers(store: Store, other: Store) -> None:
    store.create("k", messages=messages(1))
    reader = Follower(store, "k")
    until_waiting(store)
    other.delete("k")
    reader.end()
    assert isinstance(reader.events[-1], Ended)
    assert reader.events[-1].reason == "deleted"
    assert reader.error is None


def test_replacement_of_the_session_ends_followers(store: Store, other: Store) -> None:
    store.create("k", messages=messages(1))
    reader = Follower(store, "k")
    until_waiting(store)
    with other.transaction() as tx:
        tx.delete("k")
        tx.create("k", messages=messages(5))
    reader.end()
    appended, ended = reader.events
    assert isinstance(appended, Appended)
    assert isinstance(ended, Ended)
    assert ended.reason == "replaced"


def test_expiry_of_the_session_ends_followers(store: Store, clock: Clock) -> None:
    store.create("k", ttl=timedelta(hours=1), messages=messages(1))
    reader = Follower(store, "k")
    until_waiting(store)
    clock.move(hours=2)
    reader.end()
    assert isinstance(reader.events[-1], Ended)
    assert reader.events[-1].reason == "expired"


def test_closing_the_store_ends_followers(url: str) -> None:
    store = Store(url)
    store.create("k", messages=messages(1))
    reader = Follower(store, "k")
    until_waiting(store)
    before = watchers()
    store.close()
    reader.end()
    assert isinstance(reader.error, LangoStoreError)
    assert "closed" in str(reader.error)
    assert watchers() == before - 1


@pytest.mark.parametrize("borrowed", [False, True])
def test_closing_the_async_store_ends_followers(url: str, borrowed: bool) -> None:
    async def work() -> None:
        with Store(url) as store:
            following = AsyncStore(store if borrowed else url)
            await following.create("k", messages=messages(1))

            async def follow() -> None:
                async for _ in following.conversation("k").tail():
                    pass

            reader = asyncio.create_task(follow())
            while channel_of(following.store) is None:
                await asyncio.sleep(0.01)
            await following.close()
            with pytest.raises(StoreClosed, match="closed"):
                await asyncio.wait_for(reader, 10)
            assert channel_of(following.store) is None

    asyncio.run(work())


def test_closing_an_async_tail_removes_the_reader(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k", messages=messages(1))
            async with aclosing(store.conversation("k").tail()) as events:
                await anext(events)
                assert channel_of(store.store).readers == 1
            assert channel_of(store.store) is None

    asyncio.run(work())


@pytest.mark.slow
def test_cancelled_readers_are_removed(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k", messages=messages(1))

            async def follow() -> None:
                async for _ in store.conversation("k").tail():
                    pass

            for milliseconds in range(30):  # before, during and after the first read
                reader = asyncio.create_task(follow())
                await asyncio.wait([reader], timeout=milliseconds / 1000)
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
            await store.run_sync(lambda _: None)
            assert channel_of(store.store) is None

    asyncio.run(work())


def test_waiting_follower_raises_damaged_message_for_a_new_damaged_message(store: Store) -> None:
    store.create("k")
    reader = Follower(store, "k")
    until_waiting(store)
    with store.transaction() as tx:
        tx.conversation("k").append_messages(messages(2))
        with tx._context.snapshot() as connection:
            connection.execute(sa.text("UPDATE lango_message SET extra = '1' WHERE seq = 2"))
    reader.end()
    assert isinstance(reader.error, DamagedMessage)
