"""Several migrations at once, and others' transactions beside them: each step is done once, and nobody fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from conftest import MakeDatabase
from processes import Program
from revisions import (
    NEWEST,
    SHOUTING,
    UPGRADE,
    fill,
    value,
    write_online_revisions,
)

from lango_store import Store, create_engine, schema
from lango_store.dialect import dialect_of
from lango_store.schema import Progress, options, running
from lango_store.tables import SCHEMA_REVISION


def test_two_upgrades_at_once_change_each_row_and_both_succeed(url: str, online: Path) -> None:
    fill(url, 5000)
    started = [Program(UPGRADE, url, online, NEWEST) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in started]
    assert [(out.split()[-1:], error) for out, error in results] == [([NEWEST], "")] * 2
    assert value(url, SHOUTING) == 5000


def test_an_upgrade_that_another_overtakes_leaves_the_rest_to_it(
    url: str, online: Path, administrator: sa.Engine
) -> None:
    fill(url, 2000)
    seen: list[Progress] = []

    def overtake(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) > 1:
            return
        with administrator.connect() as connection:  # the connection that keeps others out is lost
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = %s AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
                (sa.make_url(url).database,),
            )
        assert schema.upgrade(url, NEWEST) == NEWEST

    assert schema.upgrade(url, NEWEST, on_progress=overtake) == NEWEST
    assert len(seen) == 1
    assert value(url, SHOUTING) == 2000


def test_an_upgrade_that_another_finishes_while_it_looks_for_its_steps_sees_that(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite(migrated=False)

    def steps(scripts: ScriptDirectory, at: Any) -> Iterable[Any]:
        schema.upgrade(url)
        return scripts._upgrade_revs("head", at)

    assert running.migrate(steps, url, schema.LOCK_TIMEOUT) == SCHEMA_REVISION


def test_an_upgrade_with_nothing_to_do_waits_for_nobody(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection, dialect_of(connection).migrations.alone(connection):
        connection.exec_driver_sql("UPDATE lango_session SET title = NULL")
        with Store(url if engine.dialect.name == "postgresql" else f"{url}?timeout=0.1", migrate=True) as store:
            store.ping()
    engine.dispose()


PATIENT = """def upgrade() -> None:
    op.execute("SELECT pg_sleep(1.2)")
    ours = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    query = sa.text(f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND {ours}")
    assert op.get_bind().execute(query).scalar() == 1
"""


def test_the_lock_outlasts_the_servers_patience_with_idle_transactions(
    make_postgres: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_online_revisions(tmp_path / "online", index=PATIENT)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    impatient = f"{make_postgres()}&options=-cidle_in_transaction_session_timeout%3D800"
    assert schema.upgrade(impatient, NEWEST) == NEWEST
