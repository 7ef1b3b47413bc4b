"""Values: named JSON of a session, and shared values of a scope."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from support.databases import AS_ROWS_LIE, MakeDatabase
from support.factories import message, messages
from support.locks import until_one_waits
from support.rows import value_names
from support.statements import watched

from lango_store import InvalidKey, InvalidValue, SessionExpired, SessionNotFound, Store, create_engine
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
ODD: list[Any] = [None, True, 0, 1.0, -(2**70), "", "a\0b", "\ud83d", "é\n", [], {}, {"": [None, {"a": "\0"}]}]
VALUES: dict[str, Any] = {f"n{number}": value for number, value in enumerate(ODD)}


# Set and read


def test_set_values_adds_and_replaces_by_name(store: Store) -> None:
    k = store.open("k")
    assert k.values.get() == {}
    k.values.set({"step": 1, "plan": ["a", {"b": 2.5}]})
    k.values.set({"step": 2, "é": None})
    assert k.values.get() == store.conversation("k").values.get() == {"plan": ["a", {"b": 2.5}], "step": 2, "é": None}
    store.conversation("k").values.set({"step": 3})
    assert k.values.get("st") == {"step": 3}
    assert store.open("other").values.get() == {}


def test_set_shared_values_adds_and_replaces_by_name(store: Store) -> None:
    assert store.shared_values("user:ann").get() == {}
    store.shared_values("user:ann").set({"name": "Ann"})
    store.shared_values("user:ann").set({"city": "Oslo"})
    assert store.shared_values("user:ann").get() == {"city": "Oslo", "name": "Ann"}
    assert store.shared_values("user:bob").get() == {}


def test_values_of_a_session_and_of_a_scope_with_an_equal_name_are_separate(store: Store) -> None:
    store.shared_values("k").set({"a": "shared"})
    store.create("k")
    store.conversation("k").values.set({"a": "of the session"})
    assert (store.conversation("k").values.get(), store.shared_values("k").get()) == (
        {"a": "of the session"},
        {"a": "shared"},
    )
    store.delete("k")
    assert store.shared_values("k").get() == {"a": "shared"}


def test_values_are_sorted_by_name_and_filtered_by_prefix(store: Store) -> None:
    store.create("k")
    values = {name: n for n, name in enumerate(["b.2", "a", "b", "\U0001f600", "b.1", "é", "B"])}
    store.conversation("k").values.set(values)
    store.shared_values("s").set(values)
    for named in (store.conversation("k").values, store.shared_values("s")):
        assert list(named.get()) == list(named.get("")) == ["B", "a", "b", "b.1", "b.2", "é", "\U0001f600"]
        assert list(named.get("b.")) == ["b.1", "b.2"]
        assert list(named.get("b")) == ["b", "b.1", "b.2"]
        assert list(named.get("none")) == []


@pytest.mark.slow
def test_values_are_sorted_without_an_index_scan(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args=AS_ROWS_LIE)
    with Store(engine) as store:
        store.create("k")
        for name in "bca":
            store.conversation("k").values.set({name: 1})
            store.shared_values("app").set({name: 1})
        assert list(store.conversation("k").values.get()) == list(store.shared_values("app").get()) == ["a", "b", "c"]
    engine.dispose()


def test_any_json_value_is_returned_unchanged(store: Store) -> None:
    store.create("k")
    store.conversation("k").values.set(VALUES)
    store.shared_values("shared").set(VALUES)
    for stored in (store.conversation("k").values.get(), store.shared_values("shared").get()):
        assert stored == VALUES
        assert [type(stored[name]) for name in VALUES] == [type(value) for value in VALUES.values()]


def test_drop_values_returns_the_number_of_dropped_values(store: Store) -> None:
    k = store.open("k")
    k.values.set({"a": 1, "b": 2, "c": 3})
    store.shared_values("k").set({"a": 1, "b": 2})
    assert k.values.delete(["a", "a", "x"]) == 1
    assert k.values.delete([]) == 0
    assert k.values.get() == {"b": 2, "c": 3}
    assert k.values.delete() == 2
    assert (k.values.get(), store.shared_values("k").get()) == ({}, {"a": 1, "b": 2})
    assert store.shared_values("k").delete(["b", "x"]) == 1
    assert store.shared_values("k").delete() == 1
    assert store.shared_values("k").delete() == 0


def test_drop_shared_values_takes_any_number_of_names(store: Store) -> None:
    store.shared_values("app").set({f"n{number}": number for number in range(1_200)})
    assert store.shared_values("app").delete([f"n{number}" for number in range(70_000)]) == 1_200
    assert store.shared_values("app").get() == {}


# Values and their session: revision, deletion, archive, transactions


def test_write_of_values_changes_revision_but_not_times(store: Store, clock: Clock) -> None:
    before = store.create("k", ttl=HOUR)
    writes: list[Callable[[], object]] = [
        lambda: store.conversation("k").values.set({"a": 1}),
        lambda: store.conversation("k").values.set({"a": 1, "b": 2}),
        lambda: store.conversation("k").values.delete(["a"]),
        lambda: store.conversation("k").values.delete(),
    ]
    for number, write in enumerate(writes, 1):
        clock.move(minutes=1)
        write()
        session = store.conversation("k").info()
        assert session.revision == before.revision + number
        assert (session.updated_at, session.expires_at) == (before.updated_at, before.expires_at)
    store.conversation("k").values.delete()
    store.conversation("k").values.set({})
    store.conversation("k").values.get()
    assert store.conversation("k").info().revision == before.revision + len(writes)


def test_values_are_deleted_with_their_session(store: Store, clock: Clock) -> None:
    store.shared_values("shared").set({"a": 1})
    for key in ("deleted", "replaced"):
        store.create(key, ttl=HOUR)
        store.conversation(key).values.set({"own": 1})
    store.delete("deleted")
    clock.move(hours=2)
    store.append_message("replaced", message(), create=True)
    assert value_names(store) == []
    assert store.create("deleted").last_seq == 0
    assert (store.conversation("deleted").values.get(), store.conversation("replaced").values.get()) == ({}, {})
    assert store.shared_values("shared").get() == {"a": 1}


def test_values_are_kept_when_messages_are_removed(store: Store) -> None:
    store.create("k", messages=messages(3))
    store.conversation("k").values.set({"a": 1})
    store.conversation("k").truncate(after=1)
    store.conversation("k").clear()
    assert store.conversation("k").values.get() == {"a": 1}


def test_values_are_written_in_the_callers_transaction(store: Store) -> None:
    store.create("k")
    with store.engine.connect() as connection:
        inside = store.using(connection)
        inside.conversation("k").values.set({"a": 1})
        inside.shared_values("shared").set({"a": 1})
        inside.append_message("k", message())
        assert (inside.conversation("k").values.get(), inside.shared_values("shared").get()) == ({"a": 1}, {"a": 1})
        connection.rollback()
    assert (
        store.conversation("k").values.get(),
        store.shared_values("shared").get(),
        store.conversation("k").messages(),
    ) == ({}, {}, [])


# Refused calls


def test_values_of_a_missing_or_expired_session_are_refused(store: Store, clock: Clock) -> None:
    store.create("old", ttl=HOUR)
    store.conversation("old").values.set({"a": 1})
    before = value_names(store)
    clock.move(hours=2)
    for key, expected in {"missing": SessionNotFound, "old": SessionExpired}.items():
        calls: list[Callable[[], object]] = [
            lambda key=key: store.conversation(key).values.get(),  # type: ignore[misc]
            lambda key=key: store.conversation(key).values.set({"a": 2, "b": 2}),  # type: ignore[misc]
            lambda key=key: store.conversation(key).values.set({}),  # type: ignore[misc]
            lambda key=key: store.conversation(key).values.delete(),  # type: ignore[misc]
            lambda key=key: store.conversation(key).values.delete([]),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(SessionNotFound) as raised:
                call()
            assert raised.type is expected
    assert value_names(store) == before


@pytest.mark.parametrize("text", ["", "a\0", "\ud800", "x" * 513, 1, None, b"bytes"], ids=repr)
def test_invalid_scope_or_name_is_refused(store: Store, text: Any) -> None:
    store.create("k")
    before = store.get("k")
    calls: list[Callable[[], object]] = [
        lambda: store.conversation("k").values.set({"a": 1, text: 1}),
        lambda: store.conversation("k").values.delete([text]),
        lambda: store.shared_values(text).get(),
        lambda: store.shared_values(text).set({"a": 1}),
        lambda: store.shared_values(text).set({}),
        lambda: store.shared_values("s").set({"a": 1, text: 1}),
        lambda: store.shared_values(text).delete(),
        lambda: store.shared_values("s").delete([text]),
    ]
    for call in calls:
        with pytest.raises(InvalidKey, match=r"^(scope|name): "):
            call()
    assert (store.get("k"), value_names(store), store.shared_values("s").get()) == (before, [], {})


def test_longest_scope_and_name_are_stored_and_longer_ones_refused(store: Store) -> None:
    for scope, name in [("\U0001f600" * 512, "x" * 512), ("x" * 512, "\U0001f600" * 512)]:
        store.create(scope)
        store.conversation(scope).values.set({name: 1})
        store.shared_values(scope).set({name: 1})
        assert store.conversation(scope).values.get() == store.shared_values(scope).get() == {name: 1}
    longest = "\U0001f601" * 512
    store.create(longest)
    for values in (store.conversation(longest).values, store.shared_values(longest)):
        with pytest.raises(InvalidKey, match="4,096 bytes together"):
            values.set({longest: 1})


@pytest.mark.parametrize("value", [{1}, float("nan"), {1: 2}, {"a": (1,)}, b"bytes"], ids=repr)
def test_error_for_a_value_that_is_not_json_contains_its_name(store: Store, value: Any) -> None:
    store.create("k")
    before = store.get("k")
    for values in (store.conversation("k").values, store.shared_values("k")):
        with pytest.raises(InvalidValue, match=r"^values\['wrong'\]") as raised:
            values.set({"fine": 1, "wrong": value})
        assert raised.value.field == "values['wrong']"
    assert (store.get("k"), value_names(store), store.shared_values("k").get()) == (before, [], {})


# Concurrent writers and the number of statements


def test_concurrent_writers_of_the_same_names_do_not_deadlock(store: Store) -> None:
    names = [f"n{n}" for n in range(20)]
    barrier = Barrier(6)

    def write(n: int) -> None:
        barrier.wait()
        for _ in range(15):
            store.shared_values("app").set(dict.fromkeys(names if n % 2 else names[::-1], n))
            if n == 0:
                store.shared_values("app").delete()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))


def test_drop_shared_values_locks_rows_in_the_order_of_names(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args=AS_ROWS_LIE)
    with Store(engine) as store, ThreadPoolExecutor(1) as pool:
        for name in ("b", "a"):
            store.shared_values("app").set({name: 1})
        with engine.connect() as holder:
            query = "SELECT FROM lango_shared_value WHERE scope = 'app' AND name = '{}' FOR UPDATE {}"
            holder.exec_driver_sql(query.format("a", ""))
            dropped = pool.submit(store.shared_values("app").delete)
            until_one_waits(store.engine)
            holder.exec_driver_sql(query.format("b", "NOWAIT"))
        assert dropped.result() == 2
    engine.dispose()


def test_set_values_takes_one_transaction_on_sqlite(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k")
        with watched(store.engine) as statements:
            store.conversation("k").values.set({"a": 1})
        assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]


# Several sessions


def test_values_of_several_sessions_are_those_of_each(store: Store, clock: Clock) -> None:
    values = {"b": {"x": 1}, "a": VALUES, "none": {}}
    for key, named in values.items():
        store.create(key)
        store.conversation(key).values.set(named)
        store.shared_values(key).set({"shared": key, **named})
    store.create("expired", ttl=HOUR)
    clock.move(hours=1)
    assert store.values_of(["none", "b", "missing", "expired", "a", "b"]) == values
    assert [*store.values_of(["none", "b", "a"])] == ["none", "b", "a"]
    assert [*store.values_of(["a"])["a"]] == [*store.conversation("a").values.get()]
    assert store.values_of(["b", "a"], "n1") == {"b": {}, "a": store.conversation("a").values.get("n1")}
    assert store.values_of([]) == {}
    scopes = store.shared_values_of(["a", "new", "none"])
    assert scopes == {"a": store.shared_values("a").get(), "new": {}, "none": {"shared": "none"}}
    assert store.shared_values_of(["a"], "sh") == {"a": {"shared": "a"}}


def test_values_of_several_sessions_are_one_statement(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        keys = [f"k{number}" for number in range(3)]
        for key in keys:
            store.create(key)
        sent.clear()
        assert (len(store.values_of(keys)), len(sent)) == (3, 1)
        assert (len(store.shared_values_of(keys)), len(sent)) == (3, 2)


def test_values_of_refuses_keys_that_are_one_text_or_too_long(store: Store) -> None:
    with pytest.raises(TypeError, match="is one text: give a list"):
        store.values_of("abc")
    with pytest.raises(InvalidKey, match="key: has 0 characters"):
        store.values_of(["a", ""])
    with pytest.raises(InvalidKey, match="scope: has 513 characters"):
        store.shared_values_of(["a", "a" * 513])
