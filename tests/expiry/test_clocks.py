"""Clients whose clocks differ: on PostgreSQL the server's clock decides, unless the store has a `clock`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.databases import CITUS, MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.statements import watched

from lango_store import Store, schema
from lango_store._connections import context
from lango_store.testing import Clock

TTL = timedelta(minutes=5)
Machine = Callable[[float], Any]


@pytest.fixture
def client(make_postgres: MakeDatabase) -> Iterator[Store]:
    with Store(make_postgres()) as store:
        yield store


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Set this machine's clock off by a number of minutes, for stores without a `clock`."""

    @contextmanager
    def off(minutes: float) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(context, "utc_now", lambda: datetime.now(UTC) + timedelta(minutes=minutes))
            yield

    return off


def near(moment: datetime | None, expected: datetime) -> bool:
    return moment is not None and abs(moment - expected) < timedelta(minutes=1)


def test_client_clocks_ten_minutes_apart_do_not_affect_expiry(client: Store, machine: Machine) -> None:
    for behind, ahead in ((-10, 10), (10, -10)):
        with machine(behind):
            client.create("k", ttl=TTL, messages=messages(2))
            client.create("bare", ttl=TTL)
        with machine(ahead):
            assert client.exists("k")
            assert client.count() == 2
            assert len(client.list_sessions().items) == 2
            assert client.list_sessions(expired=True).items == []
            client.append_message("k", message())
            client.conversation("k").append_messages(messages(2))
            client.open("k").save_turn(messages(2), id="t" + str(ahead))
            client.conversation("k").update(title="t")
            client.open("k").fork("fork")
            assert client.expire().sessions == 0
            assert client.expire(older_than=TTL).sessions == 0
            assert client.stats().expired == 0
            before = client.conversation("k").info().expires_at
        with machine(behind):
            client.append_message("k", message())
            after = client.conversation("k").info().expires_at
            assert before is not None
            assert after is not None
            assert after >= before
            client.open("k").compact(lambda window: [message("summary")])
            assert client.open("k").pop_message() is not None
        for key in ("k", "bare", "fork"):
            info = client.conversation(key).info()
            now = datetime.now(UTC)
            assert near(info.created_at, now), key
            assert near(info.updated_at, now), key
            assert near(info.expires_at, now + TTL), key
            assert all(near(m.created_at, now) for m in client.conversation(key).all_messages())
            assert client.delete(key)


def test_append_returns_the_times_that_are_stored(client: Store, machine: Machine) -> None:
    with machine(10):
        made = client.create("k", ttl=TTL)
        assert made == client.get("k")
        one = client.append_message("k", message())
        many = client.conversation("k").append_messages(
            [message(), message(created_at=datetime(2020, 1, 1, tzinfo=UTC))]
        )
        turn = client.open("k").save_turn(messages(1))
        assert [one, *many, *turn.messages] == client.conversation("k").all_messages()
        assert many[1].created_at == datetime(2020, 1, 1, tzinfo=UTC)
        assert client.open("k").turns.list() == [turn.model_copy(update={"messages": []})]
        created = client.create("with messages", ttl=TTL, messages=messages(2))
        assert created == client.get("with messages")


@not_on_a_cluster("a search index is refused on distributed tables")
def test_search_finds_a_live_session_although_the_clients_clock_is_wrong(client: Store, machine: Machine) -> None:
    with machine(-10):
        client.create("k", ttl=TTL, messages=[message("oslo")])
    schema.enable_search(client.engine)
    for minutes in (-10, 10):
        with machine(minutes):
            assert [hit.key for hit in client.search("oslo").items] == ["k"]
            assert [hit.key for hit in client.conversation("k").search("oslo").items] == ["k"]


def test_store_without_clock_does_not_read_the_clients_clock(make_postgres: MakeDatabase) -> None:
    def no_clock() -> datetime:
        raise AssertionError("the client's clock was asked")

    with Store(make_postgres()) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "utc_now", no_clock)
        store.create("k", ttl=TTL)
        with watched(store.engine) as statements:
            store.append_message("k", message())
        assert len(statements) == (4 if CITUS else 1)  # there a BEGIN, two statements and a COMMIT
        store.conversation("k").append_messages(messages(2))
        store.open("k").save_turn(messages(2), id="t")
        store.get("k"), store.list_sessions(), store.exists("k"), store.touch("k"), store.expire()


def test_store_takes_times_from_the_argument_clock_on_both_databases(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        store.create("k", ttl=TTL)
        one = store.append_message("k", message())
        assert one.created_at == clock.time == store.conversation("k").info().updated_at
        clock.move(minutes=5)
        assert not store.exists("k")
        assert store.expire().sessions == 1


def test_purge_with_now_deletes_sessions_that_are_expired_at_that_time(client: Store) -> None:
    client.create("k", ttl=TTL)
    assert client.expire(now=datetime.now(UTC)).sessions == 0
    assert client.expire(now=datetime.now(UTC) + 2 * TTL).sessions == 1


def test_session_can_expire_during_a_long_transaction_of_the_caller(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, store.engine.begin() as connection:
        mine = store.using(connection)
        mine.create("k", ttl=timedelta(milliseconds=20))
        connection.exec_driver_sql("SELECT pg_sleep(0.05)")
        assert not mine.exists("k")


def test_append_never_moves_expiry_back_but_touch_can(store: Store, clock: Clock) -> None:
    store.create("k", ttl=TTL)
    store.append_message("k", message())
    before = store.conversation("k").info().expires_at
    clock.move(minutes=-10)
    store.append_message("k", message())
    store.conversation("k").append_messages(messages(2))
    store.open("k").save_turn(messages(1))
    assert store.conversation("k").info().expires_at == before
    touched = store.touch("k", ttl=TTL).expires_at
    assert touched is not None
    assert abs(touched - (clock.time + TTL)) < timedelta(milliseconds=1)


def test_purge_finds_expired_sessions_by_an_index(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, store.engine.connect() as connection:
        connection.exec_driver_sql(
            "INSERT INTO lango_session (key, created_at, updated_at, expires_at) SELECT i::text, now(), now(), "
            "now() + i * interval '1 hour' FROM generate_series(-10, 9999) AS i"
        )
        connection.exec_driver_sql("ANALYZE lango_session")
        plan = connection.exec_driver_sql(
            "EXPLAIN SELECT key FROM lango_session "
            "WHERE expires_bucket <= coalesce(%(now)s::timestamptz, statement_timestamp()) "
            "AND expires_at <= coalesce(%(now)s::timestamptz, statement_timestamp())",
            {"now": None},
        )
        assert "ix_lango_session_expires_bucket" in "".join(plan.scalars())
