"""Purging: which sessions go, in what steps, and what is kept of them."""

from __future__ import annotations

import signal
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock, MakeDatabase
from factories import message, messages
from processes import Program

from lango_store import (
    DatabaseUnavailable,
    ExpiryReport,
    MessageRole,
    SessionExists,
    SessionNotFound,
    Store,
    ToolCall,
    create_engine,
)
from lango_store.archive import Archive

HOUR = timedelta(hours=1)


def keys(store: Store) -> set[str]:
    return {info.key for info in store.list_sessions(expired=None, limit=500).items}


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    """Ten sessions, made a day apart: the even ones with a TTL of an hour; a day after the last."""
    for n in range(10):
        ttl = None if n % 2 else HOUR
        store.create(f"chat:{n}", agent_id=f"a{n % 3}", user_id=f"u{n % 4}", ttl=ttl, messages=messages(n + 1))
        clock.move(days=1)
    return store


def test_what_is_past_its_ttl_goes_and_nothing_else(filled: Store) -> None:
    report = filled.expire()
    assert (report.sessions, report.messages, report.batches, report.dry_run) == (5, 25, 1, False)
    assert keys(filled) == {f"chat:{n}" for n in (1, 3, 5, 7, 9)}
    assert filled.expire().sessions == 0
    with filled.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM lango_message").scalar() == 30


def test_policies(filled: Store, clock: Clock) -> None:
    assert filled.expire(dry_run=True, older_than=timedelta(days=8)).sessions == 6
    assert filled.expire(dry_run=True, created_before=clock.time - timedelta(days=7, seconds=1)).sessions == 6
    assert filled.expire(dry_run=True, older_than=timedelta(0), agent_id="a1").sessions == 3
    assert filled.expire(dry_run=True, older_than=timedelta(0), user_id="u1", key_prefix="chat:5").sessions == 1
    assert filled.expire(dry_run=True, key_prefix="mail:").sessions == 0
    assert filled.expire(dry_run=True, now=clock.time - timedelta(days=8)).sessions == 1
    assert len(keys(filled)) == 10
    report = filled.expire(older_than=timedelta(days=8), agent_id="a0")
    assert (report.sessions, keys(filled)) == (2, {f"chat:{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)})


def test_a_dry_run_says_exactly_what_would_go(filled: Store) -> None:
    for limit in (None, 3, 0):
        preview = filled.expire(dry_run=True, limit=limit, older_than=timedelta(days=5))
        first = [info.key for info in preview.oldest]
        assert first[:5] == [f"chat:{n}" for n in (0, 2, 4, 6, 8)][: len(first)]
        before = keys(filled)
        report = filled.expire(limit=limit, older_than=timedelta(days=5)) if limit == 3 else preview
        assert (preview.sessions, preview.messages) == (report.sessions, report.messages)
        if limit == 3:
            assert before - keys(filled) == set(first)


def test_batches_and_limits(filled: Store) -> None:
    seen: list[tuple[int, int]] = []
    report = filled.expire(batch_size=2, on_batch=lambda so_far: seen.append((so_far.batches, so_far.sessions)))
    assert seen == [(1, 2), (2, 4), (3, 5)]
    assert report.batches == 3
    assert filled.expire(older_than=timedelta(0), batch_size=2, limit=3).sessions == 3
    assert len(keys(filled)) == 2
    for wrong in (
        {"batch_size": 0},
        {"batch_size": 10_001},
        {"limit": -1},
        {"older_than": -HOUR},
        {"older_than": timedelta.max},
    ):
        with pytest.raises(ValueError):
            filled.expire(**wrong)


def test_interrupted_it_has_done_whole_batches_and_can_go_on(filled: Store) -> None:
    def stop(report: ExpiryReport) -> None:
        if report.batches == 2:
            raise Stop

    with pytest.raises(Stop):
        filled.expire(batch_size=2, on_batch=stop)
    assert len(keys(filled)) == 6
    assert filled.expire(batch_size=2).sessions == 1


def test_bytes_that_are_free_again_are_told_where_the_database_tells(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR, messages=[message("x" * 100_000)])
    clock.move(hours=2)
    freed = store.expire().bytes_freed
    assert freed is None if store.engine.dialect.name == "postgresql" else (freed or 0) > 90_000


def test_a_session_that_is_appended_to_between_choice_and_delete_survives(
    make_postgres: MakeDatabase, clock: Clock
) -> None:
    """The purge has chosen by an old snapshot; the append commits first; the purge looks again."""
    url = make_postgres()
    with Store(url, clock=clock) as store, Store(url, clock=clock) as purger:
        store.create("k", ttl=timedelta(days=30))
        clock.move(days=2)
        done: list[ExpiryReport] = []
        with store.engine.connect() as connection:
            store.using(connection).append_message("k", message())
            work = threading.Thread(target=lambda: done.append(purger.expire(older_than=timedelta(days=1))))
            work.start()
            work.join(20)
            assert done[0].sessions == 0  # locked by the append: left alone, and nobody waited
            connection.commit()
        assert purger.expire(older_than=timedelta(days=1)).sessions == 0
        assert len(store.get("k").messages) == 1


def test_two_purges_at_once_share_the_work(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store, Store(url, clock=clock) as other:
        for n in range(60):
            store.create(f"k{n}", ttl=HOUR, messages=messages(2))
        clock.move(hours=2)
        reports: list[ExpiryReport] = []
        together = threading.Barrier(2)

        def work(mine: Store) -> None:
            together.wait()
            reports.append(mine.expire(batch_size=3))

        threads = [threading.Thread(target=work, args=(each,)) for each in (store, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(report.sessions for report in reports) == 60
        assert sum(report.messages for report in reports) == 120
        assert store.count(expired=None) == 0


class Stop(Exception):
    """What a caller raises to stop a purge."""


# Forgetting


def test_delete_where_waits_for_sessions_in_use(make_postgres: MakeDatabase, clock: Clock) -> None:
    with Store(make_postgres(), clock=clock) as store:
        store.create("k1", user_id="ann")
        store.create("k2", user_id="ann")
        gone: list[int] = []
        with store.engine.connect() as connection:
            store.using(connection).append_message("k1", message("private"))
            work = threading.Thread(target=lambda: gone.append(store.delete_where(user_id="ann")))
            work.start()
            work.join(0.3)
            assert gone == []
            connection.commit()
        work.join(30)
        assert (gone, store.count(expired=None)) == ([2], 0)


def test_delete_where_forgets_a_person(filled: Store) -> None:
    assert filled.delete_where(user_id="u1") == 3
    assert keys(filled) == {f"chat:{n}" for n in (0, 2, 3, 4, 6, 7, 8)}
    assert filled.delete_where(user_id="u0", agent_id="a1") == 1
    assert filled.delete_where(key_prefix="chat:", batch_size=2) == 6
    for nothing in ({}, {"key_prefix": ""}):
        with pytest.raises(ValueError, match="no filter was given"):
            filled.delete_where(**nothing)  # type: ignore[arg-type]


# The archive


def test_what_is_archived_is_searched_and_restored_as_it_was(store: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    call = ToolCall(
        id="c", name="get_weather", arguments={"city": "Bergen"}, output={"sky": "\ud800 rain", "mm": 22.50}
    )
    store.create("k", ttl=HOUR, title="T", settings={"b": 1, "a": 1.0}, metadata={"\0": [2**70]}, messages=messages(3))
    store.append_message("k", message("who\0le", role=MessageRole.TOOL, tool_calls=[call], id="i", tokens=3))
    store.pop_message("k")
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
    restored = store.restore(cold, "k")
    unlimited = before.model_copy(update={"ttl_seconds": None, "expires_at": None, "updated_at": clock.time})
    assert restored == unlimited == store.get("k")
    assert store.append_message("k", message()).seq == before.last_seq + 1
    with pytest.raises(SessionExists):
        store.restore(cold, "k")
    with pytest.raises(SessionNotFound, match="archive"):
        store.restore(cold, "nobody")
    store.delete("k")
    assert store.restore(cold, "k", ttl=HOUR).expires_at == clock.time + HOUR


def test_each_life_of_a_key_is_kept(store: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    for life in ("first", "second"):
        store.create("k", ttl=HOUR, messages=[message(life)])
        clock.move(hours=2)
        store.expire(archive=cold)
    with Archive(cold) as archive:
        assert len(archive.search("first")) == len(archive.search("second")) == 1
    assert store.restore(cold, "k").messages[0].content == "second"


def test_an_archive_is_a_plain_sqlite_file(filled: Store, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    filled.expire(archive=cold, batch_size=2)
    connection = sqlite3.connect(cold)
    assert connection.execute("SELECT count(*), sum(message_count) FROM sessions").fetchone() == (5, 25)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (25,)
    assert connection.execute("SELECT count(*) FROM turns").fetchone() == (0,)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_several_filters_narrow_down_what_an_archive_forgets(store: Store, clock: Clock, tmp_path: Path) -> None:
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


def test_each_report_of_a_purge_under_way_stays_as_it_was(store: Store, clock: Clock) -> None:
    for number in range(5):
        store.create(f"k{number}", ttl=HOUR)
    clock.move(hours=2)
    reports: list[ExpiryReport] = []
    final = store.expire(batch_size=2, on_batch=reports.append)
    assert [each.sessions for each in reports] == [2, 4, 5]
    reports[-1].sessions = 0
    assert final.sessions == 5


def test_what_is_forgotten_leaves_no_trace_in_the_file(store: Store, clock: Clock, tmp_path: Path) -> None:
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
            with pytest.raises(ValueError, match="whose sessions are meant"):
                archive.forget(**wrong)
    rest = b"".join(path.read_bytes() for path in tmp_path.glob("cold.db*"))
    assert b"secretwordann" not in rest
    assert b"secretwordbob" in rest


def test_an_archive_that_cannot_be_written_purges_nothing(filled: Store, tmp_path: Path) -> None:
    no_database = tmp_path / "text.db"
    no_database.write_text("this is no database, " * 500)
    for path in (tmp_path / "no" / "folder" / "cold.db", no_database):
        with pytest.raises(DatabaseUnavailable, match=path.name):
            filled.expire(archive=path)
    assert len(keys(filled)) == 10
    with pytest.raises(DatabaseUnavailable, match="there is no archive"):
        filled.restore(tmp_path / "none.db", "k")


def test_what_is_archived_is_on_disk_before_it_is_purged(
    store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    keep = Archive.keep

    def noting(self: Archive, *arguments: Any, **options: Any) -> None:
        asked.extend(self._connection.execute("PRAGMA synchronous").fetchone())
        keep(self, *arguments, **options)
        assert not self._connection.in_transaction

    monkeypatch.setattr(Archive, "keep", noting)
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


@pytest.mark.parametrize("after", [0, 1, 5])
def test_killed_in_the_middle_a_session_is_in_the_store_or_in_the_archive(
    url: str, clock: Clock, tmp_path: Path, after: int
) -> None:
    cold = tmp_path / "cold.db"
    clock.move(days=-30)
    with Store(url, clock=clock) as store:
        for n in range(150):
            store.create(f"k{n}", ttl=HOUR, messages=[message(f"words of {n}")] * 3)
    with Program(PURGER, url, cold) as process:
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    with Store(url) as store:
        left = {info.key for info in store.list_sessions(expired=None, limit=500).items}
        archived = archived_keys(cold) if cold.exists() else set()
        assert left | archived == {f"k{n}" for n in range(150)}
        store.expire(archive=cold, batch_size=50)
        assert store.count(expired=None) == 0
    connection = sqlite3.connect(cold)
    assert archived_keys(cold) == {f"k{n}" for n in range(150)}
    assert connection.execute("SELECT count(*), count(DISTINCT key) FROM sessions").fetchone() == (150, 150)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (450,)
    connection.close()


def archived_keys(cold: Path) -> set[str]:
    connection = sqlite3.connect(cold)
    try:
        return {key for (key,) in connection.execute("SELECT key FROM sessions")}
    except sqlite3.OperationalError:  # killed before the tables were made
        return set()
    finally:
        connection.close()


# Sums and examinations


def test_stats_sum_the_store_up(filled: Store) -> None:
    filled.create("system", ttl=timedelta(days=3), messages=[message(role=MessageRole.SYSTEM, tokens=5)])
    found = filled.stats()
    assert (found.sessions, found.expired, found.messages, found.tokens) == (11, 5, 56, 5)
    assert (found.roles, found.roles_estimated) == ({"user": 55, "system": 1}, False)
    assert [(a.agent_id, a.sessions, a.messages) for a in found.agents] == [
        ("a0", 4, 22),
        ("a2", 3, 18),
        ("a1", 3, 15),
        (None, 1, 1),
    ]
    assert found.expiring["never"] == 5
    assert found.expiring["expired"] == 5
    assert found.expiring["within a week"] == 1
    assert sum(found.expiring.values()) == 11
    assert found.bytes > 20_000


def test_roles_of_many_messages_are_estimated(store: Store) -> None:
    batch = [message("x", role=role) for role in (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL) * 200]
    batch += [message("x", role=MessageRole.ASSISTANT)] * 200
    for n in range(30):
        store.create(f"k{n}", messages=batch)
    found = store.stats()
    assert (found.messages, found.roles_estimated) == (24_000, True)
    assert sum(found.roles.values()) == pytest.approx(24_000, rel=0.01)
    assert found.roles["assistant"] == pytest.approx(12_000, rel=0.2)
    assert found.roles["user"] == pytest.approx(6_000, rel=0.2)


def test_nothing_is_wrong_with_a_store_that_was_used(filled: Store) -> None:
    filled.truncate("chat:9", after=3)
    filled.clear("chat:7")
    assert [finding for finding in filled.examine() if finding.name != "settings"] == []


def test_what_is_wrong_is_found_and_mended(filled: Store, url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.connection.dbapi_connection.execute("PRAGMA foreign_keys = OFF")  # type: ignore[union-attr]
        else:
            connection.exec_driver_sql("ALTER TABLE lango_message DISABLE TRIGGER ALL")
        for statement in (
            "DELETE FROM lango_message WHERE session_key = 'chat:3' AND seq = 2",
            "UPDATE lango_session SET token_count = 99, last_consolidated = 50 WHERE key = 'chat:5'",
            "UPDATE lango_session SET last_seq = 1 WHERE key = 'chat:6'",
            "UPDATE lango_message SET session_key = 'gone' WHERE session_key = 'chat:1'",
            "UPDATE lango_session SET message_count = 0 WHERE key = 'chat:1'",
            "UPDATE lango_message SET role = 'weird' WHERE session_key = 'chat:9' AND seq = 4",
            "UPDATE lango_session SET settings = '[1]' WHERE key = 'chat:8'",
            "DROP INDEX ix_lango_session_updated_at",
        ):
            connection.exec_driver_sql(statement)
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE lango_message ENABLE TRIGGER ALL")
        connection.commit()
    engine.dispose()
    found = [finding for finding in filled.examine() if finding.name != "settings"]
    assert sorted((finding.name, finding.subject) for finding in found) == [
        ("missing index", "ix_lango_session_updated_at"),
        ("orphans", "lango_message"),
        ("unreadable message", "chat:9"),
        ("unreadable session", "chat:8"),
        ("wrong counters", "chat:3"),
        ("wrong counters", "chat:5"),
        ("wrong counters", "chat:6"),
    ]
    assert all(finding.remedy for finding in found)
    repaired = [finding for finding in filled.examine(repair=True) if finding.name != "settings"]
    unreadable = ["unreadable session", "unreadable message"]
    assert [finding.name for finding in repaired if not finding.repaired] == unreadable
    assert [finding.name for finding in filled.examine() if finding.name != "settings"] == unreadable
    with Store(url) as store:
        assert store.append_message("chat:5", message()).seq == 7


def test_missing_tables_are_a_finding(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lango_turn")
    (finding,) = store.examine(repair=True)
    assert (finding.name, finding.repaired) == ("schema", False)
    assert "lango_turn" in finding.detail


def test_a_damaged_message_is_shown_as_such(filled: Store) -> None:
    with filled.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE lango_message SET role = 'weird' WHERE session_key = 'chat:9' AND seq IN (1, 4, 10)"
        )
    found = filled.salvage("chat:9")
    assert [each.seq for each in found] == list(range(1, 11))
    assert [each.seq for each in found if isinstance(each, Exception)] == [1, 4, 10]
    assert [each.seq for each in filled.salvage("chat:9", last=2)] == [9, 10]
