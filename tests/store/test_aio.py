"""`AsyncStore`: the same methods as `Store`, event loops, threads and closing.

The behavior of the methods is tested with those of `Store`.
"""

import asyncio
import copy
import inspect
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.awaiting import awaiting
from support.databases import MakeDatabase
from support.every_method import KINDS, calls_of, members_of, methods_of, prepare, stable_repr, twin_of
from support.factories import message, messages
from support.processes import run_program

from lango_store import AsyncStore, RunningTurn, Store, StoreClosed
from lango_store._parts.twins import AsyncPart
from lango_store.aio import StoreOptions
from lango_store.testing import Clock

SYNC_ONLY = {"key", "snapshot", "transaction", "using"}
REWRITTEN = {"begin", "begin_compaction", "close", "compact", "work"}
ASYNC_ONLY = {"key", "run_sync", "threads"}


def public_members(kind: type) -> dict[str, Any]:
    return {name: value for name, value in members_of(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize("sync_kind", KINDS)
def test_async_class_has_the_methods_of_the_sync_class(sync_kind: type) -> None:
    async_kind = twin_of(sync_kind)
    assert set(public_members(sync_kind)) - SYNC_ONLY == set(public_members(async_kind)) - ASYNC_ONLY
    for name, value in public_members(async_kind).items():
        if name not in ASYNC_ONLY and inspect.iscoroutinefunction(value):
            async_signature, sync_signature = (
                inspect.signature(each, eval_str=True) for each in (value, getattr(sync_kind, name))
            )
            different = {"handle", "budget" if name == "work" else ""}  # a function or a coroutine function
            parameters = (each.parameters for each in (async_signature, sync_signature))
            own, other = ({each: value for each, value in part.items() if each not in different} for part in parameters)
            assert own == other
            assert name in REWRITTEN or (async_signature, value.__doc__) == (
                sync_signature,
                getattr(sync_kind, name).__doc__,
            )
    for name in public_members(async_kind).keys() & {"iter_messages", "iter_sessions", "tail"}:
        async_signature, sync_signature = (
            inspect.signature(public_members(each)[name]) for each in (async_kind, sync_kind)
        )
        assert async_signature.parameters == sync_signature.parameters


def test_every_async_class_is_listed() -> None:
    assert {*AsyncPart.__subclasses__(), AsyncStore} == {twin_of(kind) for kind in KINDS}


def test_async_store_accepts_the_options_of_store() -> None:
    options = {name: parameter.annotation for name, parameter in inspect.signature(Store).parameters.items()}
    del options["database"]
    assert {name: each.__forward_arg__ for name, each in StoreOptions.__annotations__.items()} == options


class Recorder:
    """An object each of whose methods returns its name and its arguments."""

    key = "k"

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: (name, arguments, options)


@pytest.mark.parametrize("sync_kind", [*KINDS, RunningTurn])
def test_async_method_calls_the_sync_method_with_all_arguments(sync_kind: type, make_sqlite: MakeDatabase) -> None:
    async def work() -> None:
        async with AsyncStore(make_sqlite()) as store:
            part = copy.copy(store) if sync_kind is Store else twin_of(sync_kind)(store._threads, Recorder())
            if sync_kind is Store:
                part.store = Recorder()
            for name, value in public_members(twin_of(sync_kind)).items():
                if inspect.iscoroutinefunction(value) and hasattr(value, "__wrapped__"):
                    assert value.__wrapped__ is getattr(sync_kind, name)
                    result = await getattr(part, name)(1, "two", three=3)
                    assert getattr(result, "_twin", result) == (name, (1, "two"), {"three": 3})

    asyncio.run(work())


def test_async_methods_that_are_not_coroutines_pass_their_arguments(either_store: Store) -> None:
    for key in ("a1", "a2", "b1"):
        either_store.create(key, agent_id=key[0])
    assert [info.key for info in either_store.iter_sessions(page_size=1, agent_id="a")] == ["a1", "a2"]
    with either_store.conversation("a1").turn("t", lease=timedelta(days=1)):
        (running,) = either_store.turns.list_in_progress().items
        assert (running.id, running.until) == ("t", either_store.get("a1").updated_at + timedelta(days=1))


def test_async_store_creates_appends_and_reads(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k")
            stored = await store.append_message("k", message("hi"))
            assert [m async for m in store.conversation("k").iter_messages()] == [stored]
            async with AsyncStore(store.store) as borrowed:
                assert (await borrowed.get("k")).messages == [stored]
            assert await store.exists("k")

    asyncio.run(work())


def test_async_store_works_across_event_loops(url: str) -> None:
    store = AsyncStore(url)

    async def append(author: str) -> None:
        await asyncio.gather(*(store.append_message("k", message(n, author=author)) for n in range(20)))

    asyncio.run(store.create("k"))
    for turn in range(3):
        asyncio.run(append(f"one after another {turn}"))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: asyncio.run(append(f"at once {n}")), range(3)))
    session = asyncio.run(store.get("k"))
    assert [m.seq for m in session.messages] == list(range(1, 121))
    asyncio.run(store.close())


def test_close_waits_for_running_calls(url: str) -> None:
    async def work() -> list[object]:
        store = AsyncStore(url)
        await store.create("k")
        tasks = [asyncio.create_task(store.conversation("k").append_messages(messages(50))) for _ in range(5)]
        await asyncio.sleep(0)
        await store.close()
        return await asyncio.gather(*tasks)

    asyncio.run(work())
    with Store(url) as store:
        assert store.conversation("k").info().message_count == 250


def test_closed_async_store_raises(url: str) -> None:
    async def work() -> None:
        store = AsyncStore(url)
        await store.close()
        with pytest.raises(StoreClosed, match="closed"):
            await store.ping()

    asyncio.run(work())


def test_forked_process_starts_its_own_threads(url: str) -> None:
    program = """
import asyncio, os, sys, warnings
from lango_store import AsyncStore, Message
store = AsyncStore(sys.argv[1])
asyncio.run(store.create("k"))
warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that has threads
if os.fork() == 0:
    asyncio.run(store.append_message("k", Message(role="user", content="child")))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
asyncio.run(store.append_message("k", Message(role="user", content="parent")))
print([m.content for m in asyncio.run(store.conversation("k").messages())])
asyncio.run(store.close())
"""
    completed = run_program(program, url)
    assert (completed.stdout, completed.stderr) == ("['child', 'parent']\n", "")


def test_run_sync_runs_a_function_in_a_thread(url: str) -> None:
    def count(store: Store, key: str, *, more: int) -> tuple[int, str]:
        return len(store.conversation(key).messages()) + more, threading.current_thread().name

    async def main() -> None:
        async with AsyncStore(url) as store:
            await store.create("k", messages=messages(2))
            counted, thread = await store.run_sync(count, "k", more=1)
            assert counted == 3
            assert thread.startswith("lango_store")

    asyncio.run(main())


@pytest.mark.slow
def test_async_method_returns_what_the_sync_method_returns(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    clock, url, cold = Clock(), make_sqlite(), tmp_path / "cold.db"
    with Store(url, clock=clock) as plain:
        prepare(plain, cold)
    database, saved = str(sa.make_url(url).database), tmp_path / "saved.db"
    copy_database(database, saved)
    methods = [(owner, method) for owner in KINDS for method in sorted(methods_of(owner))]
    results = []
    with Store(url, clock=clock) as plain, awaiting(AsyncStore(url, clock=clock)) as awaited:
        for store in (plain, awaited):
            reprs: dict[str, list[str]] = {}
            for owner, method in methods:
                copy_database(saved, database)
                calls = calls_of(store, cold)[owner][method]
                if method == "search":
                    calls = []  # needs a search index
                reprs[f"{owner.__name__}.{method}"] = [stable_repr(call()) for call in calls]
            results.append(reprs)
    assert results[0] == results[1]


def copy_database(source: str | Path, target: str | Path) -> None:
    with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
        original.backup(copy)
