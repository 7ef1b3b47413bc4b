"""`Store.usage`: the usage of turns by groups."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.backup_lines import sealed
from support.databases import MakeDatabase
from support.factories import message, summary
from support.json_values import json_values
from support.session_checks import assert_sound

from lango_store import AsyncStore, InvalidValue, LangoStoreError, Store, UsageRow
from lango_store.interchange import export, import_path
from lango_store.tables import SCHEMA_REVISION
from lango_store.testing import Clock

DAY = timedelta(days=1)


def save(store: Store, key: str, usage: dict[str, Any] | None, **options: Any) -> None:
    """Save a turn with this usage."""
    store.open(key).save_turn([message()], usage, **options)


def only(rows: list[UsageRow]) -> UsageRow:
    (row,) = rows
    return row


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    """A store with turns of three users on two days of two months."""
    clock.time = datetime(2026, 11, 30, 12, tzinfo=UTC)
    store.create("a", user_id="ann", agent_id="writer", model="large")
    store.create("a/child", user_id="ann", agent_id="reader", model="small")
    store.create("b", user_id="bob", agent_id="writer")
    store.create("c")
    for number, key in enumerate(("a", "a/child", "b", "c")):
        save(store, key, {"input_tokens": 10**number})
    clock.move(days=1)
    save(store, "a", {"input_tokens": 20_000}, metadata={"model": "small"})
    return store


def test_usage_without_groups_is_one_row(filled: Store) -> None:
    row = only(filled.usage())
    assert (row.turns, row.sessions, row.input_tokens, row.usage) == (5, 4, 21_111, {"input_tokens": 21_111})
    assert row.model_dump(exclude_none=True).keys().isdisjoint({"key", "user_id", "day", "cost_usd"})


def test_usage_of_store_without_turns_has_no_rows(store: Store) -> None:
    store.create("k")
    assert store.usage() == []
    assert store.usage(["user_id"]) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("user_id", {None: 1000, "ann": 20_011, "bob": 100}),
        ("agent_id", {None: 1000, "reader": 10, "writer": 20_101}),
        ("key", {"a": 20_001, "a/child": 10, "b": 100, "c": 1000}),
        ("root", {"a": 20_011, "b": 100, "c": 1000}),
        ("model", {None: 1100, "large": 1, "small": 20_010}),
        ("day", {"2026-11-30": 1111, "2026-12-01": 20_000}),
        ("month", {"2026-11": 1111, "2026-12": 20_000}),
    ],
)
def test_usage_is_grouped_by_a_single_name(filled: Store, name: str, expected: dict[str | None, int]) -> None:
    rows = filled.usage([name])
    assert {getattr(row, name): row.input_tokens for row in rows} == expected
    assert [getattr(row, name) for row in rows] == list(expected)


def test_usage_grouped_by_two_names_is_sorted_by_the_first_then_the_second(filled: Store) -> None:
    rows = filled.usage(["day", "user_id"])
    assert [(row.day, row.user_id, row.turns, row.sessions) for row in rows] == [
        ("2026-11-30", None, 1, 1),
        ("2026-11-30", "ann", 2, 2),
        ("2026-11-30", "bob", 1, 1),
        ("2026-12-01", "ann", 1, 1),
    ]


def test_usage_refuses_unknown_group(store: Store) -> None:
    with pytest.raises(ValueError, match="by='users': give some of key, root"):
        store.usage(["users"])


def test_usage_is_filtered_by_user_id_agent_id_key_prefix_and_time(filled: Store) -> None:
    def total(**filters: Any) -> int:
        return sum(row.input_tokens for row in filled.usage(**filters))

    assert total(user_id="ann") == 20_011
    assert total(agent_id="writer") == 20_101
    assert total(key_prefix="a/") == 10
    assert total(top_level=True) == 21_101
    assert total(since=datetime(2026, 12, 1, tzinfo=UTC)) == 20_000
    assert total(until=datetime(2026, 12, 1, tzinfo=UTC)) == 1111
    assert total(since=datetime(2026, 11, 30, 12, tzinfo=UTC), until=datetime(2026, 12, 1, 12, tzinfo=UTC)) == 1111
    with pytest.raises(ValueError, match="time zone"):
        total(since=datetime(2026, 12, 1))


def test_usage_of_turns_that_a_fork_copied_is_not_counted_again(filled: Store, clock: Clock) -> None:
    clock.move(hours=1)
    filled.conversation("a").fork("fork")
    save(filled, "fork", {"input_tokens": 5})
    rows = filled.usage(["key"], key_prefix="fork")
    assert [(row.turns, row.input_tokens) for row in rows] == [(1, 5)]
    assert only(filled.usage()).input_tokens == 21_116


@pytest.mark.parametrize("hours", [-2, 0, 2])
def test_usage_of_a_fork_does_not_depend_on_the_clock(store: Store, clock: Clock, hours: int) -> None:
    save(store, "a", {"input_tokens": 1})
    clock.time += timedelta(hours=hours)
    store.conversation("a").fork("b").fork("c")
    clock.time -= timedelta(hours=hours)
    save(store, "b", {"input_tokens": 10})
    assert only(store.usage()).input_tokens == 11
    assert store.conversation("b").total_usage() == {"input_tokens": 11}


def test_usage_does_not_count_copied_turns_that_a_compaction_of_a_fork_discards(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, keep_removed=DAY) as store:
        save(store, "a", {"input_tokens": 1})
        fork = store.conversation("a").fork("b")
        save(store, "b", {"input_tokens": 10})
        for _ in range(2):
            fork.compact(lambda _: summary(), discard=True)
            assert only(store.usage()).input_tokens == fork.total_usage()["input_tokens"] == 11
        for step in (fork.versions.undo, fork.versions.undo, fork.versions.redo, fork.versions.redo):
            step()
            assert only(store.usage()).input_tokens == fork.total_usage()["input_tokens"] == 11
        assert_sound(store)


@pytest.mark.slow
def test_usage_of_files_of_earlier_releases_does_not_count_copied_turns(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    save(store, "a", {"input_tokens": 1})
    clock.move(hours=1)
    fork = store.conversation("a").fork("b")
    save(store, "b", {"input_tokens": 10})
    export(store, tmp_path / "new.jsonl", "backup", everything=True)
    lines = (tmp_path / "new.jsonl").read_text().replace(',"copied_from":"a"', "").replace(SCHEMA_REVISION, "0106")
    (tmp_path / "old.jsonl").write_text("\n".join(sealed(lines.splitlines())) + "\n")
    fork.update(activity=True)
    cold = tmp_path / "cold.db"
    store.expire(older_than=timedelta(0), archive=cold)
    for file in (cold, tmp_path / "old.jsonl", tmp_path / "new.jsonl"):
        if file is cold:
            for key in ("a", "b"):
                store.restore(key, file)
        else:
            assert [report.error for report in import_path(store, file)] == [None]
        assert only(store.usage()).input_tokens == 11
        store.delete("a")
        store.delete("b")


def test_usage_does_not_count_a_turn_that_is_saved_as_a_copy(store: Store) -> None:
    save(store, "a", {"input_tokens": 1})
    save(store, "b", {"input_tokens": 1}, copied_from="a")
    store.conversation("c").save_turn([message(id="m")], {"input_tokens": 1}, copied_from="a", create=True)
    assert [(row.key, row.input_tokens) for row in store.usage(["key"])] == [("a", 1)]
    with pytest.raises(InvalidValue, match="copied_from"):
        save(store, "b", None, copied_from=1)


def test_usage_includes_expired_sessions_until_they_are_purged(store: Store, clock: Clock) -> None:
    store.create("k", ttl=DAY)
    save(store, "k", {"input_tokens": 3})
    clock.move(days=2)
    assert only(store.usage()).input_tokens == 3
    store.expire()
    assert store.usage() == []


@pytest.mark.parametrize("discard", [False, True])
def test_usage_is_unchanged_by_compaction(store: Store, discard: bool) -> None:
    for number in range(3):
        save(store, "k", {"input_tokens": 10**number, "details": {"a": 1}})
    store.conversation("k").compact(lambda _: summary(), discard=discard)
    row = only(store.usage())
    assert row.usage == store.conversation("k").total_usage() == {"input_tokens": 111, "details": {"a": 3}}
    assert row.turns == (1 if discard else 4)


def test_usage_excludes_turns_that_are_cut_or_deleted(filled: Store) -> None:
    filled.conversation("a").truncate(after=1)
    assert only(filled.usage(key_prefix="a", top_level=True)).input_tokens == 1
    filled.conversation("b").clear()
    filled.delete("c")
    assert [(row.key, row.input_tokens) for row in filled.usage(["key"])] == [("a", 1), ("a/child", 10)]


def test_turns_without_usage_are_counted(store: Store) -> None:
    save(store, "k", None)
    save(store, "k", {})
    row = only(store.usage(["key", "day"]))
    assert (row.turns, row.usage, row.input_tokens, row.cost_usd) == (2, {}, 0, None)


@pytest.mark.parametrize("damaged", ["{", '{"input_tokens":1},{"input_tokens":2}'])
def test_error_for_damaged_usage_names_the_session(make_sqlite: MakeDatabase, damaged: str) -> None:
    with Store(make_sqlite()) as store:  # PostgreSQL accepts no damaged JSON
        store.create("a", user_id="ann")
        store.create("b")
        save(store, "a", {"input_tokens": 7})
        save(store, "b", {"input_tokens": 1})
        with store.engine.begin() as connection:
            connection.execute(
                sa.text("UPDATE lango_turn SET usage = :damaged WHERE session_key = 'b'"), {"damaged": damaged}
            )
        with pytest.raises(LangoStoreError, match="session 'b': the usage of a turn cannot be read"):
            store.usage()
        assert only(store.usage(user_id="ann")).input_tokens == 7


def test_error_for_usage_that_is_not_an_object_names_the_session(filled: Store) -> None:
    with filled.engine.begin() as connection:
        connection.execute(sa.text("UPDATE lango_turn SET usage = '[1]' WHERE session_key = 'b'"))
    with pytest.raises(LangoStoreError, match="session 'b': the usage of a turn cannot be read"):
        filled.usage()


OPENAI_CHAT = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
OPENAI_RESPONSES = {
    "input_tokens": 100,
    "output_tokens": 20,
    "input_tokens_details": {"cached_tokens": 40},
    "output_tokens_details": {"reasoning_tokens": 5},
}
ANTHROPIC = {
    "input_tokens": 100,
    "output_tokens": 20,
    "cache_read_input_tokens": 40,
    "cache_creation": {"ephemeral_5m_input_tokens": 7},
    "service_tier": "standard",
}
GOOGLE = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 20,
    "cachedContentTokenCount": 40,
    "thoughtsTokenCount": 5,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 100}],
}
GOOGLE_ADK = {
    "prompt_token_count": 100,
    "candidates_token_count": 20,
    "cached_content_token_count": 40,
    "thoughts_token_count": 5,
}
PYDANTIC_AI = {"input_tokens": 100, "output_tokens": 20, "cache_read_tokens": 40, "details": {"reasoning_tokens": 5}}
SPELLINGS: list[dict[str, Any]] = [OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, GOOGLE, GOOGLE_ADK, PYDANTIC_AI]


@pytest.mark.parametrize("usage", SPELLINGS)
def test_tokens_are_counted_for_the_usage_format_of_each_provider(store: Store, usage: dict[str, Any]) -> None:
    save(store, "k", usage)
    save(store, "k", usage)
    row = only(store.usage())
    assert (row.input_tokens, row.output_tokens, row.cached_tokens) == (200, 40, 80)
    assert row.reasoning_tokens == (0 if usage is ANTHROPIC else 10)


def test_tokens_in_usage_formats_of_different_providers_are_added(store: Store) -> None:
    for usage in SPELLINGS:
        save(store, "k", usage)
    row = only(store.usage())
    assert (row.input_tokens, row.output_tokens, row.cached_tokens, row.reasoning_tokens) == (600, 120, 240, 25)


def test_token_count_given_under_two_names_is_counted_once(store: Store) -> None:
    for _ in range(2):
        save(store, "k", {"input_tokens": 100, "prompt_tokens": 100, "cost_usd": 0.5, "total_cost_usd": 0.5})
    save(store, "k", {"prompt_tokens": 1, "total_cost_usd": 0.25})
    row = only(store.usage())
    assert (row.input_tokens, row.cost_usd) == (201, 1.25)
    assert row.usage == {"input_tokens": 200, "prompt_tokens": 201, "cost_usd": 1.0, "total_cost_usd": 1.25}


@pytest.mark.slow
def test_usage_leaves_out_values_that_are_not_numbers(store: Store) -> None:
    save(store, "k", {"a": "7", "b": True, "c": [1], "d": None, "e": 1, "f": {"g": {"h": 1.5, "i": "x"}}})
    save(store, "k", {"a": 2, "b": False, "f": {"g": {"h": 1}}, "unknown": 3})
    assert only(store.usage()).usage == {"a": 2, "e": 1, "f": {"g": {"h": 2.5}}, "unknown": 3}


def test_usage_adds_big_numbers_exactly(store: Store) -> None:
    for _ in range(3):
        save(store, "k", {"input_tokens": 2**63, "cost_usd": 0.1})
    row = only(store.usage())
    assert row.input_tokens == row.usage["input_tokens"] == 3 * 2**63
    assert row.cost_usd == pytest.approx(0.3)


def test_usage_raises_if_a_sum_is_too_large(store: Store) -> None:
    for _ in range(2):
        save(store, "k", {"input_tokens": 1.7e308})
    with pytest.raises(LangoStoreError, match="a number is too large"):
        store.usage()


def test_usage_adds_stored_costs(store: Store) -> None:
    save(store, "k", {"total_cost_usd": 0.25})
    save(store, "k", {"cost_usd": 0.5})
    save(store, "k", {"input_tokens": 1})
    assert only(store.usage()).cost_usd == 0.75


def test_price_of_the_model_applies_to_usage_without_a_stored_cost(filled: Store) -> None:
    save(filled, "a", {"input_tokens": 1_000_000, "cost_usd": 0.125})
    prices = {"large": {"input_tokens": 2.0}, "small": {"input_tokens": 0.5, "details.cached_tokens": -0.25}}
    save(filled, "a/child", {"input_tokens": 1_000_000, "details": {"cached_tokens": 400_000}})
    costs = {row.key: row.cost_usd for row in filled.usage(["key"], prices=prices)}
    assert costs == {
        "a": pytest.approx(0.125 + 2e-6 + 20_000 * 0.5e-6),
        "a/child": pytest.approx(0.4 + 10 * 0.5e-6),
        "b": None,
        "c": None,
    }
    assert only(filled.usage(prices=prices)).cost_usd == pytest.approx(sum(each or 0 for each in costs.values()))
    assert only(filled.usage()).cost_usd == 0.125


def test_days_of_a_time_zone_are_right_at_a_change_of_the_clock(store: Store, clock: Clock) -> None:
    days = {
        "2026-03-28T22:30": "2026-03-28",
        "2026-03-28T23:30": "2026-03-29",
        "2026-03-29T21:30": "2026-03-29",
        "2026-03-29T22:30": "2026-03-30",
        "2026-10-24T22:30": "2026-10-25",
        "2026-10-25T22:30": "2026-10-25",
        "2026-10-31T23:30": "2026-11-01",
    }
    for minute in days:
        clock.time = datetime.fromisoformat(minute).replace(tzinfo=UTC)
        save(store, "k", {"input_tokens": 1})
    oslo = ZoneInfo("Europe/Oslo")
    counted = {row.day: row.turns for row in store.usage(["day"], timezone=oslo)}
    assert counted == Counter(days.values())
    months = {row.month: row.turns for row in store.usage(["month", "key"], timezone=oslo)}
    assert months == {"2026-03": 4, "2026-10": 2, "2026-11": 1}
    assert {row.day for row in store.usage(["day"])} == {minute[:10] for minute in days}


def test_usage_is_grouped_by_days_in_utc(make_postgres: MakeDatabase) -> None:
    url = sa.make_url(make_postgres()).update_query_dict({"options": "-c TimeZone=Pacific/Auckland"})
    late = datetime(2026, 11, 21, 23, 30, tzinfo=UTC)
    with Store(url.render_as_string(hide_password=False), clock=lambda: late) as store:
        save(store, "k", {"input_tokens": 1})
        assert only(store.usage(["day"])).day == "2026-11-21"


def test_usage_of_eight_writers_is_the_sum_of_their_turns(store: Store) -> None:
    for number in range(4):
        store.create(f"k{number}", user_id=f"user {number % 2}")

    def write(writer: int) -> None:
        for number in range(10):
            save(store, f"k{writer % 4}", {"input_tokens": 100 * writer + number, "n": {"m": 1}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    row = only(store.usage())
    assert (row.turns, row.usage) == (80, {"input_tokens": 100 * 10 * 28 + 8 * 45, "n": {"m": 80}})
    assert sum(each.input_tokens for each in store.usage(["user_id", "day"])) == row.input_tokens


def test_async_store_returns_the_usage_rows_that_store_returns(filled: Store, url: str) -> None:
    async def read() -> list[UsageRow]:
        async with AsyncStore(url) as store:
            return await store.usage(["key"])

    assert asyncio.run(read()) == filled.usage(["key"])


def expected_sum(usages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums by name, one name after the other. A name with numbers has no nested fields."""
    sums: dict[str, Any] = {}
    for name in {name for usage in usages for name in usage}:
        values = [usage[name] for usage in usages if name in usage]
        if numbers := [each for each in values if type(each) in (int, float)]:
            sums[name] = pytest.approx(sum(numbers), rel=1e-9, abs=1e-300)
        elif nested := [each for each in values if isinstance(each, dict)]:
            sums[name] = expected_sum(nested)
    return sums


names = st.sampled_from(["input_tokens", "details", "a", "a.b", "é"])
numbers = st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9)
fields = st.recursive(numbers | st.text(), lambda inner: st.dictionaries(names, inner, max_size=3), max_leaves=6)


@pytest.mark.slow
@given(st.lists(st.dictionaries(names, fields | json_values(names), max_size=4), max_size=6), st.data())
def test_usage_sums_equal_sums_computed_in_python(
    store: Store, usages: list[dict[str, Any]], data: st.DataObject
) -> None:
    store.delete_where(key_prefix="k")
    groups = [data.draw(st.sampled_from(["k1", "k2"])) for _ in usages]
    for key, usage in zip(groups, usages, strict=True):
        save(store, key, usage)
    rows = {row.key: row for row in store.usage(["key"])}
    assert rows.keys() == set(groups)
    for key in set(groups):
        own = [usage for group, usage in zip(groups, usages, strict=True) if group == key]
        assert rows[key].usage == expected_sum(own)
    assert [row.usage for row in store.usage()] == ([expected_sum(usages)] if usages else [])


def test_turn_without_usage_has_no_cost_even_if_its_model_has_a_price(store: Store) -> None:
    store.create("k")
    store.conversation("k").save_turn([message()], metadata={"model": "large"})
    assert only(store.usage(prices={"large": {"input_tokens": 2.0}})).cost_usd is None
