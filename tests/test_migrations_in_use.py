"""Migrations of a store in use: each revision by itself, rows in batches, indexes beside the writers, kills."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import message
from processes import Program
from revisions import (
    LATER,
    NEWEST,
    ONLINE,
    SHOUTING,
    SILENT,
    UPGRADE,
    add_later_revisions,
    fill,
    value,
    write_online_revisions,
)

from lango_store import DatabaseBusy, LangoStoreError, Store, create_engine, schema
from lango_store.schema import Progress, options
from lango_store.schema import online as online_work
from lango_store.tables import SCHEMA_REVISION

MESSAGES = int(os.environ.get("LANGO_STORE_MIGRATED_MESSAGES", "20000"))
"""How many messages the revisions change under writers; a million takes minutes."""

LOCK_TIMEOUT = 5.0
ONE_BATCH = 1.0
"""Seconds that no batch takes on a machine that does other things too; it aims at a tenth of that."""


@pytest.fixture
def postgres(make_postgres: MakeDatabase) -> str:
    return make_postgres()


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
