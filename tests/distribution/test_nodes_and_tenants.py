"""A store on a cluster: access through any node, and tenants with a schema each."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.clusters import ALL_KEYS, TABLES, distributed, fill, foreign_keys, say, workers
from support.databases import MakeDatabase
from support.factories import contents, message, messages
from support.revisions import LATER, add_later_revisions

from lango_store import LangoStoreError, Store, create_engine, schema
from lango_store.tables import SCHEMA_REVISION

pytestmark = pytest.mark.citus


def test_any_node_of_a_cluster_accepts_reads_and_writes(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    nodes = [url, *workers(url)]
    for number, node in enumerate(nodes):
        with Store(node) as store:
            store.create(f"k{number}", messages=messages(2))
            for each in range(number + 1):
                store.append_message(f"k{each}", message(f"by way of {number}"))
            assert [each.key for each in store.iter_sessions()] == [f"k{each}" for each in range(number + 1)]
            assert schema.check(node) == []
    with Store(url) as store:
        assert contents(store.conversation("k0").messages())[2:] == [
            f"by way of {number}" for number in range(len(nodes))
        ]
        assert not [each for each in store.maintenance.examine() if each.name != "settings"]


def spread(url: str) -> str:
    """Return a URL with the hosts of all nodes."""
    named = [sa.make_url(each) for each in (url, *workers(url))]
    hosts = tuple(f"{node.host}:{node.port}" for node in named)
    query = {"host": hosts, "load_balance_hosts": "random"}
    return sa.make_url(url).set(host=None, port=None, query=query).render_as_string(hide_password=False)


def test_url_that_names_all_nodes_spreads_connections_over_all_nodes(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    engine = create_engine(spread(url), poolclass=sa.NullPool)
    ports = set()
    for _ in range(60):  # a random node each: one of three is missed once in ten thousand million runs
        with engine.connect() as connection:
            ports.add(connection.exec_driver_sql("SELECT inet_server_port()").scalar_one())
    assert ports == {sa.make_url(each).port for each in (url, *workers(url))}

    def write(number: int) -> None:
        with Store(engine) as store:
            store.create(f"k{number}")
            for each in range(10):
                store.append_message(f"k{number}", message(f"{each}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with Store(url) as store:
        for number in range(8):
            assert contents(store.conversation(f"k{number}").messages()) == [f"{each}" for each in range(10)]


def test_upgrade_on_the_coordinator_reaches_workers_and_upgrade_on_a_worker_is_refused(
    make_postgres: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_postgres()
    made = sa.make_url(url)
    add_later_revisions(tmp_path / "later", monkeypatch)
    for node in workers(url):
        with pytest.raises(LangoStoreError, match=rf"on the coordinator: give the URL of {made.host}:{made.port}"):
            schema.upgrade(node)
        engine = create_engine(node)
        with (
            engine.connect() as connection,
            pytest.raises(LangoStoreError, match="on the coordinator"),
        ):
            schema.upgrade(connection)
        engine.dispose()
    assert schema.upgrade(url) == LATER[-1]
    assert [schema.current(node) for node in workers(url)] == [LATER[-1]] * len(workers(url))


# Tenants


@pytest.fixture
def tenants(make_postgres: MakeDatabase) -> list[str]:
    """The URLs of two tenants; the schema of each is on one node."""
    url = make_postgres(migrated=False)
    urls = []
    for name in ("tenant_a", "tenant_b"):
        say(url, "SET citus.enable_schema_based_sharding TO on", f"CREATE SCHEMA {name}")
        made = sa.make_url(url)
        made = made.set(query={**made.query, "options": f"-csearch_path={name}"})
        urls.append(made.render_as_string(hide_password=False))
    return urls


def test_schema_based_tenants_are_separate_and_migrated_separately(
    tenants: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in tenants:
        assert schema.upgrade(url) == schema.head()
        fill(url)
        assert schema.check(url) == []
        assert foreign_keys(url) == ALL_KEYS
    placed = [distributed(url) for url in tenants]
    assert {column for each in placed for column, _ in each.values()} == {None}
    assert len({group for each in placed for _, group in each.values()}) == 2
    with Store(tenants[0]) as store, Store(tenants[1]) as other:
        store.delete("k1")
        store.conversation("k2").fork("k2:fork")
        store.append_message("new", message("hello"), create=True)
        assert store.stats().sessions == 21
        assert other.stats().sessions == 20
        assert other.conversation("k1").values.get() == {"mood": 1}
        for each in (store, other):
            assert [found for found in each.maintenance.examine() if found.name != "settings"] == []
    for url in tenants:
        with pytest.raises(LangoStoreError, match="distributed as a whole"):
            schema.distribute(url)
        with pytest.raises(LangoStoreError, match="citus_schema_undistribute"):
            schema.undistribute(url)
    add_later_revisions(tmp_path / "later", monkeypatch)
    assert schema.upgrade(tenants[0]) == LATER[-1]
    assert schema.current(tenants[1]) == SCHEMA_REVISION


def test_schema_that_contains_sessions_can_become_a_tenant(make_postgres: MakeDatabase) -> None:
    url = make_postgres(migrated=False)
    say(url, "CREATE SCHEMA tenant")
    made = sa.make_url(url)
    there = made.set(query={**made.query, "options": "-csearch_path=tenant"}).render_as_string(hide_password=False)
    schema.upgrade(there)
    fill(there)
    say(url, "SELECT citus_schema_distribute('tenant')")
    assert set(TABLES) <= set(distributed(there))
    with Store(there) as store:
        assert len(store.conversation("k3").messages()) == 7
        store.append_message("k3", message("after"))
        assert store.conversation("k3").info().message_count == 8
    assert schema.check(there) == []
