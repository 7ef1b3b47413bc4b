"""Readers that wait: messages of this and of other processes, shared reads, and readers that are late."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from support.factories import contents, message, messages
from support.following import Follower, channel_of, follower, until_waiting
from support.polling import until
from support.processes import Program

from lango_store import (
    Appended,
    AsyncStore,
    Changed,
    Message,
    Store,
    create_engine,
)
from lango_store._rooms.tail import watcher
from lango_store._rooms.tail.following import watcher_of
from lango_store.testing import Clock


def watchers() -> int:
    return sum(thread.name == "lango_store_watcher" for thread in threading.enumerate())


@pytest.fixture
def other(url: str, clock: Clock) -> Iterator[Store]:
    """Yield another store on the database, whose writes this one finds by polling."""
    with Store(url, clock=clock) as yielded:
        yield yielded


@pytest.mark.slow
def test_follower_gets_messages_of_this_store_and_of_other_stores(store: Store, other: Store) -> None:
    store.create("k", messages=messages(2))
    with follower(store) as reader:
        until_waiting(store)
        for writer in (store, other) * 5:
            stored = writer.append_message("k", message("new"))
            reader.wait(lambda stored=stored: reader.messages[-1:] == [stored])  # type: ignore[misc]
        assert reader.messages == store.conversation("k").all_messages()


@pytest.mark.slow
def test_follower_gets_messages_of_another_process(url: str) -> None:
    source = (
        "import sys; from lango_store import *\nwith Store(sys.argv[1]) as s: s.append_message('k', Message.user('x'))"
    )
    with Store(url) as store:
        store.create("k")
        with follower(store) as reader:
            until_waiting(store)
            with Program(source, url) as process:
                process.wait()
            assert contents(reader.wait_for_messages(1)) == ["x"]


def test_follower_gets_messages_appended_through_the_callers_connection(engine: sa.Engine) -> None:
    # Such a write does not wake the watcher, which finds it by polling.
    with Store(engine) as store:
        store.create("k")
        with follower(store) as reader:
            until_waiting(store)
            for number in range(3):
                with engine.begin() as connection:
                    store.using(connection).append_message("k", message(f"{number}"))
                reader.wait_for_messages(number + 1)


def test_follower_gets_committed_but_not_rolled_back_messages(store: Store) -> None:
    store.create("k")
    with follower(store) as reader:
        until_waiting(store)
        with suppress(ZeroDivisionError), store.transaction() as tx:
            tx.append_message("k", message("undone"))
            raise ZeroDivisionError
        with store.transaction() as tx:
            tx.append_message("k", message("stored"))
        assert contents(reader.wait_for_messages(1)) == ["stored"]


def test_followers_get_changes(store: Store) -> None:
    conversation = store.open("k", messages=messages(3))
    with follower(store) as reader:
        until_waiting(store)
        conversation.truncate(after=1)
        conversation.edits.redact(1)
        reader.wait(lambda: len(reader.events) == 3)
        assert [event.kind for event in reader.events if isinstance(event, Changed)] == ["truncate", "redact"]


def test_followers_of_different_sessions_get_only_messages_of_their_session(store: Store, other: Store) -> None:
    keys = ["a", "b", "a/child"]
    for key in keys:
        store.create(key)
    readers = [Follower(store, key) for key in keys]
    for key in keys:
        until_waiting(store, key=key)
    for number in range(6):
        other.append_message(keys[number % 3], message(keys[number % 3]))
    for key, reader in zip(keys, readers, strict=True):
        assert contents(reader.wait_for_messages(2)) == [key, key]
        store.delete(key)
        reader.end()


# Shared reads


@pytest.mark.slow
def test_readers_at_the_end_of_the_log_share_one_database_read(url: str, engine: sa.Engine) -> None:
    texts: list[str] = []
    with Store(engine, on_statement=lambda text, _: texts.append(text)) as store, Store(url) as other:
        store.create("k")
        readers = [Follower(store, "k") for _ in range(10)]
        until_waiting(store, readers=10)
        until(lambda: channel_of(store).head is not None)
        texts.clear()
        for number in range(5):
            other.append_message("k", message(f"{number}"))
            for reader in readers:
                reader.wait_for_messages(number + 1)
        assert sum("FROM lango_message" in text for text in texts) == 5
        first = readers[0].events
        assert all(reader.events[-1] is first[-1] for reader in readers)
        store.delete("k")
        for reader in readers:
            reader.end()


@pytest.mark.slow
def test_reader_that_lags_behind_reads_from_the_database_until_it_has_caught_up(store: Store) -> None:
    conversation = store.open("k")
    late = store.conversation("k").tail()
    with follower(store) as reader:
        until_waiting(store)
        conversation.append_message(message("first"))
        assert isinstance(next(late), Appended)
        for number in range(30):  # more batches than the watcher keeps
            conversation.append_message(message(f"{number}"))
            reader.wait_for_messages(number + 2)
        seen = 1
        while seen < 31:
            event = next(late)
            assert isinstance(event, Appended)
            seen += len(event.messages)
        assert seen == 31
        thread = threading.Thread(target=lambda: conversation.append_message(message("last")))
        thread.start()
        event = next(late)
        thread.join()
        assert isinstance(event, Appended)
        assert contents(event.messages) == ["last"]
        late.close()


def test_reader_that_lags_behind_gets_no_text_that_was_redacted_meanwhile(store: Store) -> None:
    conversation = store.open("k", messages=messages(1))
    late = store.conversation("k").tail()
    next(late)
    with follower(store) as reader:
        until_waiting(store, readers=2)
        secret = conversation.append_message(message("secret"))
        reader.wait_for_messages(2)
        conversation.edits.redact(secret.seq)
        reader.wait(lambda: isinstance(reader.events[-1], Changed))
        event = next(late)
        assert isinstance(event, Appended)
        assert contents(event.messages) == ["(redacted)"]
        late.close()


def test_follower_gets_messages_of_this_store_without_polling(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_LONGEST", 1e6)
    monkeypatch.setattr(watcher, "_QUIET_SHARE", 1e9)
    conversation = store.open("k")
    with follower(store) as reader:
        until_waiting(store)
        for number in range(5):
            conversation.append_message(message(f"{number}"))
            reader.wait_for_messages(number + 1)
        with store.transaction() as tx:
            tx.append_message("k", message("in a transaction"))
        reader.wait_for_messages(6)


def test_waiting_readers_hold_no_connection_and_no_thread(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(create_engine(url, pool_size=1)) as store:
            await store.create("k")
            received: list[Message] = []

            async def follow() -> None:
                async for event in store.conversation("k").tail():
                    if isinstance(event, Appended):
                        received.extend(event.messages)

            readers = [asyncio.create_task(follow()) for _ in range(50)]
            while (channel := channel_of(store.store)) is None or channel.readers < 50:
                await asyncio.sleep(0.01)
            for number in range(3):
                await asyncio.wait_for(store.append_message("k", message(f"{number}")), 10)
            while len(received) < 150:
                await asyncio.sleep(0.01)
            await store.delete("k")
            await asyncio.gather(*readers)
            store.engine.dispose()

    asyncio.run(work())


@pytest.mark.slow
def test_watcher_measures_how_long_readers_take(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k")
            watching = watcher_of(store.store._context)

            async def follow() -> None:
                async for _ in store.conversation("k").tail():
                    started = time.perf_counter()
                    while time.perf_counter() - started < 0.02:
                        """The reader uses the processor."""

            readers = [asyncio.create_task(follow()) for _ in range(3)]
            while (channel := channel_of(store.store)) is None or channel.readers < 3:
                await asyncio.sleep(0.01)
            await store.append_message("k", message())
            while watching._delivery < 0.06:
                await asyncio.sleep(0.01)
            await store.delete("k")
            await asyncio.gather(*readers)

    asyncio.run(work())


@pytest.mark.slow
def test_many_threads_follow_one_session(store: Store) -> None:
    store.create("k")

    def follow(_: int) -> list[Any]:
        contents: list[Any] = []
        for event in store.conversation("k").tail():
            if isinstance(event, Appended):
                contents += [each.content for each in event.messages]
            if contents[-1:] == ["last"]:
                return contents
        raise AssertionError("the session has ended")

    with ThreadPoolExecutor(20) as pool:
        results = [pool.submit(follow, number) for number in range(20)]
        for number in range(50):
            store.append_message("k", message(number))
        store.append_message("k", message("last"))
        assert [each.result(60) for each in results] == [[*range(50), "last"]] * 20
