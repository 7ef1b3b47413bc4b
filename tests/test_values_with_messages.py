"""Values that land with messages, with a turn or with a new session: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import Clock, Counts, MakeDatabase, counted, watched
from factories import message, messages
from rows import value_names
from session_checks import assert_sound

from lango_store import Store

HOUR = timedelta(hours=1)


Append = Callable[[Store, dict[str, dict[str, Any]]], object]
APPENDS: dict[str, Append] = {
    "one": lambda store, values: store.append_message("k", message(), values=values),
    "with an id": lambda store, values: store.append_message("k", message(id="i"), values=values),
    "many": lambda store, values: store.append_messages("k", messages(3), values=values),
    "none": lambda store, values: store.append_messages("k", [], values=values),
    "an id twice": lambda store, values: store.append_messages(
        "k", [message("x", id="2"), message("x", id="2")], values=values
    ),
    "replacing": lambda store, values: store.append_messages("k", messages(1), replace_after=0, values=values),
    "or made": lambda store, values: store.append_message("k", message(), create=True, values=values),
    "turn": lambda store, values: store.conversation("k").save_turn(messages(2), {"n": 1}, values=values),
}


@pytest.mark.parametrize("append", APPENDS.values(), ids=list(APPENDS))
def test_values_land_with_messages(store: Store, append: Append) -> None:
    store.create("k", values={"k": {"a": 0, "b": 0}, "app": {"n": 0}})
    append(store, {"k": {"a": None}, "user:ann": {"é": "\0\ud83d"}, "app": {"n": [1]}})
    assert store.values("k") == {"a": None, "b": 0}
    assert (store.values("user:ann"), store.values("app")) == ({"é": "\0\ud83d"}, {"n": [1]})
    store.delete("k")
    assert [row.scope for row in value_names(store)] == ["app", "user:ann"]


MAKERS: dict[str, Append] = {
    "create": lambda store, values: store.create("k", values=values),
    "create with messages": lambda store, values: store.create("k", messages=messages(2), values=values),
    "create with an id twice": lambda store, values: store.create(
        "k", messages=[message("x", id="2"), message("x", id="2")], values=values
    ),
    "append": lambda store, values: store.append_message("k", message(), create=True, values=values),
    "append with ids": lambda store, values: store.append_messages("k", [message(id="i")], create=True, values=values),
    "turn": lambda store, values: store.conversation("k").save_turn(messages(2), create=True, values=values),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_a_session_is_made_with_values(store: Store, make: Append) -> None:
    make(store, {"k": {"a": 1, "b": None}, "app": {"n": 1}})
    assert (store.values("k"), store.values("app")) == ({"a": 1, "b": None}, {"n": 1})
    assert_sound(store)
    store.delete("k")
    assert [row.scope for row in value_names(store)] == ["app"]


def test_an_expired_session_that_is_replaced_has_no_values_of_before(store: Store, clock: Clock) -> None:
    store.create("k", ttl=HOUR, values={"k": {"old": 1}})
    clock.move(hours=2)
    store.append_message("k", message(), create=True, values={"k": {"new": 1}})
    assert store.values("k") == {"new": 1}


def test_an_append_that_is_replayed_sets_nothing_again(store: Store) -> None:
    store.create("k")
    k = store.conversation("k")
    for values in ({"k": {"a": 1}}, {"k": {"a": 2}}):
        store.append_message("k", message("x", id="1"), values=values)
        k.save_turn(messages(1), id="t", values={"s": values["k"]})
    assert (store.values("k"), store.values("s")) == ({"a": 1}, {"a": 1})


WRITES: dict[str, Callable[[Store, dict[str, dict[str, Any]]], object]] = {
    "append": lambda store, values: store.append_message("k", message(), values=values),
    "batch": lambda store, values: store.append_messages("k", messages(20), values=values),
    "turn": lambda store, values: store.conversation("k").save_turn(messages(2), values=values),
    "made": lambda store, values: store.append_message("missing", message(), create=True, values=values),
    "create": lambda store, values: store.create("new", messages=messages(2), values=values),
    "own": lambda store, values: store.set_values("k", {"a": 1}),
    "shared": lambda store, values: store.set_values("app", {"a": 1}),
    "read": lambda store, values: store.values("k"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_values_take_one_statement_and_one_round_trip(one_connection: sa.Engine, tmp_path: Path, write: Append) -> None:
    values: dict[str, dict[str, Any]] = {"app": {"n": 1}, "user:ann": {"a": 1, "b": [2]}}
    with Store(one_connection) as store:
        store.create("k")
        with counted(one_connection, tmp_path) as counts:
            write(store, values)
        assert counts == Counts(1, 1)


def test_on_sqlite_values_are_set_in_the_transaction_of_the_append(make_sqlite: MakeDatabase) -> None:
    with Store(make_sqlite()) as store:
        store.create("k")
        with watched(store.engine) as statements:
            store.append_message("k", message(), values={"k": {"a": 1}, "app": {"b": 1}})
        words = [each.split()[0] for each in statements]
        assert (words[0], words[-1]) == ("BEGIN", "COMMIT")
        assert set(words[1:-1]) == {"SELECT", "UPDATE", "INSERT"}
