"""Migrations of a store in use: each revision by itself, rows in batches, indexes beside the writers, kills."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from commands import run, run_on_terminal
from conftest import MakeDatabase
from factories import message, messages
from processes import Program
from revisions import LATER, ONLINE, add_later_revisions, write_online_revisions

from lango_store import DatabaseBusy, LangoStoreError, Store, create_engine, schema
from lango_store.dialect import dialect_of
from lango_store.schema import Progress, options, running
from lango_store.schema import online as online_work
from lango_store.tables import SCHEMA_REVISION

MESSAGES = int(os.environ.get("LANGO_STORE_MIGRATED_MESSAGES", "20000"))
"""How many messages the revisions change under writers; a million takes minutes."""

NEWEST = ONLINE[-1]
LOCK_TIMEOUT = 5.0
ONE_BATCH = 1.0
"""Seconds that no batch takes on a machine that does other things too; it aims at a tenth of that."""

UPGRADE = """
import sys
from pathlib import Path
from lango_store import schema
from lango_store.schema import options

options._folder = lambda: Path(sys.argv[2])
print(schema.upgrade(*sys.argv[1::2], on_progress=lambda progress: print(progress.rows, flush=True)))
"""


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ship three more revisions: a column, what stands in it, and an index of it."""
    folder = write_online_revisions(tmp_path / "online")
    monkeypatch.setattr(options, "_folder", lambda: folder)
    return folder


@pytest.fixture
def postgres(make_postgres: MakeDatabase) -> str:
    return make_postgres()


def fill(url: str, number: int) -> None:
    with Store(url) as store:
        for session in range(10):
            store.create(f"k{session}", messages=messages(number // 10))


def value(url: str, query: str) -> Any:
    engine = create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


SHOUTING = "SELECT count(*) FROM lango_message WHERE shout = upper(role)"
SILENT = "SELECT count(*) FROM lango_message WHERE shout IS NULL"


# Each revision by itself


def test_a_revision_that_fails_leaves_those_before_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_later_revisions(tmp_path / "later", monkeypatch)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE lango_mood_{LATER[1]} (in_the_way INTEGER)")
    with pytest.raises(LangoStoreError, match="already exists"):
        schema.upgrade(engine, LATER[1])
    assert schema.current(engine) == LATER[0]
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE lango_mood_{LATER[1]}")
    assert schema.upgrade(engine, LATER[1]) == LATER[1]
    engine.dispose()


def test_a_revision_that_would_leave_orphans_changes_nothing(
    make_sqlite: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = "def upgrade():\n    op.execute(\"DELETE FROM lango_session WHERE key = 'k1'\")\n"
    folder = write_online_revisions(tmp_path / "online", fill=part)
    url = make_sqlite()
    monkeypatch.setattr(options, "_folder", lambda: folder)
    fill(url, 20)
    with pytest.raises(LangoStoreError, match="without their session"):
        schema.upgrade(url, NEWEST)
    assert schema.current(url) == ONLINE[0]
    with Store(url) as store:
        assert len(store.messages("k1")) == 2


# Batches


def test_rows_change_in_batches_up_and_down(url: str, online: Path) -> None:
    fill(url, 2000)
    seen: list[Progress] = []
    assert schema.upgrade(url, NEWEST, on_progress=seen.append) == NEWEST
    assert value(url, SHOUTING) == 2000
    assert [(each.table, each.total) for each in seen] == [("lango_message", 2000)] * len(seen)
    done = [each.rows for each in seen]
    assert len(done) > 1
    assert done == sorted(set(done))
    assert done[-1] == 2000
    seen.clear()
    assert schema.downgrade(url, ONLINE[0], on_progress=seen.append) == ONLINE[0]
    assert value(url, SILENT) == 2000
    assert seen[-1].rows == 2000
    assert schema.downgrade(url, SCHEMA_REVISION) == SCHEMA_REVISION
    assert schema.check(url) == []


def test_rows_change_in_batches_through_a_hosts_stock_engine(url: str, online: Path) -> None:
    fill(url, 2000)
    engine = sa.create_engine(url)
    assert schema.upgrade(engine, NEWEST) == NEWEST
    assert value(url, SHOUTING) == 2000
    assert schema.downgrade(engine, SCHEMA_REVISION) == SCHEMA_REVISION
    assert schema.check(engine) == []
    engine.dispose()


def test_a_table_without_rows_needs_no_batch(empty_url: str, online: Path) -> None:
    seen: list[Progress] = []
    assert schema.upgrade(empty_url, NEWEST, on_progress=seen.append) == NEWEST
    assert seen == []


def test_a_statement_that_does_not_say_what_is_still_to_be_done_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = "def upgrade():\n    online().in_batches(sa.update(message).values(shout='HEY'))\n"
    folder = write_online_revisions(tmp_path / "online", fill=part)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    with pytest.raises(ValueError, match="lango_message has no WHERE"):
        schema.upgrade(url, NEWEST)
    assert schema.current(url) == ONLINE[0]


def test_deleting_in_batches_deletes_what_belongs_to_the_rows(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = (
        "def upgrade():\n    session = sa.table('lango_session', sa.column('key'))\n"
        "    online().in_batches(sa.delete(session).where(session.c.key < 'k5'))\n"
    )
    folder = write_online_revisions(tmp_path / "online", fill=part)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    fill(url, 100)
    schema.upgrade(url, NEWEST)
    assert value(url, "SELECT count(*) FROM lango_message") == 50


SLOW = """def upgrade() -> None:
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000 + lango_message.seq)"
    slow = sa.text(f"({numbers} SELECT 'USER' || max(i) FROM n)")
    online().in_batches(sa.update(message).where(message.c.shout.is_(None)).values(shout=slow))
"""


def test_a_batch_that_takes_too_long_is_cut_and_done_in_smaller_ones(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(url, 400)
    folder = write_online_revisions(tmp_path / "online", fill=SLOW)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    monkeypatch.setattr(online_work, "_CUT_AFTER", 0.1)
    seen: list[Progress] = []
    schema.upgrade(url, NEWEST, on_progress=seen.append)
    assert seen[0].rows < 400
    assert value(url, "SELECT count(*) FROM lango_message WHERE shout LIKE 'USER%%'") == 400


class Writers:
    """Threads that append, each to a session of its own, and what became of that."""

    def __init__(self, url: str, number: int) -> None:
        self.appended = [0] * number
        self.longest = 0.0
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._store = Store(url)
        self._threads = [threading.Thread(target=self._write, args=(place,)) for place in range(number)]

    def __enter__(self) -> Writers:
        for place, thread in enumerate(self._threads):
            self._store.create(f"k5-{place}")  # in the middle of the walk
            thread.start()
        return self

    def _write(self, place: int) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            try:
                self._store.append_message(f"k5-{place}", message())
            except Exception as error:
                self.errors.append(error)
            else:
                self.appended[place] += 1
            self.longest = max(self.longest, time.perf_counter() - began)
            self._stop.wait(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._store.close()


@pytest.mark.timeout(600 + MESSAGES // 500)
def test_appends_go_on_while_rows_change_and_a_killed_upgrade_goes_on_where_it_was(url: str, online: Path) -> None:
    fill(url, MESSAGES)
    began = time.perf_counter()
    with Writers(url, 3) as writers:
        killed = Program(UPGRADE, url, online, NEWEST)
        while int(killed.stdout.readline()) < MESSAGES // 3:
            pass
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        killed.close()
        assert schema.current(url) == ONLINE[0]
        already = value(url, SHOUTING)
        assert already >= MESSAGES // 3
        before = sum(writers.appended)
        again = Program(UPGRADE, url, online, NEWEST)
        out, error = again.communicate(timeout=300 + MESSAGES // 1000)
        assert (out.split()[-1], error) == (NEWEST, "")
        assert sum(writers.appended) > before
    seconds = time.perf_counter() - began
    print(
        f"{MESSAGES:,} messages: {len(out.split()) - 1} batches after the kill at {already:,}, {seconds:.1f} s in all, "
        f"{sum(writers.appended):,} appends, longest {writers.longest:.3f} s, {len(writers.errors)} errors"
    )
    assert writers.errors == []
    assert writers.longest < LOCK_TIMEOUT + ONE_BATCH
    assert value(url, SHOUTING) >= MESSAGES
    with Store(url) as store:
        assert [len(store.messages(f"k5-{place}")) for place in range(3)] == writers.appended
        assert sum(len(store.messages(f"k{session}")) for session in range(10)) == MESSAGES


# Several at once


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

    assert running.migrate(steps, url, LOCK_TIMEOUT) == SCHEMA_REVISION


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
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_online_revisions(tmp_path / "online", index=PATIENT)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    impatient = f"{postgres}&options=-cidle_in_transaction_session_timeout%3D800"
    assert schema.upgrade(impatient, NEWEST) == NEWEST


# Indexes


@contextmanager
def open_transaction(url: str) -> Iterator[sa.Connection]:
    engine = create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET tokens = 1 WHERE seq = 1")
        yield connection


def index_is_valid(url: str) -> bool | None:
    found: bool | None = value(
        url, "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_lango_message_shout')"
    )
    return found


def test_appends_go_on_while_an_index_waits_for_a_transaction(postgres: str, online: Path) -> None:
    fill(postgres, 20)
    schema.upgrade(postgres, ONLINE[1])
    upgrade = threading.Thread(target=schema.upgrade, args=(postgres, NEWEST), kwargs={"lock_timeout": 60})
    with Store(postgres) as store, open_transaction(postgres):
        upgrade.start()
        while index_is_valid(postgres) is None:
            assert upgrade.is_alive()
        for _ in range(10):
            store.append_message("k1", message())
        assert index_is_valid(postgres) is False
    upgrade.join()
    assert schema.current(postgres) == NEWEST
    assert index_is_valid(postgres) is True


def test_an_index_that_was_left_unfinished_is_made_anew(postgres: str, online: Path) -> None:
    fill(postgres, 20)
    schema.upgrade(postgres, ONLINE[1])
    with open_transaction(postgres), pytest.raises(DatabaseBusy, match="lock timeout"):
        schema.upgrade(postgres, NEWEST, lock_timeout=0.2)
    assert index_is_valid(postgres) is False
    assert schema.current(postgres) == ONLINE[1]
    assert schema.upgrade(postgres, NEWEST) == NEWEST
    assert index_is_valid(postgres) is True


def test_a_connection_is_as_it_was_after_an_index(postgres: str, online: Path) -> None:
    engine = create_engine(postgres, pool_size=1)
    shown = "SELECT current_setting('search_path') || ' ' || current_setting('lock_timeout')"
    with engine.connect() as connection:
        before = connection.exec_driver_sql(shown).scalar()
    assert schema.upgrade(engine, NEWEST) == NEWEST
    with engine.connect() as connection:
        assert connection.exec_driver_sql(shown).scalar() == before
        connection.exec_driver_sql("CREATE TABLE undone (number INTEGER)")
        connection.rollback()
        assert not sa.inspect(connection).has_table("undone")
    engine.dispose()


# On a caller's connection


def test_in_a_callers_transaction_everything_is_undone_with_it(url: str, online: Path) -> None:
    fill(url, 2000)
    engine = create_engine(url)
    seen: list[Progress] = []
    with engine.connect() as connection:
        assert schema.upgrade(connection, NEWEST, on_progress=seen.append) == NEWEST
        assert connection.exec_driver_sql(SHOUTING).scalar() == 2000
        connection.rollback()
        assert schema.current(connection) == SCHEMA_REVISION
        assert schema.check(connection) == []
    with engine.begin() as connection:
        schema.upgrade(connection, NEWEST)
    assert value(url, SHOUTING) == 2000
    assert len(seen) > 1
    assert "ix_lango_message_shout" in {index["name"] for index in sa.inspect(engine).get_indexes("lango_message")}
    engine.dispose()


def test_a_revision_that_has_to_leave_the_callers_transaction_is_refused_with_the_way_out(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = "def upgrade():\n    with op.get_context().autocommit_block():\n        op.execute('SELECT 1')\n"
    folder = write_online_revisions(tmp_path / "online", index=part)
    monkeypatch.setattr(options, "_folder", lambda: folder)
    engine = create_engine(url)
    with engine.connect() as connection:
        with pytest.raises(LangoStoreError, match=r"leaves the transaction.*lango-store db upgrade"):
            schema.upgrade(connection, NEWEST)
        assert schema.current(connection) == SCHEMA_REVISION
    assert schema.upgrade(engine, NEWEST) == NEWEST
    engine.dispose()


# What is shown


def test_sql_prints_each_revision_as_a_transaction_and_what_runs_in_batches(url: str, online: Path) -> None:
    script = schema.sql(url, NEWEST)
    assert "-- `lango-store db upgrade` runs this in batches of lango_message:" in script
    assert "UPDATE lango_message SET shout=upper(lango_message.role) WHERE lango_message.shout IS NULL;" in script
    concurrently = "CONCURRENTLY " if url.startswith("postgresql") else ""
    assert f"CREATE INDEX {concurrently}IF NOT EXISTS ix_lango_message_shout" in script
    assert script.count("BEGIN;") == script.count("COMMIT;") >= len(ONLINE)
    if concurrently:
        assert script.rindex("COMMIT;", 0, script.index("CONCURRENTLY")) > script.rindex(
            "BEGIN;", 0, script.index("CONCURRENTLY")
        )


def test_alembic_in_a_checkout_runs_the_same_revisions(
    url: str, online: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(url, 2000)
    config = Config()
    config.set_main_option("script_location", str(online))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, f"{SCHEMA_REVISION}:head", sql=True)
    assert "in batches of lango_message" in capsys.readouterr().out
    command.upgrade(config, "head")
    assert schema.current(url) == NEWEST
    assert value(url, SHOUTING) == 2000
    command.downgrade(config, SCHEMA_REVISION)
    assert schema.check(url) == []


def test_the_command_shows_how_far_it_is_on_a_terminal_and_nothing_elsewhere(url: str, online: Path) -> None:
    fill(url, 2000)
    before = (
        "from pathlib import Path; from lango_store.schema import options; "
        f"options._folder = lambda: Path({str(online)!r})"
    )
    shown, code = run_on_terminal("db", "upgrade", NEWEST, "--url", url, before=before)
    assert code == 0
    assert "changing lango_message" in shown
    assert "2000/2000" in shown
    assert shown.endswith(f"at revision {NEWEST}\n")
    back = run("db", "downgrade", SCHEMA_REVISION, "--yes", "--url", url)
    assert (back.returncode, back.stdout) == (0, f"at revision {SCHEMA_REVISION}\n")
    assert "changing" not in back.stderr
    again, code = run_on_terminal("db", "upgrade", ONLINE[0], "--url", url, before=before)
    assert again == f"at revision {ONLINE[0]}\n"
