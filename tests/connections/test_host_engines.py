"""Engines created by a host: isolation levels, autocommit, schemas, and event listeners."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import message, messages

from lango_store import DatabaseBusy, LangoStoreError, NotPermitted, Store, create_engine

LEVELS = {
    "sqlite": ["AUTOCOMMIT", "READ UNCOMMITTED", "SERIALIZABLE"],
    "postgresql": ["AUTOCOMMIT", "READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"],
}


MakeEngine = Callable[..., sa.Engine]


METHODS: list[Callable[[Store], object]] = [
    lambda store: store.get("k"),
    lambda store: store.count(),
    lambda store: store.stats(),
    lambda store: store.append_message("k", message()),
    lambda store: store.conversation("k").append_messages(messages(2), replace_after=1),
]


def stock_engine(url: str, **options: Any) -> sa.Engine:
    """An engine made by SQLAlchemy's create_engine."""
    engine = sa.create_engine(url, **options)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    return engine


def host_engines(url: str) -> Iterator[tuple[str, sa.Engine]]:
    """Engines with each isolation level, set for the engine, for its connections, and by the server for a role."""
    for make in (create_engine, stock_engine):
        for level in LEVELS[sa.make_url(url).get_backend_name()]:
            yield f"{level} for the engine", make(url, isolation_level=level)
            yield f"{level} for each connection", make(url).execution_options(isolation_level=level)
            if make is stock_engine and level not in ("AUTOCOMMIT",) and url.startswith("postgres"):
                option = level.lower().replace(" ", "\\ ")
                connect = {"options": f"-cdefault_transaction_isolation={option}"}
                yield f"{level} from the server", make(url, connect_args=connect)


def reject_inserts(store: Store) -> None:
    """Create a trigger that makes an INSERT of a `tool` message fail."""
    with store.engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON lango_message WHEN NEW.role = 'tool' "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
        else:
            connection.exec_driver_sql(
                "ALTER TABLE lango_message ADD CONSTRAINT refuse CHECK (role <> 'tool') NOT VALID"
            )


@pytest.mark.slow
def test_writes_are_atomic_at_every_isolation_level_of_the_engine(url: str) -> None:
    with Store(url) as own:
        reject_inserts(own)
    for name, engine in host_engines(url):
        store = Store(engine)
        key = store.create(messages=messages(3)).key
        with pytest.raises(LangoStoreError):
            store.conversation(key).append_messages([message("x", role="tool")], replace_after=1)
        assert (store.conversation(key).info().last_seq, len(store.conversation(key).messages())) == (3, 3), name
        store.conversation(key).append_messages(messages(2), replace_after=1)
        store.append_message(key, message())
        assert len(store.conversation(key).messages()) == 4, name
        updated = store.conversation(key).update(title="t", last_consolidated=4)
        touched = store.touch(key)
        assert (
            updated.model_copy(update={"revision": updated.revision + 1}) == touched == store.conversation(key).info()
        ), name
        assert store.conversation(key).pop_message() is not None
        assert store.conversation(key).info().last_consolidated == len(store.conversation(key).messages()) == 3, name
        assert store.delete(key)
        assert not store.exists(key), name
        engine.dispose()


@pytest.mark.slow
def test_reads_are_consistent_at_every_isolation_level_of_the_engine(url: str) -> None:
    with Store(url) as own:
        for name, engine in host_engines(url):
            store = Store(engine)
            key = store.create(messages=messages(1)).key
            with store._context.snapshot() as connection:
                count = sa.text("SELECT count(*) FROM lango_message WHERE session_key = :key")
                assert connection.execute(count, {"key": key}).scalar() == 1
                own.append_message(key, message())
                assert connection.execute(count, {"key": key}).scalar() == 1, name
            assert len(store.conversation(key).messages()) == 2
            engine.dispose()


def test_calls_of_the_store_do_not_change_settings_of_connections_in_the_pool(make_postgres: MakeDatabase) -> None:
    engine = sa.create_engine(make_postgres(), isolation_level="SERIALIZABLE", pool_size=1)
    store = Store(engine)
    store.create("k", messages=messages(2))
    store.append_message("k", message())
    store.stats()
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        assert (driver.autocommit, driver.read_only) == (False, None)
        assert driver.isolation_level == psycopg.IsolationLevel.SERIALIZABLE
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "serializable"
    engine.dispose()


def test_write_in_a_callers_outdated_snapshot_raises_database_busy(make_postgres: MakeDatabase) -> None:
    engine = sa.create_engine(make_postgres(), isolation_level="REPEATABLE READ")
    store = Store(engine)
    store.create("k")
    with engine.connect() as connection:
        mine = store.using(connection)
        mine.conversation("k").info()
        store.append_message("k", message())
        with pytest.raises(DatabaseBusy, match="try again"):
            mine.append_message("k", message())
    engine.dispose()


def test_using_refuses_an_autocommit_connection_and_names_isolation_level(url: str) -> None:
    with Store(url) as own:
        own.create("k", messages=messages(2))
    for make in (create_engine, stock_engine):
        set_by_engine = make(url, isolation_level="AUTOCOMMIT")
        with set_by_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            store = Store(set_by_engine).using(connection)
            for call in METHODS:
                with pytest.raises(LangoStoreError, match="isolation_level="):
                    call(store)
        set_by_engine.dispose()
    with Store(url) as own:
        assert own.conversation("k").info().message_count == 2


def test_schema_translate_map_is_refused_and_search_path_is_suggested(url: str) -> None:
    with Store(url) as own:
        own.create("k")
    engine = create_engine(url)
    moved = engine.execution_options(schema_translate_map={None: "tenant"})
    for call in METHODS:
        with pytest.raises(LangoStoreError, match="csearch_path=tenant"):
            call(Store(moved))
        with moved.connect() as connection, pytest.raises(LangoStoreError, match="csearch_path=tenant"):
            call(Store(engine).using(connection))
        with engine.connect() as connection:
            store = Store(engine).using(connection)
            assert store.count() == 1
            connection.rollback()
            connection.execution_options(schema_translate_map={None: "tenant"})
            with pytest.raises(LangoStoreError, match="csearch_path=tenant"):
                call(store)
    engine.dispose()


# Row-level security, by the usual recipe: each transaction begins with the tenant's name

POLICY = """
CREATE ROLE {role} LOGIN;
GRANT ALL ON ALL TABLES IN SCHEMA public TO {role};
ALTER TABLE lango_session ENABLE ROW LEVEL SECURITY;
ALTER TABLE lango_message ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON lango_session USING (user_id = current_setting('app.tenant'));
CREATE POLICY tenant ON lango_message
    USING (session_key IN (SELECT key FROM lango_session WHERE user_id = current_setting('app.tenant')));
"""


@pytest.fixture
def tenants_url(make_postgres: MakeDatabase, administrator: sa.Engine) -> Iterator[sa.URL]:
    url = sa.make_url(make_postgres())
    role = f"role_{url.database}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(POLICY.format(role=role))
    yield url.set(username=role)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
    engine.dispose()
    with administrator.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {role}")


SET_TENANT = "SELECT set_config('app.tenant', %s, true)"


@not_on_a_cluster("Citus refuses a policy that holds a query, or is never true")
@pytest.mark.parametrize("moment", ["begin", "engine_connect", "checkout"])
@pytest.mark.parametrize("make", [create_engine, sa.create_engine])
def test_row_level_security_separates_tenants(tenants_url: sa.URL, make: Any, moment: str) -> None:
    engine = make(tenants_url, pool_size=1, max_overflow=0)
    tenant = "ann"

    def set_tenant(connection: sa.Connection) -> None:
        connection.exec_driver_sql(SET_TENANT, (tenant,))

    def set_on_driver(driver: psycopg.Connection[Any], *_: object) -> None:
        driver.execute("SELECT set_config('app.tenant', %s, false)", (tenant,))
        driver.commit()

    def set_on_connection(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT set_config('app.tenant', %s, false)", (tenant,))
        connection.commit()

    listeners: dict[str, Any] = {"begin": set_tenant, "engine_connect": set_on_connection, "checkout": set_on_driver}
    sa.event.listen(engine, moment, listeners[moment])
    store = Store(engine)
    for tenant in ("ann", "bob"):
        store.create(f"key of {tenant}", user_id=tenant, messages=messages(2))
        store.append_message(f"key of {tenant}", message())
        store.append_message(f"key of {tenant}", message(id="a"))
        store.conversation(f"key of {tenant}").append_messages(messages(2), replace_after=2)
        store.append_message(f"made for {tenant}", message(), create=True, user_id=tenant)
        store.conversation(f"made for {tenant}").save_turn(messages(1), {"tokens": 1}, create=True, user_id=tenant)
        with store.engine.begin() as connection:
            inside = store.using(connection)
            inside.append_message(f"inside for {tenant}", message(), create=True, user_id=tenant)
            inside.create(f"new for {tenant}", messages=messages(2), user_id=tenant)
    for tenant, other in (("ann", "bob"), ("bob", "ann")):
        assert [info.user_id for info in store.list_sessions().items] == [tenant] * 4
        assert len(store.get(f"key of {tenant}").messages) == 4
        assert store.stats().sessions == 4
        assert not store.exists(f"key of {other}")
        for create in (store.create, store.open):
            with pytest.raises(NotPermitted, match=f"'key of {other}'") as hidden:
                create(f"key of {other}", user_id=tenant)
            assert "expired" not in str(hidden.value)
        with pytest.raises(LangoStoreError):
            store.append_message(f"key of {other}", message())
        with pytest.raises(LangoStoreError):
            store.append_message("of another", message(), create=True, user_id=other)
    engine.dispose()


@not_on_a_cluster("Citus refuses a policy that holds a query, or is never true")
def test_write_to_a_row_that_a_policy_makes_read_only_raises_not_permitted(tenants_url: sa.URL) -> None:
    administrator = create_engine(tenants_url.set(username="postgres"))
    with administrator.begin() as connection:
        connection.exec_driver_sql("DROP POLICY tenant ON lango_session")
        connection.exec_driver_sql("CREATE POLICY readers ON lango_session FOR SELECT USING (true)")
        connection.exec_driver_sql("ALTER POLICY tenant ON lango_message USING (true)")
    Store(administrator).create("k", messages=messages(2))
    administrator.dispose()
    writes: list[Callable[[Store], object]] = [
        lambda store: store.append_message("k", message()),
        lambda store: store.conversation("k").update(title="new"),
        lambda store: store.conversation("k").values.set({"a": 1}),
        lambda store: store.conversation("k").clear(),
    ]
    with Store(tenants_url) as store:
        for write in writes:
            with pytest.raises(NotPermitted, match="row-level security"):
                write(store)


@pytest.mark.parametrize("moment", ["begin", "engine_connect", "checkout"])
def test_append_runs_in_a_sqlalchemy_transaction_if_the_engine_has_a_listener(url: str, moment: str) -> None:
    engine = create_engine(url)
    store = Store(engine)
    store.create("k")
    committed: list[sa.Connection] = []
    sa.event.listen(engine, "commit", committed.append)
    store.append_message("k", message())
    assert committed == []
    sa.event.listen(engine, moment, lambda *_: None)
    store.append_message("k", message())
    assert len(committed) == 1
    engine.dispose()


def test_error_of_a_checkin_listener_is_raised_although_the_append_is_committed(url: str) -> None:
    engine = create_engine(url)
    errors = {RuntimeError: RuntimeError, engine.dialect.loaded_dbapi.OperationalError: LangoStoreError}
    store = Store(engine)
    store.create("k")
    for raised, expected in errors.items():

        def fail(driver: Any, _: object, raised: type[Exception] = raised) -> None:
            driver.close()
            raise raised("the host's")

        sa.event.listen(engine, "checkin", fail)
        with pytest.raises(expected, match="the host's"):
            store.append_message("k", message())
        sa.event.remove(engine, "checkin", fail)
    assert store.conversation("k").info().message_count == 2
    engine.dispose()


@not_on_a_cluster("Citus refuses a policy that holds a query, or is never true")
def test_engine_connect_listener_that_leaves_a_transaction_open_is_refused(
    tenants_url: sa.URL,
) -> None:
    engine = create_engine(tenants_url)
    sa.event.listen(engine, "engine_connect", lambda connection: connection.exec_driver_sql(SET_TENANT, ("ann",)))
    with pytest.raises(LangoStoreError, match="listener for `begin`"):
        Store(engine).count()
    engine.dispose()


# using()


def test_using_accepts_scoped_session(url: str) -> None:
    engine = create_engine(url)
    scoped = orm.scoped_session(orm.sessionmaker(engine))
    store = Store(engine)
    store.create("k")
    store.using(scoped).append_message("k", message("gone"))
    scoped.rollback()
    store.using(scoped).append_message("k", message("kept"))
    scoped.commit()
    assert [m.content for m in store.conversation("k").messages()] == ["kept"]
    scoped.remove()
    engine.dispose()


def test_using_on_a_subclass_of_store_keeps_class_and_attributes(url: str) -> None:
    class Tenants(Store):
        def __init__(self, engine: sa.Engine, tenant: str) -> None:
            super().__init__(engine)
            self.tenant = tenant

    engine = create_engine(url)
    with engine.connect() as connection:
        borrowed = Tenants(engine, "ann").using(connection)
        assert (type(borrowed), borrowed.tenant) == (Tenants, "ann")  # type: ignore[attr-defined]
    engine.dispose()


def test_connect_listener_may_leave_a_transaction_open(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = create_engine(url, pool_size=1)
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("SET statement_timeout = '90s'"))
    with Store(url) as other, Store(engine) as store:
        store.ping()
        for key in ("a", "b"):
            engine.dispose()  # the next connection is a new one
            store.create(key, messages=[message()])
            assert other.exists(key)
    engine.dispose()


@pytest.mark.parametrize("make", [create_engine, sa.create_engine], ids=["ours", "SQLAlchemy's"])
@pytest.mark.parametrize("set_by", ["engine", "connection"])
def test_autocommit_keeps_an_insert_of_the_host(url: str, make: MakeEngine, set_by: str) -> None:
    engine = make(url, isolation_level="AUTOCOMMIT") if set_by == "engine" else make(url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE TABLE host (n INTEGER)")
        connection.exec_driver_sql("INSERT INTO host VALUES (1)")
        connection.exec_driver_sql("VACUUM")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM host").scalar() == 1
    engine.dispose()


@pytest.mark.parametrize("make", [create_engine, sa.create_engine], ids=["ours", "SQLAlchemy's"])
def test_raw_connection_without_a_commit_keeps_nothing(url: str, make: MakeEngine) -> None:
    engine = make(url, pool_size=1)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host (n INTEGER)")
    raw = engine.raw_connection()
    raw.cursor().execute("INSERT INTO host VALUES (1)")
    raw.close()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM host").scalar() == 0
    engine.dispose()


def test_an_open_read_of_the_host_blocks_neither_reads_nor_writes(url: str) -> None:
    engine = create_engine(f"{url}?timeout=0" if url.startswith("sqlite") else url)
    store = Store(engine)
    with orm.Session(engine) as reader, orm.Session(engine) as other:
        assert reader.execute(sa.text("SELECT count(*) FROM lango_session")).scalar() == 0
        store.append_message("k", message(), create=True)
        assert other.execute(sa.text("SELECT count(*) FROM lango_session")).scalar() == 1
        store.using(reader).append_message("k", message())
        reader.commit()
    assert store.conversation("k").info().message_count == 2
    engine.dispose()


def test_transaction_of_the_host_is_atomic_after_a_released_savepoint(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE host (n INTEGER)")
    with engine.connect() as connection, connection.begin() as transaction:
        with connection.begin_nested():
            connection.exec_driver_sql("INSERT INTO host VALUES (1)")
        transaction.rollback()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM host").scalar() == 0
    engine.dispose()
