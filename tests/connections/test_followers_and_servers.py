"""Readers that wait while servers are away, behind PgBouncer, on a replica, and with row-level security."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import ContextVar

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import contents, message
from support.following import Follower, until_waiting
from support.pgbouncer import PgBouncer
from support.polling import until
from support.postgres_server import PostgresServer
from support.processes import run_program
from support.relay import Relay

from lango_store import DatabaseUnavailable, SessionNotFound, Store, create_engine, schema
from lango_store._rooms.tail.following import watcher_of


@pytest.mark.slow
def test_followers_continue_after_the_server_was_unreachable(make_postgres: MakeDatabase, relay: Relay) -> None:
    url = make_postgres()
    tries: list[float] = []
    engine = create_engine(relay.url(url))
    with Store(url) as writer, Store(engine) as store:
        writer.create("k")
        reader = Follower(store, "k")
        until_waiting(store)
        writer.append_message("k", message("before"))
        reader.wait_for_messages(1)
        relay.refuse()
        writer.append_message("k", message("while the server is away"))
        sa.event.listen(engine, "do_connect", lambda *_: tries.append(0.0))
        until(lambda: len(tries) > 0)
        relay.admit()
        assert contents(reader.wait_for_messages(2)) == ["before", "while the server is away"]
        writer.delete("k")
        reader.end()
        assert reader.error is None
    engine.dispose()


@pytest.mark.slow
def test_follower_pauses_between_tries_to_reach_an_unreachable_server(
    make_postgres: MakeDatabase, relay: Relay
) -> None:
    url = make_postgres()
    tries: list[float] = []
    engine = create_engine(relay.url(url))
    with Store(url) as writer, Store(engine) as store:
        writer.create("k")
        reader = Follower(store, "k")
        until_waiting(store)
        relay.refuse()
        sa.event.listen(engine, "do_connect", lambda *_: tries.append(0.0))
        until(lambda: len(tries) >= 2)
        assert len(tries) <= 4
        relay.admit()
        writer.delete("k")
        reader.end()
    engine.dispose()


@pytest.mark.slow
@pytest.mark.pgbouncer
def test_followers_get_messages_through_pgbouncer(make_postgres: MakeDatabase, server_url: sa.URL) -> None:
    url = make_postgres()
    pooler = PgBouncer(server_url)
    with Store(url) as writer, Store(pooler.url(url)) as store:
        writer.create("k")
        readers = [Follower(store, "k") for _ in range(4)]
        until_waiting(store, readers=4)
        for number in range(20):  # prepared statements are used from the sixth time on
            writer.append_message("k", message(f"{number}"))
        for reader in readers:
            assert len(reader.wait_for_messages(20)) == 20
        writer.delete("k")
        for reader in readers:
            reader.end()
    pooler.stop()


@pytest.mark.slow
def test_followers_on_a_replica_get_what_the_primary_commits() -> None:
    with ExitStack() as stack:
        primary = PostgresServer(replicated=True)
        stack.callback(primary.stop)
        schema.upgrade(primary.url())
        standby = PostgresServer(standby_of=primary)
        stack.callback(standby.stop)
        with Store(primary.url()) as writer, Store(standby.url()) as reading:
            writer.create("k")
            until(lambda: reading.exists("k"))
            reader = Follower(reading, "k")
            until_waiting(reading)
            for number in range(3):
                writer.append_message("k", message(f"{number}"))
                reader.wait_for_messages(number + 1)
            writer.delete("k")
            reader.end()


# Row-level security, as on the page about PostgreSQL

TENANT: ContextVar[str] = ContextVar("tenant", default="")


@pytest.fixture
def tenants_engine(make_postgres: MakeDatabase, administrator: sa.Engine) -> Iterator[sa.Engine]:
    """Yield an engine of a role that sees the sessions of the tenant in its context."""
    url = sa.make_url(make_postgres())
    role = f"role_{url.database}"
    owner = create_engine(url)
    with owner.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
        connection.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        for name, column in (("session", "key"), ("message", "session_key"), ("change", "session_key")):
            connection.exec_driver_sql(f"ALTER TABLE lango_{name} ENABLE ROW LEVEL SECURITY")
            condition = f"starts_with({column}, current_setting('app.tenant', true) || '/')"
            connection.exec_driver_sql(f"CREATE POLICY tenant ON lango_{name} USING ({condition})")
    engine = create_engine(url.set(username=role))

    @sa.event.listens_for(engine, "begin")
    def name_tenant(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT set_config('app.tenant', %s, true)", (TENANT.get(),))

    yield engine
    engine.dispose()
    with owner.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
    owner.dispose()
    with administrator.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {role}")


@not_on_a_cluster("Citus refuses the policy")
def test_followed_session_is_read_with_the_context_variables_of_the_waiting_reader(tenants_engine: sa.Engine) -> None:
    with Store(tenants_engine) as store:
        readers = {}
        for tenant in ("a", "b"):
            TENANT.set(tenant)
            store.create(f"{tenant}/1")
            readers[tenant] = Follower(store, f"{tenant}/1")
            until_waiting(store, key=f"{tenant}/1")
            with pytest.raises(SessionNotFound):
                next(store.conversation("a/1" if tenant == "b" else "b/1").tail())
        for tenant, reader in readers.items():
            TENANT.set(tenant)
            store.append_message(f"{tenant}/1", message(f"for {tenant}"))
            assert contents(reader.wait_for_messages(1)) == [f"for {tenant}"]
            store.delete(f"{tenant}/1")
            reader.end()


# Errors of polls

WITHOUT_DESCRIPTORS = """
import resource, sys, threading
import sqlalchemy as sa
from support.following import Follower, until_waiting
from support.polling import until
from lango_store import DatabaseUnavailable, Message, Store, create_engine

store, writer = Store(sys.argv[1]), create_engine(sys.argv[1])
store.create("k")
reader = Follower(store, "k")
until_waiting(store)
tries = []
sa.event.listen(store.engine, "do_connect", lambda *_: tries.append(threading.current_thread().name))
with writer.connect().execution_options(isolation_level="AUTOCOMMIT") as administrator:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    administrator.exec_driver_sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    try:
        store.conversation("k").info()
    except DatabaseUnavailable:
        print("refused")
    until(lambda: tries.count("lango_store_watcher") > 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
store.append_message("k", Message.user("after"))
print(len(reader.wait_for_messages(1)))
store.delete("k")
reader.end()
"""


@pytest.mark.slow
def test_followers_survive_a_poll_without_a_free_file_descriptor(make_postgres: MakeDatabase) -> None:
    assert run_program(WITHOUT_DESCRIPTORS, make_postgres()).stdout.split() == ["refused", "1"]


def test_followers_survive_an_error_of_a_listener(url: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(url)
    failures = [RuntimeError("a listener failed")]

    @sa.event.listens_for(engine, "begin")
    def fail(_: sa.Connection) -> None:
        if threading.current_thread().name == "lango_store_watcher" and failures:
            raise failures.pop()

    with Store(engine) as store:
        store.create("k")
        reader = Follower(store, "k")
        until(lambda: not failures)
        store.append_message("k", message())
        assert len(reader.wait_for_messages(1)) == 1
        store.delete("k")
        reader.end()
    assert "a listener failed" in caplog.text
    engine.dispose()


def test_follower_is_refused_without_a_thread_and_the_next_one_starts_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(url) as store:
        store.create("k")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_no_thread)
            with pytest.raises(DatabaseUnavailable, match="thread"):
                next(store.conversation("k").tail())
        assert watcher_of(store._context).channels == {}
        reader = Follower(store, "k")
        store.append_message("k", message())
        assert len(reader.wait_for_messages(1)) == 1
        store.delete("k")
        reader.end()


def start_no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
