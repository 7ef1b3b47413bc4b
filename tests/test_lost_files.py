"""A SQLite file that goes away, or is another one, while a store has it open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import message, messages

from lango_store import DatabaseUnavailable, SchemaOutOfDate, Store, create_engine


@pytest.fixture
def file(make_sqlite: MakeDatabase) -> Path:
    return Path(make_sqlite().removeprefix("sqlite:///"))


def moved(file: Path, target: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.rename(target / each.name)


@pytest.mark.parametrize("stock", [False, True])
def test_a_file_that_is_gone_takes_no_append_until_it_is_back(file: Path, tmp_path: Path, stock: bool) -> None:
    engine = create_engine(f"sqlite:///{file}")
    if stock:
        engine = sa.create_engine(f"sqlite:///{file}")
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    with Store(engine) as store:
        store.create("k", messages=messages(2))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        moved(file, elsewhere)
        for call in (
            store.ping,
            lambda: store.append_message("k", message()),
            lambda: store.get("k"),
            lambda: store.stats(),
            lambda: store.truncate("k", after=0),
        ):
            with pytest.raises(DatabaseUnavailable, match="put it back"):
                call()
        with engine.connect() as connection, pytest.raises(DatabaseUnavailable, match="is gone"):
            store.using(connection).append_message("k", message())
        assert not file.exists()  # no call made an empty one
        moved(elsewhere / file.name, file.parent)
        assert store.append_message("k", message()).seq == 3
    engine.dispose()


def test_a_file_that_was_replaced_is_opened_after_one_error(file: Path, tmp_path: Path, migrated_file: Path) -> None:
    with Store(f"sqlite:///{file}") as store:
        store.create("k", messages=messages(2))
        other = tmp_path / "other.db"
        shutil.copy(migrated_file, other)
        with Store(f"sqlite:///{other}") as filling:
            filling.create("k")
        old = tmp_path / "old"
        old.mkdir()
        moved(file, old)
        other.rename(file)
        with pytest.raises(DatabaseUnavailable, match="was replaced"):
            store.append_message("k", message())
        assert store.append_message("k", message()).seq == 1
        assert store.info("k").message_count == 1
    with Store(f"sqlite:///{old / file.name}") as store:
        assert store.info("k").message_count == 2


def test_a_file_that_was_replaced_has_its_schema_looked_at(file: Path, tmp_path: Path) -> None:
    with Store(f"sqlite:///{file}") as store:
        store.create("k")
        for each in file.parent.glob(f"{file.name}*"):
            each.unlink()
        file.touch()
        with pytest.raises(DatabaseUnavailable, match="was replaced"):
            store.count()
        with pytest.raises(SchemaOutOfDate):
            store.count()


CALLS: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append_message("k", message()),
    "several": lambda store: store.truncate("k", after=0),
    "load": lambda store: store.get("k"),
    "snapshot": lambda store: store.stats(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_deleted_log_is_reported_before_anything_is_lost_in_it(file: Path, call: Callable[[Store], object]) -> None:
    with Store(f"sqlite:///{file}") as store:
        store.create("k", messages=messages(2))
        call(store)
        Path(f"{file}-wal").unlink()
        with pytest.raises(DatabaseUnavailable, match="-wal was deleted"):
            call(store)
        seq = store.append_message("k", message()).seq  # of what the file holds
        with Store(f"sqlite:///{file}") as other:
            assert other.info("k").last_seq == seq


def test_a_deleted_log_is_reported_once_however_many_connections_wrote_to_it(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with Store(engine) as store:
        store.create("k", messages=messages(2))
        with engine.connect() as first, engine.connect() as second:
            for connection in (first, second):
                store.using(connection).get("k")
                connection.commit()
        Path(f"{file}-wal").unlink()
        with pytest.raises(DatabaseUnavailable, match="the next call opens the file"):
            store.append_message("k", message())
        with engine.connect() as first, engine.connect() as second:
            for connection in (first, second):
                store.using(connection).count()  # without an error
                connection.commit()
    engine.dispose()


def test_a_callers_connection_whose_log_was_deleted_takes_nothing(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with Store(engine) as store, engine.connect() as connection:
        store.using(connection).create("k", messages=messages(2))
        connection.commit()
        Path(f"{file}-wal").unlink()
        with pytest.raises(DatabaseUnavailable, match=r"-wal was deleted.*engine.dispose\(\)"):
            store.using(connection).append_message("k", message())
    engine.dispose()


def test_a_caller_whose_file_was_replaced_goes_on_with_a_new_connection(file: Path, migrated_file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    store = Store(engine)
    with engine.connect() as connection:
        store.using(connection).create("k")
        connection.commit()
        for each in file.parent.glob(f"{file.name}*"):
            each.unlink()
        shutil.copy(migrated_file, file)
        with pytest.raises(DatabaseUnavailable, match=r"was replaced.*engine.dispose\(\)"):
            store.using(connection).get("k")
    engine.dispose()
    with engine.connect() as connection:
        assert not store.using(connection).exists("k")
    engine.dispose()


def test_a_file_that_every_connection_has_closed_may_lose_its_log(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)
    with Store(engine) as store:
        store.create("k")
        for seq in (1, 2, 3):
            assert store.append_message("k", message()).seq == seq
            assert not Path(f"{file}-wal").exists()


def test_a_ping_looks_at_the_schema_again(url: str) -> None:
    engine = create_engine(url)
    with Store(engine) as store:
        store.ping()
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM lango_store_version")
        with pytest.raises(SchemaOutOfDate):
            store.ping()
        with engine.connect() as connection, pytest.raises(SchemaOutOfDate):
            store.using(connection).ping()
    engine.dispose()
