"""A store with distributed tables: cost and atomicity of appends, and detection of the distribution."""

import os
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.clusters import say, workers
from support.databases import MakeDatabase
from support.factories import message, messages
from support.postgres_databases import PostgresDatabases
from support.statements import counted
from support.writers import WRITERS, Writers

from lango_store import DatabaseBusy, LangoStoreError, Message, Store, create_engine, schema

ROUNDS = int(os.environ.get("LANGO_STORE_FAILOVER_ROUNDS", "1"))

pytestmark = pytest.mark.citus


def connected(url: str | sa.URL) -> psycopg.Connection[Any]:
    made = sa.make_url(url).set(drivername="postgresql")
    return psycopg.connect(made.render_as_string(hide_password=False), autocommit=True)


@pytest.fixture
def undistributed(make_postgres: MakeDatabase) -> str:
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    return url


@pytest.mark.parametrize("batch", [[message()], [message(id="a")], messages(2), messages(1_000)])
@pytest.mark.parametrize("after", [None, 0])
def test_append_is_one_round_trip(
    one_connection: sa.Engine, tmp_path: Path, batch: list[Message], after: int | None
) -> None:
    with Store(one_connection) as store:
        store.create("k")
        store.create("other")
        store.conversation("other").append_messages(messages(len(batch)))
        with counted(one_connection, tmp_path) as counts:
            store.conversation("k").append_messages(batch, after=after)
        assert counts.round_trips == 1
        assert store.conversation("k").info().message_count == len(batch)


def test_save_turn_is_one_round_trip(one_connection: sa.Engine, tmp_path: Path) -> None:
    with Store(one_connection) as store:
        store.create("k")
        conversation = store.open("k")
        conversation.save_turn(messages(2), {"tokens": 1})
        with counted(one_connection, tmp_path) as counts:
            conversation.save_turn(messages(2), {"tokens": 1})
        assert counts.round_trips == 1


@pytest.mark.parametrize("in_turn", [False, True])
def test_append_is_committed_without_a_two_phase_commit(one_connection: sa.Engine, in_turn: bool) -> None:
    notices: list[str] = []
    with Store(one_connection) as store:
        store.create("k")
        with one_connection.connect() as connection:
            driver: Any = connection.connection.dbapi_connection
            driver.add_notice_handler(lambda notice: notices.append(notice.message_primary))
            for setting in ("citus.log_remote_commands = on", "client_min_messages = notice"):
                connection.exec_driver_sql(f"SET SESSION {setting}")
            connection.commit()
        if in_turn:
            store.open("k").save_turn(messages(2), {"tokens": 1})
        else:
            store.conversation("k").append_messages(messages(2))
    assert any("INSERT INTO" in notice for notice in notices)
    assert [notice for notice in notices if "PREPARE TRANSACTION" in notice] == []


def test_append_of_a_stored_id_is_replayed_on_a_cluster(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        store.create("k", messages=[message(id="a")])
        stored = store.conversation("k").append_messages([message(id="a"), message(id="c")])
        assert [each.replayed for each in stored] == [True, False]
        assert store.append_message("k", message(id="c")).replayed
        assert store.conversation("k").info().last_seq == store.conversation("k").info().message_count == 2


def test_values_are_deleted_with_the_session_on_a_cluster(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store:
        for key in ("deleted", "expired", "forked"):
            store.create(key, ttl=timedelta(seconds=1) if key == "expired" else None)
            store.conversation(key).values.set({"mood": "fine"})
        store.shared_values("shared").set({"mood": "fine"})
        store.delete("deleted")
        store.expire(now=store.conversation("forked").info().created_at + timedelta(days=1))
        with store.engine.connect() as connection:
            left = connection.exec_driver_sql("SELECT session_key FROM lango_value").scalars().all()
        assert left == ["forked"]
        assert store.shared_values("shared").get() == {"mood": "fine"}


def test_store_opened_before_distribution_refuses_one_append_and_then_works(undistributed: str) -> None:
    with Store(undistributed) as store:
        store.create("k", messages=messages(1))
        schema.distribute(undistributed)
        assert len(store.get("k").messages) == 1
        with pytest.raises(DatabaseBusy, match="try again"):
            store.append_message("k", message())
        store.append_message("k", message())
        assert store.conversation("k").info().message_count == 2
        schema.undistribute(undistributed)
        store.append_message("k", message())
        assert store.conversation("k").info().message_count == 3


def test_store_with_retry_opened_before_distribution_can_append_after_distribution(undistributed: str) -> None:
    with Store(undistributed, retry=timedelta(seconds=30)) as store:
        store.create("k")
        schema.distribute(undistributed)
        store.append_message("k", message())
        assert store.conversation("k").info().message_count == 1


def test_appends_in_a_callers_transaction_commit_and_roll_back_on_a_cluster(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = sa.create_engine(url)
    with Store(url) as own:
        own.create("k")
        with engine.begin() as connection:
            store = own.using(connection)
            store.conversation("k").append_messages(messages(2))
            with pytest.raises(LangoStoreError):
                store.append_message("nobody", message())
            store.append_message("k", message())
        with engine.connect() as connection:
            own.using(connection).append_message("k", message())
            connection.rollback()
        assert own.conversation("k").info().message_count == 3
    engine.dispose()


def test_search_index_is_refused_on_a_cluster(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with pytest.raises(LangoStoreError, match="lango-store db undistribute"):
        schema.enable_search(url)
    assert schema.search_status(url).state == "disabled"


def crash(server: str) -> None:
    """Kill a server process, so that the server restarts and recovers."""
    with connected(server) as superuser, suppress(psycopg.OperationalError):
        superuser.execute("COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'")


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_crash_of_a_citus_worker_neither_loses_nor_duplicates_a_message(postgres_databases: PostgresDatabases) -> None:
    url = postgres_databases.make(lasting=True)
    name = sa.make_url(url).database
    for server in workers(url):
        say(server, "SET citus.enable_ddl_propagation = off", f"ALTER DATABASE {name} SET synchronous_commit = on")
    keys = [f"k{number}" for number in range(WRITERS)]
    with Store(url, retry=timedelta(seconds=120)) as store:
        for key in keys:
            store.create(key)
        writers = Writers(store, *keys)
        with writers.at_work():
            for _ in range(ROUNDS):
                for server in workers(url):
                    writers.go_on()
                    crash(server)
                    writers.go_on()
        stored = Counter(each.content for key in keys for each in store.conversation(key).iter_messages())
        assert [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []
    assert writers.errors == []
    assert max(stored.values()) == 1
    assert set(writers.acknowledged) == set(stored)


def test_append_on_an_autocommit_engine_succeeds_or_fails_as_a_whole(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres(), isolation_level="AUTOCOMMIT")
    with Store(engine) as store:
        store.create("k")
        store.conversation("k").append_messages(messages(2))
        with pytest.raises(LangoStoreError):
            store.append_message("nobody", message())
        with engine.connect() as connection:
            assert connection.connection.dbapi_connection.autocommit  # type: ignore[union-attr]
    engine.dispose()
