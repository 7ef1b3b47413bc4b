"""Several migrations at once, and migrations next to other transactions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import messages
from support.processes import Program
from support.revisions import LATER, add_later_revisions, ship_revision

from lango_store import DatabaseBusy, LangoStoreError, Store, create_engine, schema
from lango_store._dialect import dialect_of
from lango_store.schema import core, running
from lango_store.schema.running import Database
from lango_store.tables import SCHEMA_REVISION

UPGRADE = """
import sys
from lango_store import schema
print(schema.upgrade(sys.argv[1]))
"""


@pytest.mark.slow
def test_six_concurrent_upgrades_of_empty_database_succeed(empty_url: str) -> None:
    started = [Program(UPGRADE, empty_url) for _ in range(6)]
    results = [process.communicate(timeout=120) for process in started]
    assert [(out.strip(), error) for out, error in results] == [(SCHEMA_REVISION, "")] * 6
    assert schema.check(empty_url) == []


def test_upgrade_with_nothing_to_do_waits_for_no_lock(url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection, dialect_of(connection).migration(connection, 5.0):
        connection.exec_driver_sql("UPDATE lango_session SET title = NULL")
        with Store(url if engine.dialect.name == "postgresql" else f"{url}?timeout=0.1", migrate=True) as store:
            store.ping()
    engine.dispose()


def test_failed_upgrade_takes_back_all_migration_revisions_that_it_had_applied(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE lango_mood_{LATER[1]} (in_the_way INTEGER)")
    with pytest.raises(LangoStoreError, match="already exists"):
        schema.upgrade(engine, LATER[1])
    assert schema.current(engine) == SCHEMA_REVISION
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE lango_mood_{LATER[1]}")
    assert schema.upgrade(engine, LATER[1]) == LATER[1]
    engine.dispose()


def test_migration_revision_that_leaves_orphans_is_reverted(
    make_sqlite: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_sqlite()
    with Store(url) as store:
        store.create("k", messages=messages(2))
    number = ship_revision(tmp_path / "more", monkeypatch, "op.execute('DELETE FROM lango_session')")
    with pytest.raises(LangoStoreError, match="without their session"):
        schema.upgrade(url, number)
    assert schema.current(url) == SCHEMA_REVISION
    with Store(url) as store:
        assert len(store.conversation("k").messages()) == 2


@pytest.mark.slow
def test_upgrade_ignores_timeouts_of_the_connection(
    make_postgres: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = ship_revision(tmp_path / "more", monkeypatch, "op.execute('SELECT pg_sleep(1.2)')")
    options = "-cidle_in_transaction_session_timeout%3D800%20-cstatement_timeout%3D800"
    assert schema.upgrade(f"{make_postgres()}&options={options}", number) == number


def test_upgrade_waits_for_the_lock_of_another_upgrade(
    make_postgres: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_postgres()
    number = ship_revision(tmp_path / "more", monkeypatch, "op.execute('SELECT 1')")
    monkeypatch.setattr("lango_store._dialect.postgresql._MIGRATION_TIMEOUT", 0.0)
    engine = create_engine(url)
    with engine.connect() as connection, dialect_of(connection).migration(connection, 5.0):
        with pytest.raises(DatabaseBusy, match="another migration"):
            schema.upgrade(url, number)
        monkeypatch.setattr("lango_store._dialect.postgresql._MIGRATION_TIMEOUT", 60.0)
        waiting = threading.Thread(target=schema.upgrade, args=(url, number))
        waiting.start()
    waiting.join(60)
    assert schema.current(url) == number
    engine.dispose()


def test_upgrade_does_not_change_schema_migrated_by_newer_release(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine(url)

    def record(revision: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_store_version SET version_num = '{revision}'")

    @contextmanager
    def reading(database: Database) -> Iterator[sa.Connection]:
        with running.reading(database) as connection:
            yield connection
        record("9999")  # the newer release migrates before this one has the lock

    record("0109")
    monkeypatch.setattr(core, "reading", reading)
    assert schema.upgrade(engine) == "9999"
    assert schema.current(engine) == "9999"
    engine.dispose()
