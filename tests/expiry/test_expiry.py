"""Purges: selection of sessions, batches and reports."""

import itertools
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.databases import MakeDatabase
from support.factories import message, messages
from support.polling import until
from support.rows import value_names
from support.statements import plan_of, watched

from lango_store import (
    ExpiryReport,
    Store,
    create_engine,
)
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def keys(store: Store) -> set[str]:
    return {info.key for info in store.list_sessions(expired=None, limit=500).items}


def test_purge_deletes_only_expired_sessions(filled: Store) -> None:
    report = filled.expire()
    assert (report.sessions, report.messages, report.batches, report.dry_run) == (5, 25, 1, False)
    assert keys(filled) == {f"chat:{n}" for n in (1, 3, 5, 7, 9)}
    assert filled.expire().sessions == 0
    with filled.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM lango_message").scalar() == 30


def test_purge_deletes_only_sessions_that_the_options_select(filled: Store, clock: Clock) -> None:
    assert filled.expire(dry_run=True, older_than=timedelta(days=8)).sessions == 6
    assert filled.expire(dry_run=True, created_before=clock.time - timedelta(days=7, seconds=1)).sessions == 6
    assert filled.expire(dry_run=True, older_than=timedelta(0), agent_id="a1").sessions == 3
    assert filled.expire(dry_run=True, older_than=timedelta(0), user_id="u1", key_prefix="chat:5").sessions == 1
    assert (
        filled.expire(dry_run=True, older_than=timedelta(days=36_525)).sessions == filled.expire(dry_run=True).sessions
    )
    nothing = filled.expire(dry_run=True, key_prefix="mail:")
    assert (nothing.sessions, nothing.messages) == (0, 0)
    assert filled.expire(dry_run=True, now=clock.time - timedelta(days=8)).sessions == 1
    assert len(keys(filled)) == 10
    report = filled.expire(older_than=timedelta(days=8), agent_id="a0")
    assert (report.sessions, keys(filled)) == (2, {f"chat:{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)})


def test_dry_run_reports_exactly_what_a_purge_deletes(filled: Store) -> None:
    for limit in (None, 3, 0):
        preview = filled.expire(dry_run=True, limit=limit, older_than=timedelta(days=5))
        first = [info.key for info in preview.oldest]
        assert first[:5] == [f"chat:{n}" for n in (0, 2, 4, 6, 8)][: len(first)]
        before = keys(filled)
        report = filled.expire(limit=limit, older_than=timedelta(days=5)) if limit == 3 else preview
        assert (preview.sessions, preview.messages) == (report.sessions, report.messages)
        if limit == 3:
            assert before - keys(filled) == set(first)


def test_purge_respects_batch_size_and_limit(filled: Store) -> None:
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


def test_purge_ends_a_batch_before_a_session_that_would_make_the_batch_too_large(store: Store, clock: Clock) -> None:
    for n in range(4):
        store.create(f"k{n}", ttl=HOUR, messages=messages(200))
    store.create("larger than a batch", ttl=2 * HOUR, messages=messages(600))
    clock.move(hours=3)
    seen: list[int] = []
    report = store.expire(on_batch=lambda so_far: seen.append(so_far.sessions))
    assert seen[0] == 2  # 402 rows: the batches after it depend on its time
    assert (report.sessions, report.messages) == (5, 1_400)


def test_purge_deletes_longest_expired_sessions_first(store: Store, clock: Clock) -> None:
    for hours in (3, 1, 2):
        store.create(f"{hours} hours", ttl=timedelta(hours=hours), messages=messages(hours))
    clock.move(days=1)
    for hours, left in ((1, ["2 hours", "3 hours"]), (2, ["3 hours"]), (3, [])):
        for dry_run in (True, False):
            report = store.expire(limit=1, dry_run=dry_run)
            assert (report.sessions, report.messages) == (1, hours)
        assert sorted(info.key for info in store.iter_sessions(expired=True)) == left


def test_interrupted_purge_commits_whole_batches_and_can_be_repeated(filled: Store) -> None:
    def stop(report: ExpiryReport) -> None:
        if report.batches == 2:
            raise Stop

    with pytest.raises(Stop):
        filled.expire(batch_size=2, on_batch=stop)
    assert len(keys(filled)) == 6
    assert filled.expire(batch_size=2).sessions == 1


@pytest.mark.parametrize("archive", [None, "cold.db"], ids=["deleted", "archived"])
def test_purge_spares_a_session_that_gets_a_message_during_the_purge(
    make_postgres: MakeDatabase, clock: Clock, tmp_path: Path, archive: str | None
) -> None:
    """The purge chooses sessions from an old snapshot, the append commits first, and the purge checks again."""
    url = make_postgres()
    purge: dict[str, Any] = {"older_than": timedelta(days=1), "archive": archive and tmp_path / archive}
    with Store(url, clock=clock) as store, Store(url, clock=clock) as purger:
        store.create("k", ttl=timedelta(days=30))
        clock.move(days=2)
        done: list[ExpiryReport] = []
        with store.engine.connect() as connection:
            store.using(connection).append_message("k", message())
            work = threading.Thread(target=lambda: done.append(purger.expire(**purge)))
            work.start()
            work.join(20)
            assert done[0].sessions == 0  # locked by the append: skipped without waiting
            connection.commit()
        assert purger.expire(**purge).sessions == 0
        assert len(store.get("k").messages) == 1


def test_concurrent_purges_purge_each_session_once(url: str, clock: Clock) -> None:
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
    """An exception that a caller raises to stop a purge."""


# delete_where


@pytest.mark.slow
def test_delete_where_waits_for_a_session_that_another_transaction_has_locked(
    make_postgres: MakeDatabase, clock: Clock
) -> None:
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


def test_delete_where_deletes_all_sessions_that_match_the_filters(filled: Store) -> None:
    assert filled.delete_where(user_id="u1") == 3
    assert keys(filled) == {f"chat:{n}" for n in (0, 2, 3, 4, 6, 7, 8)}
    assert filled.delete_where(user_id="u0", agent_id="a1") == 1
    filled.create("chat;")
    assert filled.delete_where(key_prefix="chat:", batch_size=2) == 6
    assert filled.exists("chat;")
    for nothing in ({}, {"key_prefix": ""}):
        with pytest.raises(ValueError, match="no filter was given"):
            filled.delete_where(**nothing)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(40)
def test_delete_where_ends_although_others_create_sessions(url: str) -> None:
    with Store(url) as store:  # with the time of the database
        check_deletion_while_others_create_sessions(store)


def check_deletion_while_others_create_sessions(store: Store) -> None:
    before = {store.create(f"m:{number}", user_id="ann").key for number in range(20)}
    ends, created = threading.Event(), list[str]()

    def write(prefix: str) -> None:
        for number in itertools.count():
            if ends.is_set():
                return
            created.append(store.create(f"{prefix}:{number:09}", user_id="ann").key)

    threads = [threading.Thread(target=write, args=[f"{prefix}{n}"]) for prefix in ("a", "m:2", "z") for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(created) > 50)
        deleted = store.delete_where(user_id="ann", batch_size=1)
        seen = len(created)
        until(lambda: len(created) > seen)  # the writers are still writing
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    remaining = {info.key for info in store.iter_sessions()}
    assert deleted >= len(before)
    assert before.isdisjoint(remaining)
    assert len(remaining) == len(before) + len(created) - deleted
    assert store.delete_where(user_id="ann") == len(remaining)


def test_delete_where_deletes_nothing_if_no_session_matches(filled: Store) -> None:
    assert filled.delete_where(user_id="nobody") == 0
    assert len(keys(filled)) == 10


def test_purge_passes_a_new_report_to_each_on_batch_call(store: Store, clock: Clock) -> None:
    for number in range(5):
        store.create(f"k{number}", ttl=HOUR)
    clock.move(hours=2)
    reports: list[ExpiryReport] = []
    final = store.expire(batch_size=2, on_batch=reports.append)
    assert [each.sessions for each in reports] == [2, 4, 5]
    reports[-1].sessions = 0
    assert final.sessions == 5


def test_purge_selects_idle_sessions_by_their_last_activity(store: Store, clock: Clock) -> None:
    store.create("old", ttl=timedelta(days=300))
    clock.move(days=100)
    store.create("new")
    store.conversation("old").update(title="renamed")
    assert store.expire(older_than=timedelta(days=90), dry_run=True).sessions == 1
    store.conversation("old").update(activity=True)
    clock.move(days=100)
    store.conversation("old").update(activity=True)
    assert store.expire(older_than=timedelta(days=90), dry_run=True).oldest == [store.conversation("new").info()]


def test_purge_by_user_and_agent_uses_the_index_on_user_id(make_sqlite: MakeDatabase) -> None:
    filters: dict[str, Any] = {"agent_id": "agent3", "user_id": "user4"}
    engine = create_engine(make_sqlite())
    with Store(engine) as store:
        store.ping()
        with watched(engine) as statements:
            store.expire(dry_run=True, **filters)
            store.expire(**filters)
            store.delete_where(**filters)
        plans = [plan_of(engine, statement, filters) for statement in statements if "'agent3'" in statement]
    engine.dispose()
    assert len(plans) >= 4
    for plan in plans:
        assert "ix_lango_session_user_id (user_id=?" in plan


def test_purge_deletes_the_values_of_its_sessions(store: Store, clock: Clock) -> None:
    for key in ("expired", "where"):
        store.create(key, ttl=HOUR)
        store.conversation(key).values.set({"own": 1})
    store.delete_where(key_prefix="where")
    clock.move(hours=2)
    store.expire()
    assert value_names(store) == []
