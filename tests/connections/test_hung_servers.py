"""Timeouts for servers and networks that stop answering."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message
from support.postgres_server import PostgresServer
from support.relay import Relay

from lango_store import DatabaseBusy, DatabaseUnavailable, Store, create_engine, schema
from lango_store._engine import pool

pytestmark = pytest.mark.slow

LONG = 20.0
"""Seconds that no call of these tests should take, on the slowest machine."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def driver_of(engine: sa.Engine) -> psycopg.Connection[Any]:
    with engine.connect() as connection:
        driver = connection.connection.dbapi_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


BOUNDS = {
    "connect_timeout": "10",
    "keepalives_count": "3",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "tcp_user_timeout": "25000",
}


def test_url_overrides_the_default_timeouts_and_keepalives(
    make_postgres: MakeDatabase, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_postgres()

    def used(*, connect_args: dict[str, Any] | None = None, **parameters: str) -> dict[str, str]:
        engine = create_engine(relay.url(url, **parameters), connect_args=connect_args or {})
        found = driver_of(engine).info.get_parameters()
        engine.dispose()
        return {name: found[name] for name in BOUNDS}

    assert used() == BOUNDS
    assert used(connect_timeout="3", tcp_user_timeout="1000") == BOUNDS | {
        "connect_timeout": "3",
        "tcp_user_timeout": "1000",
    }
    assert used(connect_args={"keepalives_idle": 60}) == BOUNDS | {"keepalives_idle": "60"}
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "4")
    assert used() == BOUNDS | {"connect_timeout": "4"}


def test_connect_timeout_ends_an_attempt_to_connect_that_gets_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = Store(f"postgresql://x@127.0.0.1:{port}/x?connect_timeout=1")
        with pytest.raises(DatabaseUnavailable, match="timeout"), within(LONG):
            store.get("k")


def test_tcp_user_timeout_ends_a_write_that_is_not_acknowledged(make_postgres: MakeDatabase, relay: Relay) -> None:
    with Store(relay.url(make_postgres(), tcp_user_timeout="1000")) as store:
        store.create("k")
        relay.stall()
        with pytest.raises(DatabaseUnavailable), within(LONG):
            store.append_message("k", message("x" * 50_000_000))
        relay.go_on()
        store.append_message("k", message("there"))
        assert [m.content for m in store.get("k").messages] == ["there"]


def test_ping_of_idle_connection_has_a_timeout(
    make_postgres: MakeDatabase, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_IDLE_BEFORE_PING", -1.0)
    monkeypatch.setattr(pool, "_PING_TIMEOUT", 0.2)
    with Store(relay.url(make_postgres(), connect_timeout="1")) as store:
        store.create("k")
        store.append_message("k", message("before"))
        relay.stall()
        with pytest.raises(DatabaseUnavailable, match="timeout"), within(LONG):
            store.append_message("k", message("lost"))
        relay.go_on()
        store.append_message("k", message("after"))
        assert [m.content for m in store.get("k").messages] == ["before", "after"]


@pytest.mark.parametrize("given", ["URL", "connect_args"])
def test_statement_timeout_ends_long_statement(make_postgres: MakeDatabase, given: str) -> None:
    url = f"{make_postgres()}&options=-clock_timeout=60s"
    engine = (
        create_engine(f"{url}&statement_timeout=200ms")
        if given == "URL"
        else create_engine(url, connect_args={"statement_timeout": 200})
    )
    with Store(engine) as store, engine.connect() as connection:
        store.create("k")
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "1min"
        store.using(connection).append_message("k", message())
        with pytest.raises(DatabaseBusy, match="statement timeout"):
            store.append_message("k", message())
    engine.dispose()


@pytest.mark.parametrize("text", ["soon", "-1", "5h", "99999999min"])
def test_statement_timeout_refuses_values_that_are_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"statement_timeout .*: give"):
        create_engine(f"postgresql://x/y?statement_timeout={text}")


def test_migration_ignores_the_statement_timeout_of_the_url(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    other = create_engine(url)
    reading = threading.Event()

    def read() -> None:
        with other.begin() as connection:
            connection.exec_driver_sql("SELECT * FROM lango_session")
            reading.set()
            connection.exec_driver_sql("SELECT pg_sleep(2)")

    reader = threading.Thread(target=read)
    reader.start()
    reading.wait(LONG)
    assert schema.downgrade(f"{url}&statement_timeout=200ms", "base", lock_timeout=LONG) is None
    reader.join()
    other.dispose()


def test_statement_timeout_ends_the_wait_for_a_server_that_hangs() -> None:
    server = PostgresServer()
    try:
        with Store(f"{server.url()}&connect_timeout=2&statement_timeout=200ms", migrate=True) as store:
            store.create("k")
            server.hang()
            with pytest.raises(DatabaseUnavailable, match=r"no answer for 1\.4 s"), within(LONG):
                store.append_message("k", message("unknown"))
            with pytest.raises(DatabaseUnavailable, match="timeout"), within(LONG):
                store.append_message("k", message("refused"))
            server.go_on()
            store.append_message("k", message("there"))
            assert store.get("k").messages[-1].content == "there"
    finally:
        server.stop()
