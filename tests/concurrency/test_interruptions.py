"""Interrupted anywhere between taking a connection and giving it back, a store has all its connections."""

import contextlib
import gc
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import base as engines
from sqlalchemy.engine import cursor
from support.databases import MakeDatabase
from support.factories import message, messages
from support.locks import until_one_waits

from lango_store import DatabaseBusy, LangoStoreError, Store, create_engine
from lango_store._connections import providers
from lango_store._dialect import base, postgresql, sqlite, statement
from lango_store._engine import pool

# Before 2.1 SQLAlchemy itself loses a connection whose return is interrupted there.
LOSING = pool.given_back.__code__ if sa.__version__.startswith("2.0.") else None
OURS = {module.__file__ for module in (providers, base, postgresql, sqlite, pool, statement)}


@pytest.fixture(autouse=True)
def nobody_listens_to_the_collector() -> Iterator[None]:
    """Remove other tools' callbacks: an interruption inside one of them would be lost."""
    listening = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(listening)


class Interrupted(BaseException):
    """What a signal's handler raises, between any two lines."""


def interrupt_at(line: int, call: Callable[[], object], files: set[Any] = OURS) -> bool:
    """Call, raising at the n-th line that runs in these files; False if there were fewer."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files or frame.f_code is LOSING:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    assert seen < line, "the interruption was swallowed"
    return False


def places(call: Callable[[], object], files: set[Any]) -> list[int]:
    """Call, and return the numbers of the lines in these files that run for the last time."""
    last: dict[tuple[str, int], int] = {}
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files or frame.f_code is LOSING:
            return None
        if event == "line":
            seen += 1
            last[frame.f_code.co_filename, frame.f_lineno] = seen
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return sorted(last.values())


@pytest.mark.parametrize("verb", ["append", "load", "several"])
def test_an_interruption_at_any_line_takes_no_connection_away(url: str, verb: str) -> None:
    engine: Any = create_engine(url, pool_size=2, pool_timeout=5)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message())
        verbs: dict[str, Callable[[], object]] = {
            "append": lambda: store.append_message("k", message()),
            "load": lambda: store.get("k"),
            "several": lambda: store.append_messages("k", [message()], replace_after=1),
        }
        call = verbs[verb]
        line = 1
        while interrupt_at(line, call):
            line += 1
            assert engine.pool.checkedout() == 0, line
            call()
        assert line > 10
        with engine.connect() as connection:  # and its transactions can be rolled back
            connection.exec_driver_sql("DELETE FROM lango_message")
            connection.rollback()
        found = store.get("k")
        assert found.message_count == len(found.messages)
    engine.dispose()


@pytest.mark.filterwarnings("ignore:transaction already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("verb", ["replace_after", "truncate", "expire"])
def test_interrupted_call_leaves_no_lock_on_the_file(make_sqlite: MakeDatabase, verb: str) -> None:
    """Without the garbage collector: another connection writes at once, whatever SQLAlchemy was about to do."""
    url = make_sqlite()
    files = OURS | {each.__file__ for each in (contextlib, engines, cursor)}
    engine, other_engine = create_engine(url), create_engine(url, connect_args={"timeout": 0})
    keys = (f"expired {n}" for n in itertools.count())
    gc.disable()
    try:
        with Store(engine) as store, Store(other_engine) as other:
            other.create("k", messages=messages(2))
            verbs: dict[str, Callable[[], object]] = {
                "replace_after": lambda: store.append_messages("k", [message()], replace_after=2),
                "truncate": lambda: store.conversation("k").truncate(after=2),
                "expire": store.expire,
            }

            def write() -> None:
                assert other.append_message("k", message()).seq == other.info("k").last_seq
                if verb == "expire":
                    other.create(next(keys), ttl=timedelta(microseconds=1))

            write()
            verbs[verb]()  # which compiles its statements
            write()
            for line in places(verbs[verb], files):
                write()
                interrupt_at(line, verbs[verb], files)
            write()
            session = other.get("k")
            assert session.message_count == len(session.messages) > 2
            assert [each.seq for each in session.messages[:2]] == [1, 2]
    finally:
        gc.enable()
    for each in (engine, other_engine):
        each.dispose()


def test_interrupted_pipeline_raises_what_interrupted_it(make_postgres: MakeDatabase) -> None:
    pipeline_base = pytest.importorskip(
        "psycopg._pipeline_base", reason="psycopg before 3.3 may lose an interruption itself"
    )
    files = {sys.modules["psycopg._pipeline"].__file__, pipeline_base.__file__}
    engine = create_engine(make_postgres(), pool_size=1, pool_timeout=5)
    with Store(engine) as store:
        store.create("k")
        rename, titles = sa.text("UPDATE lango_session SET title = :title"), [{"title": "a"}, {"title": "b"}]

        def call() -> None:
            store.context.transact(lambda connection, _: connection.execute(rename, titles))

        call()
        numbers = places(call, files)
        assert len(numbers) > 20
        for line in numbers:
            interrupt_at(line, call, files)
        call()
        assert store.info("k").title == "b"
    engine.dispose()


def test_error_after_a_handled_interruption_is_the_error(store: Store) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(LangoStoreError, match="missing"):
            store.context.transact(lambda connection, _: connection.exec_driver_sql("SELECT 1 FROM missing"))


def test_an_append_that_cannot_begin_gives_its_connection_back_at_once(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    other, engine = create_engine(url), create_engine(url, connect_args={"timeout": 0})
    with Store(engine) as store, other.connect() as connection:
        store.create("k")
        connection.exec_driver_sql("SELECT 1")  # which takes the write lock
        with pytest.raises(DatabaseBusy) as raised:
            store.append_message("k", message())
        pool: Any = engine.pool
        assert pool.checkedout() == 0, raised.value  # which holds on to all that was there when it was raised
        connection.rollback()
        assert store.append_message("k", message()).seq == 1
    engine.dispose()
    other.dispose()


def test_an_interrupted_connection_is_not_used_again(url: str) -> None:
    def interrupt(text: str, _: float) -> None:
        if armed:
            raise Interrupted

    armed: list[bool] = []
    opened: list[object] = []
    engine = create_engine(url)
    sa.event.listen(engine, "connect", lambda driver, _: opened.append(driver))
    with Store(engine, on_statement=interrupt) as store:
        store.create("k")
        store.append_message("k", message())
        before = len(opened)
        armed.append(True)
        with pytest.raises(Interrupted):
            store.append_message("k", message())
        armed.clear()
        assert store.append_message("k", message()).seq in (2, 3)
        assert len(opened) == before + 1
    engine.dispose()


class TimeIsUp(Exception):
    """What a handler raises that callers may catch, such as a task's limit of time."""


IN_A_STATEMENT: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append_message("k", message()),
    "several": lambda store: store.append_messages("k", messages(2), replace_after=0),
    "load": lambda store: store.get("k"),
}


@pytest.mark.parametrize("raised", [Interrupted, TimeIsUp])
@pytest.mark.parametrize("make", [create_engine, sa.create_engine])
def test_what_a_signal_raises_while_the_server_works_is_what_the_caller_gets(
    make_postgres: MakeDatabase, make: Any, raised: type[BaseException]
) -> None:
    def interrupt(*_: object) -> None:
        raise raised

    def send(to: int) -> None:
        until_one_waits(holder)
        signal.pthread_kill(to, signal.SIGUSR1)

    def interrupted(call: Callable[[Store], object], store: Store) -> None:
        with holder.begin() as holding, ThreadPoolExecutor(1) as thread:
            holding.exec_driver_sql("LOCK TABLE lango_session IN ACCESS EXCLUSIVE MODE")
            sent = thread.submit(send, threading.get_ident())
            with pytest.raises(raised):
                call(store)
            sent.result()

    url = make_postgres()
    holder, engine = create_engine(url), make(url, pool_size=1, max_overflow=0, pool_reset_on_return=None)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        store = Store(engine)
        store.create("k")
        for call in IN_A_STATEMENT.values():
            interrupted(call, store)
            call(store)
            with engine.connect() as connection:
                interrupted(call, store.using(connection))
            call(store)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for each in (holder, engine):
        each.dispose()


def test_a_pool_that_is_empty_says_how_to_make_it_larger(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite(), pool_size=1, pool_timeout=0.1)
    with Store(engine) as store:
        store.create("k")
        with engine.connect():
            for call in (store.ping, lambda: store.append_message("k", message()), store.stats, store.examine):
                with pytest.raises(DatabaseBusy, match="pool_size"):
                    call()
    engine.dispose()
