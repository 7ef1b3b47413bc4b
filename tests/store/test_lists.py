"""Lists of sessions: filters, order, pages, cursors and the indexes used. No list reads a message."""

import base64
import pickle
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
import sqlalchemy as sa
from support.databases import KINDS, MakeDatabase, not_on_a_cluster
from support.factories import message, messages
from support.statements import plan_of, watched

from lango_store import DamagedMessage, InvalidCursor, Message, SessionInfo, Store, create_engine
from lango_store._values.reports import Page
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
WEST = timezone(-HOUR)


def keys(page: Page[SessionInfo]) -> list[str]:
    return [info.key for info in page.items]


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    for n in range(10):
        store.create(f"chat:{n}", agent_id=f"agent{n % 2}", user_id=f"user{n % 3}", messages=messages(n))
        clock.move(seconds=1)
    return store


def test_list_starts_with_the_last_updated_session(filled: Store) -> None:
    page = filled.list_sessions(limit=500)
    assert keys(page) == [f"chat:{n}" for n in reversed(range(10))]
    assert page.next is None
    assert [info.message_count for info in page.items] == list(reversed(range(10)))
    assert page.items[0] == filled.conversation("chat:9").info()


def test_list_and_count_filter_by_agent_user_and_time(filled: Store, clock: Clock) -> None:
    assert keys(filled.list_sessions(agent_id="agent1")) == ["chat:9", "chat:7", "chat:5", "chat:3", "chat:1"]
    assert keys(filled.list_sessions(agent_id="agent1", user_id="user0")) == ["chat:9", "chat:3"]
    assert keys(filled.list_sessions(updated_since=clock.time - timedelta(seconds=2))) == ["chat:9", "chat:8"]
    assert filled.count(agent_id="agent1", user_id="user0") == 2
    assert filled.count(agent_id="nobody") == 0


def test_message_id_filter_selects_sessions_with_that_message(store: Store) -> None:
    for key, ids in (("a", ["1"]), ("b", ["2", "1"]), ("c", [])):
        store.create(key, messages=[Message.user("hi", id=id) for id in ids])
    assert [info.key for info in store.iter_sessions(message_id="1")] == ["a", "b"]
    assert keys(store.list_sessions(message_id="2")) == ["b"]
    assert store.count(message_id="3") == 0


def test_title_filter_matches_part_of_a_title_and_ignores_case_of_ascii_letters(store: Store) -> None:
    titles = ["100% Ärger", "100 ärger", "Under_score", "Underscore", "ISTANBUL", "istanbul", "ı", "", None, "a\\b"]
    for number, title in enumerate(titles):
        store.create(f"k{number}", title=title)

    def titles_with(part: str) -> list[str | None]:
        infos = store.list_sessions(title=part, limit=100).items
        assert store.count(title=part) == len(infos)
        assert sorted(info.key for info in store.iter_sessions(title=part)) == sorted(info.key for info in infos)
        return sorted((info.title for info in infos), key=titles.index)

    assert titles_with("%") == ["100% Ärger"]
    assert titles_with("ÄRGER") == ["100% Ärger"]
    assert titles_with("ärGER") == ["100 ärger"]
    assert titles_with("r_s") == ["Under_score"]
    assert titles_with("UNDER") == ["Under_score", "Underscore"]
    assert titles_with("Istanbul") == ["ISTANBUL", "istanbul"]
    assert titles_with("I") == ["ISTANBUL", "istanbul"]
    assert titles_with("\\B") == ["a\\b"]
    assert titles_with("") == [title for title in titles if title is not None]


def test_list_filters_by_created_since_and_created_before(filled: Store, clock: Clock) -> None:
    created = [filled.conversation(f"chat:{n}").info().created_at for n in range(10)]
    assert keys(filled.list_sessions(created_since=created[7])) == ["chat:9", "chat:8", "chat:7"]
    assert keys(filled.list_sessions(created_before=created[2])) == ["chat:1", "chat:0"]
    assert filled.count(created_since=created[3], created_before=created[5]) == 2
    india = timezone(timedelta(hours=5, minutes=30))
    assert filled.count(created_since=created[3].astimezone(india)) == 7


@pytest.mark.parametrize("name", ["updated_since", "updated_before", "created_since", "created_before"])
def test_time_without_zone_or_out_of_range_is_refused(store: Store, name: str) -> None:
    times = [datetime(2026, 1, 1), datetime.min.replace(tzinfo=timezone(HOUR)), datetime.max.replace(tzinfo=WEST)]
    for moment in times:
        for method in (store.list_sessions, store.count):
            with pytest.raises(ValueError, match=r"time zone|years 1 to 9999"):
                cast(Any, method)(**{name: moment})


def test_list_ordered_by_created_is_unchanged_by_updates(filled: Store, clock: Clock) -> None:
    filled.append_message("chat:3", message())
    assert keys(filled.list_sessions(limit=2)) == ["chat:3", "chat:9"]
    listed: list[str] = []
    page = filled.list_sessions(order="created", limit=4)
    while True:
        listed += keys(page)
        if page.next is None:
            break
        filled.append_message(page.items[0].key, message())
        page = filled.list_sessions(order="created", limit=4, cursor=page.next)
    assert listed == [f"chat:{n}" for n in reversed(range(10))]


def test_cursor_from_a_list_in_another_order_is_refused(filled: Store) -> None:
    updated, created = (filled.list_sessions(order=order, limit=3).next for order in ("updated", "created"))
    with pytest.raises(InvalidCursor, match="order"):
        filled.list_sessions(order="created", cursor=updated)
    with pytest.raises(InvalidCursor, match="order"):
        filled.list_sessions(cursor=created)


def test_unknown_order_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="updated, created"):
        store.list_sessions(order=cast(Any, "key"))


@pytest.mark.parametrize("page_size", [1, 3, 10, 11, 1_000])
def test_iter_sessions_yields_each_session_once_despite_updates(filled: Store, clock: Clock, page_size: int) -> None:
    keys_read: list[str] = []
    for number, info in enumerate(filled.iter_sessions(page_size=page_size)):
        keys_read.append(info.key)
        for n in range(5):
            clock.move(seconds=1)
            filled.append_message(f"chat:{(7 * number + 3 * n) % 10}", message())
            filled.conversation(f"chat:{(number + n) % 10}").update(title=str(n), activity=True)
    assert keys_read == [f"chat:{n}" for n in range(10)]


def test_iter_sessions_filters_as_list_sessions_does(filled: Store, clock: Clock) -> None:
    filled.create("expired", ttl=timedelta(seconds=1), agent_id="agent1")
    clock.move(seconds=2)
    assert [info.key for info in filled.iter_sessions(agent_id="agent1", user_id="user0")] == ["chat:3", "chat:9"]
    assert [info.key for info in filled.iter_sessions(agent_id="agent1", expired=True)] == ["expired"]
    assert len(list(filled.iter_sessions(expired=None, page_size=2))) == 11
    assert list(filled.iter_sessions(key_prefix="chat:1")) == [filled.conversation("chat:1").info()]


def test_iter_sessions_yields_sessions_in_order_of_keys(store: Store) -> None:
    for key in "dbca":
        store.create(key)
    assert [info.key for info in store.iter_sessions(page_size=3)] == list("abcd")


def test_iter_sessions_reads_one_page_per_statement(filled: Store) -> None:
    sessions = filled.iter_sessions(page_size=4)
    with watched(filled.engine) as statements:
        for _ in range(4):
            next(sessions)
        assert len(statements) == 1
        assert len(list(sessions)) == 6
    assert len(statements) == 3
    for page_size in (0, 1_001):
        with pytest.raises(ValueError, match="page_size"):
            next(filled.iter_sessions(page_size=page_size))


def test_key_prefix_is_matched_literally(store: Store) -> None:
    for key in ("a%b", "a%bc", "aXb", "A%b", "a\ud7ff", "a\ue000", "a\U0010ffff", "a\U0010ffffx", "b"):
        store.create(key)
    store.create("\U0010ffff" * 512)
    for prefix in ("a", "a%", "a%b", "A", "a\ud7ff", "a\U0010fffe", "a\U0010ffff", "\U0010ffff", "", "zzz"):
        expected = sorted(key for key in keys(store.list_sessions()) if key.startswith(prefix))
        assert sorted(keys(store.list_sessions(key_prefix=prefix))) == expected
        assert store.count(key_prefix=prefix) == len(expected)


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
def test_pages_together_are_the_whole_list(filled: Store, limit: int) -> None:
    filled.append_message("chat:0", message())  # chat:0 was created first and is now updated last
    listed: list[str] = []
    cursor = None
    while True:
        page = filled.list_sessions(limit=limit, cursor=cursor)
        listed += keys(page)
        cursor = page.next
        if cursor is None:
            break
        assert len(page.items) == limit
        assert cursor.replace("-", "").replace("_", "").isalnum()
    assert listed == ["chat:0", *(f"chat:{n}" for n in range(9, 0, -1))]
    assert filled.list_sessions(limit=10).next is None


def test_sessions_with_equal_times_are_all_listed_if_one_is_created_between_two_pages(
    store: Store, clock: Clock
) -> None:
    for n in range(6):
        store.create(f"k{n}")
    first = store.list_sessions(limit=3)
    assert "=" not in str(first.next)  # safe in a URL
    clock.move(seconds=1)
    store.create("new")
    second = store.list_sessions(limit=3, cursor=first.next)
    assert keys(first) + keys(second) == ["k5", "k4", "k3", "k2", "k1", "k0"]


NESTED = base64.urlsafe_b64encode(b"[" * 6_000).decode()


@pytest.mark.parametrize(
    "cursor", ["", "x", "!!", "bm90IGpzb24", "WzEsMl0", "eyJhIjoxfQ", "ünïcode", NESTED, "W" * 10**7]
)
def test_invalid_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidCursor) as raised:
        store.list_sessions(cursor=cursor)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("key", ["k" * 512, '\\"[{' * 128, "😀" * 512])
def test_cursor_works_for_any_key(store: Store, key: str) -> None:
    for each in (key, "other"):
        store.create(each)
    first = store.list_sessions(limit=1)
    second = store.list_sessions(limit=1, cursor=first.next)
    assert {*keys(first), *keys(second)} == {key, "other"}


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_limit_out_of_bounds_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        store.list_sessions(limit=limit)


def test_limit_and_page_size_of_1000_are_allowed(filled: Store) -> None:
    assert len(filled.list_sessions(limit=1_000).items) == len(list(filled.iter_sessions(page_size=1_000))) == 10


def test_list_fails_only_on_the_page_with_the_damaged_session(filled: Store) -> None:
    with filled.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_session SET settings = '[1]' WHERE key = 'chat:4'")
    first = filled.list_sessions(limit=4)
    assert keys(first) == ["chat:9", "chat:8", "chat:7", "chat:6"]
    with pytest.raises(DamagedMessage, match="chat:4"):
        filled.list_sessions(limit=4, cursor=first.next)


def test_list_is_one_statement_that_reads_no_message(filled: Store) -> None:
    with watched(filled.engine) as statements:
        filled.list_sessions(limit=5)
    assert len(statements) == 1
    assert "lango_message" not in statements[0]


SESSIONS = 20_000
FILL = """
INSERT INTO lango_session (key, agent_id, user_id, created_at, updated_at)
SELECT 'chat:' || n, 'agent' || (n % 70), CASE WHEN n % 2 = 0 THEN 'user' || (n % 100) END, {time}, {time}
FROM ({numbers}) {alias}
"""
NUMBERS = {
    "sqlite": f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {SESSIONS}) SELECT n FROM c",
    "postgresql": f"SELECT generate_series(1, {SESSIONS})",
}
TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 1750000000 + n, 'unixepoch')",
    "postgresql": "to_timestamp(1750000000 + n)",
}
ALIAS = {"sqlite": "", "postgresql": "AS numbers(n)"}


@pytest.fixture(scope="module", params=KINDS)
def url_of_many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a read-only database of many analyzed sessions: half belong to fifty users, half to none."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("many") / "many.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        url = f"sqlite:///{path}"
    else:
        url = request.getfixturevalue("postgres_databases").make(lasting=True)
    engine = create_engine(url)
    name = engine.dialect.name
    with engine.begin() as connection:
        connection.execute(sa.text(FILL.format(time=TIME[name], numbers=NUMBERS[name], alias=ALIAS[name])))
    with engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()
    return url


@pytest.fixture
def many(url_of_many: str) -> Iterator[sa.Engine]:
    engine = create_engine(url_of_many)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("filters", [{"title": "oslo"}, {"top_level": True}, {"held": True}, {"message_id": "m"}])
def test_list_page_with_a_filter_that_has_no_index_is_read_from_that_of_times(
    make_sqlite: MakeDatabase, filters: dict[str, Any]
) -> None:
    with Store(make_sqlite()) as store, watched(store.engine) as statements:
        store.list_sessions(**filters)
    assert "SCAN lango_session USING INDEX ix_lango_session_updated_bucket" in plan_of(store.engine, statements[-1], {})


@not_on_a_cluster("a cluster plans each shard separately")
@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "ix_lango_session_updated_bucket"),
        ({"user_id": "user4"}, "ix_lango_session_user_id"),
        ({"user_id": "nobody"}, "ix_lango_session_user_id"),
        ({"user_id": "user4", "title": "oslo"}, "ix_lango_session_user_id"),
        ({"agent_id": "agent3"}, "ix_lango_session_agent_id"),
    ],
)
def test_list_page_is_read_from_an_index_and_sorted_only_within_buckets(
    many: sa.Engine, clock: Clock, filters: dict[str, Any], index: str
) -> None:
    with Store(many, clock=clock) as store:
        store.ping()
        with watched(many) as statements:
            page = store.list_sessions(limit=20, **filters)
            if page.next is not None:
                store.list_sessions(limit=20, cursor=page.next, **filters)
    assert len(statements) == (1 if page.next is None else 2)
    for statement in statements:
        plan = plan_of(many, statement, filters)
        assert index in plan, plan
        assert "lango_message" not in plan
        assert "Sort" not in plan or "Presorted Key: updated_bucket" in plan, plan
        assert "TEMP B-TREE FOR ORDER BY" not in plan, plan


def test_filters_by_user_and_agent_use_the_index_on_user_id(make_sqlite: MakeDatabase) -> None:
    filters: dict[str, Any] = {"agent_id": "agent3", "user_id": "user4"}
    engine = create_engine(make_sqlite())
    with Store(engine) as store:
        store.ping()
        with watched(engine) as statements:
            store.list_sessions(**filters)
            store.list_sessions(order="created", **filters)
            store.count(**filters)
            next(store.iter_sessions(**filters), None)
        plans = [plan_of(engine, statement, filters) for statement in statements if "'agent3'" in statement]
    engine.dispose()
    assert len(plans) >= 4
    for plan in plans:
        assert "ix_lango_session_user_id (user_id=?" in plan


def test_page_is_equal_after_a_round_trip_through_json_and_pickle(store: Store) -> None:
    for key in ("a", "b"):
        store.create(key, metadata={"n": 1})
    page = store.list_sessions(limit=1)
    assert page.next is not None
    assert Page[SessionInfo].model_validate_json(page.model_dump_json()) == page
    assert pickle.loads(pickle.dumps(page)) == page
