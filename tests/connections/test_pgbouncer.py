"""The store through PgBouncer in transaction mode, as documented."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message
from support.pgbouncer import PgBouncer

from lango_store import DatabaseUnavailable, Store, read_only_engine, schema

pytestmark = pytest.mark.pgbouncer


@pytest.fixture(scope="module")
def pooler(server_url: sa.URL) -> Iterator[PgBouncer]:
    made = PgBouncer(server_url)
    yield made
    made.stop()


def advisory_locks(url: str) -> int:
    made = sa.make_url(url).set(drivername="postgresql")
    with psycopg.connect(made.render_as_string(hide_password=False)) as connection:
        (found,) = connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database "
            "WHERE locktype = 'advisory' AND d.datname = current_database()"
        ).fetchone() or (None,)
    assert found is not None
    return int(found)


@pytest.mark.slow
def test_writers_and_readers_work_through_pgbouncer(make_postgres: MakeDatabase, pooler: PgBouncer) -> None:
    with Store(pooler.url(make_postgres())) as store:
        store.create("k")

        def work(writer: int) -> None:
            for number in range(20):
                store.append_message("k", message(f"{writer}:{number}"))
                store.conversation("k").save_turn([message()], {"tokens": 1})
                assert store.get("k").messages
                assert store.conversation("k").total_usage()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert store.conversation("k").info().message_count == 320
        assert store.conversation("k").total_usage() == {"tokens": 160}


@pytest.mark.slow
def test_upgrades_through_pgbouncer_leave_no_advisory_lock(make_postgres: MakeDatabase, pooler: PgBouncer) -> None:
    direct = make_postgres(migrated=False)
    url = pooler.url(direct).replace("&prepare_threshold=none", "")
    assert "prepare" not in url
    for _ in range(6):
        assert schema.upgrade(url) == schema.head()
        assert schema.downgrade(url, "base") is None
    assert advisory_locks(direct) == 0
    # More upgrades at once than the pooler has connections to the server.
    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(lambda _: schema.upgrade(url), range(6))) == {schema.head()}
    assert advisory_locks(direct) == 0


def test_pgbouncer_refuses_a_url_with_options_or_a_statement_timeout(
    make_postgres: MakeDatabase, pooler: PgBouncer
) -> None:
    for parameter in ("options=-cjit%3Doff", "statement_timeout=5s"):
        with (
            Store(f"{pooler.url(make_postgres())}&{parameter}") as store,
            pytest.raises(DatabaseUnavailable, match=r"unsupported startup parameter.*ALTER ROLE"),
        ):
            store.ping()


def test_read_only_engine_cannot_write_through_pgbouncer(make_postgres: MakeDatabase, pooler: PgBouncer) -> None:
    """Old releases of PgBouncer refuse its option, newer ones set it on the connection to the server."""
    engine = read_only_engine(pooler.url(make_postgres()))
    with (
        Store(engine) as store,
        pytest.raises(DatabaseUnavailable, match=r"URL of the server itself|read-only transaction"),
    ):
        store.create("k")
    engine.dispose()
