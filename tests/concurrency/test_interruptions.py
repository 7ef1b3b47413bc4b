"""Interruptions (signals, KeyboardInterrupt) at any line: no connection and no lock is lost."""

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

from lango_store import DatabaseBusy, DatabaseError, Store, create_engine
from lango_store._connections import providers
from lango_store._dialect import base, postgresql, sqlite, statement
from lango_store._engine import pool

# SQLAlchemy before 2.1 loses a connection that is interrupted in this function.
LOSES_CONNECTION = pool.given_back.__code__ if sa.__version__.startswith("2.0.") else None
OURS = {module.__file__ for module in (providers, base, postgresql, sqlite, pool, statement)}


@pytest.fixture(autouse=True)
def no_garbage_collector_callbacks() -> Iterator[None]:
    """Remove the callbacks of other tools, which would swallow an interruption."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)


class Interrupted(BaseException):
    """Raised by a signal handler between any two lines."""


def interrupt_at(line: int, call: Callable[[], object], files: set[Any] = OURS) -> bool:
    """Call and raise at the n-th line executed in these files; return False if there are fewer lines."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files or frame.f_code is LOSES_CONNECTION:
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


def last_executions(call: Callable[[], object], files: set[Any]) -> list[int]:
    """Call and return, for each line of these files, the number of its last execution."""
    last: dict[tuple[str, int], int] = {}
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files or frame.f_code is LOSES_CONNECTION:
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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["append", "load", "replace_after"])
def test_call_interrupted_at_any_line_returns_its_connection_to_the_pool(url: str, method: str) -> None:
    engine: Any = create_engine(url, pool_size=2, pool_timeout=5)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message())
        methods: dict[str, Callable[[], object]] = {
            "append": lambda: store.append_message("k", message()),
            "load": lambda: store.get("k"),
            "replace_after": lambda: store.conversation("k").append_messages([message()], replace_after=1),
        }
        call = methods[method]
        line = 1
        while interrupt_at(line, call):
            line += 1
            assert engine.pool.checkedout() == 0, line
            call()
        assert line > 10
        with engine.connect() as connection:  # its transactions can still be rolled back
            connection.exec_driver_sql("DELETE FROM lango_message")
            connection.rollback()
        session = store.get("k")
        assert session.message_count == len(session.messages)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:transaction already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("method", ["replace_after", "truncate", "expire"])
def test_call_interrupted_at_any_line_leaves_no_lock_on_the_file(make_sqlite: MakeDatabase, method: str) -> None:
    """The garbage collector is off, so only the store itself can release the lock."""
    url = make_sqlite()
    files = OURS | {each.__file__ for each in (contextlib, engines, cursor)}
    engine, other_engine = create_engine(url), create_engine(url, connect_args={"timeout": 0})
    keys = (f"expired {n}" for n in itertools.count())
    gc.disable()
    try:
        with Store(engine) as store, Store(other_engine) as other:
            other.create("k", messages=messages(2))
            methods: dict[str, Callable[[], object]] = {
                "replace_after": lambda: store.conversation("k").append_messages([message()], replace_after=2),
                "truncate": lambda: store.conversation("k").truncate(after=2),
                "expire": store.expire,
            }

            def write() -> None:
                assert other.append_message("k", message()).seq == other.conversation("k").info().last_seq
                if method == "expire":
                    other.create(next(keys), ttl=timedelta(microseconds=1))

            write()
            methods[method]()  # compiles its statements
            write()
            for line in last_executions(methods[method], files):
                write()
                interrupt_at(line, methods[method], files)
            write()
            session = other.get("k")
            assert session.message_count == len(session.messages) > 2
            assert [each.seq for each in session.messages[:2]] == [1, 2]
    finally:
        gc.enable()
    for each in (engine, other_engine):
        each.dispose()


def test_keyboard_interrupt_inside_a_pipeline_of_psycopg_reaches_the_caller(make_postgres: MakeDatabase) -> None:
    pipeline_base = pytest.importorskip(
        "psycopg._pipeline_base", reason="psycopg before 3.3 may lose an interruption itself"
    )
    files = {sys.modules["psycopg._pipeline"].__file__, pipeline_base.__file__}
    engine = create_engine(make_postgres(), pool_size=1, pool_timeout=5)
    with Store(engine) as store:
        store.create("k")
        rename, titles = sa.text("UPDATE lango_session SET title = :title"), [{"title": "a"}, {"title": "b"}]

        def call() -> None:
            store._context.transact(lambda connection, _: connection.execute(rename, titles))

        call()
        numbers = last_executions(call, files)
        assert len(numbers) > 20
        for line in numbers:
            interrupt_at(line, call, files)
        call()
        assert store.conversation("k").info().title == "b"
    engine.dispose()


def test_database_error_is_raised_even_while_an_interruption_is_being_handled(store: Store) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(DatabaseError, match="missing"):
            store._context.transact(lambda connection, _: connection.exec_driver_sql("SELECT 1 FROM missing"))


def test_append_that_cannot_get_the_write_lock_returns_its_connection_to_the_pool(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    other, engine = create_engine(url), create_engine(url, connect_args={"timeout": 0})
    with Store(engine) as store, other.connect() as connection:
        store.create("k")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy) as raised:
            store.append_message("k", message())
        pool: Any = engine.pool
        assert pool.checkedout() == 0, raised.value  # the error keeps all objects of its traceback alive
        connection.rollback()
        assert store.append_message("k", message()).seq == 1
    engine.dispose()
    other.dispose()


def test_connection_of_an_interrupted_append_is_not_reused(url: str) -> None:
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
    """Raised by a signal handler and caught by callers, such as the time limit of a task."""


STATEMENTS: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append_message("k", message()),
    "replace_after": lambda store: store.conversation("k").append_messages(messages(2), replace_after=0),
    "load": lambda store: store.get("k"),
}


@pytest.mark.slow
@pytest.mark.parametrize("raised", [Interrupted, TimeIsUp])
@pytest.mark.parametrize("make", [create_engine, sa.create_engine])
def test_exception_raised_by_a_signal_handler_during_a_statement_reaches_the_caller(
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
        for call in STATEMENTS.values():
            interrupted(call, store)
            call(store)
            with engine.connect() as connection:
                interrupted(call, store.using(connection))
            call(store)
        begin: Callable[[Store], object] = lambda store: store.conversation("k").turn("t").begin()  # noqa: E731
        interrupted(begin, store)
        begin(store)
    finally:
        signal.signal(signal.SIGUSR1, before)
    for each in (holder, engine):
        each.dispose()


@pytest.mark.slow
def test_error_for_an_exhausted_pool_names_the_option_pool_size(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite(), pool_size=1, pool_timeout=0.1)
    with Store(engine) as store:
        store.create("k")
        with engine.connect():
            for call in (
                store.ping,
                lambda: store.append_message("k", message()),
                store.stats,
                store.maintenance.examine,
            ):
                with pytest.raises(DatabaseBusy, match="pool_size"):
                    call()
    engine.dispose()
