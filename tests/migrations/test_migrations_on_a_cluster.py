"""Migrations of distributed tables with rows."""

from pathlib import Path

import pytest
from support.clusters import TABLES, contents, distributed, fill, say, workers
from support.databases import MakeDatabase
from support.revisions import LATER, add_later_revisions

from lango_store import DatabaseBusy, create_engine, schema
from lango_store.tables import SCHEMA_REVISION

pytestmark = pytest.mark.citus


@pytest.fixture
def cluster(make_postgres: MakeDatabase) -> str:
    """The coordinator's URL of a database whose tables are distributed and have rows."""
    url = make_postgres(migrated=False)
    schema.upgrade(url)
    fill(url)
    say(
        url,
        "INSERT INTO lango_message (session_key, seq, role, text, created_at) "
        "SELECT 'k' || n % 20, 100 + n, 'user', 'more', now() FROM generate_series(1, 2000) n",
    )
    schema.distribute(url)
    return url


def test_migrations_run_on_distributed_tables_and_keep_rows(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    rows, placed = contents(cluster), distributed(cluster)
    assert schema.upgrade(cluster) == LATER[-1]
    assert distributed(cluster).items() >= placed.items()
    assert schema.downgrade(cluster, SCHEMA_REVISION) == SCHEMA_REVISION
    assert contents(cluster) == rows
    assert schema.check(cluster) == []


def test_distributed_tables_can_be_dropped_and_created_again(cluster: str) -> None:
    assert schema.downgrade(cluster, "base") is None
    assert not set(TABLES) & set(distributed(cluster))
    schema.upgrade(cluster)
    fill(cluster)
    assert schema.distribute(cluster)
    assert schema.check(cluster) == []
    schema.undistribute(cluster)
    assert schema.downgrade(cluster, "base") is None


def test_lock_timeout_of_an_upgrade_also_applies_on_workers(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    engine = create_engine(workers(cluster)[0])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lango_message")
        with pytest.raises(DatabaseBusy, match="lock timeout"):
            schema.upgrade(cluster, lock_timeout=0.2)
    engine.dispose()
    assert schema.upgrade(cluster, lock_timeout=5) == LATER[-1]
