"""Reads from a replica: a writer always reads its own writes."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages
from support.postgres_server import PostgresServer

from lango_store import DatabaseUnavailable, SessionNotFound, Store, StoreClosed, interchange, schema
from lango_store._connections.replicas import LastWrite

PAIRS: Final = int(os.environ.get("LANGO_STORE_REPLICA_PAIRS", "160"))


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with ExitStack() as stack:
        primary = PostgresServer(replicated=True)
        stack.callback(primary.stop)
        schema.upgrade(primary.url())
        standby = PostgresServer(standby_of=primary)
        stack.callback(standby.stop)
        yield primary, standby


@pytest.fixture
def primary(lasting: tuple[PostgresServer, PostgresServer]) -> PostgresServer:
    return lasting[0]


@pytest.fixture
def replica(lasting: tuple[PostgresServer, PostgresServer]) -> Iterator[PostgresServer]:
    lasting[1].delay(0.001)
    yield lasting[1]
    with Store(lasting[0].url()) as store:
        store.delete_where(key_prefix="k")
    lasting[1].delay(0.001)


@pytest.fixture
def store(primary: PostgresServer, replica: PostgresServer) -> Iterator[Store]:
    with Store(primary.url(), replica=replica.url()) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0.001, 2])
def test_writer_reads_its_own_writes_although_the_replica_lags(
    store: Store, replica: PostgresServer, behind: float
) -> None:
    replica.delay(behind)
    for writer in range(8):
        store.create(f"k{writer}")

    def write_and_read(writer: int) -> None:
        conversation = store.conversation(f"k{writer}")
        for number in range(1, PAIRS // 8 + 1):
            conversation.append_message(message(f"{number}"))
            assert conversation.get().message_count == number
            assert conversation.history(last=1)[0]["content"] == f"{number}"
            assert store.conversation(f"k{writer}").info().last_seq == number
            assert conversation.messages(last=1)[0].content == f"{number}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write_and_read, range(8)))


READS: Final[dict[str, Callable[[Store], Any]]] = {
    "get": lambda store: store.get("k").message_count,
    "messages": lambda store: len(store.conversation("k").messages(last=9)),
    "all_messages": lambda store: len(store.conversation("k").all_messages()),
    "iter_messages": lambda store: len(list(store.conversation("k").iter_messages())),
    "history": lambda store: len(store.conversation("k").history()),
    "info": lambda store: store.conversation("k").info().message_count,
    "list_sessions": lambda store: store.list_sessions(key_prefix="k").items[0].message_count,
    "iter_sessions": lambda store: next(store.iter_sessions(key_prefix="k")).message_count,
    "count": lambda store: 3 * store.count(key_prefix="k"),
    "exists": lambda store: 3 * store.exists("k"),
    "total_usage": lambda store: store.conversation("k").total_usage()["tokens"],
    "turns": lambda store: 3 * len(store.conversation("k").turns.list()),
    "values": lambda store: store.conversation("k").values.get()["a"],
}


@pytest.mark.slow
def test_replica_answers_reads_while_primary_is_down(
    store: Store, primary: PostgresServer, replica: PostgresServer, tmp_path: Any
) -> None:
    store.create("k")
    store.conversation("k").save_turn(messages(3), {"tokens": 3})
    store.conversation("k").values.set({"a": 3})
    replica.follow(primary)
    primary.interrupt()
    try:
        assert {name: read(store) for name, read in READS.items()} == dict.fromkeys(READS, 3)
        exported = interchange.export(store, tmp_path / "backup.jsonl", "backup", everything=True)
        assert [each.key for each in exported] == ["k"]
        for call in (lambda: store.append_message("k", message()), lambda: store.delete("k"), store.ping):
            with pytest.raises(DatabaseUnavailable):
                call()
        with pytest.raises(DatabaseUnavailable):  # a primary connection is opened for the write
            store.conversation("k").turns.begin_compaction()
    finally:
        primary.resume()


@pytest.mark.slow
def test_primary_answers_a_read_during_which_the_replica_fails(
    store: Store, primary: PostgresServer, replica: PostgresServer
) -> None:
    store.create("k", messages=messages(3))
    replica.follow(primary)
    assert store.get("k").message_count == 3
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with store.engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.exec_driver_sql("LOCK TABLE lango_session IN ACCESS EXCLUSIVE MODE")
        replica.follow(primary)
        reading = pool.submit(lambda: store.get("k").message_count)
        replica.wait_for(waiting)
        replica.interrupt()
        try:
            primary.wait_for(waiting)
        finally:
            connection.rollback()
            replica.resume()
        assert reading.result() == 3


@pytest.mark.slow
def test_snapshot_on_a_replica_does_not_see_later_commits(
    store: Store, primary: PostgresServer, replica: PostgresServer
) -> None:
    store.create("k", messages=messages(3))
    replica.follow(primary)
    standing = sa.text("SELECT pg_is_in_recovery(), (SELECT count(*) FROM lango_message WHERE session_key = 'k')")
    with store._context.snapshot(allow_replica=True) as connection:
        assert connection.execute(standing).one() == (True, 3)
        store.append_message("k", message())
        replica.follow(primary)
        assert connection.execute(standing).one() == (True, 3)


@pytest.mark.slow
def test_store_at_the_position_of_another_store_reads_what_that_store_wrote(
    primary: PostgresServer, replica: PostgresServer
) -> None:
    replica.delay(60)
    with Store(primary.url()) as writer, Store(primary.url(), replica=replica.url()) as reader:
        writer.create("k", messages=messages(3))
        position = writer.position()
        assert isinstance(position, str)
        with pytest.raises(SessionNotFound):
            reader.get("k")
        assert reader.at(position).get("k").message_count == 3
        assert reader.at(position).conversation("k").total_usage() == {}
        assert writer.at(position).get("k").message_count == 3
        with pytest.raises(SessionNotFound):
            reader.at(None).get("k")
        reader.at(position).append_message("k", message())  # now its own write counts too
        assert reader.get("k").message_count == 4
        seeing = reader.at(position)
        seeing.close()
        assert reader.count(key_prefix="k") == 1
    with pytest.raises(StoreClosed, match="closed"):
        seeing.get("k")


def test_last_position_is_unknown_until_the_newest_write_has_reported_its_position() -> None:
    last_write = LastWrite()
    earlier, later = last_write.count(), last_write.count()
    last_write.note(earlier, 100)  # the position does not include the later write
    assert (last_write.is_known, last_write.position) == (False, 100)
    last = last_write.count()
    last_write.note(last, 300)
    last_write.note(later, 200)
    assert (last_write.is_known, last_write.position) == (True, 300)


@pytest.mark.parametrize("url", ["postgresql://x@127.0.0.1:1/x", "empty"])
def test_primary_answers_reads_while_the_replica_is_down_or_has_no_tables(
    make_postgres: MakeDatabase, url: str
) -> None:
    replica = make_postgres(migrated=False) if url == "empty" else url
    with Store(make_postgres(), replica=replica) as store:
        assert store.count() == 0
        store.create("k", messages=messages(3))
        assert store.get("k").message_count == 3
        assert store.stats().messages == 3


def test_close_of_a_store_with_replica_closes_connections_to_both_servers(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    drivers: list[Any] = []

    def connected(driver: Any, _: object) -> None:
        drivers.append(driver)

    sa.event.listen(sa.Pool, "connect", connected)
    try:
        with Store(url, replica=url) as store:
            store.create("k")
            assert store.count() == 1
        assert [driver.closed for driver in drivers] == [True, True]
    finally:
        sa.event.remove(sa.Pool, "connect", connected)


def test_sqlite_store_refuses_a_replica(make_sqlite: MakeDatabase) -> None:
    with pytest.raises(ValueError, match="replica"):
        Store(make_sqlite(), replica=make_sqlite())
    with Store(make_sqlite()) as store:
        store.create("k")
        assert store.position() is None
        assert store.at(store.position()).exists("k")
        assert store.at("0/1").exists("k")
        for wrong in ("", "1", "0/", "x/y", "0/1 "):
            with pytest.raises(ValueError, match="position"):
                store.at(wrong)
