"""The caller's own transaction: what the store writes there, the caller commits or rolls back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
import sqlmodel
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message, messages

from lango_store import (
    Conflict,
    Conversation,
    LangoStoreError,
    SchemaOutOfDate,
    SessionNotFound,
    Store,
    create_engine,
    schema,
)

HOST = sa.Table("host_order", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True))


@pytest.fixture(params=["ours", "stock"])
def host_engine(request: pytest.FixtureRequest, url: str) -> Any:
    """An engine of ours, or one as hosts make them."""
    engine = create_engine(url) if request.param == "ours" else sa.create_engine(url)
    if request.param == "stock" and engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    HOST.create(engine)
    yield engine
    engine.dispose()


Lender = Callable[[sa.Engine], Any]
LENDERS: dict[str, Lender] = {
    "Connection": lambda engine: engine.connect(),
    "Session": lambda engine: orm.Session(engine),
    "SQLModel session": lambda engine: sqlmodel.Session(engine),
}


@pytest.mark.parametrize("source", LENDERS)
def test_rolled_back_and_committed_with_the_callers_work(store: Store, host_engine: sa.Engine, source: str) -> None:
    store.create("k")
    with LENDERS[source](host_engine) as own:
        own.execute(HOST.insert().values(number=1))
        mine = store.using(own)
        mine.append_message("k", message("gone"))
        mine.append_messages("k", [message("gone", id="a"), message("gone too")])
        mine.create("other", messages=messages(2))
        mine.update("k", title="gone")
        assert len(mine.get("k").messages) == 3
        own.rollback()
        assert mine.messages("k") == []
        own.rollback()
    assert store.get("k").messages == []
    assert store.info("k").title is None
    assert not store.exists("other")
    with LENDERS[source](host_engine) as own:
        store.using(own).append_message("k", message("kept"))
        own.execute(HOST.insert().values(number=2))
        own.commit()
        store.using(own).append_message("k", message("kept as well"))
        own.commit()
    assert [m.content for m in store.messages("k")] == ["kept", "kept as well"]
    with host_engine.connect() as connection:
        assert connection.execute(sa.select(HOST.c.number)).scalars().all() == [2]


def test_an_append_as_the_first_thing_on_a_connection_is_part_of_its_transaction(
    store: Store, host_engine: sa.Engine
) -> None:
    store.create("k")
    with host_engine.connect() as connection:
        store.using(connection).append_message("k", message("gone"))
        connection.rollback()
        store.using(connection).append_message("k", message("kept"))
        connection.commit()
        store.using(connection).delete("k")
    assert [m.content for m in store.messages("k")] == ["kept"]


def test_an_error_of_ours_leaves_the_callers_transaction_usable(store: Store, host_engine: sa.Engine) -> None:
    store.create("k", messages=[message("a", id="a"), message("b")])
    with host_engine.begin() as connection:
        mine = store.using(connection)
        connection.execute(HOST.insert().values(number=1))
        with pytest.raises(Conflict):
            mine.append_messages("k", messages(1), replace_after=1, after=7)
        with pytest.raises(SessionNotFound):
            mine.append_message("nobody", message())
        assert mine.append_message("k", message("other", id="a")).replayed
        mine.append_message("k", message("c"))
    assert [m.content for m in store.messages("k")] == ["a", "b", "c"]
    with host_engine.connect() as connection:
        assert connection.execute(sa.select(HOST.c.number)).scalars().all() == [1]


def test_the_pool_is_as_it_was_after_an_append(url: str) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message("a", id="a"))
        with pytest.raises(SessionNotFound):
            store.append_message("nobody", message())
        store.append_message("k", message("again", id="a"))
        with engine.connect() as connection:
            HOST.create(connection)
            connection.execute(HOST.insert().values(number=1))
            connection.rollback()
        assert not sa.inspect(engine).has_table(HOST.name)
    engine.dispose()


def test_a_borrowed_engine_stays_open(host_engine: sa.Engine) -> None:
    with Store(host_engine) as store:
        store.create("k", messages=messages(3))
        assert store.engine is host_engine
        with host_engine.connect() as connection:
            mine = store.using(connection)
            mine.close()
            assert len(mine.get("k").messages) == len(store.get("k").messages) == 3
    for call in (
        lambda: store.get("k"),
        lambda: store.stats(),
        lambda: store.create("late"),
        lambda: store.append_message("k", message()),
        lambda: store.append_messages("k", messages(1), replace_after=0),
        lambda: store.delete("k"),
    ):
        with pytest.raises(LangoStoreError, match="closed"):
            call()
    with host_engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM lango_message")).scalar() == 3


def test_close_refuses_calls_of_stores_made_from_it(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store, engine.connect() as connection:
        store.create("k")
        seeing = store.at(None)
        seeing.close()
        assert store.exists("k")
        assert seeing.exists("k")
        at_last = seeing.at(None)
        mine = [store.using(connection), at_last.using(connection), store.using(connection).at(None)]
        store.close()
        for closed in (store, seeing, at_last, *mine):
            with pytest.raises(LangoStoreError, match="closed"):
                closed.exists("k")
    engine.dispose()


def async_url(url: str) -> str:
    return url.replace("sqlite:///", "sqlite+aiosqlite:///")


def test_inside_an_async_session(store: Store, url: str) -> None:
    store.create("k")

    async def host() -> None:
        engine = create_async_engine(async_url(url))
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine.sync_engine, "connect", lambda c, _: c.cursor().execute("PRAGMA foreign_keys = ON"))
        async with engine.begin() as connection:
            await connection.run_sync(HOST.create)
        async with AsyncSession(engine) as session:
            await session.execute(HOST.insert().values(number=1))
            await session.run_sync(lambda s: store.using(s).append_message("k", message("gone")))
            await session.run_sync(lambda s: store.using(s).append_messages("k", messages(2)))
            await session.rollback()
            await session.run_sync(lambda s: store.using(s).append_message("k", message("kept", id="a")))
            again = await session.run_sync(lambda s: store.using(s).append_message("k", message("other", id="a")))
            assert again.replayed
            await session.run_sync(lambda s: store.using(s).append_messages("k", messages(2), replace_after=1))
            await session.execute(HOST.insert().values(number=2))
            await session.commit()
            found = await session.run_sync(lambda s: store.using(s).get("k"))
            assert [m.content for m in found.messages] == ["kept", "message 0", "message 1"]
            assert (await session.execute(sa.select(HOST.c.number))).scalars().all() == [2]
        await engine.dispose()

    asyncio.run(host())
    assert [m.content for m in store.messages("k")] == ["kept", "message 0", "message 1"]


def test_what_is_asynchronous_is_refused_with_the_line_to_write(store: Store, url: str) -> None:
    engine = create_async_engine(async_url(url))
    for wrong in (engine, engine.sync_engine):
        with pytest.raises(TypeError, match="run_sync"):
            Store(wrong)  # type: ignore[arg-type]
    for source in (AsyncSession(engine), engine.connect(), engine):
        with pytest.raises(TypeError, match="run_sync"):
            store.using(source)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="URL"):
        Store(5)  # type: ignore[arg-type]


def test_the_callers_database_needs_our_tables_too(store: Store, empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.connect() as connection, pytest.raises(SchemaOutOfDate):
        store.using(connection).get("k")
    engine.dispose()


@pytest.mark.parametrize("make", [create_engine, sa.create_engine])
def test_a_hosts_engine_in_autocommit_stays_in_autocommit(make_postgres: MakeDatabase, make: Any) -> None:
    engine = make(make_postgres(), isolation_level="AUTOCOMMIT", pool_size=1)
    HOST.create(engine)
    with Store(engine) as store, engine.connect() as connection:
        connection.execute(HOST.insert().values(number=1))
        connection.close()
        store.create("k", messages=[message()])
        store.append_message("k", message())
        with engine.connect() as again:
            again.execute(HOST.insert().values(number=2))
        other = create_engine(engine.url)
        with other.connect() as looking:
            assert looking.execute(sa.select(HOST.c.number)).scalars().all() == [1, 2]
        other.dispose()
    engine.dispose()


def test_foreign_keys_are_asked_for_before_migrating(tmp_path: Any) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/host.db")
    with pytest.raises(LangoStoreError, match="PRAGMA foreign_keys = ON"):
        Store(engine, migrate=True).count()
    assert sa.inspect(engine).get_table_names() == []
    schema.upgrade(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 0  # as the host had it
    engine.dispose()


REFUSE_TOOLS = {
    "sqlite": [
        "CREATE TRIGGER refuse BEFORE INSERT ON lango_message WHEN NEW.role = 'tool' "
        "BEGIN SELECT RAISE(ABORT, 'no tools here'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no tools here''; END'",
        "CREATE TRIGGER refuse BEFORE INSERT ON lango_message FOR EACH ROW WHEN (NEW.role = 'tool') "
        "EXECUTE FUNCTION refuse()",
    ],
}


HALF_REFUSED: dict[str, Callable[[Conversation], object]] = {
    "a message": lambda c: c.append_message(message(role="tool")),
    "messages": lambda c: c.append_messages([message(), message(role="tool")]),
    "messages with ids": lambda c: c.append_messages([message(id="a"), message(role="tool", id="b")]),
    "a turn": lambda c: c.save_turn([message(), message(role="tool")], {"tokens": 1}),
    "a turn with an id": lambda c: c.save_turn([message(), message(role="tool")], id="t"),
    "messages in place of others": lambda c: c.append_messages([message(role="tool")], replace_after=0),
}


@not_on_a_cluster("Citus allows no trigger with an error of its own on a distributed table")
def test_an_append_that_fails_half_way_and_is_caught_leaves_nothing(store: Store, host_engine: sa.Engine) -> None:
    store.create("k", messages=messages(2))
    before = store.get("k")
    with host_engine.begin() as connection:
        for statement in REFUSE_TOOLS[connection.dialect.name]:
            connection.exec_driver_sql(statement)
    for number, (appended, append) in enumerate(HALF_REFUSED.items()):
        with host_engine.connect() as own:
            own.execute(HOST.insert().values(number=number))
            with pytest.raises(LangoStoreError, match="no tools here"):
                append(store.using(own).open("k"))
            own.commit()
        assert store.get("k") == before, appended
    assert [finding for finding in store.examine() if finding.name == "wrong counters"] == []


def test_what_looks_at_a_database_looks_at_the_callers(url: str, empty_url: str) -> None:
    engine = create_engine(url)
    Store(engine).create("k", messages=messages(2))
    other = create_engine(empty_url)  # nothing of ours, and one connection that is taken
    with other.connect(), engine.connect() as connection:
        mine = Store(other).using(connection)
        mine.ping()
        assert [finding for finding in mine.examine() if finding.name != "settings"] == []
        assert mine.stats().messages == 2
    memory = create_engine("sqlite://", pool_timeout=0.1)
    with memory.connect() as taken, engine.connect() as connection:
        taken.exec_driver_sql("SELECT 1")
        found = Store(memory).using(connection).examine()
        assert [finding for finding in found if finding.name != "settings"] == []
    for each in (engine, other, memory):
        each.dispose()


def test_an_engine_with_foreign_keys_off_is_refused_as_a_stores_and_as_a_callers(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    off = sa.create_engine(url)
    with Store(create_engine(url)) as store, off.connect() as connection:
        for refused in (Store(off), store.using(connection)):
            with pytest.raises(LangoStoreError, match="foreign keys off"):
                refused.exists("k")
    off.dispose()


def test_a_transaction_that_was_begun_on_the_drivers_connection_is_gone_on_with(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite())
    with Store(engine) as store, engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN")
        store.using(connection).create("k")
        connection.rollback()
        assert not store.exists("k")
    engine.dispose()
