"""Archives: purged sessions in another database, from which they can be restored."""

import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import golden_backup
from support.databases import KINDS, MakeDatabase
from support.factories import message, messages
from support.processes import Program
from support.session_checks import assert_sound

from lango_store import (
    DamagedMessage,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidFile,
    SchemaOutOfDate,
    SessionExists,
    SessionNotFound,
    Store,
    schema,
)
from lango_store.interchange import export
from lango_store.tables import SCHEMA_REVISION
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
ALL = datetime(9000, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["file", *set(KINDS) - {"sqlite"}])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path of a new file, or the URL of another database."""
    if request.param == "file":
        return str(tmp_path / "cold.db")
    make: MakeDatabase = request.getfixturevalue("make_postgres")
    return make()


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    return tmp_path / "cold.db"


def opened(archive: str | Path) -> Store:
    return Store(str(archive) if "://" in str(archive) else f"sqlite:///{archive}")


def keys(archive: str | Path) -> list[str]:
    with opened(archive) as store:
        return sorted(info.key for info in store.iter_sessions())


def exported(store: Store, path: Path) -> list[str]:
    """Return all rows of sessions, except those of the table of sessions."""
    export(store, path, "backup", everything=True)
    others = ('{"end"', '{"session', '{"shared', '{"budget')
    return [line for line in path.read_text().splitlines()[1:] if not line.startswith(others)]


@pytest.mark.slow
def test_archive_has_every_row_of_a_purged_session(store: Store, archive: str, tmp_path: Path) -> None:
    golden_backup.fill(store)
    store.conversation("plain").update(hold=None)
    before = exported(store, tmp_path / "before.jsonl")
    store.expire(created_before=ALL, archive=archive)
    assert store.count(expired=None) == 0
    with opened(archive) as cold:
        assert exported(cold, tmp_path / "after.jsonl") == before
        assert_sound(cold)


def test_archived_session_has_its_times_and_no_ttl(store: Store, clock: Clock, archive: str) -> None:
    store.create("k", ttl=HOUR, title="T", messages=messages(3))
    before = store.get("k")
    clock.move(hours=2)
    assert store.expire(archive=archive).sessions == 1
    assert not store.exists("k")
    with opened(archive) as cold:
        archived = cold.get("k")
        unlimited = {"ttl_seconds": None, "expires_at": None, "revision": archived.revision}
        assert archived == before.model_copy(update=unlimited)
        assert cold.expire().sessions == 0


def test_restored_session_is_unchanged_except_for_its_ttl(store: Store, clock: Clock, archive: str) -> None:
    store.create("k", ttl=HOUR, messages=messages(3))
    store.conversation("k").pop_message()
    before = store.get("k")
    clock.move(hours=2)
    store.expire(archive=archive)
    restored = store.restore("k", archive)
    new = {"ttl_seconds": None, "expires_at": None, "updated_at": clock.time, "revision": restored.revision}
    assert restored == before.model_copy(update=new) == store.get("k")
    assert store.append_message("k", message()).seq == before.last_seq + 1
    with pytest.raises(SessionExists):
        store.restore("k", archive)
    with pytest.raises(SessionNotFound, match="archive"):
        store.restore("nobody", archive)
    store.delete("k")
    assert store.restore("k", archive, ttl=HOUR).expires_at == clock.time + HOUR
    assert keys(archive) == ["k"]


def test_search_index_of_an_archive_covers_later_purges(store: Store, cold: Path) -> None:
    for word in ("rain", "snow"):
        store.create(word, messages=[message(f"the {word}")])
        store.expire(created_before=ALL, archive=cold)
        schema.enable_search(f"sqlite:///{cold}")
    with opened(cold) as archived:
        assert [hit.key for hit in archived.search("the").items] == ["rain", "snow"]


@pytest.mark.slow
def test_session_archived_again_replaces_its_earlier_copy(store: Store, archive: str) -> None:
    store.create("k", messages=messages(3))
    for number in range(3):
        store.conversation("k").edits.delete(number + 1)
        store.append_message("k", message(f"new {number}"))
        before = store.conversation("k").messages()
        store.expire(created_before=ALL, archive=archive)
        assert store.restore("k", archive).messages == before
    assert keys(archive) == ["k"]


@pytest.mark.slow
def test_earlier_session_with_the_key_gets_a_new_key_in_the_archive(store: Store, clock: Clock, archive: str) -> None:
    for name in ("old", "new"):
        store.open("k", messages=[message(name)]).child(name)
        clock.move(hours=1)
        store.expire(created_before=ALL, archive=archive, descendants=True)
        clock.move(hours=-1 if name == "new" else 1)
    latest, child, earlier, earlier_child = keys(archive)
    assert (latest, child, earlier_child) == ("k", "k/new", f"{earlier}/old")
    for key, name in ((earlier, "old"), ("k", "new")):
        for _ in range(2):  # purged again under its present key, each session stays in the archive once
            assert store.restore(key, archive, descendants=True).messages[0].content == name
            assert {info.key for info in store.iter_sessions()} == {key, f"{key}/{name}"}
            store.expire(created_before=ALL, archive=archive)
    assert keys(archive) == [latest, child, earlier, earlier_child]


@pytest.mark.slow
def test_child_that_was_archived_before_its_parent_stays_its_child(store: Store, clock: Clock, archive: str) -> None:
    store.create("k")
    store.expire(created_before=ALL, archive=archive)
    clock.move(hours=1)
    store.open("k").child("a")
    store.expire(created_before=ALL, key_prefix="k/", archive=archive)
    store.expire(created_before=ALL, archive=archive)
    store.restore("k", archive, descendants=True)
    assert {info.key for info in store.iter_sessions()} == {"k", "k/a"}


@pytest.mark.slow
def test_earlier_sessions_with_the_longest_keys_can_be_restored(store: Store, clock: Clock, archive: str) -> None:
    parent, child = "k" * 512, "p/" + "c" * 510
    for word in ("old", "new"):
        for key in (parent, "p", child):
            store.create(key, messages=[message(word)])
        store.expire(created_before=ALL, archive=archive)
        clock.move(hours=1)
    for key in keys(archive):
        word = "new" if key in (parent, "p", child) else "old"
        assert store.restore(key, archive).messages[0].content == word
    assert store.count() == 6


@pytest.mark.slow
def test_session_that_returns_from_a_backup_is_archived_once(store: Store, clock: Clock, tmp_path: Path) -> None:
    cold, backup = tmp_path / "cold.db", tmp_path / "backup.db"

    def purge(archive: Path) -> None:
        store.expire(created_before=ALL, archive=archive)
        clock.move(hours=1)

    store.open("k", messages=[message("first")]).child("a")
    purge(backup)
    for content in ("second", "third"):
        store.restore("k", backup, descendants=True)
        purge(cold)
        store.create("k", messages=[message(content)])
        purge(cold)
    with opened(cold) as archived:
        contents = [m.content for info in archived.iter_sessions() for m in archived.conversation(info.key).messages()]
        assert archived.count() == 4
    assert sorted(map(str, contents)) == ["first", "second", "third"]


@pytest.mark.slow
def test_purge_that_was_rolled_back_leaves_one_copy_in_the_archive(store: Store, archive: str) -> None:
    store.create("k", messages=messages(2))
    with store.engine.connect() as connection:
        assert store.using(connection).expire(created_before=ALL, archive=archive).sessions == 1
        connection.rollback()
    assert store.exists("k")
    assert keys(archive) == ["k"]
    store.append_message("k", message("late"))
    store.expire(created_before=ALL, archive=archive)
    assert keys(archive) == ["k"]
    assert store.restore("k", archive).messages[-1].content == "late"


@pytest.mark.slow
def test_sessions_of_a_user_can_be_deleted_from_an_archive_without_a_trace(store: Store, cold: Path) -> None:
    for user in ("ann", "bob"):
        store.create(user, user_id=user, messages=[message(f"secretword{user} " * 50)] * 20)
    store.expire(created_before=ALL, archive=cold)
    schema.enable_search(f"sqlite:///{cold}")
    with opened(cold) as archived:
        assert archived.delete_where(user_id="ann") == 1
        assert archived.search("secretwordann").items == []
    rest = b"".join(path.read_bytes() for path in cold.parent.glob("cold.db*"))
    assert (b"secretwordann" in rest, b"secretwordbob" in rest) == (False, True)


def test_purge_stops_if_archive_cannot_be_written(filled: Store, tmp_path: Path) -> None:
    no_database = tmp_path / "text.db"
    no_database.write_text("this is not a database, " * 500)
    for path in (tmp_path / "no" / "folder" / "cold.db", no_database):
        with pytest.raises(DatabaseUnavailable, match=f"archive .*{path.name}"):
            filled.expire(archive=path)
    assert filled.count(expired=None) == 10


def test_missing_archive_is_only_created_by_a_purge(filled: Store, cold: Path) -> None:
    with pytest.raises(InvalidFile, match="does not exist"):
        filled.restore("k", cold)
    assert not cold.exists()
    filled.expire(archive=cold, limit=0)
    assert keys(cold) == []


def test_database_of_another_application_is_refused_as_archive(filled: Store, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE sessions (text)")
    with pytest.raises(InvalidFile, match="is not a database of lango_store"):
        filled.expire(archive=path)
    with pytest.raises(InvalidFile, match="is not a database of lango_store"):
        filled.restore("k", path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("sessions",)]


def test_database_of_the_store_is_refused_as_archive(url: str) -> None:
    with Store(url) as store:
        store.create("k")
        with pytest.raises(ValueError, match="is the database of the store"):
            store.expire(created_before=ALL, archive=url)
        assert store.exists("k")


def test_purge_does_not_wait_for_itself_if_the_archive_is_the_database_of_the_store(
    make_postgres: MakeDatabase,
) -> None:
    url = make_postgres()
    with Store(url) as store:
        store.create("k")
        with pytest.raises(DatabaseBusy):
            store.expire(created_before=ALL, archive=f"{url}&application_name=purge")
        assert store.exists("k")


@pytest.mark.slow
def test_archive_at_an_older_revision_is_upgraded_if_it_is_a_file(store: Store, cold: Path) -> None:
    store.create("k", messages=messages(2))
    store.expire(created_before=ALL, archive=cold)
    schema.downgrade(f"sqlite:///{cold}", "0106")
    assert len(store.restore("k", cold).messages) == 2
    assert schema.current(f"sqlite:///{cold}") == SCHEMA_REVISION


def test_archive_without_the_present_schema_is_refused_if_it_is_a_url(
    store: Store, make_postgres: MakeDatabase
) -> None:
    store.create("k")
    for archive in (make_postgres(migrated=False), "sqlite://"):
        for call in (lambda: store.expire(created_before=ALL, archive=archive), lambda: store.restore("k", archive)):  # noqa: B023
            with pytest.raises(SchemaOutOfDate, match="run `lango-store db upgrade --url"):
                call()
    assert store.exists("k")


def test_damaged_session_is_archived_but_not_restored(make_sqlite: MakeDatabase, cold: Path) -> None:
    with Store(make_sqlite()) as store:
        store.create("k", messages=messages(2))
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_message SET extra = '{' WHERE seq = 2")
        assert store.expire(created_before=ALL, archive=cold).sessions == 1
        with pytest.raises(DamagedMessage, match="extra"):
            store.restore("k", cold)
        assert store.count(expired=None) == 0
        assert keys(cold) == ["k"]


@pytest.mark.slow
def test_purges_in_several_threads_can_share_one_archive(store: Store, clock: Clock, archive: str) -> None:
    for number in range(20):
        store.create(f"k{number}", ttl=HOUR, messages=messages(2))
    clock.move(hours=2)
    with ThreadPoolExecutor(4) as threads:
        purges = [threads.submit(store.expire, archive=archive, batch_size=1) for _ in range(4)]
    assert sum(each.result().sessions for each in purges) == 20
    assert len(keys(archive)) == 20


PURGER = """
import sys
from lango_store import Store
with Store(sys.argv[1]) as store:
    store.expire(archive=sys.argv[2], batch_size=7, on_batch=lambda report: print(report.batches, flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 4])
def test_killed_purge_leaves_each_session_in_the_store_or_in_the_archive(
    url: str, clock: Clock, cold: Path, after: int
) -> None:
    clock.move(days=-30)
    with Store(url, clock=clock) as store:
        for n in range(60):
            store.create(f"k{n}", ttl=HOUR, messages=[message(f"words of {n}")] * 3)
    everything = {f"k{n}" for n in range(60)}
    with Program(PURGER, url, cold) as process:
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    with Store(url) as store:
        remaining = {info.key for info in store.iter_sessions(expired=None)}
        if remaining != everything:
            assert remaining | {*keys(cold)} == everything
        store.expire(archive=cold, batch_size=50)
        assert store.count(expired=None) == 0
    with opened(cold) as archived:
        assert archived.stats().messages == 180
        assert {info.key for info in archived.iter_sessions()} == everything


@pytest.mark.slow
def test_archive_keeps_the_values_of_a_session(store: Store, clock: Clock, tmp_path: Path) -> None:
    values: dict[str, Any] = {"none": None, "a": -(2**70), "é": ["a\0b", "\ud83d", {"": [None, {"a": "\0"}]}]}
    store.create("k", ttl=HOUR, messages=messages(1))
    store.conversation("k").values.set(values)
    store.shared_values("shared").set({"a": 1})
    clock.move(hours=2)
    store.expire(archive=tmp_path / "cold.db")
    store.shared_values("shared").set({"a": 2})
    store.restore("k", tmp_path / "cold.db")
    assert store.conversation("k").values.get() == values
    assert store.shared_values("shared").get() == {"a": 2}
