"""Archives: search, restore and forget purged sessions without losing any."""

import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.factories import message, messages
from support.processes import Program

from lango_store import (
    DatabaseUnavailable,
    InvalidFile,
    MessageRole,
    SessionExists,
    SessionNotFound,
    Store,
    ToolCall,
)
from lango_store.archive import Archive
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def test_archived_session_can_be_searched_and_restored_unchanged(store: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    call = ToolCall(
        id="c", name="get_weather", arguments={"city": "Bergen"}, output={"sky": "\ud800 rain", "mm": 22.50}
    )
    store.create("k", ttl=HOUR, title="T", settings={"b": 1, "a": 1.0}, metadata={"\0": [2**70]}, messages=messages(3))
    store.append_message("k", message("who\0le", role=MessageRole.TOOL, tool_calls=[call], id="i", tokens=3))
    store.conversation("k").pop_message()
    store.append_message("k", message({"x": "Ångström"}, tool_calls=[call], id="i", tokens=3, extra={"e": None}))
    before = store.get("k")
    clock.move(hours=2)
    assert store.expire(archive=cold).sessions == 1
    assert not store.exists("k")
    with Archive(cold) as archive:
        assert [(f["key"], f["seq"], f["role"]) for f in archive.search("bergen RAIN")] == [("k", 6, "user")]
        assert [f["seq"] for f in archive.search("ångström")] == [6]
        assert archive.search('no "such (words') == []
        with pytest.raises(ValueError, match="word"):
            archive.search("  ")
        with pytest.raises(ValueError, match="limit"):
            archive.search("rain", limit=-1)
    restored = store.restore(cold, "k")
    anew = {"ttl_seconds": None, "expires_at": None, "updated_at": clock.time, "revision": restored.revision}
    unlimited = before.model_copy(update=anew)
    assert restored == unlimited == store.get("k")
    assert store.append_message("k", message()).seq == before.last_seq + 1
    with pytest.raises(SessionExists):
        store.restore(cold, "k")
    with pytest.raises(SessionNotFound, match="archive"):
        store.restore(cold, "nobody")
    store.delete("k")
    assert store.restore(cold, "k", ttl=HOUR).expires_at == clock.time + HOUR


def test_archive_is_a_plain_sqlite_file(filled: Store, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    filled.expire(archive=cold, batch_size=2)
    connection = sqlite3.connect(cold)
    assert connection.execute("SELECT count(*), sum(message_count) FROM sessions").fetchone() == (5, 25)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (25,)
    assert connection.execute("SELECT count(*) FROM turns").fetchone() == (0,)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_forget_deletes_only_archived_sessions_that_match_all_filters(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    cold = tmp_path / "cold.db"
    for key, user, agent in (("a:1", "ann", "x"), ("a:2", "ann", "y"), ("b:1", "ann", "x"), ("b:2", "", "x")):
        store.create(key, user_id=user, agent_id=agent, ttl=HOUR)
    clock.move(hours=2)
    store.expire(archive=cold)
    with Archive(cold) as archive:
        assert archive.forget(user_id="ann", agent_id="z") == 0
        assert archive.forget(user_id="ann", agent_id="x", key_prefix="a:") == 1
        assert archive.forget(user_id="ann", key_prefix=":1") == 0
        assert archive.forget(user_id="") == 1
        assert archive.forget(user_id="ann", key_prefix="") == 2


def test_forget_leaves_no_trace_in_the_archive_file(store: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    for user in ("ann", "bob"):
        store.create(f"k:{user}", user_id=user, ttl=HOUR, messages=[message(f"secretword{user} " * 50)] * 20)
    clock.move(hours=2)
    store.expire(archive=cold)
    with Archive(cold) as archive:
        assert archive.forget(user_id="ann") == 1
        assert archive.search("secretwordann") == []
        assert len(archive.search("secretwordbob")) == 20
        for wrong in ({}, {"key_prefix": ""}):
            with pytest.raises(ValueError, match="no filter was given"):
                archive.forget(**wrong)
    rest = b"".join(path.read_bytes() for path in tmp_path.glob("cold.db*"))
    assert b"secretwordann" not in rest
    assert b"secretwordbob" in rest


def test_purge_stops_if_archive_cannot_be_written(filled: Store, tmp_path: Path) -> None:
    no_database = tmp_path / "text.db"
    no_database.write_text("this is not a database, " * 500)
    for path in (tmp_path / "no" / "folder" / "cold.db", no_database):
        with pytest.raises(DatabaseUnavailable, match=path.name):
            filled.expire(archive=path)
    assert filled.count(expired=None) == 10
    with pytest.raises(InvalidFile, match="does not exist"):
        filled.restore(tmp_path / "none.db", "k")


def test_purge_refuses_a_database_of_another_application_as_archive(filled: Store, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    for name in ("notes", "sessions"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE {name} (text)")
        with pytest.raises(InvalidFile, match="is a database of another application"):
            filled.expire(archive=path)
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    assert tables == [("notes",), ("sessions",)]


def test_purges_in_several_threads_can_share_one_archive(store: Store, clock: Clock, tmp_path: Path) -> None:
    for number in range(20):
        store.create(f"k{number}", ttl=HOUR, messages=messages(2))
    clock.move(hours=2)
    with ThreadPoolExecutor(4) as threads:
        purges = [threads.submit(store.expire, archive=tmp_path / "cold.db", batch_size=1) for _ in range(4)]
    assert sum(each.result().sessions for each in purges) == 20
    with Archive(tmp_path / "cold.db") as archive:
        assert archive.count(key_prefix="k") == (20, 40)


def test_archive_is_on_disk_before_sessions_are_deleted(
    store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    keeping = Archive.keeping

    @contextmanager
    def noting(self: Archive, *arguments: Any, **options: Any) -> Iterator[None]:
        asked.extend(self._connection.execute("PRAGMA synchronous").fetchone())
        with keeping(self, *arguments, **options):
            yield
        assert not self._connection.in_transaction

    monkeypatch.setattr(Archive, "keeping", noting)
    store.create("k", ttl=HOUR, messages=messages(2))
    clock.move(hours=2)
    store.expire(archive=tmp_path / "cold.db")
    assert asked == [2]  # FULL: a commit waits for the disk


PURGER = """
import sys
from lango_store import Store
with Store(sys.argv[1]) as store:
    store.expire(archive=sys.argv[2], batch_size=7, on_batch=lambda report: print(report.batches, flush=True))
"""


@pytest.mark.parametrize("after", [0, 4])
def test_killed_purge_leaves_each_session_in_the_store_or_in_the_archive(
    url: str, clock: Clock, tmp_path: Path, after: int
) -> None:
    cold = tmp_path / "cold.db"
    clock.move(days=-30)
    with Store(url, clock=clock) as store:
        for n in range(60):
            store.create(f"k{n}", ttl=HOUR, messages=[message(f"words of {n}")] * 3)
    with Program(PURGER, url, cold) as process:
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    with Store(url) as store:
        left = {info.key for info in store.list_sessions(expired=None, limit=500).items}
        archived = archived_keys(cold) if cold.exists() else set()
        assert left | archived == {f"k{n}" for n in range(60)}
        store.expire(archive=cold, batch_size=50)
        assert store.count(expired=None) == 0
    connection = sqlite3.connect(cold)
    assert archived_keys(cold) == {f"k{n}" for n in range(60)}
    assert connection.execute("SELECT count(*), count(DISTINCT key) FROM sessions").fetchone() == (60, 60)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (180,)
    connection.close()


def archived_keys(cold: Path) -> set[str]:
    connection = sqlite3.connect(cold)
    try:
        return {key for (key,) in connection.execute("SELECT key FROM sessions")}
    except sqlite3.OperationalError:  # killed before the tables were made
        return set()
    finally:
        connection.close()
