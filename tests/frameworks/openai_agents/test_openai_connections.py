"""Connections of a `LangoSession`: from a store, an engine or a URL."""

import gc
import threading
import weakref
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from lango_store import AsyncStore, InvalidState, SchemaOutOfDate, Store
from lango_store.integrations.openai_agents import LangoSession

from .sessions import run, said, texts

pytestmark = pytest.mark.anyio


async def test_session_takes_store_async_store_url_or_engine(url: str) -> None:
    theirs = url.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql+psycopg:", "postgresql+asyncpg:")
    with Store(url) as store:
        async with LangoSession("k", store) as session:
            await session.add_items(said("store"))
            assert session.store is store
        store.conversation("k").info()
    async with AsyncStore(url) as awaited:
        async with LangoSession("k", awaited) as session:
            await session.add_items(said("async store"))
        await awaited.conversation("k").info()
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


def test_sessions_of_one_store_share_threads(url: str) -> None:
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


async def test_sessions_of_one_engine_share_an_in_memory_database() -> None:
    memory = "sqlite+aiosqlite:///:memory:"
    one, other = (LangoSession.from_url("k", url=memory, create_tables=True) for _ in range(2))
    await one.add_items(said("a"))
    assert await other.get_items() == []
    engine = create_async_engine(memory)
    third, fourth = (LangoSession("k", engine=engine, create_tables=True) for _ in range(2))
    await third.add_items(said("b"))
    await third.close()
    assert texts(await fourth.get_items()) == ["b"]
    for session in (one, other, fourth):
        await session.close()
    await engine.dispose()
    known = weakref.ref(engine)
    del engine, third, fourth, session
    gc.collect()
    assert known() is None


async def test_tables_are_created_only_with_create_tables(empty_url: str) -> None:
    async with LangoSession.from_url("k", url=empty_url) as session:
        with pytest.raises(SchemaOutOfDate):
            await session.get_items()
        async with LangoSession.from_url("k", url=empty_url, create_tables=True) as maker:
            await maker.add_items(said("a"))
        assert texts(await session.get_items()) == ["a"]


async def test_engine_kwargs_are_options_of_create_engine(make_database: Any) -> None:
    url = make_database()
    async with LangoSession.from_url("k", url=url, engine_kwargs={"pool_size": 3, "max_overflow": 0}) as session:
        assert session.store.engine.pool.size() == 3  # type: ignore[attr-defined]
        await session.get_items()
        assert await _select(session) == 1
    with pytest.raises(TypeError, match="poolsize"):
        LangoSession.from_url("k", url=url, engine_kwargs={"poolsize": 3})


def test_engine_kwargs_are_refused_with_an_engine(url: str) -> None:
    driver = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+psycopg_async"
    engine = create_async_engine(sa.make_url(url).set(drivername=driver))
    with pytest.raises(TypeError, match="pass them to create_async_engine"):
        LangoSession("k", engine=engine, engine_kwargs={"pool_size": 3})


async def _select(session: LangoSession) -> Any:
    async with session.engine.connect() as connection:
        found = (await connection.execute(sa.text("SELECT 1"))).scalar_one()
    await session.engine.dispose()
    return found


def test_conflicting_arguments_are_refused(url: str) -> None:
    with Store(url) as store:
        with pytest.raises(TypeError, match="a store or an engine"):
            LangoSession("k")
        with pytest.raises(TypeError, match="Store\\(engine\\)"):
            LangoSession("k", engine=store.engine)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="migrate=True"):
            LangoSession("k", store, create_tables=True)
        with pytest.raises(InvalidState, match=r"store\.engine"):
            _ = LangoSession("k", store).engine
        assert LangoSession("k", store, ensure_ascii=False).session_id == "k"
