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
from conftest import MakeDatabase
from damage import leaves_of, lose, opened
from factories import messages

from lango_store import DatabaseUnavailable, LangoStoreError, Message, SearchUnavailable, Store, create_engine, schema

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
        with engine.connect() as writing:
            writing.exec_driver_sql("SELECT 1")  # which takes the write lock
            for url in (f"sqlite:///file:{indexed}?mode=ro&uri=true", f"sqlite:///{indexed}?timeout=0"):
                with Store(url) as reader, pytest.raises(LangoStoreError, match="no such table: lango_value"):
                    reader.values("k")
    assert [record.getMessage() for record in caplog.records if record.name == "lango_store"] == []


def test_a_summarizer_that_fails_for_another_damaged_file_is_called_once(indexed: Path, damaged_file: Path) -> None:
    lose(damaged_file, *leaves_of("lango_message", damaged_file))
    calls = []
    with Store(f"sqlite:///{indexed}") as store, opened(damaged_file) as other:

        def summarize(window: list[Message]) -> list[Message]:
            calls.append(len(window))
            return other.get("telegram:1").messages

        conversation = store.open("talk", messages=messages(3))
        with pytest.raises(DatabaseUnavailable, match="malformed"):
            conversation.compact(summarize)
        assert (calls, schema.search_status(store.engine).state) == ([3], "ready")


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
