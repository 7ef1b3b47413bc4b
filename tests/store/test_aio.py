"""What is asynchronous about `AsyncStore`; what the verbs do is tested where `Store`'s are."""

import asyncio
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.awaiting import Awaiting, awaiting
from support.databases import MakeDatabase
from support.every_verb import calls_of, prepare, verbs_of
from support.factories import message, messages
from support.processes import run_program

from lango_store import (
    AsyncConversation,
    AsyncStore,
    Conversation,
    LangoStoreError,
    Store,
)
from lango_store.aio import StoreOptions
from lango_store.testing import Clock

SYNC_ONLY = {"context", "snapshot", "transaction", "using"}
OWN = {"close", "compact"}
ASYNC_ONLY = {"run_sync", "threads"}


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "twin"), [(Store, AsyncStore), (Conversation, AsyncConversation)])
def test_the_twins_have_the_same_verbs(kind: type, twin: type) -> None:
    assert set(public(kind)) - SYNC_ONLY == set(public(twin)) - ASYNC_ONLY
    for name, value in public(twin).items():
        if name not in ASYNC_ONLY and inspect.iscoroutinefunction(value):
            ours, theirs = inspect.signature(value), inspect.signature(getattr(kind, name))
            assert ours.parameters == theirs.parameters
            assert name in OWN or (ours, value.__doc__) == (theirs, getattr(kind, name).__doc__)
    for name in public(twin).keys() & {"iter_messages", "iter_sessions"}:
        theirs, ours = (inspect.signature(public(each)[name]) for each in (twin, kind))
        assert theirs.parameters == ours.parameters


def test_the_twins_take_the_same_options() -> None:
    options = {name: parameter.annotation for name, parameter in inspect.signature(Store).parameters.items()}
    del options["database"]
    assert {name: each.__forward_arg__ for name, each in StoreOptions.__annotations__.items()} == options


def test_a_store_is_awaited(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url) as store:
            await store.create("k")
            stored = await store.append_message("k", message("hi"))
            assert [m async for m in store.conversation("k").iter_messages()] == [stored]
            async with AsyncStore(store.store) as borrowed:
                assert (await borrowed.get("k")).messages == [stored]
            assert await store.exists("k")

    asyncio.run(work())


def test_it_belongs_to_no_event_loop(url: str) -> None:
    store = AsyncStore(url)

    async def append(author: str) -> None:
        await asyncio.gather(*(store.append_message("k", message(n, author=author)) for n in range(20)))

    asyncio.run(store.create("k"))
    for turn in range(3):
        asyncio.run(append(f"one after another {turn}"))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: asyncio.run(append(f"at once {n}")), range(3)))
    found = asyncio.run(store.get("k"))
    assert [m.seq for m in found.messages] == list(range(1, 121))
    asyncio.run(store.close())


def test_closing_waits_for_what_is_under_way(url: str) -> None:
    async def work() -> list[object]:
        store = AsyncStore(url)
        await store.create("k")
        tasks = [asyncio.create_task(store.append_messages("k", messages(50))) for _ in range(5)]
        await asyncio.sleep(0)
        await store.close()
        return await asyncio.gather(*tasks)

    asyncio.run(work())
    with Store(url) as store:
        assert store.info("k").message_count == 250


def test_a_closed_store_says_so(url: str) -> None:
    async def work() -> None:
        store = AsyncStore(url)
        await store.close()
        with pytest.raises(LangoStoreError, match="closed"):
            await store.ping()

    asyncio.run(work())


def test_a_forked_child_has_threads_of_its_own(url: str) -> None:
    program = """
import asyncio, os, sys, warnings
from lango_store import AsyncStore, Message
store = AsyncStore(sys.argv[1])
asyncio.run(store.create("k"))
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
if os.fork() == 0:
    asyncio.run(store.append_message("k", Message(role="user", content="child")))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
asyncio.run(store.append_message("k", Message(role="user", content="parent")))
print([m.content for m in asyncio.run(store.messages("k"))])
asyncio.run(store.close())
"""
    done = run_program(program, url)
    assert (done.stdout, done.stderr) == ("['child', 'parent']\n", "")


def test_a_function_runs_with_the_store_in_a_thread(url: str) -> None:
    def count(store: Store, key: str, *, more: int) -> tuple[int, str]:
        return len(store.messages(key)) + more, threading.current_thread().name

    async def main() -> None:
        async with AsyncStore(url) as store:
            await store.create("k", messages=messages(2))
            counted, thread = await store.run_sync(count, "k", more=1)
            assert counted == 3
            assert thread.startswith("lango_store")

    asyncio.run(main())


def test_every_verb_returns_what_its_synchronous_twin_returns(make_sqlite: MakeDatabase, tmp_path: Path) -> None:
    results = []
    verbs = [(of, verb) for of in (Store, Conversation) for verb in sorted(verbs_of(of))]
    for kind in ("sync", "async"):
        seen: dict[str, list[str]] = {}
        for number, (of, verb) in enumerate(verbs):
            cold, clock = tmp_path / f"{kind}-{number}.db", Clock()
            with ExitStack() as open_stores:
                url = make_sqlite()
                plain = open_stores.enter_context(Store(url, clock=clock))
                prepare(plain, cold)
                awaited = AsyncStore(url, clock=clock)
                store = plain if kind == "sync" else open_stores.enter_context(awaiting(awaited))
                calls = calls_of(store, cold)[of][verb]
                if verb == "search":
                    calls = []  # needs an index
                seen[f"{of.__name__}.{verb}"] = [shown(call()) for call in calls]
        results.append(seen)
    assert results[0] == results[1]


def shown(result: object) -> str:
    """Return the representation of a result without what is random in it: keys, revisions, handles and positions."""
    if isinstance(result, Store | AsyncStore | Awaiting | Conversation | AsyncConversation):
        return "handle"
    text = re.sub(r"(revision|incarnation|seconds)=[0-9.]+", "…", repr(result))
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|'[0-9A-F]+/[0-9A-F]+'|bytes\w*=\d+", "…", text)
