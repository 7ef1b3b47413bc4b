"""Values that several set at once, and those that were set while their session was made."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from conftest import AS_ROWS_LIE, Clock, MakeDatabase
from factories import message
from locks import until_one_waits
from rows import value_names
from session_checks import assert_sound

from lango_store import Conflict, InvalidKey, SessionExists, SessionNotFound, Store, create_engine

HOUR = timedelta(hours=1)


def made_meanwhile(store: Store, given: dict[str, Any], **options: Any) -> None:
    """Leave a session k beside values that were set as shared ones at the moment in which it was made."""
    store.create("k", values={"k": given}, **options)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_value SET session_key = NULL WHERE scope = 'k'")


def in_a_transaction(store: Store, call: Callable[[Store], object]) -> None:
    with store.engine.begin() as connection:
        call(store.using(connection))


def test_writers_of_different_names_lose_nothing(store: Store) -> None:
    store.create("k")
    together = Barrier(8)

    def write(n: int) -> None:
        together.wait()
        for number in range(10):
            store.set_values("k", {f"{n}.{number}": number})
            store.set_values("shared", {f"{n}.{number}": number, "all": n})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    expected = {f"{n}.{number}": number for n in range(8) for number in range(10)}
    assert store.values("k") == expected
    assert store.values("shared").keys() == expected.keys() | {"all"}
    assert_sound(store)


def test_appends_that_set_the_same_shared_names_wait_for_one_another(store: Store) -> None:
    names = [f"n{n}" for n in range(20)]
    together = Barrier(6)

    def write(n: int) -> None:
        key = f"k{n}"
        store.create(key)
        together.wait()
        for _ in range(15):
            ordered = names if n % 2 else names[::-1]
            store.append_message(key, message(), values={"b": dict.fromkeys(ordered, n), "a": {"x": n}})
            if n == 0:
                store.drop_values("b")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    assert [store.info(f"k{n}").last_seq for n in range(6)] == [15] * 6
    assert_sound(store)


def test_an_append_leaves_the_values_of_a_session_alone_that_was_made_meanwhile(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, ThreadPoolExecutor(1) as pool:
        store.create("k")
        with store.engine.connect() as connection:
            connection.exec_driver_sql("SELECT FROM lango_session WHERE key = 'k' FOR UPDATE")
            given = {"new": {"a": "k's"}, "app": {"a": 1}}
            late = pool.submit(store.append_message, "k", message(), values=given)
            until_one_waits(store.engine)
            store.create("new", values={"new": {"a": "its own"}})
            connection.rollback()
        with pytest.raises(InvalidKey, match="another session's"):
            late.result()
        assert (store.values("new"), store.values("app"), store.info("k").last_seq) == ({"a": "its own"}, {}, 0)
        store.delete("new")
        assert value_names(store) == []


def test_shared_values_become_those_of_a_session_that_was_made_meanwhile(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres()) as store, ThreadPoolExecutor(1) as pool:
        with store.engine.begin() as connection:
            revision = store.using(connection).create("k", values={"k": {"b": "own"}}).revision
            late = pool.submit(store.set_values, "k", {"a": 1, "b": 2})
            until_one_waits(store.engine)
        late.result()
        assert (store.values("k"), store.info("k").revision > revision) == ({"a": 1, "b": 2}, True)
        assert_sound(store)


@pytest.mark.parametrize("times", [1, 2, 100])
def test_values_become_shared_once_an_expired_session_has_gone_and_no_look_for_it_is_endless(
    undistributed: str, clock: Clock, times: int
) -> None:
    early, left = Clock(), times
    clock.move(hours=2)

    def meddle(text: str, _: float) -> None:
        nonlocal left
        if "INSERT INTO lango_value" in text:
            left -= 1
            other.delete("k")
        elif left > 0:
            other.create("k", ttl=HOUR)

    with Store(undistributed, clock=early) as other, Store(undistributed, clock=clock, on_statement=meddle) as store:
        other.create("k", ttl=HOUR)
        if times < 100:
            store.set_values("k", {"a": 1})
            assert store.values("k") == {"a": 1}
            assert_sound(other)
        else:
            with pytest.raises(SessionNotFound):
                store.set_values("k", {"a": 1})


def test_a_drop_locks_names_in_the_order_in_which_they_are_set(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args=AS_ROWS_LIE)
    with Store(engine) as store, ThreadPoolExecutor(1) as pool:
        for name in ("b", "a"):
            store.set_values("app", {name: 1})
        with engine.connect() as holder:
            holder.exec_driver_sql("SELECT FROM lango_value WHERE scope = 'app' AND name = 'a' FOR UPDATE")
            late = pool.submit(store.drop_values, "app")
            until_one_waits(store.engine)
            holder.exec_driver_sql("SELECT FROM lango_value WHERE scope = 'app' AND name = 'b' FOR UPDATE NOWAIT")
        assert late.result() == 2
    engine.dispose()


def test_a_drop_waits_for_nobody_who_writes_another_scope(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args={"options": "-c lock_timeout=2s"})
    with Store(engine) as store, engine.connect() as holder:
        store.set_values("app", {"b": 1})
        store.set_values("user", {"a": 1})
        store.using(holder).set_values("user", {"a": 2})
        assert store.drop_values("app") == 1
    engine.dispose()


GOINGS: dict[str, Callable[[Store], object]] = {
    "delete": lambda store: store.delete("k"),
    "delete in the caller's transaction": lambda store: in_a_transaction(store, lambda inside: inside.delete("k")),
    "expire": lambda store: store.expire(),
    "expire and archive": lambda store: store.expire(archive="cold.db"),
    "delete_where": lambda store: store.delete_where(key_prefix="k"),
    "replace": lambda store: store.append_message("k", message(), create=True),
}


@pytest.mark.parametrize("go", GOINGS.values(), ids=list(GOINGS))
def test_values_set_while_their_session_was_made_go_with_it(
    store: Store, clock: Clock, go: Callable[[Store], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store.set_values("app", {"a": 1})
    made_meanwhile(store, {"old": 1}, ttl=HOUR)
    clock.move(hours=2)
    go(store)
    store.append_message("k", message(), create=True)
    assert (store.values("k"), store.values("app")) == ({}, {"a": 1})


def test_values_set_while_their_session_was_made_are_in_the_way_of_no_append(store: Store) -> None:
    made_meanwhile(store, {"old": 1})
    with pytest.raises(SessionExists):
        store.create("k")
    assert store.append_message("k", message(), create=True, values={"k": {"new": 1}}).seq == 1
    assert store.values("k") == {"new": 1, "old": 1}
    store.delete("k")
    assert value_names(store) == []


def test_values_set_while_their_session_was_made_are_archived_with_it(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    made_meanwhile(store, {"old": 1}, ttl=HOUR)
    clock.move(hours=2)
    store.expire(archive=tmp_path / "cold.db")
    store.restore(tmp_path / "cold.db", "k")
    assert store.values("k") == {"old": 1}
    assert_sound(store)


def test_a_deletion_of_nothing_leaves_shared_values(store: Store) -> None:
    made_meanwhile(store, {"a": 1})
    store.set_values("app", {"a": 1})
    assert not store.delete("app")
    with pytest.raises(Conflict):
        store.delete("k", expect=store.info("k").revision + 1)
    assert (store.values("app"), store.values("k")) == ({"a": 1}, {"a": 1})


def test_any_number_of_names_is_dropped_at_once(store: Store) -> None:
    store.set_values("app", {f"n{number}": number for number in range(1_200)})
    assert store.drop_values("app", [f"n{number}" for number in range(70_000)]) == 1_200
    assert store.values("app") == {}
