"""Workers beside each other: leases that are renewed, sessions that only one worker takes, and clean ends."""

import asyncio
import os
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

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    Conversation,
    DatabaseUnavailable,
    Message,
    RunningTurn,
    Store,
)
from lango_store._rooms.turns_in_progress import claims

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
    return bool(store.turns.list_in_progress().items)


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
        until(lambda: bool(store._context.after_transact))

    def run(self) -> None:
        self.store.work(self.handle, **self.options)

    def stop(self) -> None:
        for wake in self.store._context.after_transact:
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
            until(lambda: other.turns.list_in_progress().items[0].until > first.until + timedelta(seconds=0.6))
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


def run_async(store: Store, handle: Any, **options: Any) -> int:
    """Call `AsyncStore.work(once=True)`."""

    async def main() -> int:
        awaited = AsyncStore(store)
        try:
            return await awaited.work(handle, once=True, **options)
        finally:
            await awaited.close()

    return asyncio.run(main())


def test_handler_that_the_application_cancels_has_failed(store: Store) -> None:
    put(store, "k")
    calls = 0

    async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
        nonlocal calls
        calls += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1_000)

    assert run_async(store, handle) == 0
    (owed,) = store.owed().items
    assert (calls, owed.attempts, owed.error, owed.given_up) == (1, 1, "CancelledError", False)
    assert owed.due_at is not None
    assert store.work(answer, once=True) == 0  # it waits for its next attempt


def test_turn_of_a_task_that_is_cancelled_before_it_begins_ends_with_its_lease(store: Store) -> None:
    put(store, "k")

    async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
        await turn.append(Message.assistant("answer"))

    async def main() -> None:
        def create(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            task = asyncio.Task(coroutine, loop=loop, **options)
            if coroutine.__name__ == "run" and not cancelled:
                cancelled.append(task)
                task.cancel()
            return task

        cancelled: list[Any] = []
        asyncio.get_running_loop().set_task_factory(create)
        awaited = AsyncStore(store)
        assert await awaited.work(handle, once=True, lease=timedelta(seconds=0.3)) == 0
        assert len(cancelled) == 1
        while not await awaited.work(handle, once=True):
            await asyncio.sleep(0.01)
        await awaited.close()

    asyncio.run(main())
    assert contents(store.conversation("k").messages()) == ["question", "answer"]


def test_turns_of_all_tasks_that_are_cancelled_at_once_are_given_back(store: Store) -> None:
    """As at the end of `asyncio.run`, which cancels the worker and its handlers."""
    put(store, "k")

    async def main() -> None:
        awaited, began = AsyncStore(store), asyncio.Event()

        async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
            began.set()
            await asyncio.sleep(1_000)

        worker = asyncio.create_task(awaited.work(handle))
        await began.wait()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        await asyncio.wait([worker])
        await awaited.close()

    asyncio.run(main())
    (owed,) = store.owed().items
    assert (owed.reason, owed.attempts, owed.error) == ("interrupted", 0, None)


def test_handler_of_the_application_for_sigterm_is_called_and_restored(store: Store) -> None:
    put(store, "a", "b")
    received: list[int] = []

    def own_handler(number: int, frame: object) -> None:
        received.append(number)

    def handle(own: Conversation, turn: RunningTurn) -> None:
        answer(own, turn)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: bool(received))

    before = signal.signal(signal.SIGTERM, own_handler)
    try:
        assert store.work(handle, concurrency=1) == 1
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is own_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [each.key for each in store.owed().items] == ["b"]


def test_handler_for_sigterm_that_is_set_during_the_work_stays(store: Store) -> None:
    put(store, "k")

    def own_handler(number: int, frame: object) -> None:
        pass

    async def handle(own: AsyncConversation, turn: AsyncRunningTurn) -> None:
        signal.signal(signal.SIGTERM, own_handler)

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run_async(store, handle) == 1
        assert signal.getsignal(signal.SIGTERM) is own_handler
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.one_database
@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x", "sqlite:////no/such/folder/agent.db"])
def test_work_once_raises_if_the_database_cannot_be_reached(url: str) -> None:
    with Store(url) as store, pytest.raises(DatabaseUnavailable):
        store.work(answer, once=True)


def test_worker_waits_for_a_database_that_cannot_be_reached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, failed = claims.is_any_due, threading.Event()

    def fail_once(*arguments: Any) -> bool:
        if not failed.is_set():
            failed.set()
            raise DatabaseUnavailable("no server")
        return ask(*arguments)

    monkeypatch.setattr(claims, "is_any_due", fail_once)
    put(store, "k")
    worker = Working(store, answer, poll=timedelta(milliseconds=50))
    try:
        until(lambda: bool(store.conversation("k").turns.list()))
    finally:
        worker.stop()
    assert failed.is_set()


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
        (owed,) = store.owed().items
        assert (owed.reason, owed.attempts, owed.error) == ("interrupted", 0, None)
        assert store.work(answer, once=True) == 1
        store.conversation("a").values.set({"go": True})
        worker.communicate()
    assert worker.returncode != 0
    assert contents(store.conversation("a").messages()) == ["question", "answer to question"]
