"""Connections that are lost: none that is broken is lent again, whoever made the engine, and however it broke."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Literal

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import message, messages

from lango_store import DatabaseUnavailable, Store, create_engine, pool

WRITES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append_message("k", message()),
    "several": lambda store: store.append_messages("k", messages(2), replace_after=0),
    "load": lambda store: store.get("k"),
}


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("reset", ["rollback", None])
def test_a_connection_that_broke_is_not_put_back_into_a_hosts_pool(
    make_postgres: MakeDatabase,
    administrator: sa.Engine,
    caplog: pytest.LogCaptureFixture,
    call: Callable[[Store], object],
    reset: Literal["rollback"] | None,
) -> None:
    # The pool asks no connection how it is, and learns of it by its rollback at most.
    engine = sa.create_engine(make_postgres(), pool_size=1, max_overflow=0, pool_reset_on_return=reset)
    with Store(engine) as store:
        store.create("k")
        call(store)
        with administrator.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (engine.url.database,),
            )
        with pytest.raises(DatabaseUnavailable):
            call(store)
        call(store)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("sqlalchemy.pool")] == []
    engine.dispose()


class Relay:
    """A network between clients and a server, which can forget what was connected: only who sends is told."""

    def __init__(self, server: sa.URL) -> None:
        self._server = server
        self._forgotten: set[socket.socket] = set()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def forget(self) -> None:
        """Let what is connected stay silent, and be cut off as soon as it sends."""
        self._forgotten.update(self._open)

    def close(self) -> None:
        """End all of it."""
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in [self._listening, *self._open]:
            _end(each)
        for thread in self._threads:
            thread.join(20)
        for each in [self._listening, *self._open]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = self._connected()
            self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                self._threads.append(threading.Thread(target=self._pump, args=(source, target)))
                self._threads[-1].start()

    def _connected(self) -> socket.socket:
        host = str(self._server.query.get("host", self._server.host or "127.0.0.1"))
        port = self._server.port or 5432
        if host.startswith("/"):
            made = socket.socket(socket.AF_UNIX)
            made.connect(f"{host}/.s.PGSQL.{port}")
            return made
        return socket.create_connection((host, port))

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                if source in self._forgotten:
                    break
                target.sendall(data)
        except OSError:
            pass  # the other pump or close() ended it
        _end(source)
        _end(target)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # ended already


@pytest.fixture
def relay(server_url: sa.URL) -> Iterator[Relay]:
    made = Relay(server_url)
    yield made
    made.close()


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
def test_a_connection_that_was_idle_for_long_is_asked_before_it_is_lent(
    make_postgres: MakeDatabase, relay: Relay, monkeypatch: pytest.MonkeyPatch, call: Callable[[Store], object]
) -> None:
    url = sa.make_url(make_postgres())
    query = {name: value for name, value in url.query.items() if name != "host"}
    through = url.set(host="127.0.0.1", port=relay.port, query=query)
    engine = create_engine(through, pool_size=1)
    now = [1000.0]
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Store(engine) as store:
        store.create("k")
        call(store)
        relay.forget()
        now[0] += 31
        call(store)
        relay.forget()
        with pytest.raises(DatabaseUnavailable):  # a moment later nobody asks: it would cost a round trip each time
            call(store)
        call(store)
    engine.dispose()
