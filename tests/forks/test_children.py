"""Child sessions: opened, listed, counted, deleted, purged and restored with their parent and without it."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import messages

from lango_store import (
    Conflict,
    InvalidKey,
    SessionExists,
    SessionExpired,
    SessionHeld,
    SessionNotFound,
    Store,
)
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
FAMILY = ["k", "k/a", "k/a/x", "k/b", "k/é", "k/漢"]
NEIGHBORS = ["k!x", "k-", "k.", "k0", "k0/a", "ka", "K/a", "j/k/a"]


def keys(store: Store) -> list[str]:
    return [info.key for info in store.iter_sessions(expired=None)]


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with a session, its descendants, and sessions whose keys sort close to them."""
    for key in FAMILY + NEIGHBORS:
        store.create(key, messages=messages(1))
    return store


def test_child_is_created_with_user_and_ttl_of_its_parent(store: Store) -> None:
    parent = store.open("k", user_id="ann", agent_id="planner", ttl=HOUR)
    child = parent.child("research-1", title="Fares")
    assert child.key == "k/research-1"
    info = child.info()
    assert (info.user_id, info.agent_id, info.title, info.ttl_seconds) == ("ann", None, "Fares", 3600)
    assert parent.child("research-1", user_id="bob", ttl=None).info() == info
    other = parent.child("other", user_id="bob", ttl=None).info()
    assert (other.user_id, other.ttl_seconds) == ("bob", None)


@pytest.mark.parametrize("name", ["", "a/b", "/", "a\0", "x" * 511, 5])
def test_child_refuses_invalid_name(store: Store, name: str) -> None:
    parent = store.open("k")
    with pytest.raises(InvalidKey):
        parent.child(name)
    assert keys(store) == ["k"]


def test_child_needs_live_parent(store: Store, clock: Clock) -> None:
    with pytest.raises(SessionNotFound):
        store.conversation("k").child("a")
    store.create("k", ttl=HOUR)
    store.conversation("k").child("a")
    clock.move(hours=2)
    with pytest.raises(SessionExpired, match="'k'"):
        store.conversation("k").child("b")
    assert keys(store) == ["k", "k/a"]


def test_expired_child_is_replaced_only_with_renew(store: Store, clock: Clock) -> None:
    parent = store.open("k")
    parent.child("a", ttl=HOUR).append_messages(messages(2))
    clock.move(hours=2)
    with pytest.raises(SessionExpired, match="k/a"):
        parent.child("a")
    assert parent.child("a", renew=True).messages() == []


def test_children_are_the_live_sessions_one_level_below(filled: Store, clock: Clock) -> None:
    filled.touch("k/b", ttl=HOUR)
    clock.move(hours=2)
    assert [info.key for info in filled.conversation("k").children()] == ["k/a", "k/é", "k/漢"]
    assert [info.key for info in filled.conversation("k/a").children()] == ["k/a/x"]
    assert filled.conversation("k0/a").children() == []
    with pytest.raises(SessionNotFound):
        filled.conversation("j").children()


def test_top_level_filter_selects_keys_without_slash(filled: Store) -> None:
    expected = sorted(key for key in FAMILY + NEIGHBORS if "/" not in key)
    assert [info.key for info in filled.iter_sessions(top_level=True)] == expected
    assert sorted(info.key for info in filled.list_sessions(top_level=True).items) == expected
    assert filled.count(top_level=True) == len(expected)
    assert filled.count(top_level=False) == len(FAMILY + NEIGHBORS)


def test_delete_with_children_deletes_session_and_descendants_only(filled: Store) -> None:
    assert filled.delete("k", descendants=True) is True
    assert keys(filled) == sorted(NEIGHBORS)
    assert filled.delete("k", descendants=True) is False


def test_delete_without_children_keeps_descendants(filled: Store) -> None:
    assert filled.delete("k") is True
    assert keys(filled) == sorted(FAMILY[1:] + NEIGHBORS)
    assert filled.delete("k", expect=1, descendants=True) is False
    assert keys(filled) == sorted(FAMILY[1:] + NEIGHBORS)
    assert filled.delete("k", descendants=True) is True
    assert keys(filled) == sorted(NEIGHBORS)


def test_delete_with_children_checks_revision_of_parent(filled: Store) -> None:
    revision = filled.conversation("k").info().revision
    with pytest.raises(Conflict):
        filled.delete("k", expect=revision + 1, descendants=True)
    assert keys(filled) == sorted(FAMILY + NEIGHBORS)
    assert filled.delete("k", expect=revision, descendants=True) is True
    assert keys(filled) == sorted(NEIGHBORS)


@pytest.mark.slow
def test_concurrent_delete_with_children_leaves_no_orphan(store: Store) -> None:
    def add(number: int, start: Barrier) -> None:
        start.wait()
        with suppress(SessionNotFound):
            store.conversation("k").child(f"c{number}")

    for _ in range(20):
        store.open("k")
        start = Barrier(4)
        with ThreadPoolExecutor(3) as threads:
            calls = [threads.submit(add, number, start) for number in range(3)]
            start.wait()
            store.delete("k", descendants=True)
        assert [call.exception() for call in calls] == [None] * 3
        assert keys(store) == []


@not_on_a_cluster("Citus allows no foreign key from a table on one node to distributed tables")
def test_descendant_held_by_a_foreign_key_prevents_deletion_of_its_ancestors(filled: Store) -> None:
    with filled.engine.begin() as connection:
        key = "VARCHAR(512)" if filled.engine.dialect.name == "sqlite" else 'VARCHAR(512) COLLATE "C"'
        connection.execute(sa.text(f"CREATE TABLE note (session {key} REFERENCES lango_session (key))"))
        connection.execute(sa.text("INSERT INTO note VALUES ('k/a/x')"))
    with pytest.raises(SessionHeld) as raised:
        filled.delete("k", descendants=True)
    assert raised.value.key == "k/a/x"
    assert keys(filled) == sorted(FAMILY + NEIGHBORS)
    report = filled.expire(older_than=timedelta(0), key_prefix="k", descendants=True)
    assert list(report.held) == ["k", "k/a", "k/a/x"]
    assert keys(filled) == ["K/a", "j/k/a", "k", "k/a", "k/a/x"]


def test_usage_with_children_adds_all_descendants(filled: Store) -> None:
    for number, key in enumerate((*FAMILY, "k0", "k!x")):
        filled.conversation(key).save_turn([], {"tokens": 10**number})
    parent = filled.conversation("k")
    assert parent.total_usage() == {"tokens": 1}
    assert parent.total_usage(descendants=True) == {"tokens": 111_111}
    assert filled.conversation("k/a").total_usage(descendants=True) == {"tokens": 110}


@pytest.mark.parametrize("children", [False, True])
def test_purge_deletes_live_descendants_only_with_children_true(filled: Store, clock: Clock, children: bool) -> None:
    for key in ("k", "k/a/x"):
        filled.touch(key, ttl=HOUR)
    clock.move(hours=2)
    planned = filled.expire(descendants=children, dry_run=True)
    report = filled.expire(descendants=children)
    purged = FAMILY if children else ["k", "k/a/x"]
    assert (planned.sessions, planned.messages) == (report.sessions, report.messages) == (len(purged), len(purged))
    assert keys(filled) == sorted({*FAMILY, *NEIGHBORS} - {*purged})


@pytest.mark.parametrize("limit", range(5))
@pytest.mark.parametrize("batch_size", [1, 2, 500])
def test_purge_with_limit_deletes_as_many_sessions_as_a_dry_run_reports(
    store: Store, clock: Clock, limit: int, batch_size: int
) -> None:
    for minutes, key in enumerate(["a", "a/x", "b/x", "b", "c", "c/x/y"]):
        store.create(key, ttl=timedelta(minutes=minutes + 1))
    store.create("a/live")
    clock.move(hours=1)
    planned = store.expire(limit=limit, descendants=True, dry_run=True)
    report = store.expire(limit=limit, batch_size=batch_size, descendants=True)
    assert planned.sessions == report.sessions == [0, 3, 4, 5, 7][limit]


def test_delete_where_with_children_also_deletes_descendants_of_other_users(store: Store) -> None:
    store.create("k", user_id="ann")
    store.create("k/a", user_id="bob")
    store.create("other", user_id="bob")
    assert store.delete_where(user_id="ann", descendants=True) == 2
    assert keys(store) == ["other"]


@pytest.mark.slow
def test_archived_session_is_restored_with_or_without_its_children(filled: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    before = {key: filled.get(key).messages for key in FAMILY}
    filled.touch("k", ttl=HOUR)
    clock.move(hours=2)
    assert filled.expire(archive=cold, descendants=True).sessions == len(FAMILY)
    filled.restore("k", cold)
    assert keys(filled) == sorted(["k", *NEIGHBORS])
    with pytest.raises(SessionExists):
        filled.restore("k", cold, descendants=True)
    filled.delete("k")
    assert filled.restore("k", cold, descendants=True).key == "k"
    assert keys(filled) == sorted(FAMILY + NEIGHBORS)
    assert {key: filled.get(key).messages for key in FAMILY} == before
    filled.delete("k", descendants=True)
    filled.create("k/b")
    with pytest.raises(SessionExists, match="k/b"):
        filled.restore("k", cold, descendants=True)
    assert keys(filled) == sorted(["k/b", *NEIGHBORS])


@pytest.mark.parametrize("children", [False, True])
def test_export_includes_descendants_only_with_children(
    filled: Store, make_sqlite: MakeDatabase, tmp_path: Path, children: bool
) -> None:
    export(filled, tmp_path, "backup", keys=["k"], descendants=children)
    with Store(make_sqlite()) as other:
        import_path(other, tmp_path)
        assert keys(other) == (sorted(FAMILY) if children else ["k"])
        assert all(other.conversation(key).messages() == filled.conversation(key).messages() for key in keys(other))


def test_copy_includes_descendants_and_fork_does_not(filled: Store, make_sqlite: MakeDatabase) -> None:
    filled.conversation("k").fork("fork")
    with Store(make_sqlite()) as other:
        copy(filled, other)
        assert keys(other) == sorted([*FAMILY, *NEIGHBORS, "fork"])
        assert other.count(top_level=True) == filled.count(top_level=True)
        assert [each.key for each in other.conversation("k").children()] == ["k/a", "k/b", "k/é", "k/漢"]
        assert other.conversation("fork").children() == []


@pytest.mark.slow
def test_restore_with_children_leaves_out_children_of_an_earlier_session_of_the_same_key(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    cold = tmp_path / "cold.db"
    for name, hours in (("old", 2), ("new", -1)):  # the clock goes back before the second purge
        store.open("k", ttl=HOUR).child(name)
        clock.move(hours=hours)
        store.expire(older_than=timedelta(0), created_before=clock() + 9 * HOUR, archive=cold, descendants=True)
    store.restore("k", cold, descendants=True)
    assert keys(store) == ["k", "k/new"]


LEVELS = st.lists(st.sampled_from(["k", "k!", "k.", "k0", "é", "漢", "\U0010ffff", ""]), min_size=1, max_size=4)
KEYS = LEVELS.map("/".join).filter(bool)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.sets(KEYS, min_size=1, max_size=12), st.data())
def test_methods_on_random_session_trees_return_what_the_keys_imply(
    store: Store, tree: set[str], data: st.DataObject
) -> None:
    parent = data.draw(st.sampled_from(sorted(tree)))
    family = {key for key in tree if key == parent or key.startswith(f"{parent}/")}
    try:
        for key in tree:
            store.create(key)
        children = [info.key for info in store.conversation(parent).children()]
        assert children == sorted(key for key in family - {parent} if "/" not in key[len(parent) + 1 :])
        assert store.count(top_level=True) == sum("/" not in key for key in tree)
        assert store.delete(parent, descendants=True)
        assert keys(store) == sorted(tree - family)
    finally:
        for key in tree:
            store.delete(key)
