"""Whose connections a `LangoSession` uses: a store's, an engine's, or those of a URL, which its sessions share."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from lango_store import AsyncStore, LangoStoreError, SchemaOutOfDate, Store
from lango_store.integrations.openai_agents import LangoSession

from .sessions import run, said, texts


def test_a_session_takes_a_store_an_async_store_or_a_url(url: str) -> None:
    theirs = url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql+psycopg:", "postgresql+asyncpg:")

    async def main() -> None:
        with Store(url) as store:
            async with LangoSession("k", store) as session:
                await session.add_items(said("store"))
                assert session.store is store
            store.info("k")
        async with AsyncStore(url) as awaited:
            async with LangoSession("k", awaited) as session:
                await session.add_items(said("async store"))
            await awaited.info("k")
        for given in (url, theirs, sa.make_url(url)):
            async with LangoSession("k", given) as session:
                await session.add_items(said("url"))
            async with LangoSession.from_url("k", url=given) as session:
                await session.add_items(said("from_url"))
        engine = create_async_engine(theirs)
        async with LangoSession("k", engine=engine) as session:
            assert session.engine is engine
            assert texts(await session.get_items()) == ["store", "async store", *["url", "from_url"] * 3]
        await engine.dispose()

    run(main)


def test_what_was_made_for_a_url_is_closed_with_its_last_session(url: str) -> None:
    async def main() -> None:
        one, other = (LangoSession("k", url) for _ in range(2))
        await one.add_items(said("a"))
        assert one.store is other.store
        await one.close()
        await one.close()
        with pytest.raises(LangoStoreError, match="closed"):
            await one.get_items()
        with pytest.raises(LangoStoreError, match="closed"):
            await one.add_items([])
        assert texts(await other.get_items()) == ["a"]
        made = other.store
        await other.close()
        with pytest.raises(LangoStoreError, match="closed"):
            made.info("k")
        async with LangoSession("k", url) as third:
            assert third.store is not made
            assert texts(await third.get_items()) == ["a"]

    run(main)


def test_a_thousand_sessions_of_a_url_share_one_pool_and_a_few_threads(url: str) -> None:
    async def main() -> None:
        before = threading.active_count()
        opened: list[LangoSession] = []
        for number in range(1_000):
            opened.append(LangoSession.from_url(f"k{number % 5}", url=url))
            if number % 50 == 0:
                await opened[-1].add_items(said("a"))
            if number % 3 == 0:
                opened.pop()  # forgotten, not closed
        assert len({id(session.store.engine) for session in opened}) == 1
        pool = opened[0].store.engine.pool
        assert isinstance(pool, sa.QueuePool)
        assert pool.checkedin() <= 2
        assert threading.active_count() - before <= pool.size()
        for session in opened:
            await session.close()

    run(main)


def test_sessions_of_one_store_share_their_threads(url: str) -> None:
    async def main() -> None:
        with Store(url) as store:
            before = threading.active_count()
            opened = [LangoSession(f"k{number}", store) for number in range(100)]
            for session in opened:
                await session.get_items()
            assert threading.active_count() - before <= 16
            opened.clear()

    run(main)
    gc.collect()


def test_a_session_serves_several_event_loops(url: str) -> None:
    with Store(url) as store:
        session = LangoSession("k", store)
        for text in "ab":
            asyncio.run(session.add_items(said(text)))
        assert texts(asyncio.run(session.get_items())) == ["a", "b"]


def test_a_database_in_memory_is_its_sessions_own_or_its_engines() -> None:
    async def main() -> None:
        memory = "sqlite+aiosqlite:///:memory:"
        one, other = (LangoSession.from_url("k", url=memory, create_tables=True) for _ in range(2))
        await one.add_items(said("a"))
        assert await other.get_items() == []
        engine = create_async_engine(memory)
        third, fourth = (LangoSession("k", engine=engine, create_tables=True) for _ in range(2))
        await third.add_items(said("b"))
        assert texts(await fourth.get_items()) == ["b"]
        for session in (one, other, third, fourth):
            await session.close()
        await engine.dispose()

    run(main)


def test_an_engine_in_memory_is_not_kept_by_what_is_known_of_it() -> None:
    async def main() -> None:
        engine = create_async_engine("sqlite+aiosqlite:///:memory:")
        session = LangoSession("k", engine=engine, create_tables=True)
        await session.add_items(said("a"))
        await session.close()
        with pytest.raises(LangoStoreError, match="closed"):
            session.store.info("k")
        async with LangoSession("k", engine=engine, create_tables=True) as another:
            assert await another.get_items() == []
        await engine.dispose()
        known = weakref.ref(engine)
        LangoSession("k", engine=engine)
        del engine, session, another
        gc.collect()
        assert known() is None

    run(main)


def test_tables_are_made_only_if_that_is_wanted(empty_url: str) -> None:
    async def main() -> None:
        async with LangoSession.from_url("k", url=empty_url) as session:
            with pytest.raises(SchemaOutOfDate):
                await session.get_items()
            async with LangoSession.from_url("k", url=empty_url, create_tables=True) as maker:
                await maker.add_items(said("a"))
                assert maker.store.engine is session.store.engine
            assert texts(await session.get_items()) == ["a"]

    run(main)


def test_options_of_the_engine_are_ours(make_database: Any) -> None:
    url = make_database()

    async def main() -> None:
        async with LangoSession.from_url("k", url=url, engine_kwargs={"pool_size": 3, "max_overflow": 0}) as session:
            assert session.store.engine.pool.size() == 3  # type: ignore[attr-defined]
            await session.get_items()
            assert await _select(session) == 1
        with pytest.raises(TypeError, match="poolsize"):
            LangoSession.from_url("k", url=url, engine_kwargs={"poolsize": 3})

    run(main)


async def _select(session: LangoSession) -> Any:
    async with session.engine.connect() as connection:
        found = (await connection.execute(sa.text("SELECT 1"))).scalar_one()
    await session.engine.dispose()
    return found


@pytest.mark.parametrize("name", ["sessions_table", "messages_table"])
def test_names_of_tables_are_refused_with_a_remedy(url: str, name: str) -> None:
    names: dict[str, Any] = {name: "mine"}
    with pytest.raises(TypeError, match=f"{name}.*leave it out"):
        LangoSession.from_url("k", url=url, **names)


def test_what_makes_no_sense_together_is_refused(url: str) -> None:
    with Store(url) as store:
        with pytest.raises(TypeError, match="a store or an engine"):
            LangoSession("k")
        with pytest.raises(TypeError, match="Store\\(engine\\)"):
            LangoSession("k", engine=store.engine)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="migrate=True"):
            LangoSession("k", store, create_tables=True)
        with pytest.raises(TypeError, match="no colour"):
            LangoSession("k", store, colour="red")
        with pytest.raises(LangoStoreError, match=r"store\.engine"):
            _ = LangoSession("k", store).engine
        assert LangoSession("k", store, ensure_ascii=False).session_id == "k"
