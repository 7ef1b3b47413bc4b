"""SQLite files that are moved or replaced while a store has them open."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message, messages

from lango_store import DatabaseUnavailable, LangoStoreError, MigrationRefused, Store, create_engine
from lango_store._connections import schema_gate
from lango_store._engine import pool


@pytest.fixture
def file(make_sqlite: MakeDatabase) -> Path:
    return Path(make_sqlite().removeprefix("sqlite:///"))


def moved(file: Path, target: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.rename(target / each.name)


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_LOOK_INTERVAL", 0.0)


@pytest.fixture(params=["own engine", "host engine"])
def engine(file: Path, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    if request.param == "own engine":
        engine = create_engine(f"sqlite:///{file}")
    else:
        engine = sa.create_engine(f"sqlite:///{file}")
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    yield engine
    engine.dispose()


CALLS: dict[str, Callable[[Store], object]] = {
    "ping": Store.ping,
    "append": lambda store: store.append_message("k", message()),
    "load": lambda store: store.get("k"),
    "snapshot": lambda store: store.stats(),
    "truncate": lambda store: store.conversation("k").truncate(after=0),
}


@pytest.mark.usefixtures("looks_always")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_store_refuses_calls_after_its_file_was_moved(
    engine: sa.Engine, file: Path, tmp_path: Path, call: Callable[[Store], object]
) -> None:
    with Store(engine) as store:
        store.create("k", messages=messages(2))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        moved(file, elsewhere)
        with pytest.raises(DatabaseUnavailable, match="was deleted or moved"):
            call(store)
        assert not file.exists()
        moved(elsewhere / file.name, file.parent)
        with pytest.raises(DatabaseUnavailable, match="create a new Store"):
            call(store)
    with Store(f"sqlite:///{file}") as store:
        assert store.append_message("k", message()).seq == 3


def test_store_opens_no_new_connection_to_a_backup_that_replaced_its_file(file: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    with Store(f"sqlite:///{file}") as store:
        store.create("k", messages=messages(2))
    shutil.copy(file, backup)
    engine = create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)  # a connection for each call
    with Store(engine) as store:
        store.append_message("k", message())
        expected = backup.read_bytes()
        backup.rename(file)
        with pytest.raises(DatabaseUnavailable, match="was replaced"):
            store.append_message("k", message())
        assert file.read_bytes() == expected
        with pytest.raises(DatabaseUnavailable, match="was replaced"):
            store.get("k")
    engine.dispose()
    with Store(f"sqlite:///{file}") as store:
        assert store.conversation("k").info().message_count == 2


@pytest.mark.parametrize("method", ["append", "truncate"])
def test_write_is_refused_if_the_file_is_replaced_before_the_write_is_locked(
    file: Path, tmp_path: Path, method: str
) -> None:
    def replace(*_: object) -> None:  # between the first check of the file and the write lock
        if backup.exists():
            backup.rename(file)

    backup = tmp_path / "backup.db"
    engine = create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)
    with Store(engine) as store:
        store.create("k", messages=messages(2))
        shutil.copy(file, backup)
        expected = backup.read_bytes()
        sa.event.listen(engine, "connect", replace)
        with pytest.raises(DatabaseUnavailable, match="was replaced"):
            CALLS[method](store)
    assert file.read_bytes() == expected


@pytest.mark.usefixtures("looks_always")
def test_callers_connection_is_refused_after_the_file_was_replaced(
    engine: sa.Engine, file: Path, migrated_file: Path
) -> None:
    store = Store(engine)
    with engine.connect() as connection:
        store.using(connection).create("k")
        connection.commit()
        for each in file.parent.glob(f"{file.name}*"):
            each.unlink()
        shutil.copy(migrated_file, file)
        with pytest.raises(DatabaseUnavailable, match="was replaced"):
            store.using(connection).append_message("k", message())


def test_store_continues_after_sqlite_removed_the_wal_file(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)
    with Store(engine) as store:
        store.create("k")
        for seq in (1, 2, 3):
            assert store.append_message("k", message()).seq == seq
            assert not Path(f"{file}-wal").exists()


@pytest.mark.slow
def test_ping_checks_the_schema_at_every_call(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        store.ping()
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM lango_store_version")
        store.count()  # checks the schema only once
        for call in (store.ping, store.count):  # after ping has found a fault, each call checks again
            with pytest.raises(MigrationRefused, match="lango-store db stamp"):
                call()
        with engine.connect() as connection, pytest.raises(MigrationRefused, match="lango-store db stamp"):
            store.using(connection).ping()
    engine.dispose()


DAMAGES: dict[str, tuple[str, str]] = {
    "no tables": ("DROP TABLE lango_message", "lango_message missing, although lango_store_version"),
    "two revisions": ("INSERT INTO lango_store_version VALUES ('9999')", "lango_store_version has 2 rows"),
    "no revision": ("UPDATE lango_store_version SET version_num = 'x'", "says 'x', which is not a revision"),
    "another column": ("ALTER TABLE lango_store_version RENAME version_num TO version", "version_num"),
}
"""A change of the database, and what `ping` says about it."""


@pytest.mark.parametrize(("statement", "text"), DAMAGES.values(), ids=DAMAGES.keys())
def test_ping_refuses_a_database_without_tables_or_with_a_damaged_migration_revision(
    url: str, statement: str, text: str
) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        store.ping()
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
        for opened in (store, Store(engine)):  # one has checked the schema, the other has not
            with pytest.raises(LangoStoreError, match=text):
                opened.ping()
    engine.dispose()


def test_call_succeeds_if_another_thread_requests_a_schema_check_at_any_line_of_the_call(url: str) -> None:
    """A failed ping or call in another thread can request a new schema check at any time."""
    engine = create_engine(url)
    with Store(engine) as store, engine.connect() as connection:
        store.create("k")
        gate = store._context._gate

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_filename != schema_gate.__file__:
                return None
            if event == "line":
                gate.reset(engine)
                lines.append(frame.f_lineno)
            return trace

        for each in (store, store.using(connection)):
            lines: list[int] = []
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                assert each.conversation("k").info().key == "k"
            finally:
                sys.settrace(before)
            assert len(lines) > 5
    engine.dispose()
