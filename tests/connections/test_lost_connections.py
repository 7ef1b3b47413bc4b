"""Lost connections: a broken connection is never used again."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages
from support.relay import Relay

from lango_store import DatabaseUnavailable, Store, create_engine
from lango_store._engine import pool

WRITES: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append_message("k", message()),
    "several": lambda store: store.conversation("k").append_messages(messages(2), replace_after=0),
    "load": lambda store: store.get("k"),
}


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("reset", ["rollback", None])
def test_broken_connection_is_not_returned_to_the_pool_of_the_application(
    make_postgres: MakeDatabase,
    administrator: sa.Engine,
    caplog: pytest.LogCaptureFixture,
    call: Callable[[Store], object],
    reset: Literal["rollback"] | None,
) -> None:
    # This pool does not ping connections: it detects a lost one only by a rollback, if at all.
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


@pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())
def test_connection_idle_for_more_than_30_seconds_is_pinged_before_use(
    make_postgres: MakeDatabase, relay: Relay, monkeypatch: pytest.MonkeyPatch, call: Callable[[Store], object]
) -> None:
    engine = create_engine(relay.url(make_postgres()), pool_size=1)
    now = [1000.0]
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Store(engine) as store:
        store.create("k")
        call(store)
        relay.forget()
        now[0] += 31
        call(store)
        relay.forget()
        with pytest.raises(DatabaseUnavailable):  # just used: not pinged, which would cost a round trip
            call(store)
        call(store)
    engine.dispose()


def test_idle_connection_is_replaced_only_if_it_does_not_answer_the_ping(
    make_postgres: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(make_postgres(), pool_size=1)
    now = [1000.0]
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    drivers: list[Any] = []
    sa.event.listen(engine, "connect", lambda driver, _: drivers.append(driver))
    with Store(engine) as store:
        store.create("k")
        for _ in range(2):
            now[0] += 31
            store.append_message("k", message())
        assert len(drivers) == 1
        drivers[0].pgconn.enter_pipeline_mode()  # a connection that was left open without sending or reading
        now[0] += 31
        store.append_message("k", message())
        assert len(drivers) == 2
    engine.dispose()
