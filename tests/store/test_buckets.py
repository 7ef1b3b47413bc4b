"""Lists and purges find sessions by the buckets of their times, and order and choose them by the exact times."""

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message

from lango_store import SessionInfo, Store, schema
from lango_store._dialect import dialect_of
from lango_store.testing import Clock

STEPS = [-400.0, -1.0, 0.0, 0.000001, 1.0, 59.0, 299.999999, 300.0, 301.0, 4_000.0]
USERS = [None, "u1", "u2"]


def listed(store: Store, limit: int, **filters: str | None) -> list[str]:
    """Return the keys of a whole list, read page by page."""
    keys: list[str] = []
    page = store.list_sessions(limit=limit, **filters)  # type: ignore[arg-type]
    while True:
        keys += [info.key for info in page.items]
        if page.next is None:
            return keys
        page = store.list_sessions(limit=limit, cursor=page.next, **filters)  # type: ignore[arg-type]


def newest_first(infos: list[SessionInfo]) -> list[str]:
    return [info.key for info in sorted(infos, key=lambda info: (info.updated_at, info.key), reverse=True)]


def write_as_the_previous_release(store: Store, key: str, moment: datetime) -> None:
    """Change the times of a session as a release that does not know of buckets."""
    with store.engine.begin() as connection:
        bound = {"key": key, "now": dialect_of(connection).time(moment)}
        connection.execute(sa.text("UPDATE lango_session SET updated_at = :now WHERE key = :key"), bound)


@pytest.mark.parametrize("seed", range(4))
def test_lists_are_equal_to_a_sorted_model_across_buckets_and_with_clocks_that_go_back(
    store: Store, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    keys = [f"k{number}" for number in range(12)]
    for number, key in enumerate(keys):
        store.create(key, user_id=USERS[number % 3], agent_id=("a1", "a2")[number % 2], ttl=timedelta(days=9))
    for _ in range(60):
        clock.move(seconds=chance.choice(STEPS))
        key = chance.choice(keys)
        match chance.randrange(6):
            case 0:
                write_as_the_previous_release(store, key, clock.time)
            case 1:
                store.conversation(key).update(title="t", activity=True)
            case 2:
                store.conversation(key).inbox.put(message())
            case 3:
                store.touch(key)
            case _:
                store.append_message(key, message())
        if chance.random() < 0.3:
            infos = list(store.iter_sessions())
            limit = chance.choice([1, 3, 5, 100])
            assert listed(store, limit) == newest_first(infos)
            user, agent = chance.choice(USERS[1:]), chance.choice(["a1", "a2"])
            assert listed(store, limit, user_id=user) == newest_first([each for each in infos if each.user_id == user])
            of_agent = [each for each in infos if each.agent_id == agent]
            assert listed(store, limit, agent_id=agent) == newest_first(of_agent)
            since = chance.choice(infos).updated_at
            assert store.count(updated_since=since) == sum(each.updated_at >= since for each in infos)
            assert store.count(updated_before=since) == sum(each.updated_at < since for each in infos)


def test_each_page_is_sorted_while_threads_append_in_several_buckets(make_database: MakeDatabase) -> None:
    start = datetime(2026, 11, 21, 12, tzinfo=UTC)
    ticks = itertools.count()
    keys = [f"k{number:02}" for number in range(20)]

    def write(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            store.append_message(chance.choice(keys), message())

    with Store(make_database(), clock=lambda: start + timedelta(seconds=7 * next(ticks))) as store:
        for key in keys:
            store.create(key, user_id="u")
        with ThreadPoolExecutor() as pool:
            writers = [pool.submit(write, seed) for seed in range(3)]
            while True:
                are_done = all(each.done() for each in writers)
                page = store.list_sessions(limit=5, user_id="u")
                assert [each.key for each in page.items] == newest_first(page.items)
                listed(store, 5)
                if are_done:
                    break
            for each in writers:
                each.result()
        assert listed(store, 5) == newest_first(list(store.iter_sessions()))
        with store.engine.connect() as connection:
            query = "SELECT count(DISTINCT updated_bucket) FROM lango_session"
            assert connection.exec_driver_sql(query).scalar_one() > 1


@pytest.mark.parametrize("seed", range(4))
def test_purge_deletes_exactly_the_expired_or_idle_sessions(store: Store, clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(30):
        ttl = chance.choice([None, timedelta(seconds=chance.choice([1, 299, 300, 301, 1_000]))])
        store.create(f"k{number:02}", ttl=ttl)
        clock.move(seconds=chance.choice([0.0, 0.000001, 1.0, 100.0]))
    while store.count(expired=None):
        clock.move(seconds=chance.choice([0.000001, 1.0, 100.0, 299.999999]))
        idle = timedelta(seconds=chance.choice([300, 900, 2_000]))
        infos = list(store.iter_sessions(expired=None))
        due = {each.key for each in infos if each.expires_at is not None and each.expires_at <= clock.time}
        assert store.count(expired=True) == len(due)
        due |= {each.key for each in infos if each.updated_at <= clock.time - idle}
        assert store.expire(older_than=idle, batch_size=3).sessions == len(due)
        assert {each.key for each in store.iter_sessions(expired=None)} == {each.key for each in infos} - due


def buckets(store: Store) -> Iterator[tuple[str, str, str]]:
    with store.engine.connect() as connection:
        query = "SELECT key, CAST(updated_bucket AS TEXT), CAST(expires_bucket AS TEXT) FROM lango_session ORDER BY key"
        yield from (tuple(row) for row in connection.exec_driver_sql(query))


def test_upgrade_sets_the_buckets_and_a_downgrade_removes_them(store: Store, clock: Clock) -> None:
    for key in "abc":
        store.create(key, ttl=timedelta(hours=1) if key == "b" else None)
        clock.move(minutes=4)
    before = list(buckets(store))
    assert [key for key, _, expires in before if expires is not None] == ["b"]
    schema.downgrade(store.engine, "0112")
    assert "updated_bucket" not in {each["name"] for each in sa.inspect(store.engine).get_columns("lango_session")}
    schema.upgrade(store.engine)
    assert schema.check(store.engine) == []
    assert list(buckets(store)) == before
    store.append_message("a", message())
    assert [info.key for info in store.list_sessions().items] == ["a", "c", "b"]


def test_doctor_repairs_lost_triggers_and_wrong_buckets(make_sqlite: MakeDatabase) -> None:
    clock = Clock()
    with Store(make_sqlite(), clock=clock) as store:
        store.create("a")
        clock.move(minutes=20)
        store.create("b")
        with store.engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER lango_session_bucket_updated")
        clock.move(minutes=20)
        store.append_message("a", message())
        assert [info.key for info in store.list_sessions().items] == ["b", "a"]
        found = [each.subject for each in store.maintenance.examine() if each.name == "wrong bucket"]
        assert found == ["lango_session_bucket_updated", "lango_session"]
        store.maintenance.examine(repair=True)
        assert [each for each in store.maintenance.examine() if each.name in ("wrong bucket", "trigger")] == []
        assert [info.key for info in store.list_sessions().items] == ["a", "b"]


def test_sessions_at_the_first_moment_of_a_bucket_are_listed_and_purged(make_database: MakeDatabase) -> None:
    start = datetime(2026, 11, 21, 12, tzinfo=UTC)
    clock = Clock()
    clock.time = start
    with Store(make_database(), clock=clock) as store:
        for key in "abc":
            store.create(key, ttl=timedelta(hours=1))
        assert listed(store, 1) == ["c", "b", "a"]
        assert store.count(updated_since=start) == 3
        clock.move(hours=1, microseconds=-1)
        assert store.count(expired=True) == 0
        clock.move(microseconds=1)
        assert store.count(expired=True) == 3
        store.create("d")
        assert store.expire(older_than=timedelta(hours=1)).sessions == 3
        clock.move(minutes=5)
        assert store.expire(older_than=timedelta(minutes=5, microseconds=1)).sessions == 0
        assert store.expire(older_than=timedelta(minutes=5)).sessions == 1
