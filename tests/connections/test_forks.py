"""Stores in a process that forks, with real forks."""

import sqlite3
from pathlib import Path

import pytest
from support.databases import MakeDatabase
from support.processes import run_program


@pytest.fixture
def file(make_sqlite: MakeDatabase) -> Path:
    return Path(make_sqlite().removeprefix("sqlite:///"))


def stored(file: Path) -> tuple[str, int]:
    """Return the result of SQLite's integrity check, and the number of messages."""
    connection = sqlite3.connect(file)
    try:
        (result,) = connection.execute("PRAGMA integrity_check").fetchone()
        (count,) = connection.execute("SELECT count(*) FROM lango_message").fetchone()
        return result, count
    finally:
        connection.close()


@pytest.mark.slow
def test_parent_and_child_processes_can_use_the_store_after_a_fork(url: str) -> None:
    """The parent keeps its connection to PostgreSQL, but opens another one to SQLite."""
    program = """
import gc, os, sys, warnings
import sqlalchemy as sa
from lango_store import Store, Message
warnings.simplefilter("always", ResourceWarning)  # of connections that are forgotten
store = Store(sys.argv[1])
opened = []
sa.event.listen(store.engine, "connect", lambda driver, entry: opened.append(os.getpid()))
store.create("k")
store.append_message("k", Message(role="user", content="before"))
for n in range(3):
    child = os.fork()
    if child == 0:
        for m in range(20):
            store.append_message("k", Message(role="user", content=f"child {n} {m}"))
        store.close()
        gc.collect()
        os._exit(0)
for m in range(20):
    store.append_message("k", Message(role="user", content=f"parent {m}"))
codes = [os.waitstatus_to_exitcode(os.wait()[1]) for n in range(3)]
assert codes == [0, 0, 0], codes
store.append_message("k", Message(role="user", content="after"))
print(len(store.conversation("k").messages()), opened.count(os.getpid()))
store.close()
"""
    done = run_program(program, url, timeout=120)
    opened = 2 if url.startswith("sqlite") else 1
    assert (done.stdout.strip(), done.stderr, done.returncode) == (f"82 {opened}", "", 0)


def test_forked_process_gets_a_copy_of_a_store_in_memory() -> None:
    program = """
import os
from lango_store import Store, Message
store = Store("sqlite://", migrate=True)
store.create("k")
if os.fork() == 0:
    store.append_message("k", Message(role="user", content="child"))
    os._exit(len(store.conversation("k").messages()))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
print(len(store.conversation("k").messages()))
"""
    done = run_program(program)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("0", "", 0)


ENGINES: dict[str, str] = {
    "own engine": "store = Store(sys.argv[1])",
    "host engine": """
engine = sa.create_engine(sys.argv[1])
sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
store = Store(engine)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES.keys())
def test_forked_process_loses_no_message_when_the_parent_closes_the_store(file: Path, make: str) -> None:
    """If a child used the lock table that it inherits, it would append without locks, and its log could be deleted."""
    program = f"""
import os, sys
import sqlalchemy as sa
from lango_store import Store, Message
{make}
def append(count):
    for n in range(count):
        store.append_message("k", Message(role="user", content=str(n)))
store.create("k")
append(1)
for n in range(4):
    if os.fork() == 0:
        append(150)
        store.close()
        os._exit(0)
append(1)
store.close()
store.engine.dispose()
if os.fork() == 0:
    for n in range(15):
        store = Store(sys.argv[1])  # a third process, which opens and closes the file
        append(1)
        store.close()
    os._exit(0)
print([os.waitstatus_to_exitcode(os.wait()[1]) for n in range(5)])
"""
    done = run_program(program, f"sqlite:///{file}", timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[0, 0, 0, 0, 0]", "")
    assert stored(file) == ("ok", 1 + 4 * 150 + 1 + 15)


def test_forked_process_refuses_an_engine_that_the_parent_used_before_creating_a_store(file: Path) -> None:
    program = """
import os, sys
import sqlalchemy as sa
from lango_store import DatabaseUnavailable, Store
engine = sa.create_engine(sys.argv[1])
sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
with engine.connect() as connection:
    connection.execute(sa.text("SELECT key FROM lango_session")).all()
store = Store(engine)
child = os.fork()
if child == 0:
    for each in (store, Store(engine)):
        try:
            each.create("k")
        except DatabaseUnavailable as error:
            assert "was forked while its parent used" in str(error), error
        else:
            sys.exit("not refused")
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
engine.dispose()
"""
    done = run_program(program, f"sqlite:///{file}")
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_forked_process_neither_uses_nor_closes_an_inherited_connection_to_a_file(file: Path) -> None:
    program = """
import os, sys
import sqlalchemy as sa
from lango_store import DatabaseUnavailable, Store, Message
engine = sa.create_engine(sys.argv[1], poolclass=sa.StaticPool)  # which keeps its connection
sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
store = Store(engine)
def append(count):
    for n in range(count):
        store.append_message("k", Message(role="user", content=str(n)))
store.create("k")
append(20)
read, write = os.pipe()
child = os.fork()
if child == 0:
    for each in (store, Store(sys.argv[1])):
        try:
            each.get("k")
        except DatabaseUnavailable as error:
            assert "was forked while its parent used" in str(error), error
        else:
            sys.exit("not refused")
    os.close(write)
    os.read(read, 1)  # until the parent has removed the log
    sys.exit()  # which clears all modules
append(20)
engine.dispose()
store = Store(sys.argv[1])
append(20)
store.close()
os.close(write)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_program(program, f"sqlite:///{file}")
    assert (done.stdout.strip(), done.stderr) == ("0", "")
    assert stored(file) == ("ok", 60)


IN_A_CHILD = """
def in_a_child():
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        try:
            store.append_message("k", Message(role="user", content="child"))
        except DatabaseUnavailable as error:
            os._exit(2 if "was forked while its parent used" in str(error) else 3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_process_forked_while_other_threads_append_does_not_hang(url: str) -> None:
    program = f"""
import os, signal, sys, threading, warnings
from lango_store import DatabaseUnavailable, Store, Message
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
store = Store(sys.argv[1])
store.create("k")
counts, ended = [], threading.Event()
def append():
    counts.append(0)
    number = len(counts) - 1
    while not ended.is_set():
        store.append_message("k", Message(role="user", content="parent"))
        counts[number] += 1
{IN_A_CHILD}
threads = [threading.Thread(target=append) for n in range(4)]
for each in threads:
    each.start()
codes = [in_a_child() for n in range(12)]
ended.set()
for each in threads:
    each.join()
assert set(codes) <= {{0, 2}}, codes
assert store.conversation("k").info().message_count == sum(counts) + codes.count(0)
print("done")
store.close()
"""
    done = run_program(program, url, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("done", "")


def test_process_forked_during_the_first_call_of_another_thread_does_not_hang(url: str) -> None:
    program = f"""
import os, signal, sys, threading, warnings
import sqlalchemy as sa
from lango_store import DatabaseUnavailable, Store, Message, create_engine
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
with Store(sys.argv[1]) as store:
    store.create("k")
engine = create_engine(sys.argv[1])
store = Store(engine)
connected, ended, parent = threading.Event(), threading.Event(), os.getpid()
@sa.event.listens_for(engine, "connect")
def connect(driver, _):
    if os.getpid() == parent:
        connected.set()
        ended.wait()
{IN_A_CHILD}
first = threading.Thread(target=store.conversation("k").info)
first.start()
connected.wait()
print(in_a_child())
ended.set()
first.join()
engine.dispose()
"""
    done = run_program(program, url, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("2" if url.startswith("sqlite") else "0", "")


def test_forked_process_does_not_wait_for_a_pool_lock_that_a_parent_thread_holds(
    file: Path, make_sqlite: MakeDatabase
) -> None:
    program = f"""
import os, signal, sys, threading, warnings
import sqlalchemy as sa
from lango_store import DatabaseUnavailable, Store, Message
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork in a process with threads
os.register_at_fork(after_in_child=lambda: signal.alarm(30))
closing, held, ended = threading.Event(), threading.Event(), threading.Event()
def hold():
    closing.wait()
    with engine.pool._pool.mutex:
        held.set()
        ended.wait()
engine = sa.create_engine(sys.argv[1])
sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
store = Store(engine)
store.create("k")
other = Store(sys.argv[2])
other.create("k")
# The connections of the other engine are closed last before the fork.
sa.event.listen(other.engine, "close", lambda *_: closing.set() or held.wait())
holder = threading.Thread(target=hold)
holder.start()
{IN_A_CHILD}
print(in_a_child())
ended.set()
holder.join()
"""
    done = run_program(program, f"sqlite:///{file}", make_sqlite(), timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_forked_process_cannot_write_in_a_turn_of_its_parent_or_end_it(make_postgres: MakeDatabase) -> None:
    program = """
import os, sys
from lango_store import LangoStoreError, Message, Store
store = Store(sys.argv[1])
store.create("k")
with store.conversation("k").turn("t") as turn:
    child = os.fork()
    if child == 0:
        refused = 0
        for write in (lambda: turn.append(Message.user("child")), lambda: turn.write("child"), turn.save):
            try:
                write()
            except LangoStoreError as error:
                refused += "forked" in str(error)
        turn.abandon()
        os._exit(refused)
    refused = os.waitstatus_to_exitcode(os.wait()[1])
    turn.append(Message.user("parent"))
print(refused, [message.content for message in turn.stored.messages])
store.close()
"""
    assert run_program(program, make_postgres()).stdout.strip() == "3 ['parent']"


def test_forked_process_does_not_end_a_call_of_its_parent(make_postgres: MakeDatabase) -> None:
    program = """
import os, sys
from lango_store import Message, Store, ToolCall
store = Store(sys.argv[1])
store.create("k")
with store.conversation("k").turn("t") as turn:
    asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="c", name="pay")]))
    try:
        with turn.call(asking, 0) as effect:
            if os.fork() == 0:
                effect.output = "child"
                raise SystemExit
            os.wait()
            effect.output = "parent"
    except SystemExit:
        os._exit(0)
print([message.content for message in store.conversation("k").messages()][1:])
store.close()
"""
    assert run_program(program, make_postgres()).stdout.strip() == "['parent']"
