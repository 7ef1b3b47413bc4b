"""`stats`: totals of a store."""

from datetime import timedelta

import pytest
from support.databases import MakeDatabase
from support.factories import message

from lango_store import (
    LangoStoreError,
    MessageRole,
    Store,
)


def test_stats_count_sessions_messages_and_tokens(filled: Store) -> None:
    filled.create("system", ttl=timedelta(days=3), messages=[message(role=MessageRole.SYSTEM, tokens=5)])
    found = filled.stats()
    assert (found.sessions, found.expired, found.messages, found.tokens) == (11, 5, 56, 5)
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


def test_stats_count_sessions_by_time_to_expiry(store: Store) -> None:
    spans = {
        "an hour": timedelta(hours=1),
        "a day": timedelta(days=1),
        "a week": timedelta(7),
        "30 days": timedelta(30),
    }
    store.create()
    for span in spans.values():
        store.create(ttl=span)
        store.create(ttl=span + timedelta(seconds=1))
    within = {"within an hour": 1, "within a day": 2, "within a week": 2, "within 30 days": 2}
    assert store.stats().expiring == {"expired": 0, **within, "later": 1, "never": 1}


def test_stats_exclude_free_space_from_bytes(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        before = store.stats().bytes
        store.create("k", messages=[message("x" * 100_000)])
        assert store.stats().bytes > before + 90_000
        store.delete("k")
        assert store.stats().bytes < before + 10_000


def test_stats_sort_agents_with_equal_counts_by_name(store: Store) -> None:
    for agent in ("b", None, "a", "f", "d", "e"):
        store.create(agent_id=agent, messages=[message()])
    store.create(agent_id="c", messages=[message(), message()])
    assert [each.agent_id for each in store.stats().agents] == ["c", None, "a", "b", "d", "e", "f"]


def test_error_of_stats_for_an_infinite_counter_names_the_doctor_command(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k", messages=[message()])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET token_count = 9e999")
        with pytest.raises(LangoStoreError, match="`lango-store doctor` says which"):
            store.stats()


def test_stats_show_an_agent_id_that_is_not_text_as_escaped_bytes(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create(agent_id="bob", messages=[message()])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET agent_id = x'61ff'")
        assert [each.agent_id for each in store.stats().agents] == ["a\\xff"]
