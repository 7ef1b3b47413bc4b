"""Cancelled calls of `AsyncStore`: a read ends at once, a write when its outcome is known."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.factories import message, messages

from lango_store import AsyncStore, Conflict, ExpiryReport, Message, Store, StoreClosed, create_engine
from lango_store._connections import cancellation


class Gate:
    """Block a thread until the test opens the gate."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a call in a thread has begun to write."""
    event, begin_write = threading.Event(), cancellation.begin_write

    def begin_write_and_set() -> None:
        begin_write()
        event.set()

    monkeypatch.setattr(cancellation, "begin_write", begin_write_and_set)
    return event


@contextmanager
def writes_locked_out(url: str) -> Iterator[Callable[[], None]]:
    """Hold the lock that every write needs until the caller releases it."""
    engine = create_engine(url)
    with engine.connect() as connection:
        lock = "LOCK TABLE lango_session, lango_message, lango_turn IN EXCLUSIVE MODE"
        connection.exec_driver_sql("DELETE FROM lango_turn WHERE false" if engine.dialect.name == "sqlite" else lock)
        yield connection.rollback
    engine.dispose()


@asynccontextmanager
async def opened(url: str, begun: threading.Event | None = None, **options: Any) -> AsyncIterator[AsyncStore]:
    """Open a store with a session `k` of two messages and clear `begun`."""
    engine = create_engine(url, pool_size=options.pop("pool_size", 4), max_overflow=0)
    async with AsyncStore(engine, **options) as store:
        await store.open("k", messages=messages(2, tokens=1))
        if begun is not None:
            begun.clear()
        yield store
    engine.dispose()


async def wait_for(happened: threading.Event) -> None:
    assert await asyncio.to_thread(happened.wait, 60)


async def run_event_loop() -> None:
    """Run the event loop until every task that is not blocked has advanced."""
    for _ in range(100):
        await asyncio.sleep(0)


def contents(url: str) -> list[Any]:
    with Store(url) as store:
        return [each.content for each in store.conversation("k").all_messages()]


WRITES: dict[str, tuple[Callable[[AsyncStore], Awaitable[object]], Callable[[Store], object]]] = {
    "append_message": (
        lambda store: store.append_message("k", message("new", id="one")),
        lambda store: store.conversation("k").find_message("one"),
    ),
    "append_messages": (
        lambda store: store.conversation("k").append_messages([message("new", id="one")], replace_after=1),
        lambda store: store.conversation("k").find_message("one"),
    ),
    "create": (lambda store: store.create("other"), lambda store: store.exists("other")),
    "open": (
        lambda store: store.open("other", messages=[message()]),
        lambda store: store.conversation("other").messages(),
    ),
    "update": (
        lambda store: store.conversation("k").update(title="new"),
        lambda store: store.conversation("k").info().title == "new",
    ),
    "touch": (
        lambda store: store.touch("k", ttl=timedelta(days=1)),
        lambda store: store.conversation("k").info().expires_at,
    ),
    "delete": (lambda store: store.delete("k"), lambda store: not store.exists("k")),
    "pop_message": (
        lambda store: store.conversation("k").pop_message(),
        lambda store: store.conversation("k").info().message_count == 1,
    ),
    "save_turn": (
        lambda store: store.conversation("k").save_turn([message()], {"tokens": 1}),
        lambda store: store.conversation("k").info().turn_count,
    ),
    "compact": (
        lambda store: store.conversation("k").compact(lambda window: message("summary")),
        lambda store: store.conversation("k").info().summary_turn,
    ),
    "fork": (lambda store: store.conversation("k").fork("other"), lambda store: store.exists("other")),
}


@pytest.mark.parametrize("method", WRITES)
def test_cancelled_waiting_write_raises_only_after_its_commit(url: str, method: str, begun: threading.Event) -> None:
    write, landed = WRITES[method]

    async def work() -> None:
        async with opened(url, begun) as store:
            with writes_locked_out(url) as release:
                task = asyncio.ensure_future(write(store))
                await wait_for(begun)
                for _ in range(2):
                    task.cancel()
                    await run_event_loop()
                    assert not task.done()
                release()
                with pytest.raises(asyncio.CancelledError) as raised:
                    await task
            assert raised.value.__cause__ is None
            with Store(url) as another:
                assert landed(another)

    asyncio.run(work())


@pytest.mark.parametrize("expired", [["inner"], ["inner", "outer"]])
def test_timed_out_write_is_committed_before_timeout_error_is_raised(
    url: str, begun: threading.Event, expired: list[str]
) -> None:
    async def work() -> None:
        deadlines: dict[str, asyncio.Timeout] = {}

        async def append(store: AsyncStore) -> str:
            try:
                async with asyncio.timeout(None) as deadlines["outer"]:
                    try:
                        async with asyncio.timeout(None) as deadlines["inner"]:
                            await store.append_message("k", message("new"))
                    except TimeoutError:
                        return "inner"
            except TimeoutError:
                return "outer"
            return "none"

        async with opened(url, begun) as store:
            with writes_locked_out(url) as release:
                task = asyncio.create_task(append(store))
                await wait_for(begun)
                for name in expired:
                    deadlines[name].reschedule(asyncio.get_running_loop().time())
                    await run_event_loop()
                assert not task.done()
                release()
                assert await task == expired[-1]
            assert contents(url)[-1] == "new"

    asyncio.run(work())


def test_asyncio_run_waits_for_running_writes_before_it_returns(url: str, begun: threading.Event) -> None:
    async def release_when_cancelled(release: Callable[[], None]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await run_event_loop()
            release()

    async def work(store: AsyncStore, release: Callable[[], None]) -> list[asyncio.Task[Any]]:
        releaser = asyncio.create_task(release_when_cancelled(release))
        append = asyncio.create_task(store.append_message("k", message("new")))
        await wait_for(begun)
        return [releaser, append]

    with Store(url) as store:
        store.create("k")
        begun.clear()
        with writes_locked_out(url) as release:
            tasks = asyncio.run(work(AsyncStore(store), release))
            assert all(task.cancelled() for task in tasks)
            assert contents(url) == ["new"]


def test_cancelled_error_has_the_conflict_of_the_write_as_cause(url: str, begun: threading.Event) -> None:
    async def work() -> None:
        async with opened(url, begun) as store:
            with writes_locked_out(url) as release:
                task = asyncio.create_task(store.append_message("k", message("new"), after=1))
                await wait_for(begun)
                task.cancel()
                await run_event_loop()
                release()
                with pytest.raises(asyncio.CancelledError) as raised:
                    await task
            assert isinstance(raised.value.__cause__, Conflict)
            assert len(contents(url)) == 2

    asyncio.run(work())


def test_write_that_is_cancelled_while_waiting_for_a_thread_is_not_executed(url: str, begun: threading.Event) -> None:
    async def work() -> None:
        async with opened(url, begun, pool_size=1) as store:
            with writes_locked_out(url) as release:
                first = asyncio.create_task(store.append_message("k", message("first")))
                await wait_for(begun)
                second = asyncio.create_task(store.append_message("k", message("second")))
                await run_event_loop()
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
                assert not first.done()
                release()
                await first
        assert contents(url)[2:] == ["first"]

    asyncio.run(work())


def test_append_that_is_cancelled_before_it_writes_stores_nothing(url: str) -> None:
    gate = Gate()

    def count(_: Message) -> int:
        gate.wait()
        return 1

    async def work() -> None:
        async with opened(url, token_counter=count) as store:
            task = asyncio.create_task(store.append_message("k", message("new")))
            await wait_for(gate.reached)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
        assert len(contents(url)) == 2

    asyncio.run(work())


def test_turn_that_is_cancelled_a_second_time_while_ending_still_stores_its_draft(
    url: str, begun: threading.Event
) -> None:
    async def answer(store: AsyncStore, written: asyncio.Event) -> None:
        async with store.conversation("k").turn() as turn:
            await turn.write("stored, ")
            await turn.write("collected")
            written.set()
            await asyncio.Event().wait()

    async def work() -> None:
        async with opened(url, pool_size=1) as store:
            written = asyncio.Event()
            task = asyncio.create_task(answer(store, written))
            await written.wait()
            begun.clear()
            with writes_locked_out(url) as release:
                other = asyncio.create_task(store.append_message("k", message()))  # occupies the only thread
                await wait_for(begun)
                for _ in range(2):  # a cancelled scope of anyio cancels each await
                    task.cancel()
                    await run_event_loop()
                release()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await other
            conversation = store.conversation("k")
            assert await conversation.turns.in_progress() is None
            assert [draft.text for draft in await conversation.drafts.list()] == ["stored, collected"]

    asyncio.run(work())


@pytest.mark.parametrize("method", ["get", "open", "history", "iter_messages", "iter_sessions", "compact"])
def test_call_that_is_cancelled_while_it_reads_ends_at_once_and_writes_nothing(url: str, method: str) -> None:
    gate, blocked = Gate(), threading.Event()

    def clock() -> datetime:
        if blocked.is_set():
            gate.wait()
        return datetime.now(UTC)

    async def collect(items: AsyncIterator[object]) -> list[object]:
        return [each async for each in items]

    async def work() -> None:
        async with opened(url, clock=clock) as store:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "get": lambda: store.get("k"),
                "open": lambda: store.open("other"),
                "history": lambda: store.conversation("k").history(),
                "iter_messages": lambda: collect(store.conversation("k").iter_messages()),
                "iter_sessions": lambda: collect(store.iter_sessions()),
                "compact": lambda: store.conversation("k").compact(lambda window: message("summary")),
            }
            blocked.set()
            task = asyncio.ensure_future(calls[method]())
            await wait_for(gate.reached)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            assert len(await store.conversation("k").messages()) == 2  # the store still works
        with Store(url) as another:
            assert [info.message_count for info in another.list_sessions().items] == [2]

    asyncio.run(work())


def test_cancelled_compact_cancels_the_summarizer_and_changes_nothing(url: str) -> None:
    async def work() -> None:
        started = asyncio.Event()

        async def summarize(_: list[Message]) -> Message:
            started.set()
            await asyncio.Event().wait()
            return message("summary")

        async with opened(url) as store:
            task = asyncio.create_task(store.conversation("k").compact(summarize))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await store.conversation("k").info()).summary_turn is None

    asyncio.run(work())


def test_cancelled_purge_ends_after_the_current_batch(url: str) -> None:
    gate = Gate()
    reports: list[ExpiryReport] = []

    def on_batch(report: ExpiryReport) -> None:
        reports.append(report)
        gate.wait()

    async def work() -> None:
        async with opened(url) as store:
            for n in range(3):
                await store.create(f"old:{n}")
            task = asyncio.create_task(store.expire(older_than=timedelta(0), batch_size=1, on_batch=on_batch))
            await wait_for(gate.reached)
            task.cancel()
            await run_event_loop()
            assert not task.done()
            gate.open()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
            assert raised.value.__cause__ is None
            assert (await store.count(), len(reports)) == (3, 1)

    asyncio.run(work())


def test_cancelled_close_still_closes_the_store(url: str, begun: threading.Event) -> None:
    async def work() -> AsyncStore:
        store = AsyncStore(url)
        await store.create("k")
        begun.clear()
        with writes_locked_out(url) as release:
            append = asyncio.create_task(store.append_message("k", message("new")))
            await wait_for(begun)
            closing = asyncio.create_task(store.close())
            await run_event_loop()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            release()
            await append
        return store

    store = asyncio.run(work())  # waits for the thread that closes the store
    with pytest.raises(StoreClosed, match="closed"):
        store.store.ping()
    assert contents(url) == ["new"]
