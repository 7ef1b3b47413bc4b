"""Group commit on SQLite: short writes of several threads of a store share one commit."""

import json
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message
from support.processes import Program, run_program
from support.session_checks import assert_sound

from lango_store import Conflict, DatabaseBusy, DatabaseUnavailable, LangoStoreError, SessionNotFound, Store

pytestmark = pytest.mark.one_database


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    return make_sqlite()


def waiting(store: Store) -> int:
    queue = store._context._connections.queue  # type: ignore[attr-defined]
    return len(queue.waiting)


@contextmanager
def queued(store: Store) -> Iterator[Callable[..., "Future[Any]"]]:
    """Start calls in threads which all wait for a transaction, in this order, until the block ends."""
    with ThreadPoolExecutor(20) as threads, store.transaction():
        started: list[Future[Any]] = []

        def start(call: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
            started.append(threads.submit(call, *args, **options))
            deadline = monotonic() + 30
            while waiting(store) < len(started):
                assert monotonic() < deadline
            return started[-1]

        yield start


def commits(url: str) -> int:
    """Count the commits in the write-ahead log: the last frame of each states the size of the database."""
    log = Path(f"{sa.make_url(url).database}-wal").read_bytes()
    salt, size = log[16:24], struct.unpack(">I", log[8:12])[0]
    frames = [log[start : start + 24] for start in range(32, len(log), 24 + size)]
    return sum(frame[4:8] != bytes(4) for frame in frames if frame[8:16] == salt)


def test_waiting_appends_are_committed_together_in_order_of_arrival(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        before = commits(url)
        with queued(store) as start:
            calls = [start(store.append_message, "k", message(str(number))) for number in range(9)]
        assert [call.result().seq for call in calls] == [*range(1, 10)]
        assert [each.content for each in store.get("k").messages] == [str(number) for number in range(9)]
        assert commits(url) == before + 1


def test_append_without_waiting_threads_is_committed_alone(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        before = commits(url)
        for _ in range(3):
            store.append_message("k", message())
        assert commits(url) == before + 3


def test_error_of_one_write_of_a_group_is_raised_in_its_thread_only(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        store.append_message("k", message(id="stored"))
        with queued(store) as start:
            first = start(store.append_message, "k", message("1"))
            missing = start(store.append_message, "missing", message())
            second = start(store.append_message, "k", message("2"))
            conflict = start(store.append_message, "k", message(), after=1)
            replayed = start(store.append_message, "k", message(id="stored"))
            last = start(store.append_message, "missing", message())
        assert isinstance(missing.exception(), SessionNotFound)
        assert isinstance(last.exception(), SessionNotFound)
        assert isinstance(conflict.exception(), Conflict)
        assert (first.result().seq, second.result().seq) == (2, 3)
        assert (replayed.result().seq, replayed.result().replayed) == (1, True)
        assert store.conversation("k").info().message_count == 3
        assert_sound(store)


def test_write_of_a_group_returns_after_the_commit(url: str) -> None:
    with Store(url) as store, Store(url) as reader:
        store.create("k")

        def append_and_count() -> tuple[int, int]:
            seq = store.append_message("k", message()).seq
            return seq, reader.conversation("k").info().last_seq

        with queued(store) as start:
            calls = [start(append_and_count) for _ in range(9)]
        for call in calls:
            seq, last_seq = call.result()
            assert seq <= last_seq == 9


def test_interrupted_write_of_a_group_is_rolled_back_and_the_others_are_committed(url: str) -> None:
    interrupted = threading.local()

    def interrupt(statement: str, _: float) -> None:
        if getattr(interrupted, "now", False) and statement.startswith("INSERT"):
            raise KeyboardInterrupt

    def append_interrupted() -> None:
        interrupted.now = True
        store.append_message("k", message("lost"))

    with Store(url, on_statement=interrupt) as store:
        store.create("k")
        for position in range(4):
            with queued(store) as start:
                calls = [
                    start(append_interrupted) if number == position else start(store.append_message, "k", message())
                    for number in range(4)
                ]
            assert isinstance(calls.pop(position).exception(), KeyboardInterrupt)
            assert [call.result().role for call in calls] == ["user"] * 3
        assert [each.content for each in store.get("k").messages if each.content == "lost"] == []
        assert store.conversation("k").info().message_count == 12


def test_statements_of_a_group_are_reported_in_their_own_threads(url: str) -> None:
    seen: dict[int, list[str]] = {}

    def note(statement: str, _: float) -> None:
        seen.setdefault(threading.get_ident(), []).append(statement.split()[0])

    with Store(url, on_statement=note) as store:
        store.create("k")
        with queued(store) as start:
            calls = [start(store.append_message, "k", message()) for _ in range(5)]
        wait(calls)
        del seen[threading.get_ident()]
        assert [*seen.values()] == [["UPDATE", "INSERT"]] * 5


def test_write_that_waits_longer_than_the_timeout_raises_database_busy(url: str) -> None:
    with Store(f"{url}?timeout=0.2") as store:
        store.create("k")
        with store.transaction() as tx, ThreadPoolExecutor(1) as threads:
            tx.append_message("k", message())
            late = threads.submit(store.append_message, "k", message())
            with pytest.raises(DatabaseBusy, match=r"other threads wrote for 0\.2 seconds: try again"):
                late.result()
        assert store.append_message("k", message()).seq == 2


def test_waiting_transaction_gets_its_turn_among_appends(url: str) -> None:
    def book() -> int:
        with store.transaction() as tx:
            tx.append_message("k", message("transaction"))
            return tx.append_message("k", message("transaction")).seq

    with Store(url) as store:
        store.create("k")
        with queued(store) as start:
            calls = [start(store.append_message, "k", message()) for _ in range(3)]
            booked = start(book)
            calls += [start(store.append_message, "k", message()) for _ in range(3)]
        assert booked.result() == 5
        assert [call.result().seq for call in calls] == [1, 2, 3, 6, 7, 8]


FULL_DISK = """
import json, resource, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from lango_store import DatabaseUnavailable, Message, Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store(sys.argv[1]) as store:
    store.create("k")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    def work(thread):
        acknowledged = []
        for number in range(1_000):
            try:
                store.append_message("k", Message.user("x" * 2_000, id=f"{thread}-{number}"))
            except DatabaseUnavailable:
                return acknowledged
            acknowledged.append(f"{thread}-{number}")
        return acknowledged + ["no error"]
    with ThreadPoolExecutor(8) as threads:
        print(json.dumps([*threads.map(work, range(8))]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_commit_that_fails_for_a_full_disk_fails_in_each_thread_of_the_group(url: str) -> None:
    run = run_program(FULL_DISK, url)
    assert run.stderr == ""
    acknowledged = json.loads(run.stdout)
    assert all("no error" not in each for each in acknowledged)
    with Store(url) as store:
        stored = {each.id for each in store.get("k").messages}
        assert {id for each in acknowledged for id in each} == stored
        assert_sound(store)


KILLED = """
import sys, threading
from lango_store import Message, Store
store = Store(sys.argv[1])
lock = threading.Lock()
def work(thread):
    for number in range(100_000):
        store.append_message(str(thread), Message.user("x", id=f"{number}"))
        with lock:
            print(thread, number, flush=True)
for thread in range(8):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 60, 500])
def test_killed_process_with_eight_writing_threads_loses_no_acknowledged_message(url: str, after: int) -> None:
    with Store(url) as store:
        for thread in range(8):
            store.create(str(thread))
    with Program(KILLED, url) as process:
        lines = [process.stdout.readline() for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        lines += [line for line in process.stdout if line.endswith("\n")]
    acknowledged: dict[str, int] = {}
    for line in lines:
        thread, number = line.split()
        acknowledged[thread] = int(number) + 1
    with Store(url) as store:
        for name in map(str, range(8)):
            ids = [each.id for each in store.get(name).messages]
            assert ids == [str(number) for number in range(len(ids))]
            assert len(ids) - acknowledged.get(name, 0) in (0, 1)


@pytest.mark.slow
def test_threads_and_transactions_and_processes_lose_and_repeat_nothing(url: str) -> None:
    def append(store: Store, name: str) -> None:
        for number in range(40):
            if number % 8:
                store.append_message("k", message(id=f"{name}-{number}"))
            else:
                with store.transaction() as tx:
                    tx.append_message("k", message(id=f"{name}-{number}"))

    with ExitStack() as stack:
        stores = [stack.enter_context(Store(url)) for _ in range(2)]
        stores[0].create("k")
        with ThreadPoolExecutor(16) as threads:
            for future in [threads.submit(append, stores[name % 2], str(name)) for name in range(16)]:
                future.result()
        ids = [each.id for each in stores[0].get("k").messages]
        assert sorted(str(id) for id in ids) == sorted(f"{name}-{number}" for name in range(16) for number in range(40))
        for name in range(16):
            own = [id for id in ids if str(id).startswith(f"{name}-")]
            assert own == [f"{name}-{number}" for number in range(40)]


def test_writes_of_a_group_whose_transaction_was_rolled_back_are_not_acknowledged(url: str) -> None:
    def drop_connection(statement: str, _: float) -> None:
        if "lango_message" in statement and "fails" in threading.current_thread().name:
            driver().rollback()

    def fail() -> None:
        threading.current_thread().name = "fails"
        store.append_message("k", message())

    def driver() -> Any:
        group = store._context._connections.queue.group  # type: ignore[attr-defined]
        return group.connection.connection

    with Store(url, on_statement=drop_connection) as store:
        store.create("k")
        with queued(store) as start:
            calls = [
                start(store.append_message, "k", message()),
                start(fail),
                start(store.append_message, "k", message()),
            ]
        errors = [call.exception() for call in calls]
        assert isinstance(errors[0], DatabaseUnavailable)
        assert isinstance(errors[1], LangoStoreError)
        assert calls[2].result().seq == 1
        assert store.conversation("k").info().message_count == 1
