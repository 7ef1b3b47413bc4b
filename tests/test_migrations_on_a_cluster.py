"""Migrations of tables that are distributed and have rows, and where they may run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from clusters import TABLES, contents, distributed, fill, say, workers
from conftest import MakeDatabase
from processes import run_program
from revisions import ONLINE, write_online_revisions

from lango_store import DatabaseBusy, create_engine, schema
from lango_store.schema import Progress, options
from lango_store.tables import SCHEMA_REVISION

pytestmark = pytest.mark.citus

INDEX_AND_CONSTRAINT = """
def upgrade() -> None:
    online().create_index("ix_lango_message_shout", "lango_message", ["shout"])
    op.create_check_constraint("ck_lango_message_shout", "lango_message", "shout IS NULL OR shout = upper(role)")


def downgrade() -> None:
    op.drop_constraint("ck_lango_message_shout", "lango_message", type_="check")
    op.drop_index("ix_lango_message_shout", "lango_message")
"""

UPGRADE = """
import os, signal, sys
from pathlib import Path
from lango_store import DatabaseBusy, create_engine, schema
from lango_store.schema import options

options._folder = lambda: Path(sys.argv[2])
schema.upgrade(sys.argv[1], on_progress=lambda progress: os.kill(os.getpid(), signal.SIGKILL))
"""


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


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ship three more revisions: a column, what stands in it, and an index and a constraint of it."""
    folder = write_online_revisions(tmp_path / "online", index=INDEX_AND_CONSTRAINT)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    return folder


def shouting(url: str) -> int:
    return int(say(url, "SELECT count(*) FROM lango_message WHERE shout = upper(role)")[0][0])


def of_shards(url: str, what: str) -> list[str]:
    """Ask each shard of the messages, and give the answers."""
    query = f"SELECT result FROM run_command_on_shards('lango_message', $$SELECT count(*) FROM {what}$$)"
    return [answer for (answer,) in say(url, query)]


INDEX = "pg_index WHERE indrelid = '%s'::regclass AND indisvalid AND indexrelid::regclass::text LIKE '%%shout%%'"
CONSTRAINT = "pg_constraint WHERE conrelid = '%s'::regclass AND conname LIKE 'ck_lango_message_shout%%'"


def test_columns_rows_indexes_and_constraints_change_up_and_down(cluster: str, online: Path) -> None:
    rows, placed = contents(cluster), distributed(cluster)
    total = len(rows["lango_message"])
    seen: list[Progress] = []
    assert schema.upgrade(cluster, on_progress=seen.append) == ONLINE[-1]
    assert len(seen) > 1
    assert (seen[-1].rows, shouting(cluster)) == (total, total)
    for what in (INDEX, CONSTRAINT):
        assert set(of_shards(cluster, what)) == {"1"}
    assert distributed(cluster) == placed
    assert schema.current(cluster) == ONLINE[-1]
    assert schema.downgrade(cluster, SCHEMA_REVISION) == SCHEMA_REVISION
    for what in (INDEX, CONSTRAINT):
        assert set(of_shards(cluster, what)) == {"0"}
    assert contents(cluster) == rows
    assert schema.check(cluster) == []


def test_killed_in_the_middle_the_next_upgrade_goes_on(cluster: str, online: Path) -> None:
    done = run_program(UPGRADE, cluster, online)
    assert done.returncode == -signal.SIGKILL, done.stderr
    total = len(contents(cluster)["lango_message"])
    before = shouting(cluster)
    assert 0 < before < total
    assert schema.upgrade(cluster) == ONLINE[-1]
    assert shouting(cluster) == total


def test_tables_are_dropped_and_made_again(cluster: str) -> None:
    assert schema.downgrade(cluster, "base") is None
    assert not set(TABLES) & set(distributed(cluster))
    schema.upgrade(cluster)
    fill(cluster)
    assert schema.distribute(cluster)
    assert schema.check(cluster) == []
    schema.undistribute(cluster)
    assert schema.downgrade(cluster, "base") is None


def test_who_uses_a_table_by_way_of_a_worker_is_not_waited_for_longer_than_was_said(cluster: str, online: Path) -> None:
    engine = create_engine(workers(cluster)[0])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lango_message")
        with pytest.raises(DatabaseBusy, match="lock timeout"):
            schema.upgrade(cluster, lock_timeout=0.2)
    engine.dispose()
    assert schema.upgrade(cluster, lock_timeout=5) == ONLINE[-1]
