"""Workers beside each other: leases that are renewed, sessions that only one worker takes, and clean ends."""

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from support.factories import contents, message
from support.polling import until
from support.processes import Program
from support.working import answer

from lango_store import AsyncConversation, AsyncRunningTurn, AsyncStore, Conversation, Message, RunningTurn, Store

pytestmark = pytest.mark.slow

NEVER = timedelta(days=1)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield a store with the clock of the database, which processes use too."""
    with Store(url) as store:
        yield store


def put(store: Store, *keys: str) -> None:
    for key in keys:
        store.open(key).inbox.put(message("question"))


def is_running(store: Store) -> bool:
    return bool(store.turns.in_progress())


def stopped(worker: threading.Thread) -> bool:
    worker.join(30)
    return not worker.is_alive()


class Working(threading.Thread):
    """A worker in a thread that waits for a day between polls, and ends as if the process got SIGTERM."""

    def __init__(self, store: Store, handle: Any, **options: Any) -> None:
        super().__init__()
        self.store, self.handle = store, handle
        self.options = {"poll": NEVER} | options
        self.start()
        until(lambda: bool(store._context.workers))

    def run(self) -> None:
        self.store.work(self.handle, **self.options)

    def stop(self) -> None:
        for wake in self.store._context.workers:
            wake.__self__._stop()  # type: ignore[attr-defined]
        assert stopped(self)


def test_message_that_the_same_store_puts_is_answered_without_a_poll(store: Store) -> None:
    store.open("k")
    worker = Working(store, answer)
    try:
        put(store, "k")
        until(lambda: len(store.conversation("k").turns.list()) == 1)
    finally:
        worker.stop()


def test_lease_is_renewed_while_a_handler_writes_nothing(store: Store, url: str) -> None:
    put(store, "k")
    began, continues = threading.Event(), threading.Event()

    def handle(own: Conversation, turn: RunningTurn) -> None:
        began.set()
        assert continues.wait(30)
        answer(own, turn)

    worker = Working(store, handle, lease=timedelta(seconds=0.6))
    try:
        assert began.wait(30)
        first = store.conversation("k").turns.in_progress()
        assert first is not None
        with Store(url) as other:
            until(lambda: (now := other.conversation("k").turns.in_progress()) is not None and now.until > first.until)
            until(lambda: other.turns.in_progress()[0].until > first.until + timedelta(seconds=0.6))
            assert other.owed().items == []
    finally:
        continues.set()
        worker.stop()
    assert contents(store.conversation("k").messages()) == ["question", "answer to question"]


def test_workers_take_different_sessions(store: Store, url: str) -> None:
    keys = [f"k{number}" for number in range(40)]
    put(store, *keys)
    handled: Counter[str] = Counter()

    def handle(own: Conversation, turn: RunningTurn) -> None:
        handled[own.key] += 1
        answer(own, turn)

    def run() -> None:
        with Store(url) as own:
            own.work(handle, once=True, concurrency=2)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        assert stopped(each)
    assert handled == Counter(keys)
    assert store.owed().items == []


def test_cancelled_work_gives_its_turns_back_at_once(store: Store) -> None:
    put(store, "k")

    async def main() -> None:
        awaited, began = AsyncStore(store), asyncio.Event()

        async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
            began.set()
            await asyncio.sleep(1_000)

        worker = asyncio.create_task(awaited.work(handle))
        await began.wait()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        await awaited.close()

    asyncio.run(main())
    (owed,) = store.owed().items
    assert (owed.reason, owed.attempts, owed.error) == ("interrupted", 0, None)
    assert store.work(answer, once=True) == 1


def test_handler_of_a_turn_that_lost_its_lease_is_cancelled(store: Store) -> None:
    put(store, "k")

    async def main() -> None:
        awaited, began, cancelled = AsyncStore(store), asyncio.Event(), asyncio.Event()

        async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
            if turn.attempt == 2:
                await turn.append(Message.assistant("answer"))
                return
            began.set()
            try:
                await asyncio.sleep(1_000)
            finally:
                cancelled.set()

        worker = asyncio.create_task(awaited.work(handle, lease=timedelta(seconds=0.3)))
        await began.wait()
        await awaited.conversation("k").turns.release()
        await cancelled.wait()
        while not await awaited.conversation("k").turns.list():
            await asyncio.sleep(0.01)
        worker.cancel()
        await asyncio.wait([worker])
        await awaited.close()

    asyncio.run(main())
    assert contents(store.conversation("k").messages()) == ["question", "answer"]


def test_error_that_a_handler_turns_into_a_cancellation_is_a_failed_attempt(store: Store) -> None:
    put(store, "k")

    async def main() -> None:
        async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
            raise asyncio.CancelledError

        awaited = AsyncStore(store)
        assert await awaited.work(handle, once=True, attempts=2, backoff=timedelta(0)) == 0
        await awaited.close()

    asyncio.run(main())
    (owed,) = store.owed().items
    assert (owed.given_up, owed.attempts, owed.error) == (True, 2, "CancelledError")


SYNC = """
import sys, time
from datetime import timedelta
from lango_store import Message, Store

def handle(conversation, turn):
    print("began", flush=True)
    while not conversation.values.get():
        time.sleep(0.01)
    turn.append(Message.assistant("answer"))

with Store(sys.argv[1]) as store:
    print(store.work(handle, concurrency=1, poll=timedelta(seconds=0.1)))
"""
ASYNC = """
import asyncio, sys
from datetime import timedelta
from lango_store import AsyncStore, Message

async def handle(conversation, turn):
    print("began", flush=True)
    while not await conversation.values.get():
        await asyncio.sleep(0.01)
    await turn.append(Message.assistant("answer"))

async def main():
    async with AsyncStore(sys.argv[1]) as store:
        print(await store.work(handle, concurrency=1, poll=timedelta(seconds=0.1)))

asyncio.run(main())
"""


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
def test_worker_ends_its_turn_and_takes_no_other_after_sigterm(store: Store, url: str, source: str) -> None:
    put(store, "a", "b")
    with Program(source, url) as worker:
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(signal.SIGTERM)
        store.conversation("a").values.set({"go": True})
        out, error = worker.communicate()
    assert (worker.returncode, error, out) == (0, "", "1\n")
    assert [each.key for each in store.owed().items] == ["b"]
    assert contents(store.conversation("a").messages()) == ["question", "answer"]


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
def test_interrupted_worker_gives_its_turn_back_at_once(store: Store, url: str, source: str) -> None:
    put(store, "a")
    with Program(source, url) as worker:
        assert worker.stdout.readline() == "began\n"
        worker.send_signal(signal.SIGINT)
        until(lambda: not is_running(store))
        assert store.work(answer, once=True) == 1
        store.conversation("a").values.set({"go": True})
        worker.communicate()
    assert worker.returncode != 0
    assert contents(store.conversation("a").messages()) == ["question", "answer to question"]
