"""Values by name: those that a session has, and those that sessions share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import AS_ROWS_LIE, Clock
from factories import message, messages
from rows import value_names
from session_checks import assert_sound

from lango_store import InvalidKey, InvalidMessage, SessionExists, SessionExpired, SessionNotFound, Store, create_engine

HOUR = timedelta(hours=1)


# Set and read


def test_a_session_has_values_by_name(store: Store) -> None:
    k = store.open("k")
    assert k.values() == {}
    k.set_values({"step": 1, "plan": ["a", {"b": 2.5}]})
    k.set_values({"step": 2, "é": None})
    assert k.values() == store.values("k") == {"plan": ["a", {"b": 2.5}], "step": 2, "é": None}
    store.set_values("k", {"step": 3})
    assert k.values("st") == {"step": 3}
    assert store.open("other").values() == {}


def test_a_scope_without_a_session_is_shared(store: Store) -> None:
    assert store.values("user:ann") == {}
    store.set_values("user:ann", {"name": "Ann"})
    store.set_values("user:ann", {"city": "Oslo"})
    assert store.values("user:ann") == {"city": "Oslo", "name": "Ann"}
    assert store.drop_values("user:ann", ["city", "nothing"]) == 1
    assert store.drop_values("user:ann") == 1
    assert store.values("user:ann") == {}
    assert store.drop_values("user:ann") == 0


def test_values_come_in_the_order_of_their_names_and_by_a_prefix(store: Store) -> None:
    store.set_values("s", {name: n for n, name in enumerate(["b.2", "a", "b", "\U0001f600", "b.1", "é", "B"])})
    assert list(store.values("s")) == ["B", "a", "b", "b.1", "b.2", "é", "\U0001f600"]
    assert list(store.values("s", "b.")) == ["b.1", "b.2"]
    assert list(store.values("s", prefix="b")) == ["b", "b.1", "b.2"]
    assert list(store.values("s", "a")) == ["a"]
    assert list(store.values("s", "")) == list(store.values("s"))
    assert store.values("s", "none") == {}


def test_values_come_in_the_order_of_their_names_however_they_lie(undistributed: str) -> None:
    engine = create_engine(undistributed, connect_args=AS_ROWS_LIE)
    with Store(engine) as store:
        for name in "bca":
            store.set_values("app", {name: 1})
        assert list(store.values("app")) == ["a", "b", "c"]
    engine.dispose()


def test_a_scope_of_shared_values_is_not_a_session_to_append_to(store: Store) -> None:
    store.set_values("shared", {"a": 1})
    with pytest.raises(SessionNotFound):
        store.append_message("shared", message())
    with pytest.raises(InvalidKey):
        store.append_message("shared", message(), create=True)


def test_a_scope_that_cannot_be_one_is_refused_without_values_too(store: Store) -> None:
    store.create("k")
    with pytest.raises(InvalidKey):
        store.append_message("k", message(), values={"": {}})
    assert store.info("k").message_count == 0


VALUES: list[Any] = [None, True, 0, 1.0, -(2**70), "", "a\0b", "\ud83d", "é\n", [], {}, {"": [None, {"a": "\0"}]}]


def test_a_value_comes_back_equal(store: Store) -> None:
    store.create("k")
    given = {f"n{n}": value for n, value in enumerate(VALUES)}
    for scope in ("k", "shared"):
        store.set_values(scope, given)
        found = store.values(scope)
        assert found == given
        assert [type(each) for each in found.values()] == [type(given[name]) for name in found]


def test_values_are_dropped_by_name_or_all(store: Store) -> None:
    k = store.open("k")
    k.set_values({"a": 1, "b": 2, "c": 3})
    store.set_values("shared", {"a": 1})
    assert k.drop_values(["a", "a", "x"]) == 1
    assert k.drop_values([]) == 0
    assert k.values() == {"b": 2, "c": 3}
    assert k.drop_values() == 2
    assert (k.values(), store.values("shared")) == ({}, {"a": 1})


# What they are of a session


def test_values_of_a_session_move_its_revision_and_not_its_time(store: Store, clock: Clock) -> None:
    before = store.create("k", ttl=HOUR)
    writes: list[Callable[[], object]] = [
        lambda: store.set_values("k", {"a": 1}),
        lambda: store.conversation("k").set_values({"a": 1, "b": 2}),
        lambda: store.drop_values("k", ["a"]),
        lambda: store.conversation("k").drop_values(),
    ]
    for number, write in enumerate(writes, 1):
        clock.move(minutes=1)
        write()
        found = store.info("k")
        assert found.revision == before.revision + number
        assert (found.updated_at, found.expires_at) == (before.updated_at, before.expires_at)
    store.drop_values("k")
    store.set_values("k", {})
    store.values("k")
    assert store.info("k").revision == before.revision + len(writes)


def test_values_go_with_their_session_and_shared_ones_stay(store: Store, clock: Clock) -> None:
    store.set_values("shared", {"a": 1})
    for key in ("deleted", "expired", "where"):
        store.create(key, ttl=HOUR, values={key: {"own": 1}})
    store.delete("deleted")
    store.delete_where(key_prefix="where")
    clock.move(hours=2)
    store.expire()
    assert [tuple(row) for row in value_names(store)] == [("shared", "a")]
    assert store.create("deleted").last_seq == 0
    assert store.values("deleted") == {}


def test_clearing_and_cutting_a_session_leaves_its_values(store: Store) -> None:
    store.create("k", messages=messages(3), values={"k": {"a": 1}})
    store.truncate("k", after=1)
    store.clear("k")
    assert store.values("k") == {"a": 1}


def test_a_fork_has_the_values_of_its_origin_as_they_are_now(store: Store) -> None:
    k = store.open("k", messages=messages(3))
    k.set_values({"a": 1, "b": None})
    for fork in (k.fork("whole"), k.fork("part", upto=1)):
        assert fork.values() == {"a": 1, "b": None}
        fork.set_values({"a": 2})
    assert k.values() == {"a": 1, "b": None}
    assert_sound(store)


def test_an_archive_keeps_the_values_of_a_session(store: Store, clock: Clock, tmp_path: Path) -> None:
    given = {f"n{n}": value for n, value in enumerate(VALUES)}
    store.create("k", ttl=HOUR, messages=messages(1), values={"k": given, "shared": {"a": 1}})
    clock.move(hours=2)
    store.expire(archive=tmp_path / "cold.db")
    store.set_values("shared", {"a": 2})
    store.restore(tmp_path / "cold.db", "k")
    assert (store.values("k"), store.values("shared")) == (given, {"a": 2})
    store.delete("k")
    assert [tuple(row) for row in value_names(store)] == [("shared", "a")]


def test_the_caller_s_transaction_holds_values_too(store: Store) -> None:
    store.create("k")
    with store.engine.connect() as connection:
        inside = store.using(connection)
        inside.set_values("k", {"a": 1})
        inside.set_values("shared", {"a": 1})
        inside.append_message("k", message(), values={"k": {"b": 2}})
        assert inside.values("k") == {"a": 1, "b": 2}
        connection.rollback()
    assert (store.values("k"), store.values("shared"), store.messages("k")) == ({}, {}, [])


# What is refused


def test_values_of_a_session_that_is_not_there_are_refused(store: Store, clock: Clock) -> None:
    nobody = store.conversation("nobody")
    calls: list[Callable[[], object]] = [
        nobody.values,
        lambda: nobody.set_values({"a": 1}),
        lambda: nobody.set_values({}),
        nobody.drop_values,
        lambda: store.append_message("nobody", message(), values={"nobody": {"a": 1}}),
    ]
    for call in calls:
        with pytest.raises(SessionNotFound) as raised:
            call()
        assert raised.type is SessionNotFound
    store.create("old", ttl=HOUR, values={"old": {"a": 1}})
    before = value_names(store)
    clock.move(hours=2)
    old = store.conversation("old")
    calls = [
        old.values,
        lambda: old.set_values({"a": 2}),
        old.drop_values,
        lambda: store.values("old"),
        lambda: store.set_values("old", {"a": 2}),
        lambda: store.set_values("old", {"b": 2}),
        lambda: store.set_values("old", {}),
        lambda: store.drop_values("old"),
        lambda: store.append_message("old", message(), values={"app": {"a": 1}}),
    ]
    for call in calls:
        with pytest.raises(SessionExpired):
            call()
    assert value_names(store) == before


TEXTS: list[Any] = ["", "a\0", "\ud800", "x" * 513, 1, None, b"bytes"]


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_scope_or_name_that_is_not_like_a_key_is_refused(store: Store, text: Any) -> None:
    store.create("k")
    before = store.get("k")
    calls: list[Callable[[], object]] = [
        lambda: store.set_values(text, {"a": 1}),
        lambda: store.set_values("k", {"a": 1, text: 1}),
        lambda: store.conversation("k").set_values({text: 1}),
        lambda: store.values(text),
        lambda: store.drop_values(text),
        lambda: store.drop_values("k", [text]),
        lambda: store.append_message("k", message(), values={text: {"a": 1}}),
        lambda: store.append_message("k", message(), values={"k": {text: 1}}),
        lambda: store.create("new", values={"new": {text: 1}}),
    ]
    for call in calls:
        with pytest.raises(InvalidKey, match=r"^(scope|name): "):
            call()
    assert (store.get("k"), value_names(store), store.exists("new")) == (before, [], False)


def test_the_longest_scope_and_name_fit_and_longer_ones_are_refused(store: Store) -> None:
    for scope, name in [("\U0001f600" * 512, "x" * 512), ("x" * 512, "\U0001f600" * 512)]:
        store.set_values(scope, {name: 1})
        assert store.values(scope) == {name: 1}
    with pytest.raises(InvalidKey, match="4,096 bytes together"):
        store.set_values("\U0001f600" * 512, {"\U0001f601" * 512: 1})


def test_a_value_that_is_not_json_is_refused_by_its_scope_and_name(store: Store) -> None:
    store.create("k")
    before = store.get("k")
    wrong: list[Any] = [object(), float("nan"), {1: 2}, {"a": (1,)}, b"bytes"]
    for value in wrong:
        given = {"fine": 1, "wrong": value}
        calls: list[Callable[[], object]] = [
            lambda given=given: store.set_values("k", given),  # type: ignore[misc]
            lambda given=given: store.append_message("k", message(), values={"fine": {"a": 1}, "k": given}),  # type: ignore[misc]
            lambda given=given: store.create("new", values={"k": given}),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(InvalidMessage, match=r"^values\['k'\]\['wrong'\]") as raised:
                call()
            assert raised.value.field == "values['k']['wrong']"
    assert (store.get("k"), value_names(store), store.exists("new")) == (before, [], False)


@pytest.mark.parametrize("values", ["text", [], {"k": "text"}, {"k": None}, {"k": [1]}], ids=repr)
def test_values_that_are_no_dict_are_refused(store: Store, values: Any) -> None:
    store.create("k")
    with pytest.raises(TypeError, match=r"^values.* is .*: give a dict"):
        store.append_message("k", message(), values=values)
    assert store.info("k").last_seq == 0


# A scope has one meaning


def test_the_scope_of_another_session_is_refused_and_nothing_is_written(store: Store, clock: Clock) -> None:
    store.create("k")
    store.create("other", ttl=HOUR)
    before = store.get("k")
    for _ in range(2):
        calls: list[Callable[[], object]] = [
            lambda: store.append_message("k", message(), values={"app": {"a": 1}, "other": {"a": 1}}),
            lambda: store.append_messages("k", messages(3), values={"other": {"a": 1}}),
            lambda: store.append_message("k", message(id="i"), values={"other": {"a": 1}}),
            lambda: store.create("new", values={"other": {"a": 1}}),
            lambda: store.append_message("new", message(), create=True, values={"other": {"a": 1}}),
        ]
        for call in calls:
            with pytest.raises(InvalidKey, match="'other' is the key of another session"):
                call()
        clock.move(hours=2)  # expired, and still there
    assert (store.get("k"), value_names(store), store.exists("new")) == (before, [], False)


def test_no_session_is_made_under_the_key_of_a_shared_scope(store: Store, clock: Clock, tmp_path: Path) -> None:
    store.create("k", messages=messages(1))
    store.create("cold", ttl=HOUR)
    clock.move(hours=2)
    store.expire(archive=tmp_path / "cold.db")
    store.set_values("app", {"a": 1})
    store.set_values("cold", {"a": 1})
    calls: list[Callable[[], object]] = [
        lambda: store.create("app"),
        lambda: store.create("app", messages=messages(2)),
        lambda: store.create("app", values={"app": {"b": 1}}),
        lambda: store.open("app"),
        lambda: store.get_or_create("app", messages=messages(1), renew=True),
        lambda: store.append_message("app", message(), create=True),
        lambda: store.append_messages("app", [message(id="i")], create=True),
        lambda: store.conversation("app").save_turn(messages(1), create=True),
        lambda: store.conversation("k").fork("app"),
        lambda: store.restore(tmp_path / "cold.db", "cold"),
    ]
    for call in calls:
        with pytest.raises(InvalidKey, match=r"is a scope of values that sessions share.*drop_values"):
            call()
    assert [info.key for info in store.iter_sessions()] == ["k"]
    assert store.values("app") == {"a": 1}
    store.drop_values("app")
    assert store.create("app").key == "app"
    store.set_values("app", {"mine": 1})
    store.delete("app")
    assert [row.scope for row in value_names(store)] == ["cold"]


def test_a_key_that_a_session_has_is_refused_as_taken(store: Store) -> None:
    store.create("k", values={"k": {"a": 1}})
    with pytest.raises(SessionExists):
        store.create("k", values={"k": {"a": 2}})
    assert store.values("k") == {"a": 1}
