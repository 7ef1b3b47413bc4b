"""What a store says of itself: its sums, and what an examination finds and mends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from conftest import SOMEBODY_WAITS, MakeDatabase
from factories import message, messages

from lango_store import (
    Conversation,
    LangoStoreError,
    MessageRole,
    Store,
    create_engine,
)
from lango_store.operations import salvage


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


def test_what_is_free_for_new_rows_counts_for_no_bytes(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        before = store.stats().bytes
        store.create("k", messages=[message("x" * 100_000)])
        assert store.stats().bytes > before + 90_000
        store.delete("k")
        assert store.stats().bytes < before + 10_000


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


def test_each_session_is_estimated_by_its_own_messages_from_their_first_to_their_last(store: Store) -> None:
    roles = (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL, MessageRole.SYSTEM)
    log = [message("x", role=role) for role in roles for _ in range(1_000)]
    store.create("a", messages=log)
    store.create("b", messages=[message("x", role=MessageRole.RECORD)] * 10_000)
    store.create("c", messages=[message("x")] * 8_000)
    found = store.stats()
    assert (found.messages, found.roles_estimated) == (12_000, True)
    expected = {"record": 10_000, "user": 9_000, "assistant": 1_000, "tool": 1_000, "system": 1_000}
    assert found.roles == pytest.approx(expected, rel=0.15)


def test_agents_with_as_many_messages_go_by_their_names(store: Store) -> None:
    for agent in ("b", None, "a"):
        store.create(agent_id=agent, messages=[message()])
    store.create(agent_id="c", messages=[message(), message()])
    assert [each.agent_id for each in store.stats().agents] == ["c", None, "a", "b"]


def test_damaged_counters_make_no_search_for_roles_endless(store: Store) -> None:
    for key, count in (("a", 2**40), ("b", 30_000 - 2**40)):
        store.create(key, messages=[message()])
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_session SET message_count = {count} WHERE key = '{key}'")
    with pytest.raises(LangoStoreError, match="`lango-store doctor` says which"):
        store.stats()


def test_settings_of_a_server_that_can_cost_rows_are_found(make_postgres: MakeDatabase) -> None:
    engine = create_engine(make_postgres(), connect_args={"options": "-c synchronous_commit=off"})
    with engine.connect() as connection:
        names = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum")
        off = {name for name in names if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off"}
    told = {each.detail.split(" is off: ")[0] for each in Store(engine).examine() if " is off: " in each.detail}
    assert told == off >= {"synchronous_commit"}
    engine.dispose()


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
    assert len(filled.salvage("gone", last=100)) == 2
    repaired = [finding for finding in filled.examine(repair=True) if finding.name != "settings"]
    unreadable = ["unreadable session", "unreadable message"]
    assert [finding.name for finding in repaired if not finding.repaired] == unreadable
    assert [finding.name for finding in filled.examine() if finding.name != "settings"] == unreadable
    with Store(url) as store:
        assert store.append_message("chat:5", message()).seq == 7


def test_summaries_of_two_sessions_are_not_taken_for_one_another(store: Store) -> None:
    for key, count in (("a", 2), ("b", 5)):
        store.create(key, messages=messages(count))
        store.conversation(key).compact(lambda _: [message("summary")])
    store.conversation("b").compact(lambda _: [message("another")])
    assert [finding for finding in store.examine() if finding.name != "settings"] == []


@pytest.mark.parametrize(
    ("damage", "write", "what"),
    [
        ("message_count = 9", lambda k: k.append_messages(messages(2)), "wrong counters"),
        ("summary_turn = NULL", lambda k: k.compact(lambda _: [message("another")]), "wrong summary"),
    ],
)
def test_a_session_is_mended_after_what_is_being_written_to_it(
    make_postgres: MakeDatabase, damage: str, write: Callable[[Conversation], object], what: str
) -> None:
    with Store(make_postgres()) as store, store.engine.connect() as host, ThreadPoolExecutor(1) as pool:
        store.create("k", messages=messages(3))
        store.conversation("k").compact(lambda _: [message("summary")])
        with store.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE lango_session SET {damage}")
        write(store.using(host).conversation("k"))
        revision = store.using(host).info("k").revision
        repairing = pool.submit(store.examine, repair=True)
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as looking:
            while not looking.exec_driver_sql(SOMEBODY_WAITS).first():
                assert not repairing.done()
        host.commit()
        assert [(each.name, each.repaired) for each in repairing.result() if each.name != "settings"] == [(what, True)]
        assert [finding for finding in store.examine() if finding.name != "settings"] == []
        assert store.info("k").revision == revision + 1


def test_missing_tables_are_a_finding(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE lango_turn")
    (finding,) = store.examine(repair=True)
    assert (finding.name, finding.repaired) == ("schema", False)
    assert "lango_turn" in finding.detail


def test_values_that_cannot_be_read_are_named_in_their_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_VALUES", 2)
    for name in "edcba":
        store.set_values("app", {name: 1})
    deep = "[" * 2_000 + "]" * 2_000
    with store.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE lango_value SET value = '{deep}' WHERE name IN ('a', 'd', 'e')")
    named = [each.detail.split(" of ")[0] for each in store.examine() if each.name == "unreadable value"]
    assert named == ["value 'a'", "value 'd'", "value 'e'"]


def test_a_damaged_message_is_shown_as_such(filled: Store) -> None:
    with filled.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE lango_message SET role = 'weird' WHERE session_key = 'chat:9' AND seq IN (1, 4, 10)"
        )
    found = filled.salvage("chat:9")
    assert [each.seq for each in found] == list(range(1, 11))
    assert [each.seq for each in found if isinstance(each, Exception)] == [1, 4, 10]
    assert [each.seq for each in filled.salvage("chat:9", last=2)] == [9, 10]


def test_an_agent_that_is_not_text_is_shown_with_its_bytes(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create(agent_id="bob", messages=[message()])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE lango_session SET agent_id = x'61ff'")
        assert [each.agent_id for each in store.stats().agents] == ["a\\xff"]
