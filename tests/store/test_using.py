"""`Store.using`: calls inside the caller's own transaction, which the caller commits or rolls back."""

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
from support.session_checks import findings

from lango_store import (
    Conflict,
    Conversation,
    LangoStoreError,
    SchemaOutOfDate,
    SessionNotFound,
    Store,
    StoreClosed,
    create_engine,
    schema,
)

HOST = sa.Table("host_order", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True))


@pytest.fixture(params=["lango_store engine", "SQLAlchemy engine"])
def host_engine(request: pytest.FixtureRequest, url: str) -> Any:
    """Return an engine made by `create_engine` or by SQLAlchemy itself."""
    engine = create_engine(url) if request.param == "lango_store engine" else sa.create_engine(url)
    if request.param == "SQLAlchemy engine" and engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    HOST.create(engine)
    yield engine
    engine.dispose()


Opener = Callable[[sa.Engine], Any]
OPENERS: dict[str, Opener] = {
    "Connection": lambda engine: engine.connect(),
    "Session": lambda engine: orm.Session(engine),
    "SQLModel session": lambda engine: sqlmodel.Session(engine),
}


@pytest.mark.parametrize("source", OPENERS)
def test_writes_through_using_are_committed_or_rolled_back_by_the_caller(
    store: Store, host_engine: sa.Engine, source: str
) -> None:
    store.create("k")
    with OPENERS[source](host_engine) as host:
        host.execute(HOST.insert().values(number=1))
        bound = store.using(host)
        bound.append_message("k", message("gone"))
        bound.conversation("k").append_messages([message("gone", id="a"), message("gone too")])
        bound.create("other", messages=messages(2))
        bound.conversation("k").update(title="gone")
        assert len(bound.get("k").messages) == 3
        host.rollback()
        assert bound.conversation("k").messages() == []
        host.rollback()
    assert store.get("k").messages == []
    assert store.conversation("k").info().title is None
    assert not store.exists("other")
    with OPENERS[source](host_engine) as host:
        store.using(host).append_message("k", message("kept"))
        host.execute(HOST.insert().values(number=2))
        host.commit()
        store.using(host).append_message("k", message("kept as well"))
        host.commit()
    assert [m.content for m in store.conversation("k").messages()] == ["kept", "kept as well"]
    with host_engine.connect() as connection:
        assert connection.execute(sa.select(HOST.c.number)).scalars().all() == [2]


def test_append_that_begins_the_callers_transaction_is_rolled_back_with_it(
    store: Store, host_engine: sa.Engine
) -> None:
    store.create("k")
    with host_engine.connect() as connection:
        store.using(connection).append_message("k", message("gone"))
        connection.rollback()
        store.using(connection).append_message("k", message("kept"))
        connection.commit()
        store.using(connection).delete("k")
    assert [m.content for m in store.conversation("k").messages()] == ["kept"]


def test_store_error_leaves_the_callers_transaction_usable(store: Store, host_engine: sa.Engine) -> None:
    store.create("k", messages=[message("a", id="a"), message("b")])
    with host_engine.begin() as connection:
        bound = store.using(connection)
        connection.execute(HOST.insert().values(number=1))
        with pytest.raises(Conflict):
            bound.conversation("k").append_messages(messages(1), replace_after=1, after=7)
        with pytest.raises(SessionNotFound):
            bound.append_message("missing", message())
        assert bound.append_message("k", message("other", id="a")).replayed
        bound.append_message("k", message("c"))
    assert [m.content for m in store.conversation("k").messages()] == ["a", "b", "c"]
    with host_engine.connect() as connection:
        assert connection.execute(sa.select(HOST.c.number)).scalars().all() == [1]


def test_pooled_connection_is_not_in_autocommit_after_an_append(url: str) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0)
    with Store(engine) as store:
        store.create("k")
        store.append_message("k", message("a", id="a"))
        with pytest.raises(SessionNotFound):
            store.append_message("missing", message())
        store.append_message("k", message("again", id="a"))
        HOST.create(engine)
        with engine.connect() as connection:
            connection.execute(HOST.insert().values(number=1))
            connection.rollback()
            assert connection.scalar(sa.select(sa.func.count()).select_from(HOST)) == 0
    engine.dispose()


def test_close_leaves_the_callers_engine_open(host_engine: sa.Engine) -> None:
    with Store(host_engine) as store:
        store.create("k", messages=messages(3))
        assert store.engine is host_engine
        with host_engine.connect() as connection:
            bound = store.using(connection)
            bound.close()
            assert len(bound.get("k").messages) == len(store.get("k").messages) == 3
    for call in (
        lambda: store.get("k"),
        lambda: store.count(),
        lambda: store.create("late"),
        lambda: store.append_message("k", message()),
        lambda: store.conversation("k").append_messages(messages(1), replace_after=0),
        lambda: store.delete("k"),
    ):
        with pytest.raises(StoreClosed, match="closed"):
            call()
    with host_engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM lango_message")).scalar() == 3


def test_derived_stores_refuse_calls_after_the_store_is_closed(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store, engine.connect() as connection:
        store.create("k")
        at_store = store.at(None)
        at_store.close()
        assert store.exists("k")
        assert at_store.exists("k")
        at_last = at_store.at(None)
        bound = [store.using(connection), at_last.using(connection), store.using(connection).at(None)]
        store.close()
        for closed in (store, at_store, at_last, *bound):
            with pytest.raises(StoreClosed, match="closed"):
                closed.exists("k")
    engine.dispose()


def async_url(url: str) -> str:
    return url.replace("sqlite:///", "sqlite+aiosqlite:///")


def test_using_works_in_an_async_session_of_sqlalchemy(store: Store, url: str) -> None:
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
            await session.run_sync(lambda s: store.using(s).conversation("k").append_messages(messages(2)))
            await session.rollback()
            await session.run_sync(lambda s: store.using(s).append_message("k", message("kept", id="a")))
            again = await session.run_sync(lambda s: store.using(s).append_message("k", message("other", id="a")))
            assert again.replayed
            await session.run_sync(
                lambda s: store.using(s).conversation("k").append_messages(messages(2), replace_after=1)
            )
            await session.execute(HOST.insert().values(number=2))
            await session.commit()
            session_in_transaction = await session.run_sync(lambda s: store.using(s).get("k"))
            assert [m.content for m in session_in_transaction.messages] == ["kept", "message 0", "message 1"]
            assert (await session.execute(sa.select(HOST.c.number))).scalars().all() == [2]
        await engine.dispose()

    asyncio.run(host())
    assert [m.content for m in store.conversation("k").messages()] == ["kept", "message 0", "message 1"]


def test_async_engine_and_session_are_refused_with_a_hint(store: Store, url: str) -> None:
    engine = create_async_engine(async_url(url))
    for wrong in (engine, engine.sync_engine):
        with pytest.raises(TypeError, match="run_sync"):
            Store(wrong)  # type: ignore[arg-type]
    for source in (AsyncSession(engine), engine.connect(), engine):
        with pytest.raises(TypeError, match="run_sync"):
            store.using(source)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="URL"):
        Store(5)  # type: ignore[arg-type]


def test_using_checks_the_schema_of_the_callers_database(store: Store, empty_url: str) -> None:
    engine = create_engine(empty_url)
    with engine.connect() as connection, pytest.raises(SchemaOutOfDate):
        store.using(connection).get("k")
    engine.dispose()


@pytest.mark.parametrize("make", [create_engine, sa.create_engine])
def test_callers_autocommit_engine_stays_in_autocommit(make_postgres: MakeDatabase, make: Any) -> None:
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
        with other.connect() as reader:
            assert reader.execute(sa.select(HOST.c.number)).scalars().all() == [1, 2]
        other.dispose()
    engine.dispose()


def test_store_with_migrate_refuses_an_engine_with_foreign_keys_off(tmp_path: Any) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/host.db")
    with pytest.raises(LangoStoreError, match="PRAGMA foreign_keys = ON"):
        Store(engine, migrate=True).count()
    assert sa.inspect(engine).get_table_names() == []
    schema.upgrade(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 0  # unchanged for the caller
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


PARTLY_REFUSED: dict[str, Callable[[Conversation], object]] = {
    "a message": lambda c: c.append_message(message(role="tool")),
    "messages": lambda c: c.append_messages([message(), message(role="tool")]),
    "messages with ids": lambda c: c.append_messages([message(id="a"), message(role="tool", id="b")]),
    "a turn": lambda c: c.save_turn([message(), message(role="tool")], {"tokens": 1}),
    "a turn with an id": lambda c: c.save_turn([message(), message(role="tool")], id="t"),
    "replace_after": lambda c: c.append_messages([message(role="tool")], replace_after=0),
}


@pytest.mark.slow
@not_on_a_cluster("Citus allows no trigger that raises an error on a distributed table")
def test_failed_append_in_callers_transaction_writes_nothing(store: Store, host_engine: sa.Engine) -> None:
    store.create("k", messages=messages(2))
    before = store.get("k")
    with host_engine.begin() as connection:
        for statement in REFUSE_TOOLS[connection.dialect.name]:
            connection.exec_driver_sql(statement)
    for number, (name, append) in enumerate(PARTLY_REFUSED.items()):
        with host_engine.connect() as host:
            host.execute(HOST.insert().values(number=number))
            with pytest.raises(LangoStoreError, match="no tools here"):
                append(store.using(host).open("k"))
            host.commit()
        assert store.get("k") == before, name
    assert {finding.name for finding in findings(store)} <= {"settings", "trigger"}


def test_calls_on_an_engine_with_foreign_keys_off_are_refused(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    off = sa.create_engine(url)
    with Store(create_engine(url)) as store, off.connect() as connection:
        for refused in (Store(off), store.using(connection)):
            with pytest.raises(LangoStoreError, match="foreign keys off"):
                refused.exists("k")
    off.dispose()


def test_using_joins_a_transaction_begun_on_the_driver_connection(make_sqlite: MakeDatabase) -> None:
    engine = create_engine(make_sqlite())
    with Store(engine) as store, engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN")
        store.using(connection).create("k")
        connection.rollback()
        assert not store.exists("k")
    engine.dispose()
