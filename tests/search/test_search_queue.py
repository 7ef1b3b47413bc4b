"""The queue of the search index: draining, searches before a drain, and removal of words."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import LeavesDeletedTexts, MakeDatabase
from support.factories import message, messages
from support.searches import findings, found, waiting

from lango_store import Store, create_engine, schema
from lango_store._engine.engine import read_only_engine


@pytest.fixture
def indexed(make_postgres: MakeDatabase) -> Iterator[Store]:
    """Yield a PostgreSQL store with a search index and a lock timeout of one second."""
    url = f"{make_postgres()}&options=-clock_timeout%3D1000"
    schema.enable_search(url)
    with Store(url) as store:
        yield store


def test_search_drains_the_queue(store: Store, url: str) -> None:
    schema.enable_search(url)
    store.create("a", messages=[message("oslo"), message("bergen")])
    assert waiting(store) == 2
    assert found(store, "oslo") == [("a", 1)]
    assert waiting(store) == 0


def test_search_indexes_the_newest_queued_messages_and_counts_the_rest(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lango_store._rooms.search.searching._MAX_DRAINED", 3)
    schema.enable_search(url)
    store.create("a", messages=[message("oslo") for _ in range(9)])
    page = store.search("oslo")
    assert sorted(hit.seq for hit in page.items) == [7, 8, 9]
    assert page.waiting == 6
    store.expire()
    assert (len(found(store, "oslo")), store.search("oslo").waiting) == (9, 0)


def test_search_before_the_queue_is_drained_finds_no_removed_or_changed_text(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.enable_search(url)
    store.create("a", messages=[message(f"oslo {word}") for word in ("one", "two", "three", "four")])
    assert len(found(store, "oslo")) == 4
    monkeypatch.setattr("lango_store._rooms.search.searching._MAX_DRAINED", 0)
    monkeypatch.setattr("lango_store._rooms.search.upkeep.SearchData.clean", lambda *_: None)
    store.conversation("a").edits.update(1, message("bergen"))
    store.conversation("a").edits.redact(2)
    store.conversation("a").edits.delete(3)
    assert waiting(store) == 3
    assert found(store, "oslo") == [("a", 4)]
    assert found(store, "two") == []
    store.delete("a")
    assert found(store, "oslo") == []


def test_search_with_an_empty_queue_does_not_wait_for_a_writer(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    schema.enable_search(url)
    with Store(url) as store:
        store.create("a", messages=[message("oslo")])
        assert found(store, "oslo") == [("a", 1)]
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            assert found(store, "oslo") == [("a", 1)]


def test_search_in_a_read_only_database_counts_messages_not_yet_indexed(store: Store, url: str) -> None:
    schema.enable_search(url)
    store.create("a", messages=[message("oslo")])
    assert found(store, "oslo") == [("a", 1)]
    store.append_message("a", message("oslo"))
    engine = read_only_engine(url)
    with Store(engine) as reader:
        page = reader.search("oslo")
    engine.dispose()
    assert ([hit.seq for hit in page.items], page.waiting) == ([1], 1)


def test_search_in_a_read_only_sqlite_file_counts_messages_not_yet_indexed(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    schema.enable_search(url)
    with Store(url) as store:
        store.create("a", messages=[message("oslo")])
        assert found(store, "oslo") == [("a", 1)]
        store.append_message("a", message("oslo"))
    with Store(f"sqlite:///file:{url.removeprefix('sqlite:///')}?mode=ro&uri=true") as reader:
        page = reader.search("oslo")
    assert ([hit.seq for hit in page.items], page.waiting) == ([1], 1)


@pytest.mark.slow
def test_search_in_callers_transaction_takes_no_lock(indexed: Store) -> None:
    indexed.create("a", messages=[message("oslo"), message("bergen")])
    with indexed.engine.connect() as connection:
        assert indexed.using(connection).search("oslo").waiting == 2
        indexed.conversation("a").pop_message()
        assert found(indexed, "oslo") == [("a", 1)]
    assert waiting(indexed) == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", ["edits.update", "edits.delete"])
def test_change_that_commits_after_the_queue_was_drained_affects_the_next_search(indexed: Store, change: str) -> None:
    indexed.create("a", messages=[message("oslo"), message("weather")])
    with indexed.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM lango_message")
        bound = indexed.using(connection)
        if change == "edits.update":
            bound.conversation("a").edits.update(1, message("bergen"))
        else:
            bound.conversation("a").edits.delete(1)
        assert found(indexed, "oslo") == [("a", 1)]
        connection.commit()
    assert (found(indexed, "oslo"), found(indexed, "weather")) == ([], [("a", 2)])
    assert (waiting(indexed), findings(indexed)) == (0, [])


@pytest.mark.slow
def test_search_finds_messages_that_undo_restored_but_none_that_undo_removed(url: str) -> None:
    schema.enable_search(url)
    with Store(url, keep_removed=timedelta(days=1)) as store:
        conversation = store.open("a", messages=[message("oslo"), message("bergen " + "x " * 2_500)])
        conversation.append_messages([message("tromso")], replace_after=1)
        assert (found(store, "bergen"), found(store, "tromso")) == ([], [("a", 4)])
        conversation.versions.undo()
        assert (found(store, "bergen"), found(store, "tromso")) == ([("a", 2)], [])
        conversation.versions.redo()
        assert (found(store, "bergen"), found(store, "tromso")) == ([], [("a", 4)])
        assert (waiting(store), findings(store)) == (0, [])


# Removed words


def is_in_file(path: Path, word: str) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return word.encode() in path.read_bytes()


def test_redacted_words_leave_the_sqlite_file_at_once_and_deleted_words_at_the_next_expire(
    make_sqlite: MakeDatabase,
) -> None:
    url = make_sqlite()
    path = Path(url.removeprefix("sqlite:///"))
    engine = create_engine(url, connect_args={"factory": LeavesDeletedTexts})
    schema.enable_search(engine)
    with Store(engine) as store:
        for key, word in (("one", "secretone"), ("two", "secrettwo"), ("three", "secretthree")):
            store.create(key, messages=[*messages(30), message(word)])
        store.search("hello")
        store.conversation("one").edits.redact(31)
        assert [is_in_file(path, word) for word in ("secretone", "secrettwo")] == [False, True]
        store.conversation("two").truncate(after=5)
        store.conversation("three").edits.update(31, message("nothing"))
        for key in ("one", "two", "three"):
            store.touch(key, ttl=timedelta(microseconds=1))
        store.expire()
    assert [is_in_file(path, word) for word in ("secretone", "secrettwo", "secretthree")] == [False] * 3
    engine.dispose()


@pytest.mark.slow
def test_redaction_removes_words_from_the_postgresql_index_at_once(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    schema.enable_search(url)
    with Store(url) as store:
        store.create("a", messages=[message("secret"), message("other")])
        assert found(store, "secret") == [("a", 1)]
        store.conversation("a").edits.redact(1)
        with store.engine.connect() as connection:
            entries = connection.exec_driver_sql("SELECT seq, entry::text FROM lango_search ORDER BY seq").all()
        assert entries == [(1, "'redacted':1A"), (2, "'other':1A")]


def is_in_index_files(url: str, word: str) -> bool:
    """Return True if a file of the search index contains a word."""
    files = "SELECT pg_read_binary_file(pg_relation_filepath(oid)) FROM pg_class "
    files += "WHERE starts_with(relname::text, 'lango_search') OR relname::text = 'ix_lango_search_entry'"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM lango_search")
        connection.exec_driver_sql("CHECKPOINT")
        contents = connection.exec_driver_sql(files).scalars().all()
    engine.dispose()
    return any(word.encode() in bytes(content) for content in contents)


def reindex(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("REINDEX INDEX CONCURRENTLY ix_lango_search_entry")


@pytest.mark.slow
@pytest.mark.parametrize("rebuild", [schema.rebuild_search, reindex])
def test_deleted_word_stays_in_the_files_of_the_postgresql_index_until_it_is_rebuilt(
    make_postgres: MakeDatabase, rebuild: Callable[[sa.Engine], object]
) -> None:
    url = make_postgres()
    schema.enable_search(url)
    with Store(url) as store:
        store.create("a", messages=[message("secretword"), message("other")])
        assert found(store, "secretword") == [("a", 1)]
        store.conversation("a").edits.redact(1)
        store.delete("a")
        assert is_in_index_files(url, "secretword")  # GIN never removes a word, even after VACUUM
        rebuild(store.engine)
        assert not is_in_index_files(url, "secretword")


def test_vacuum_changes_no_search_result(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    schema.enable_search(url)
    with Store(url) as store:
        store.create("a", messages=[message(f"oslo {number}") for number in range(50)])
        store.create("b", messages=[message("bergen")])
        store.conversation("a").truncate(after=3)
        before = found(store, "oslo")
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("VACUUM")
        assert found(store, "oslo") == before
        assert found(store, "bergen") == [("b", 1)]
