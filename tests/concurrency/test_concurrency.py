"""Concurrent and killed writers: no acknowledged message is lost, and none is stored twice."""

import contextlib
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.locks import until_one_waits
from support.processes import Program

from lango_store import DatabaseBusy, Message, SessionNotFound, Store, Turn, create_engine


@pytest.fixture
def store(either_store: Store) -> Store:
    """Run each test with `Store` and with `AsyncStore`."""
    return either_store


WRITERS, MESSAGES_EACH = 8, 40

WRITER = """
import sys
from lango_store import Message, Store
with Store(sys.argv[1]) as store:
    print(flush=True)
    sys.stdin.readline()
    for n in range(int(sys.argv[3])):
        store.append_message("k", Message(role="user", content=n, author=sys.argv[2]))
"""


def assert_complete(store: Store) -> None:
    session = store.get("k")
    assert [m.seq for m in session.messages] == list(range(1, WRITERS * MESSAGES_EACH + 1))
    assert (session.last_seq, session.message_count) == (WRITERS * MESSAGES_EACH, WRITERS * MESSAGES_EACH)
    for writer in range(WRITERS):
        assert [m.content for m in session.messages if m.author == f"w{writer}"] == list(range(MESSAGES_EACH))


def run_in_threads(number: int, work: Callable[[int], None]) -> None:
    barrier = Barrier(number)

    def start(n: int) -> None:
        barrier.wait()
        work(n)

    with ThreadPoolExecutor(number) as pool:
        list(pool.map(start, range(number)))


@pytest.mark.slow
def test_all_messages_that_eight_threads_append_to_one_session_are_stored(store: Store) -> None:
    store.create("k")

    def write(writer: int) -> None:
        for n in range(MESSAGES_EACH):
            store.append_message("k", message(n, author=f"w{writer}"))

    run_in_threads(WRITERS, write)
    assert_complete(store)


@pytest.mark.slow
def test_all_messages_that_eight_threads_append_to_a_store_in_memory_are_stored() -> None:
    with Store("sqlite://", migrate=True) as store:
        store.create("k")

        def write(writer: int) -> None:
            for n in range(MESSAGES_EACH):
                store.append_message("k", message(n, author=f"w{writer}"))

        run_in_threads(WRITERS, write)
        assert_complete(store)


def start_together(program: str, *arguments: list[str]) -> list[Program]:
    """Start a process for each list of arguments and release all once each has written a first line."""
    started = [Program(program, *each) for each in arguments]
    for process in started:
        assert process.stdout.readline() == "\n"
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    return started


@pytest.mark.slow
def test_all_messages_that_eight_processes_append_to_one_session_are_stored(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        running = start_together(WRITER, *([url, f"w{n}", str(MESSAGES_EACH)] for n in range(WRITERS)))
        assert [process.communicate(timeout=100)[1] for process in running] == [""] * WRITERS
        assert_complete(store)


def test_concurrent_get_or_create_creates_each_session_once(store: Store) -> None:
    keys = [f"k{n}" for n in range(20)]

    def make(writer: int) -> None:
        for key in keys:
            store.open(key, title=f"w{writer}", messages=messages(2))

    run_in_threads(6, make)
    assert store.count() == len(keys)
    assert all(len(store.get(key).messages) == 2 for key in keys)


@pytest.mark.slow
def test_message_that_concurrent_writers_append_with_one_id_is_stored_once(store: Store) -> None:
    store.create("k")

    def send(writer: int) -> None:
        for n in range(20):
            store.append_message("k", message(n, id=f"id{n}"))
            store.conversation("k").append_messages([message(n, id=f"id{n}"), message(n, id=f"batch{n}")])

    run_in_threads(6, send)
    info = store.conversation("k").info()
    assert (info.message_count, info.last_seq) == (40, 40)
    assert len({m.id for m in store.conversation("k").messages()}) == 40


SENDS: dict[str, Callable[[Store], Message | Turn]] = {
    "message": lambda store: store.append_message("k", message(id="a")),
    "turn": lambda store: store.conversation("k").save_turn(messages(2), id="t"),
    "turn by its messages": lambda store: store.conversation("k").save_turn([message(id="b")]),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=list(SENDS))
def test_repeated_append_waits_until_the_first_append_is_committed(
    make_postgres: MakeDatabase, send: Callable[[Store], Message | Turn]
) -> None:
    def again(store: Store) -> Message | Turn:
        with store.engine.begin() as connection:
            return send(store.using(connection))

    with Store(make_postgres()) as store, ThreadPoolExecutor(1) as pool:
        store.create("k")
        with store.engine.begin() as connection:
            first = send(store.using(connection))
            repeated = pool.submit(again, store)
            until_one_waits(store.engine)
        assert repeated.result() == first.model_copy(update={"replayed": True})
        assert not first.replayed


@pytest.mark.slow
def test_session_loaded_during_writes_has_counters_that_match_the_messages(store: Store) -> None:
    """The counters of a session agree with its messages while other threads write."""
    store.create("k", messages=messages(5))
    rounds = 60

    def work(n: int) -> None:
        if n == 0:
            for _ in range(rounds):
                store.conversation("k").append_messages(messages(3))
                store.conversation("k").truncate(after=store.conversation("k").info().last_seq - 3)
                store.conversation("k").clear()
                store.conversation("k").append_messages(messages(5))
        else:
            for _ in range(rounds * 2):
                session = store.get("k")
                assert len(session.messages) == session.message_count
                assert all(m.seq <= session.last_seq for m in session.messages)

    run_in_threads(3, work)


@pytest.mark.slow
def test_load_never_mixes_a_deleted_session_with_a_new_session_of_the_same_key(store: Store) -> None:
    def same_messages(n: int) -> list[Message]:
        return [message(n)] * 3

    store.create("k", title="0", messages=same_messages(0))

    def work(n: int) -> None:
        for number in range(1, 60):
            if n == 0:
                store.delete("k")
                store.create("k", title=str(number), messages=same_messages(number))
            else:
                with contextlib.suppress(SessionNotFound):
                    session = store.get("k")
                    assert [m.content for m in session.messages] == [int(session.title or -1)] * 3

    run_in_threads(3, work)


KILLED = """
import sys
from lango_store import Message, Store
store = Store(sys.argv[1])
n = 0
while True:
    n += 1
    stored = store.append_message("k", Message(role="user", content=n))
    print(stored.seq, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 50])
def test_killed_process_loses_no_acknowledged_message(url: str, after: int) -> None:
    with Store(url) as store:
        store.create("k")
    with Program(KILLED, url) as process:
        acknowledged = [int(process.stdout.readline()) for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout]
    with Store(url) as again:
        stored = again.conversation("k").messages()
        assert [m.seq for m in stored] == list(range(1, len(stored) + 1))
        assert len(stored) in (len(acknowledged), len(acknowledged) + 1)
        assert again.append_message("k", message()).seq == len(stored) + 1


OPENER = """
import sys
from lango_store import Message, Store, schema
print(flush=True)
for url in sys.argv[1:]:
    sys.stdin.readline()
    with Store(url, migrate=True) as store:
        store.open("k")
        store.append_message("k", Message(role="user", content=1))
    print(flush=True)
"""


@pytest.mark.slow
def test_six_processes_can_migrate_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/new{attempt}.db" for attempt in range(2)]
    running = start_together(OPENER, *[urls] * 6)
    for last, url in zip((False, True), urls, strict=True):
        assert [process.stdout.readline() for process in running] == ["\n"] * 6
        with Store(url) as store:
            assert store.conversation("k").info().message_count == 6
        for process in running if not last else ():
            process.stdin.write("go\n")
            process.stdin.flush()
    assert [process.communicate(timeout=100)[1] for process in running] == [""] * 6


def test_append_to_a_locked_file_raises_database_busy(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    holder = create_engine(url)
    with Store(create_engine(url, connect_args={"timeout": 0.1})) as store:
        store.create("k")
        with holder.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(DatabaseBusy, match="try again"):
                store.append_message("k", message())
        assert store.append_message("k", message()).seq == 1
    holder.dispose()


@pytest.mark.slow
@not_on_a_cluster("lock_timeout of a connection does not reach the workers; ALTER ROLE … SET lock_timeout does")
def test_append_to_a_locked_session_raises_database_busy_after_lock_timeout(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with (
        Store(f"{url}&options=-clock_timeout%3D100") as store,
        Store(url) as other,
        other.engine.connect() as connection,
    ):
        store.create("k")
        other.using(connection).append_message("k", message())
        with pytest.raises(DatabaseBusy):
            store.append_message("k", message())
        connection.commit()
        assert store.append_message("k", message()).seq == 2
