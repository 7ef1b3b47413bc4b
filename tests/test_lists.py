"""Lists of sessions: filtered, newest first, page by page, without ever reading a message."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
from conftest import Clock, watched
from factories import messages

from lango_store import InvalidCursor, Store, create_engine
from lango_store.model import Page


def keys(page: Page) -> list[str]:
    return [info.key for info in page.items]


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    for n in range(10):
        store.create(f"chat:{n}", agent_id=f"agent{n % 2}", user_id=f"user{n % 3}", messages=messages(n))
        clock.move(seconds=1)
    return store


def test_the_last_updated_comes_first_and_carries_no_messages(filled: Store) -> None:
    page = filled.list_sessions(limit=500)
    assert keys(page) == [f"chat:{n}" for n in reversed(range(10))]
    assert page.next is None
    assert [info.message_count for info in page.items] == list(reversed(range(10)))
    assert page.items[0] == filled.info("chat:9")


def test_filters(filled: Store, clock: Clock) -> None:
    assert keys(filled.list_sessions(agent_id="agent1")) == ["chat:9", "chat:7", "chat:5", "chat:3", "chat:1"]
    assert keys(filled.list_sessions(agent_id="agent1", user_id="user0")) == ["chat:9", "chat:3"]
    assert keys(filled.list_sessions(updated_since=clock.time - timedelta(seconds=2))) == ["chat:9", "chat:8"]
    assert filled.count(agent_id="agent1", user_id="user0") == 2
    assert filled.count(agent_id="nobody") == 0


def test_a_key_prefix_is_taken_literally(store: Store) -> None:
    for key in ("a%b", "a%bc", "aXb", "A%b", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffffx", "b"):
        store.create(key)
    for prefix in ("a", "a%", "a%b", "A", "a\ud7ff", "a\U0010ffff", "\U0010ffff", "", "zzz"):
        expected = sorted(key for key in keys(store.list_sessions()) if key.startswith(prefix))
        assert sorted(keys(store.list_sessions(key_prefix=prefix))) == expected
        assert store.count(key_prefix=prefix) == len(expected)


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
def test_pages_join_to_the_whole_list(filled: Store, limit: int) -> None:
    found: list[str] = []
    cursor = None
    while True:
        page = filled.list_sessions(limit=limit, cursor=cursor)
        found += keys(page)
        cursor = page.next
        if cursor is None:
            break
        assert len(page.items) == limit
        assert cursor.replace("-", "").replace("_", "").isalnum()
    assert found == [f"chat:{n}" for n in reversed(range(10))]


def test_pages_are_stable_when_times_are_equal_and_sessions_come_in(store: Store, clock: Clock) -> None:
    for n in range(6):
        store.create(f"k{n}")
    first = store.list_sessions(limit=3)
    clock.move(seconds=1)
    store.create("new")
    second = store.list_sessions(limit=3, cursor=first.next)
    assert keys(first) + keys(second) == ["k5", "k4", "k3", "k2", "k1", "k0"]


@pytest.mark.parametrize("cursor", ["", "x", "!!", "bm90IGpzb24", "WzEsMl0", "eyJhIjoxfQ", "ünïcode"])
def test_a_cursor_that_is_none_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        store.list_sessions(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_limit_out_of_bounds_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        store.list_sessions(limit=limit)


def test_a_list_is_one_statement_that_reads_no_message(filled: Store) -> None:
    with watched(filled.engine) as statements:
        filled.list_sessions(limit=5)
    assert len(statements) == 1
    assert "lango_message" not in statements[0]


FILL = """
INSERT INTO lango_session (key, agent_id, created_at, updated_at)
SELECT 'chat:' || n, 'agent' || (n % 7), {time}, {time} FROM ({numbers}) AS numbers(n)
"""
NUMBERS = {
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 100000) SELECT n FROM c",
    "postgresql": "SELECT generate_series(1, 100000)",
}
TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 1750000000 + n, 'unixepoch')",
    "postgresql": "to_timestamp(1750000000 + n)",
}


def test_twenty_of_a_hundred_thousand_sessions_come_from_an_index(url: str, clock: Clock) -> None:
    engine = create_engine(url)
    name = engine.dialect.name
    with engine.begin() as connection:
        fill = FILL.format(time=TIME[name], numbers=NUMBERS[name]).replace("AS numbers(n)", "")
        if name == "postgresql":
            fill = FILL.format(time=TIME[name], numbers=NUMBERS[name])
        connection.exec_driver_sql(fill.replace("%", "%%") if name == "postgresql" else fill)
    with engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    with Store(engine, clock=clock) as store:
        store.ping()
        with watched(engine) as statements:
            page = store.list_sessions(limit=20)
            store.list_sessions(limit=20, cursor=page.next)
    assert keys(page)[:2] == ["chat:100000", "chat:99999"]
    for statement in statements:
        plan = _plan(engine, statement, page)
        assert "ix_lango_session_updated_at" in plan, plan
        assert "lango_message" not in plan
        assert "Sort" not in plan
        assert "TEMP B-TREE" not in plan
    engine.dispose()


def _plan(engine: sa.Engine, statement: str, page: Page) -> str:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
            return "\n".join(str(row[-1]) for row in rows)
        last = page.items[-1]
        values = {"now": last.updated_at, "limit": 21, "cursor_time": last.updated_at, "cursor_key": last.key}
        return "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", values))
