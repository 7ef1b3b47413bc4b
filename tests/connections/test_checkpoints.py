"""Checkpoints on SQLite versions with the WAL-reset bug, and the choice of the SQLite library."""

import logging
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages
from support.processes import Program

from lango_store import InstallationIncomplete, Store, UniqueViolation, create_engine
from lango_store._dialect.sqlite import SQLite
from lango_store._engine.engine import LOG_LIMIT
from lango_store._engine.sqlite_library import is_affected

AFFECTED, FIXED = (3, 40, 1), (3, 53, 4)
PAGE = 24 + 4096
MOST = 1_500 * PAGE
"""The bytes of a WAL file that is checkpointed about every 1,000 pages."""


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.6.23", False),
        ("3.7.0", True),
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.46.1", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.53.4", False),
    ],
)
def test_sqlite_version_without_the_fix_of_the_wal_reset_bug_counts_as_affected(version: str, affected: bool) -> None:
    assert is_affected(tuple(map(int, version.split(".")))) is affected


def test_store_uses_pysqlite3_if_the_url_names_pysqlite3(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysqlite3", None)
    with pytest.raises(InstallationIncomplete, match=r"lango-store\[sqlite\]"):
        create_engine(f"sqlite+pysqlite3:///{file}")
    monkeypatch.setitem(sys.modules, "pysqlite3", ModuleType("pysqlite3"))
    monkeypatch.setitem(sys.modules, "pysqlite3.dbapi2", library(FIXED))
    engine = create_engine(f"sqlite+pysqlite3:///{file}")
    with Store(engine) as store, Store(engine.url) as same, Store(f"sqlite:///{file}") as other:
        versions = [each.engine.dialect.loaded_dbapi.sqlite_version_info for each in (store, same, other)]
        assert versions == [FIXED, FIXED, sqlite3.sqlite_version_info]
        assert store.create("k").key == same.get("k").key
    engine.dispose()


def test_unique_violation_is_recognized_without_extended_error_code() -> None:
    error = sqlite3.IntegrityError("UNIQUE constraint failed: lango_message.session_key, lango_message.id")
    error.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT
    assert isinstance(SQLite().translate_error(error), UniqueViolation)


def library(version: tuple[int, int, int], factory: Any = None) -> Any:
    """Return the driver module with another SQLite version and this connection class."""
    module = ModuleType("sqlite")
    vars(module).update(vars(sqlite3))
    vars(module)["sqlite_version_info"] = version
    vars(module)["sqlite_version"] = ".".join(map(str, version))
    if factory is not None:
        vars(module)["connect"] = partial(sqlite3.connect, factory=factory)
    return module


@pytest.fixture
def file(make_sqlite: MakeDatabase) -> Path:
    return Path(make_sqlite().removeprefix("sqlite:///"))


@pytest.fixture
def checkpoints(file: Path) -> list[tuple[bool, bool]]:
    """A list that records whether a commit was possible before and after each checkpoint."""
    return []


@pytest.fixture
def watching(file: Path, checkpoints: list[tuple[bool, bool]]) -> Any:
    """A driver module of an affected SQLite version whose connections fill `checkpoints`."""

    def can_commit() -> bool:
        with closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            probe.execute("ROLLBACK")
            return True

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> Any:
            if "wal_checkpoint" not in statement:
                return super().execute(statement, *parameters)
            before = can_commit()
            cursor = super().execute(statement, *parameters)
            checkpoints.append((before, can_commit()))
            return cursor

    return library(AFFECTED, Connection)


def log_size(file: Path) -> int:
    return Path(f"{file}-wal").stat().st_size


@pytest.mark.slow
def test_no_other_connection_can_commit_during_a_checkpoint(
    file: Path, watching: Any, checkpoints: list[tuple[bool, bool]]
) -> None:
    engine = create_engine(f"sqlite:///{file}", durability="normal", module=watching)
    with Store(engine, payload_threshold=None) as store:  # payloads would store equal contents only once
        store.create("k")
        for _ in range(60):  # 4 MB each
            store.conversation("k").append_messages([message("x" * 40_000) for _ in range(10)])
            assert log_size(file) < MOST
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() == 0
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
    engine.dispose()
    assert len(checkpoints) > 3
    assert set(checkpoints) == {(False, False)}


def test_callers_connection_makes_checkpoints_between_transactions(
    file: Path, watching: Any, checkpoints: list[tuple[bool, bool]]
) -> None:
    engine = create_engine(f"sqlite:///{file}", durability="normal", module=watching)
    with Store(engine, payload_threshold=None) as store, engine.connect() as connection:
        store.create("k")
        for _ in range(20):
            store.using(connection).conversation("k").append_messages(messages(50, content="x" * 5_000))
            connection.commit()
            assert log_size(file) < MOST
    engine.dispose()
    assert checkpoints
    assert set(checkpoints) == {(False, False)}


@pytest.mark.slow
def test_open_snapshot_delays_checkpoints_but_not_appends(file: Path, watching: Any) -> None:
    engine = create_engine(f"sqlite:///{file}", durability="normal", module=watching)
    with Store(engine, payload_threshold=None) as store:
        store.create("k")
        with store.snapshot() as before:
            before.get("k")
            for _ in range(10):
                store.conversation("k").append_messages([message("x" * 40_000) for _ in range(20)])
        grown = log_size(file)
        assert grown > MOST
        for _ in range(30):
            store.conversation("k").append_messages([message("x" * 40_000) for _ in range(20)])
        assert log_size(file) < grown + MOST
        assert store.conversation("k").info().message_count == 800
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("version", [AFFECTED, FIXED], ids=["affected", "fixed"])
def test_doctor_names_a_large_log_which_shrinks_after_the_snapshot_that_kept_it(
    file: Path, version: tuple[int, int, int]
) -> None:
    engine = create_engine(f"sqlite:///{file}", durability="normal", module=library(version))
    with Store(engine, payload_threshold=None) as store:
        store.create("k")
        with store.snapshot() as before:
            before.get("k")
            while log_size(file) <= 4 * LOG_LIMIT:
                store.conversation("k").append_messages([message("x" * 1_000_000) for _ in range(10)])
        (finding,) = [each for each in store.maintenance.examine() if "-wal has" in each.detail]
        assert finding.name == "settings"
        assert f"{log_size(file) >> 20} MiB instead of about 4: a connection keeps a snapshot open" in finding.detail
        assert "wal_checkpoint(TRUNCATE)" in finding.remedy
        for _ in range(30):
            store.conversation("k").append_messages([message("x" * 40_000) for _ in range(10)])
        assert log_size(file) <= LOG_LIMIT
        assert [each for each in store.maintenance.examine() if "-wal has" in each.detail] == []
    engine.dispose()


def test_close_makes_no_checkpoint_while_another_connection_is_open(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}", module=library(AFFECTED))
    with Store(engine) as store:
        store.create("k")
        with closing(sqlite3.connect(file)) as other:
            other.execute("SELECT key FROM lango_session").fetchall()
            before = file.read_bytes()
            engine.dispose()
            assert file.read_bytes() == before
            assert log_size(file) > 0
    engine.dispose()


def test_interrupted_checkpoint_leaves_no_lock_on_the_file(file: Path) -> None:
    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> Any:
            if "wal_checkpoint" in statement:
                raise KeyboardInterrupt
            return super().execute(statement, *parameters)

    engine = create_engine(f"sqlite:///{file}", module=library(AFFECTED, Connection), connect_args={"timeout": 0})
    with Store(engine, payload_threshold=None) as store:
        store.create("k")

        def fill() -> None:
            for _ in range(20):
                store.conversation("k").append_messages(messages(40, content="x" * 10_000))

        with pytest.raises(KeyboardInterrupt):
            fill()
        with closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
        assert store.conversation("k").info().message_count % 40 == 0
    engine.dispose()


WRITER = """
import sys
from lango_store import Message, Store, create_engine
engine = create_engine(sys.argv[1], durability="normal")
with Store(engine) as store:
    for number in range(1_000):
        store.append_message("k", Message(role="user", content="x" * 4_000))
engine.dispose()
"""


@pytest.mark.slow
def test_wal_file_of_three_writing_processes_stays_small(file: Path) -> None:
    with Store(f"sqlite:///{file}") as store:
        store.create("k")
        writers = [Program(WRITER, f"sqlite:///{file}") for _ in range(3)]
        assert [writer.communicate() for writer in writers] == [("", "")] * 3
        assert log_size(file) < 3 * MOST
        assert store.conversation("k").info().last_seq == 3_000
        assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


@pytest.mark.slow
def test_sqlite_version_with_the_fix_of_the_wal_reset_bug_keeps_automatic_checkpoints(
    make_sqlite: MakeDatabase,
) -> None:
    engine = create_engine(make_sqlite(), module=library(FIXED))
    with Store(engine) as store:
        store.ping()
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() == 1_000
        assert store.maintenance.examine() == []
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("make_engine", [create_engine, sa.create_engine], ids=["own engine", "host engine"])
def test_doctor_names_a_sqlite_version_that_has_the_wal_reset_bug(
    file: Path, make_engine: Callable[..., sa.Engine]
) -> None:
    engine = make_engine(f"sqlite:///{file}", module=library(AFFECTED))
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    with Store(engine) as store:
        (finding,) = store.maintenance.examine()
    engine.dispose()
    assert finding.name == "settings"
    assert "SQLite 3.40.1" in finding.detail
    assert "lango-store[sqlite]" in finding.remedy


def test_sqlite_version_that_has_the_wal_reset_bug_is_logged_one_time(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lango_store")
    for _ in range(2):
        engine = create_engine(f"sqlite:///{file}", module=library((3, 41, 2)))
        engine.connect().close()
        engine.dispose()
    (line,) = [each.message for each in caplog.records if "WAL-reset" in each.message]
    assert "SQLite 3.41.2" in line
