"""A damaged search index costs no verb: a search says what to do, and whatever else writes, writes without it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import every_verb
import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from factories import message, messages

from lango_store import LangoStoreError, SearchUnavailable, Store, create_engine, schema

DAMAGES = ["DROP TABLE lango_search_docsize", "DROP TABLE lango_search_waiting"]


@pytest.fixture
def indexed(make_sqlite: MakeDatabase, tmp_path: Path) -> Path:
    """A file with sessions, all of whose messages are in a search index, beside an archive."""
    url = make_sqlite()
    schema.enable_search(url)
    with Store(url) as store:
        every_verb.prepare(store, tmp_path / "archive.db")
        store.search("hello")
    return Path(url.removeprefix("sqlite:///"))


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def verbs(path: Path, cold: Path) -> Iterator[tuple[type, str, int]]:
    """The calls of every verb, by its class, its name and their number."""
    with Store(f"sqlite:///{path}") as store:
        for kind, calls in every_verb.calls_of(store, cold).items():
            yield from ((kind, verb, number) for verb, several in calls.items() for number in range(len(several)))


@pytest.mark.parametrize(("damage", "retry"), [(DAMAGES[0], None), (DAMAGES[1], timedelta(seconds=30))])
def test_every_verb_works_with_a_damaged_index_but_a_search(
    indexed: Path, tmp_path: Path, damage: str, retry: timedelta | None
) -> None:
    cold = tmp_path / "archive.db"
    run(indexed, damage)
    copy, archive = tmp_path / "copy.db", tmp_path / "copy.archive.db"
    failed: dict[str, LangoStoreError] = {}
    for kind, verb, number in list(verbs(indexed, cold)):
        shutil.copy(indexed, copy)
        shutil.copy(cold, archive)
        with Store(f"sqlite:///{copy}", retry=retry) as store:
            try:
                every_verb.calls_of(store, archive)[kind][verb][number]()
            except LangoStoreError as error:
                failed[f"{kind.__name__}.{verb}, call {number}"] = error
    searches = {"Store.search, call 0", "Conversation.search, call 0"}
    assert {name: error for name, error in failed.items() if name not in searches} == {}
    assert {type(error) for error in failed.values()} == {SearchUnavailable}


def test_a_read_that_fails_detaches_no_index(indexed: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(f"sqlite:///{indexed}")
    with Store(engine) as store:
        assert store.exists("k")
        run(indexed, "DROP TABLE lango_value")
        with pytest.raises(LangoStoreError, match="no such table: lango_value"):
            store.values("k")
        assert schema.search_status(engine).state == "ready"
    reader = Store(f"sqlite:///file:{indexed}?mode=ro&uri=true")
    with reader, pytest.raises(LangoStoreError, match="no such table: lango_value"):
        reader.values("k")
    assert [record.getMessage() for record in caplog.records if record.name == "lango_store"] == []


def test_an_index_that_is_detached_is_told_of_once(indexed: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(f"sqlite:///{indexed}")
    with Store(engine) as store:
        for number in range(5):
            store.create(f"u:{number}", messages=messages(2))
        store.search("hello")
        run(indexed, DAMAGES[0])
        assert store.delete_where(key_prefix="u:", batch_size=2) == 5
        assert schema.search_status(engine).state == "detached"
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "lango_store"]
    assert "lango-store search rebuild" in warning


def test_a_transaction_that_an_error_has_ended_is_not_begun_anew_without_what_the_caller_did_in_it(
    indexed: Path,
) -> None:
    run(indexed, "CREATE VIRTUAL TABLE host USING fts5(words)")
    insert = "INSERT OR ROLLBACK INTO host (rowid, words) VALUES (1, 'x')"
    run(indexed, f"CREATE TRIGGER host AFTER INSERT ON lango_message BEGIN {insert}; END")
    engine = sa.create_engine(f"sqlite:///{indexed}")
    sa.event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    with engine.connect() as connection:
        store = Store(engine).using(connection)
        store.create("mine")
        connection.exec_driver_sql("INSERT INTO host (rowid, words) VALUES (1, 'mine')")
        with pytest.raises(LangoStoreError, match="constraint failed"):
            store.append_message("mine", message())
        connection.rollback()
        assert not store.exists("mine")
    engine.dispose()
