"""Several calls in one transaction: `Store.transaction`, `Store.transact` and `Store.snapshot`."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from support.databases import MakeDatabase
from support.factories import contents, message, messages

from lango_store import AsyncStore, Conflict, InvalidState, LangoStoreError, SessionNotFound, Store, create_engine


def test_transaction_commits_all_writes_together(url: str) -> None:
    with Store(url) as store, Store(url) as reader:
        with store.transaction() as tx:
            tx.create("k", title="new")
            tx.append_message("k", message("a", id="a"))
            tx.conversation("k").values.set({"step": 1})
            assert contents(tx.conversation("k").messages()) == ["a"]
            assert not reader.exists("k")
        assert contents(reader.conversation("k").messages()) == ["a"]
        assert reader.conversation("k").values.get() == {"step": 1}


def test_transaction_rolls_back_on_any_error(url: str) -> None:
    with Store(url) as store:
        store.create("k")

        def fail() -> None:
            with store.transaction() as tx:
                tx.append_message("k", message("a"))
                tx.conversation("k").update(title="new")
                raise KeyError("of the caller")

        with pytest.raises(KeyError):
            fail()
        assert store.get("k").messages == []
        assert store.conversation("k").info().title is None


def test_transaction_continues_after_a_refused_write(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        with store.transaction() as tx:
            tx.append_message("k", message("a"))
            with pytest.raises(Conflict):
                tx.append_message("k", message("b"), after=0)
            with pytest.raises(SessionNotFound):
                tx.append_message("other", message("c"))
            tx.append_message("k", message("d"))
        assert contents(store.conversation("k").messages()) == ["a", "d"]


def test_store_of_a_transaction_cannot_be_used_after_its_block(url: str) -> None:
    with Store(url) as store:
        with store.transaction() as tx:
            tx.create("k")
        with pytest.raises(LangoStoreError, match="has ended"):
            tx.conversation("k").info()
        assert store.exists("k")


def test_transaction_inside_using_is_a_savepoint(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store, engine.connect() as connection, connection.begin() as outer:
        bound = store.using(connection)
        bound.create("kept")

        def fail() -> None:
            with bound.transaction() as tx:
                tx.create("undone")
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        outer.commit()
        assert [info.key for info in store.iter_sessions()] == ["kept"]
    engine.dispose()


def test_transact_returns_the_result_of_its_function(url: str) -> None:
    with Store(url) as store:
        stored = store.transact(lambda tx: (tx.create("k"), tx.append_message("k", message("a")))[1])
        assert store.conversation("k").messages() == [stored]


@pytest.mark.slow
def test_transact_retries_after_a_deadlock(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        store.create("a")
        store.create("b")
        first_writes = threading.Barrier(2, timeout=60)
        calls: list[str] = []

        def write(first: str, second: str) -> None:
            def both(tx: Store) -> None:
                calls.append(first)
                tx.append_message(first, message("first"))
                if calls.count(first) == 1:
                    first_writes.wait()
                tx.append_message(second, message("second"))

            store.transact(both)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, "ab", "ba"))
        assert len(calls) == 3
        assert sorted(contents(store.conversation("a").messages())) == ["first", "second"]
        assert sorted(contents(store.conversation("b").messages())) == ["first", "second"]


def test_async_transact_runs_in_one_thread(url: str) -> None:
    async def work() -> None:
        async with AsyncStore(url, default_ttl=timedelta(days=1)) as store:
            assert await store.transact(lambda tx: tx.create("k").key) == "k"
            with pytest.raises(ZeroDivisionError):
                await store.transact(lambda tx: (tx.append_message("k", message("a")), 1 / 0))
            assert await store.conversation("k").messages() == []

    asyncio.run(work())


def test_snapshot_reads_are_consistent(url: str) -> None:
    with Store(url) as store:
        store.create("k", messages=messages(1))
        with store.snapshot() as view:
            before = view.get("k")
            store.append_message("k", message())
            store.conversation("k").values.set({"a": 1})
            assert (view.get("k"), view.conversation("k").values.get()) == (before, {})
        assert store.conversation("k").info().message_count == 2


def test_snapshot_refuses_writes_and_is_unusable_after_its_block(store: Store) -> None:
    store.create("k")
    with store.snapshot() as view:
        for write in (lambda: view.append_message("k", message()), lambda: view.create("l")):
            with pytest.raises(InvalidState, match="a snapshot is for reads"):
                write()
    with pytest.raises(LangoStoreError, match="has ended"):
        view.get("k")
    assert store.count() == 1
